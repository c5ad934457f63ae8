"""Credentials of the module. Nothing is sent."""

from azure.identity import ClientSecretCredential, DefaultAzureCredential, EnvironmentCredential

SECRET = ClientSecretCredential("00000000-0000-0000-0000-000000000001", "client", "secret")


def work():
    return [type(SECRET).__name__, DefaultAzureCredential.__name__]


def fail():
    EnvironmentCredential().get_token("http://a/.default")
