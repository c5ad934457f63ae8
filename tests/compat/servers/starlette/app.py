"""A Starlette application with WebSockets, as its documentation writes them."""

from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket

left = []


async def chat(websocket: WebSocket) -> None:
    await websocket.accept(subprotocol="chat" if "chat" in websocket.scope["subprotocols"] else None)
    try:
        async for text in websocket.iter_text():
            await websocket.send_json(
                {"said": text, "to": websocket.path_params["room"], "by": websocket.query_params.get("by")}
            )
    finally:
        left.append(websocket.path_params["room"])


async def refused(websocket: WebSocket) -> None:
    await websocket.send_denial_response(PlainTextResponse("members only", status_code=401))


async def rooms_left(request) -> PlainTextResponse:
    return PlainTextResponse(",".join(left))


async def upload(request) -> PlainTextResponse:
    size = 0
    async for part in request.stream():
        size += len(part)
    return PlainTextResponse(str(size))


app = Starlette(
    routes=[
        WebSocketRoute("/rooms/{room}", chat),
        WebSocketRoute("/refused", refused),
        Route("/left", rooms_left),
        Route("/upload", upload, methods=["POST"]),
    ]
)
