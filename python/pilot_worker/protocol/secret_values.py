"""The function's secrets: the first frame of a worker's channel, if its specification says that there is one (PROTOCOL.md).

They come after the fork. So no template has them, and none that a fork leaves behind.
"""

from __future__ import annotations

import json
import os

from . import wire
from .channel import ChannelClosed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .channel import Channel


def receive(channel: Channel) -> None:
    """Waits for the frame and sets the variables. No message has a value."""
    frame = channel.read()
    if frame is None:
        raise ChannelClosed
    kind, _, meta, _ = frame
    if kind != wire.SECRETS:
        raise wire.ProtocolError("secrets_missing")
    for name, value in json.loads(meta)["environment"].items():
        os.environ[name] = value
