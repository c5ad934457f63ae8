"""A validator of the module."""

import jsonschema

VALIDATOR = jsonschema.Draft202012Validator(
    {"type": "object", "properties": {"a": {"type": "integer", "minimum": 1}}, "required": ["a"]}
)


def work():
    return [VALIDATOR.is_valid({"a": 1}), sorted(error.message for error in VALIDATOR.iter_errors({"a": 0}))]


def fail():
    VALIDATOR.validate({})
