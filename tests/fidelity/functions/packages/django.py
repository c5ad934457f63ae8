"""Settings of the module, a template, and a database in memory."""

import django
from django.conf import settings
from django.core.validators import validate_email
from django.db import connection
from django.template import Context, Template
from django.utils.crypto import get_random_string

DATABASE = {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}
TEMPLATES = [{"BACKEND": "django.template.backends.django.DjangoTemplates"}]
settings.configure(DATABASES={"default": DATABASE}, TEMPLATES=TEMPLATES, SECRET_KEY="secret")
django.setup()
PAGE = Template("{% for one in many %}{{ one|upper }}{% endfor %}")


def work():
    with connection.cursor() as cursor:
        cursor.execute("select 1 + 1")
        return [cursor.fetchone()[0], PAGE.render(Context({"many": ["a", "<b>"]}))]


def random():
    return get_random_string(20)


def fail():
    validate_email("no address")
