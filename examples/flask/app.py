"""An ordinary Flask application. Nothing in it knows of Pilotlight: `flask run` serves it as well.

Behind Pilotlight it lies under `/fn/flask/`. Workers share nothing: what must last between requests is in the
session cookie, as it would be with any number of servers.
"""

import hashlib
import os

from flask import Flask, abort, jsonify, make_response, request, session, url_for

app = Flask(__name__)
app.secret_key = os.environ.get("SECRET_KEY", "change-me")
app.config["MAX_CONTENT_LENGTH"] = 4 << 20


@app.get("/")
def index():
    return jsonify(application="flask", upload=url_for("upload"))


@app.post("/upload")
def upload():
    """Takes files of a form and says what they are."""
    if not request.files:
        abort(400, "send at least one file: curl -F photo=@astronaut.jpg …")
    return jsonify(
        {
            field: {
                "filename": file.filename,
                "content_type": file.mimetype,
                "sha256": hashlib.sha256(content := file.read()).hexdigest(),
                "bytes": len(content),
            }
            for field, file in request.files.items()
        }
    )


@app.post("/echo")
def echo():
    """Gives the body back as it came, byte for byte."""
    response = make_response(request.get_data())
    response.headers["content-type"] = request.headers.get("content-type", "application/octet-stream")
    return response


@app.get("/visits")
def visits():
    """Counts in a signed session cookie, and sets a second, plain one."""
    session["visits"] = session.get("visits", 0) + 1
    response = jsonify(visits=session["visits"])
    response.set_cookie("last", "visit", httponly=True, samesite="Lax")
    return response


@app.get("/numbers")
def numbers():
    """A response that is made while it is sent."""
    return app.response_class((f"{number}\n" for number in range(1, 6)), mimetype="text/plain")
