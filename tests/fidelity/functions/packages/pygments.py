"""Program text in colours."""

from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import PythonLexer, get_lexer_by_name, guess_lexer

LEXER = PythonLexer()


def work():
    return [highlight("def f(): return 1", LEXER, HtmlFormatter()), guess_lexer("#!/usr/bin/python").name]


def fail():
    get_lexer_by_name("no such language")
