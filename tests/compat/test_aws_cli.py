"""The aws CLI with only `--endpoint-url`."""

from __future__ import annotations

import base64
import json


def test_invoke_writes_the_answer_to_a_file(aws, tmp_path):
    done = aws("lambda", "invoke", "--function-name", "echo", "--payload", '{"k": "v"}', "answer.json")
    assert json.loads((tmp_path / "answer.json").read_text()) == {"k": "v"}
    said = json.loads(done.stdout)
    assert said["StatusCode"] == 200
    assert said["ExecutedVersion"] == "1"


def test_invoke_with_a_payload_from_a_file(aws, tmp_path):
    (tmp_path / "event.json").write_text(json.dumps({"blob": "x" * 200_000}))
    aws("lambda", "invoke", "--function-name", "echo", "--payload", "file://event.json", "answer.json")
    assert json.loads((tmp_path / "answer.json").read_text())["blob"] == "x" * 200_000


def test_invoke_with_the_logs_tail(aws):
    done = aws("lambda", "invoke", "--function-name", "tell", "--log-type", "Tail", "--payload", "{}", "answer.json")
    log = base64.b64decode(json.loads(done.stdout)["LogResult"]).decode()
    assert "a line of output" in log
    assert "REPORT RequestId" in log


def test_invoke_with_a_client_context(aws, tmp_path):
    context = base64.b64encode(b'{"custom": {"k": "v"}}').decode()
    aws("lambda", "invoke", "--function-name", "tell", "--client-context", context, "--payload", "{}", "answer.json")
    assert json.loads((tmp_path / "answer.json").read_text())["custom"] == {"k": "v"}


def test_a_dry_run(aws):
    done = aws("lambda", "invoke", "--function-name", "echo", "--invocation-type", "DryRun", "answer.json")
    assert json.loads(done.stdout)["StatusCode"] == 204


def test_a_qualifier(aws):
    done = aws("lambda", "invoke", "--function-name", "echo", "--qualifier", "1", "--payload", "{}", "answer.json")
    assert json.loads(done.stdout)["ExecutedVersion"] == "1"


def test_a_function_error(aws, tmp_path):
    done = aws("lambda", "invoke", "--function-name", "fail", "--payload", '{"article": "plums"}', "answer.json")
    assert json.loads(done.stdout)["FunctionError"] == "Unhandled"
    assert json.loads((tmp_path / "answer.json").read_text())["errorMessage"] == "no plums left"


def test_an_unknown_function(aws):
    done = aws("lambda", "invoke", "--function-name", "nobody", "answer.json", check=False)
    assert done.returncode in (254, 255)
    assert "(ResourceNotFoundException)" in done.stderr


def test_a_payload_that_is_not_json(aws):
    done = aws("lambda", "invoke", "--function-name", "echo", "--payload", "{", "answer.json", check=False)
    assert done.returncode in (254, 255)
    assert "(InvalidRequestContentException)" in done.stderr
