"""Answers at once."""


def handler(event):
    return {"measurement": {}}
