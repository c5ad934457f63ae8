"""Statements and values. There is no server."""

import psycopg
from psycopg import sql
from psycopg.types.json import Jsonb

QUERY = sql.SQL("select {} from {}").format(sql.Identifier("a"), sql.Identifier("b"))


def work():
    return [QUERY.as_string(None), psycopg.pq.__impl__, sql.Literal([1, 2]).as_string(None), Jsonb({"a": 1}).obj]


def fail():
    psycopg.connect("host=127.0.0.1 port=9 connect_timeout=2")
