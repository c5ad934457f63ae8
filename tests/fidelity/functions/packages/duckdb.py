"""A database in memory, opened at import."""

import duckdb

DATABASE = duckdb.connect()
DATABASE.execute("create table t as select range as n from range(1000)")


def work():
    DATABASE.execute("insert into t values (5000)")
    return [DATABASE.execute("select sum(n), count(*) from t").fetchone(), duckdb.sql("select 6 * 7").fetchall()]


def random():
    return DATABASE.execute("select uuid(), random()").fetchone()[1]


def fail():
    DATABASE.execute("select * from missing")
