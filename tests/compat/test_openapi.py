"""The OpenAPI document of the control API, judged by a validator of the OpenAPI specification."""

import json

import pytest
from openapi_spec_validator import validate
from openapi_spec_validator.validation.exceptions import OpenAPIValidationError


@pytest.fixture(scope="module")
def document(daemon):
    return json.load(daemon.request("GET", "/_pilot/v1/openapi.json"))


def test_the_openapi_document_is_valid(document):
    validate(document)


def test_the_validator_refuses_what_was_wrong(document):
    logs = document["paths"]["/_pilot/v1/functions/{name}/logs"]["get"]
    for parameter in logs["parameters"]:
        parameter.update({"in": "path", "required": False})
    with pytest.raises(OpenAPIValidationError):
        validate(document)
