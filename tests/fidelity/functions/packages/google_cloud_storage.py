"""A client of the module without credentials. Nothing is sent."""

from google.auth.credentials import AnonymousCredentials
from google.cloud import storage

CLIENT = storage.Client(project="p", credentials=AnonymousCredentials())
BUCKET = CLIENT.bucket("bucket")


def work():
    blob = BUCKET.blob("a/ü.txt")
    return [blob.public_url, blob.path, BUCKET.path, CLIENT.project]


def fail():
    BUCKET.blob("a").generate_signed_url(expiration=60)
