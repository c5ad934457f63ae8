"""A client of the module with a transport that answers itself."""

import anthropic
import httpx2

TEXT = {"type": "text", "text": "hello"}
ANSWER = {"id": "1", "type": "message", "role": "assistant", "model": "m", "content": [TEXT], "stop_reason": "end_turn"}


def answer(request):
    if b"refuse" in request.content:
        return httpx2.Response(400, json={"type": "error", "error": {"type": "invalid_request_error", "message": "refused"}})
    return httpx2.Response(200, json={**ANSWER, "usage": {"input_tokens": 1, "output_tokens": 2}})


CLIENT = anthropic.Anthropic(
    api_key="k", base_url="http://a", max_retries=0, http_client=httpx2.Client(transport=httpx2.MockTransport(answer))
)


def said(text):
    return CLIENT.messages.create(model="m", max_tokens=5, messages=[{"role": "user", "content": text}])


def work():
    return said("hi").content[0].text


def fail():
    said("refuse")
