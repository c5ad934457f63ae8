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


def test_bodies_that_are_no_json_are_bytes(document):
    bodies = [
        (path, kind, content["schema"])
        for path, methods in document["paths"].items()
        for method in methods.values()
        for kind, content in method.get("requestBody", {}).get("content", {}).items()
        if kind in ("application/octet-stream", "application/gzip")
    ]
    assert len(bodies) == 2, bodies
    for path, kind, schema in bodies:
        name = schema["$ref"].rpartition("/")[2]
        schema = document["components"]["schemas"][name]
        assert (schema["type"], schema["format"]) == ("string", "binary"), (path, kind)


def test_what_a_path_cannot_name_is_a_documented_400(daemon, document):
    for method, path in (
        ("GET", "/functions/{name}"),
        ("DELETE", "/functions/{name}"),
        ("GET", "/async/{id}"),
        ("DELETE", "/async/{id}"),
        ("DELETE", "/secrets/{secret}"),
        ("DELETE", "/tokens/{token}"),
    ):
        path = f"/_pilot/v1{path}"
        assert "400" in document["paths"][path][method.lower()]["responses"], (method, path)
        response = daemon.request(method, f"{path[: path.index('{')]}%ff")
        assert response.status == 400, (method, path)
