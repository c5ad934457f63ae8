"""__NAME__: a Flask application. Nothing in it knows of Pilotlight: `flask run` serves it as well."""

from flask import Flask

app = Flask(__name__)


@app.get("/")
def index():
    return {"message": "Hello from __NAME__"}


@app.get("/hello/<name>")
def hello(name):
    return {"message": f"Hello, {name}!"}
