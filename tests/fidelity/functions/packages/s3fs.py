"""A file system of the module. Its event loop runs in a thread, which it starts. Nothing is sent."""

import s3fs

BUCKETS = s3fs.S3FileSystem(key="a", secret="b", client_kwargs={"region_name": "eu-west-1"}, skip_instance_cache=True)


def work():
    return [BUCKETS.split_path("s3://bucket/key/more"), BUCKETS.sign("bucket/key").partition("?")[0]]


def fail():
    BUCKETS.split_path("s3://")
    BUCKETS.open("bucket/key", "x+")
