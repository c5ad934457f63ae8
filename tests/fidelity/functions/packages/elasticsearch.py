"""A client of the module. Nothing is sent."""

from elasticsearch import Elasticsearch, helpers

CLIENT = Elasticsearch("http://127.0.0.1:9", max_retries=0, request_timeout=1)


def work():
    chunks = helpers.expand_action({"_index": "a", "_id": 1, "x": 2})
    return [chunks, CLIENT.transport.node_pool.get().base_url]


def fail():
    CLIENT.search(index="a", query={"match_all": {}})
