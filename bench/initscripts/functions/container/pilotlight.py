"""In containers, in place of the module that Pilotlight's own workers have: what the initscript has sent, by the paths in the headers."""

import mmap


class Init:
    class NoMessage(LookupError):  # noqa: N818 - as elsewhere.
        """The script has not sent it."""

    def __init__(self):
        self.paths = {}
        self.keys = {}

    def recv_msg(self, message):
        """A message, mapped."""
        if message not in self.paths:
            raise self.NoMessage(message)
        with open(self.paths[message], "rb") as file:
            return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))

    def object(self, key):
        """What the script has fetched for a key of the event."""
        if key not in self.keys:
            raise self.NoMessage(key)
        return self.recv_msg(self.keys[key])


init = Init()
