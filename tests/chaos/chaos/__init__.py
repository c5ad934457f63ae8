"""Faults under load, and an oracle. See ../README.md."""
