"""What the daemon says about an answer."""

from __future__ import annotations


def timing(header: str) -> dict[str, dict[str, float]]:
    """`Server-Timing`: the numbers of each entry."""
    entries = {}
    for entry in header.split(", "):
        name, *parts = entry.split(";")
        pairs = [part.split("=", 1) for part in parts]
        entries[name] = {key: float(value) for key, value in pairs if key != "desc"}
    return entries
