"""Values and errors. There is no server."""

import pymysql
from pymysql.converters import escape_item

CONNECTION = pymysql.connect(host="127.0.0.1", port=9, defer_connect=True)


def work():
    return [escape_item("a'b", "utf8mb4"), CONNECTION.escape([1, None]), pymysql.install_as_MySQLdb(), CONNECTION.open]


def fail():
    CONNECTION.connect()
