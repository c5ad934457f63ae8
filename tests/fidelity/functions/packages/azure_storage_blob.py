"""A client of the module and a signature. Nothing is sent."""

from datetime import datetime, timezone

from azure.core.exceptions import ResourceNotFoundError
from azure.storage.blob import BlobServiceClient, generate_blob_sas

SERVICE = BlobServiceClient("http://127.0.0.1:9/own", credential="a2V5")


def work():
    expiry = datetime(2030, 1, 1, tzinfo=timezone.utc)
    signed = generate_blob_sas("own", "c", "b", account_key="a2V5", permission="r", expiry=expiry)
    return [SERVICE.get_blob_client("c", "b").url, sorted(part.partition("=")[0] for part in signed.split("&"))]


def fail():
    raise ResourceNotFoundError("there is no such blob")
