import calls
import psycopg2

connection = psycopg2.connect(**calls.POSTGRES, dbname="postgres")
connection.autocommit = True


def ask(token):
    with connection.cursor() as cursor:
        cursor.execute(calls.QUERY.format(token))
        return cursor.fetchone()


handler = calls.handler_of(ask)
