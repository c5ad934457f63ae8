"""A page from a template (SeBS 110). It reads nothing and writes nothing."""

import random

from clock import Clock
from jinja2 import Template

PAGE = """<!DOCTYPE html><html><body><p>Welcome {{username}}!</p><ul>
{% for number in numbers %}<li>{{number}}</li>{% endfor %}</ul></body></html>"""


def handler(event):
    clock = Clock()
    numbers = random.sample(range(1_000_000), event["random_len"])
    page = Template(PAGE).render(username=event["username"], numbers=numbers)
    return {"result": len(page), "measurement": {"compute_time": clock.lap()}}
