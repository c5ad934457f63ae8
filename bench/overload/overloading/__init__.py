"""Offers more requests than can be served, and measures what is served. See README.md."""
