"""An application of the module, called with its client for tests."""

from flask import Flask, jsonify, render_template_string, request, session
from itsdangerous import URLSafeSerializer

APPLICATION = Flask(__name__)
APPLICATION.secret_key = "secret"


@APPLICATION.get("/a")
def page():
    session["name"] = request.args["name"]
    return jsonify(name=session["name"], text=render_template_string("{{ 1 + 1 }}"))


def work():
    found = APPLICATION.test_client().get("/a?name=b")
    return [found.status_code, found.json, URLSafeSerializer("secret").dumps([1])]


def fail():
    URLSafeSerializer("secret").loads("WzFd.wrong")
