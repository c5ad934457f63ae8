"""A client of the module with a transport that answers itself."""

import httpx2
import openai

ANSWER = {"id": "1", "object": "list", "data": [{"id": "m", "object": "model", "created": 1, "owned_by": "o"}]}


def answer(request):
    if request.url.path == "/models":
        return httpx2.Response(200, json=ANSWER)
    return httpx2.Response(401, json={"error": {"message": "wrong key"}})


CLIENT = openai.OpenAI(
    api_key="k", base_url="http://a", max_retries=0, http_client=httpx2.Client(transport=httpx2.MockTransport(answer))
)


def work():
    return [one.id for one in CLIENT.models.list()]


def fail():
    CLIENT.models.retrieve("m")
