"""Names of domains."""

import idna


def work():
    return [idna.encode("größe.example").decode(), idna.decode("xn--gre-6ka8i.example")]


def fail():
    idna.encode("a" * 70 + ".example")
