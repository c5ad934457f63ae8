"""Escaping."""

from markupsafe import Markup, escape


def work():
    return [escape("<a & 'b'>"), Markup("<b>%s</b>") % "<i>", Markup("&lt;a&gt;").unescape()]


def fail():
    Markup("%d") % "x"
