"""A document with extensions."""

import markdown

CONVERTER = markdown.Markdown(extensions=["tables", "fenced_code"])


def work():
    return CONVERTER.reset().convert("# A\n\n|x|y|\n|-|-|\n|1|2|\n\n```\ncode\n```\n")


def fail():
    markdown.markdown("a", extensions=["no_such_extension"])
