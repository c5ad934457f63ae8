"""A parser and a transformation of the module."""

from lxml import etree, html

PARSER = etree.XMLParser(resolve_entities=False)
SHEET = '<x:stylesheet version="1.0" xmlns:x="http://www.w3.org/1999/XSL/Transform"><x:template match="/">{}</x:template></x:stylesheet>'
TO_TEXT = etree.XSLT(etree.XML(SHEET.format('<x:value-of select="//b"/>')))


def work():
    tree = etree.fromstring(b"<a><b>1</b><b>2</b></a>", PARSER)
    return [tree.xpath("//b/text()"), str(TO_TEXT(tree)), html.fromstring("<p>a<br>b").text_content()]


def fail():
    etree.fromstring(b"<a><b></a>", PARSER)
