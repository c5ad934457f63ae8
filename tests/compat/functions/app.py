"""The functions that the clients invoke."""

import os
import sys
import time


def echo(event, context):
    return event


def tell(event, context):
    print("a line of output")
    print("a line of errors", file=sys.stderr)
    client = context.client_context
    return {
        "name": context.function_name,
        "version": context.function_version,
        "arn": context.invoked_function_arn,
        "request_id": context.aws_request_id,
        "memory": context.memory_limit_in_mb,
        "custom": client.custom if client else None,
        "title": client.client.app_title if client and client.client else None,
        "variable": os.environ["AWS_LAMBDA_FUNCTION_NAME"],
    }


class OutOfStock(Exception):
    pass


def fail(event, context):
    raise OutOfStock(f"no {event['article']} left")


def slow(event, context):
    time.sleep(30)


def nap(event, context):
    time.sleep(event)
    return "rested"
