"""A template of the module, and one in a sandbox."""

from jinja2 import DictLoader, Environment
from jinja2.sandbox import SandboxedEnvironment

PAGES = Environment(loader=DictLoader({"page": "{% for one in many %}<li>{{ one }}</li>{% endfor %}"}), autoescape=True)
PAGE = PAGES.get_template("page")


def work():
    return [PAGE.render(many=["a", "<b>"]), SandboxedEnvironment().from_string("{{ 6 * 7 }}").render()]


def fail():
    PAGES.from_string("{% for %}")
