import calls
import psycopg

connection = psycopg.connect(**calls.POSTGRES, dbname="postgres", autocommit=True)


def ask(token):
    return connection.execute(calls.QUERY.format(token)).fetchone()


handler = calls.handler_of(ask)
