"""__NAME__: a Flask application. It does not depend on Pilotlight: `flask run` serves it, too."""

from flask import Flask

app = Flask(__name__)


@app.get("/")
def index():
    return {"message": "Hello from __NAME__"}


@app.get("/hello/<name>")
def hello(name):
    return {"message": f"Hello, {name}!"}
