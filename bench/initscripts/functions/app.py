"""What SeBS puts around a function for AWS Lambda."""

import function


def handler(event, context):
    return function.handler(event)
