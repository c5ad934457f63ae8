"""The encoding of a text."""

from charset_normalizer import from_bytes, from_path

TEXT = "Größe, Öl und Äpfel, für alle. " * 5


def work():
    found = from_bytes(TEXT.encode("utf-8")).best()
    return [found.encoding, str(found)[:10], found.language]


def fail():
    from_path("/missing.txt")
