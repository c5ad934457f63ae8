"""A client of the module. Nothing listens on the port."""

from opensearchpy import OpenSearch, Q, Search

CLIENT = OpenSearch([{"host": "127.0.0.1", "port": 9}], max_retries=0, timeout=1)


def work():
    search = Search(using=CLIENT, index="a").query(Q("match", title="b") & ~Q("term", c=1)).sort("-d")
    return [search.to_dict(), CLIENT.transport.get_connection().host]


def fail():
    CLIENT.get(index="a", id="")
