import calls
import psycopg2
from snapshot_restore_py import register_after_restore

connection = None


@register_after_restore
def connect():
    global connection
    connection = psycopg2.connect(**calls.POSTGRES, dbname="postgres")
    connection.autocommit = True


connect()


def ask(token):
    with connection.cursor() as cursor:
        cursor.execute(calls.QUERY.format(token))
        return cursor.fetchone()


handler = calls.handler_of(ask)
