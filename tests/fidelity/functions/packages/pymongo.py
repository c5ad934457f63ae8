"""Documents, and a client of the module, which watches its server from threads."""

import bson
import pymongo
from bson import json_util

CLIENT = pymongo.MongoClient("mongodb://127.0.0.1:9", serverSelectionTimeoutMS=200)


def work():
    document = bson.decode(bson.encode({"a": [1, 2.5, None], "b": b"x"}))
    return [json_util.dumps(document), CLIENT["own"]["rows"].full_name, bson.has_c()]


def random():
    return str(bson.ObjectId())[8:]


def fail():
    bson.encode({"a": object})
