"""The sockets to the daemon: frames, messages with descriptors, and the loops that serve them (PROTOCOL.md)."""
