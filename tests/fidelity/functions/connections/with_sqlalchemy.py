import calls
import sqlalchemy

url = sqlalchemy.URL.create(
    "postgresql+psycopg2",
    calls.POSTGRES["user"],
    calls.POSTGRES["password"],
    calls.POSTGRES["host"],
    calls.POSTGRES["port"],
    "postgres",
)
engine = sqlalchemy.create_engine(url, pool_pre_ping=True)


def ask(token):
    with engine.connect() as connection:
        return tuple(connection.execute(sqlalchemy.text(calls.QUERY.format(token))).one())


handler = calls.handler_of(ask)
