"""A signed URL of a client in an event loop. Nothing is sent."""

import asyncio

from aiobotocore.session import get_session

SESSION = get_session()
KEYS = {"region_name": "eu-west-1", "aws_access_key_id": "a", "aws_secret_access_key": "b"}


async def signed():
    async with SESSION.create_client("s3", **KEYS) as client:
        url = await client.generate_presigned_url("get_object", {"Bucket": "bucket", "Key": "key"})
        return [url.partition("?")[0], client.meta.region_name]


async def refused():
    async with SESSION.create_client("s3", **KEYS) as client:
        await client.put_object(Bucket="bucket")


def work():
    return asyncio.run(signed())


def fail():
    asyncio.run(refused())
