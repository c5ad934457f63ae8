"""Functions that read with boto3 and redis-py, as on Lambda, and know nothing of inputs."""

import asyncio
import hashlib
import io
import os
import tempfile

import boto3
import redis
import redis.asyncio

s3 = boto3.client("s3")
cache = redis.Redis(
    host="localhost",
    port=int(os.environ["REDIS_PORT"]),
    ssl=True,
    ssl_ca_certs=os.environ["LAMBDA_TASK_ROOT"] + "/ca.pem",
    password=os.environ["REDIS_PASSWORD"],
)


def told(response):
    """Where the answer is from, and what it is."""
    body = response["Body"].read() if "Body" in response else b""
    headers = response["ResponseMetadata"]["HTTPHeaders"]
    known = ("ContentLength", "ContentType", "ETag", "ContentRange", "Metadata", "AcceptRanges")
    return {
        "input": headers.get("x-pilot-input"),
        "status": response["ResponseMetadata"]["HTTPStatusCode"],
        "body": hashlib.sha256(body).hexdigest(),
        "modified": response["LastModified"].isoformat(),
        **{key: response[key] for key in known if key in response},
    }


def objects(event, context):
    """Reads an object in the way that the event names."""
    key, how = event["key"], event["how"]
    place = {"Bucket": "photos", "Key": key}
    if how == "get":
        return told(s3.get_object(**place, **event.get("more", {})))
    if how == "head":
        return told(s3.head_object(**place))
    if how == "resource":
        return told(boto3.resource("s3").Object("photos", key).get())
    if how == "download_file":
        with tempfile.TemporaryDirectory() as folder:
            s3.download_file("photos", key, folder + "/it")
            with open(folder + "/it", "rb") as file:
                return {"body": hashlib.sha256(file.read()).hexdigest()}
    if how == "download_fileobj":
        file = io.BytesIO()
        s3.download_fileobj("photos", key, file)
        return {"body": hashlib.sha256(file.getvalue()).hexdigest()}
    if how == "stream":
        body = s3.get_object(**place)["Body"]
        pieces = [body.read(3), *body.iter_chunks(4)]
        return [piece.decode() for piece in pieces]
    if how == "write":
        before = told(s3.get_object(**place))
        s3.put_object(**place, Body=b"written by the function")
        after = told(s3.get_object(**place))
        return [before["input"], after["input"], after["body"]]
    if how == "failed":
        try:
            return told(s3.get_object(**place))
        except s3.exceptions.NoSuchKey as error:
            return error.response["Error"]["Code"]
    raise ValueError(how)


def hold(event):
    """Waits until the test lets it go on, if it wants that."""
    if event.get("hold"):
        cache.rpush("clients:begun", "1")
        cache.blpop("clients:go", 60)


def beside(event, context):
    """Reads an object while another invocation runs in this worker."""
    hold(event)
    return told(s3.get_object(Bucket="photos", Key=event["read"]))


def count(event, context):
    """Adds one, which is safe with one worker."""
    hold(event)
    count = int(cache.get(event["key"])) + 1
    cache.set(event["key"], count)
    return count


def values(event, context):
    """Reads a value in the way that the event names."""
    key, how = event["key"], event["how"]
    if how == "get":
        return cache.get(key).decode()
    if how == "text":
        arguments = {**cache.connection_pool.connection_kwargs, "decode_responses": True}
        arguments.pop("connection_class", None)
        text = redis.Redis(connection_pool=redis.ConnectionPool(redis.SSLConnection, **arguments)).get(key)
        return [type(text).__name__, text]
    if how == "asyncio":

        async def get():
            pool = redis.asyncio.ConnectionPool(redis.asyncio.SSLConnection, **asynchronous)
            async with redis.asyncio.Redis(connection_pool=pool) as client:
                return (await client.get(key)).decode()

        names = ("host", "port", "password", "ssl_ca_certs")
        asynchronous = {name: cache.connection_pool.connection_kwargs[name] for name in names}
        return asyncio.run(get())
    if how == "write":
        before = cache.get(key).decode()
        cache.append(key, "!")
        return [before, cache.get(key).decode()]
    if how == "pipeline":
        with cache.pipeline() as pipeline:
            return [cache.get(key).decode(), *(value.decode() for value in pipeline.get(key).execute())]
    raise ValueError(how)
