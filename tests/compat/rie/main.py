"""The functions of the tests of AWS's Runtime Interface Emulator."""

import os
import time


def variable(event, context):
    return os.environ["MyEnv"]


def succeed(event, context):
    print("a line of output")
    return "succeeded"


def arn(event, context):
    return context.invoked_function_arn


def name(event, context):
    return [os.environ["AWS_LAMBDA_FUNCTION_NAME"], context.function_name]


def sleep(event, context):
    time.sleep(20)


def fail(event, context):
    raise Exception("raised on purpose")


def remaining(event, context):
    time.sleep(0.2)
    return context.get_remaining_time_in_millis()


def endpoint(event, context):
    return os.environ["AWS_LAMBDA_RUNTIME_API"]


def client_context(event, context):
    return context.client_context.custom
