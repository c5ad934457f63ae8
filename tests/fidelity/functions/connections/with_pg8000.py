import calls
import pg8000.native

connection = pg8000.native.Connection(**calls.POSTGRES, database="postgres")


def ask(token):
    return connection.run(calls.QUERY.format(token))[0]


handler = calls.handler_of(ask)
