"""A function that invokes others with boto3, as on Lambda, and knows nothing of Pilotlight."""

import json

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

functions = boto3.client("lambda", config=Config(retries={"total_max_attempts": 1}, connect_timeout=2))


def handler(event, context):
    try:
        answer = functions.invoke(**event)
    except ClientError as error:
        status = error.response["ResponseMetadata"]["HTTPStatusCode"]
        return [type(error).__name__, status, error.response["Error"]["Message"]]
    except BotoCoreError as error:
        return [type(error).__name__]
    return {
        "status": answer["StatusCode"],
        "error": answer.get("FunctionError"),
        "version": answer["ExecutedVersion"],
        "payload": json.loads(answer["Payload"].read()),
    }
