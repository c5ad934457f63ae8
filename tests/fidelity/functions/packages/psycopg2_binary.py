"""Statements and values. There is no server."""

import psycopg2
from psycopg2 import extensions, extras, sql

ROW = extras.NamedTupleCursor


def work():
    adapted = extensions.adapt(["a'b", 1, None]).getquoted().decode()
    parsed = extensions.parse_dsn("host=a port=1 dbname='b c'")
    return [adapted, parsed, sql.Identifier("a").strings, psycopg2.Binary(b"a").getquoted().decode(), ROW.__name__]


def fail():
    psycopg2.connect("host=127.0.0.1 port=9 connect_timeout=2")
