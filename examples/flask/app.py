"""An ordinary Flask application. It contains nothing specific to Pilotlight; `flask run` serves it too.

With Pilotlight, its path is `/fn/flask/`. Workers share no memory. State that must last between requests is in the session
cookie, as with several servers.
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
    """Describes the uploaded files of a form."""
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
    """Returns the body unchanged."""
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
    """A response that is created while it is sent."""
    return app.response_class((f"{number}\n" for number in range(1, 6)), mimetype="text/plain")
