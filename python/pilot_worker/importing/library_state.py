"""What modules of Python keep for the whole process, beyond what `process_state.py` asks the interpreter itself.

Only modules that are loaded are looked at, and nothing is imported. A package may be the first to load such a module. Therefore
a module that is not loaded counts as one that nobody has changed.
"""

from __future__ import annotations

import contextvars
import os
import sys
from types import FunctionType

from . import setters

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, Iterator, List, Optional, Tuple

_JSON = ("dump", "dumps", "load", "loads", "JSONEncoder", "JSONDecoder", "_default_encoder", "_default_decoder")
_JSON_METHODS = {
    "JSONEncoder": ("__init__", "default", "encode", "iterencode"),
    "JSONDecoder": ("__init__", "decode", "raw_decode"),
}
_JSON_ENCODER = ("c_make_encoder", "encode_basestring", "encode_basestring_ascii")
# Those that xml.etree.ElementTree has from the beginning.
_PREFIXES = {
    "http://www.w3.org/XML/1998/namespace": "xml",
    "http://www.w3.org/1999/xhtml": "html",
    "http://www.w3.org/1999/02/22-rdf-syntax-ns#": "rdf",
    "http://schemas.xmlsoap.org/wsdl/": "wsdl",
    "http://www.w3.org/2001/XMLSchema": "xs",
    "http://www.w3.org/2001/XMLSchema-instance": "xsi",
    "http://purl.org/dc/elements/1.1/": "dc",
}
_CSV_FIELD_LEN_MAX = 131_072
_DECIMAL = (
    "Context(prec=28, rounding=ROUND_HALF_EVEN, Emin=-999999, Emax=999999, capitals=1, clamp=0",
    "[InvalidOperation, DivisionByZero, Overflow])",
)


class _Cache:
    mime_types: Optional[Tuple[Dict[str, str], ...]] = None  # what Python itself puts into the tables


def found() -> Iterator[Tuple[str, Any]]:
    """What there is, by the words of the report."""
    yield "how json writes and reads", _json()
    yield "how sqlite3 stores and reads values", _sqlite3()
    yield "the prefixes of XML namespaces", _xml_prefixes()
    yield "the types of files", _mime_types()
    yield "the contexts of decimal", _decimal()
    yield "csv.field_size_limit", _answer_of("_csv", "field_size_limit", _CSV_FIELD_LEN_MAX)
    yield "the timeout of new sockets", _answer_of("_socket", "getdefaulttimeout", None)
    yield "how HTTPS checks servers", _https_context()
    yield "the start method of multiprocessing", _start_method()


def _answer_of(module: str, function: str, usual: Any) -> Any:
    ask = getattr(sys.modules.get(module), function, None)
    return usual if ask is None else ask()


def _json() -> Tuple[Any, ...]:
    """The worker has loaded it before all packages."""
    module, encoder = sys.modules.get("json"), sys.modules.get("json.encoder")
    values: List[Any] = [getattr(module, name, None) for name in _JSON]
    for name, methods in _JSON_METHODS.items():
        kind = getattr(module, name, None)
        own = vars(kind) if isinstance(kind, type) else {}
        values += [own.get(method) for method in methods]
    return (*values, *(getattr(encoder, name, None) for name in _JSON_ENCODER))


def _sqlite3() -> Tuple[Any, ...]:
    """Of types of Python, and of columns, but for those that sqlite3 itself adds."""
    module, values = sys.modules.get("_sqlite3"), []
    for key, way in list(getattr(module, "adapters", {}).items()):
        if setters.is_standard(key[0]) and not _is_of_sqlite3(way):
            values += [key[0], way]
    for name, way in list(getattr(module, "converters", {}).items()):
        if not _is_of_sqlite3(way):
            values += [name, way]
    return tuple(values)


def _is_of_sqlite3(way: object) -> bool:
    return type(way) is FunctionType and way.__module__ == "sqlite3.dbapi2"


def _xml_prefixes() -> Tuple[str, ...]:
    prefixes = getattr(sys.modules.get("xml.etree.ElementTree"), "_namespace_map", {})
    return tuple(text for pair in list(prefixes.items()) if _PREFIXES.get(pair[0]) != pair[1] for text in pair)


def _mime_types() -> Tuple[Tuple[str, str], ...]:
    """Those that Python and the machine's files do not have. The tables are made when somebody asks for the first time."""
    tables = getattr(sys.modules.get("mimetypes"), "_db", None)
    if tables is None:
        return ()
    try:
        if _Cache.mime_types is None:
            _Cache.mime_types = _tables_of(_usual_mime_types())
        return tuple(
            pair
            for now, usual in zip(_tables_of(tables), _Cache.mime_types)
            if now != usual
            for pair in list(now.items())
            if usual.get(pair[0]) != pair[1]
        )
    except Exception:  # a file of the machine that cannot be read, or tables that are a package's own
        return ()


def _usual_mime_types() -> Any:
    """As `mimetypes.init` makes them. Its `read` would take 8 ms for Debian's file, and this takes 1 ms."""
    mimetypes = sys.modules["mimetypes"]
    tables = mimetypes.MimeTypes()
    known = tables.types_map[True]
    for file in filter(os.path.isfile, mimetypes.knownfiles):
        with open(file, encoding="utf-8") as lines:
            for line in lines:
                kind, *suffixes = line.partition("#")[0].split() or ("",)
                for suffix in suffixes:
                    known["." + suffix] = kind
    return tables


def _tables_of(tables: Any) -> Tuple[Dict[str, str], ...]:
    return (*tables.types_map, tables.encodings_map, tables.suffix_map)


def _decimal() -> Tuple[Tuple[str, str], Tuple[str, str]]:
    """That of new threads, and that of this thread.

    decimal is not asked for the latter. It would make one, which would not follow a default that is set later."""
    module: Any = sys.modules.get("_decimal")
    if module is None:
        return _DECIMAL, _DECIMAL
    usual = of_thread = _without_flags(module.DefaultContext)
    for variable, value in contextvars.copy_context().items():
        if variable.name == "decimal_context" and type(value) is module.Context:
            of_thread = _without_flags(value)
    return usual, of_thread


def _without_flags(context: Any) -> Tuple[str, str]:
    """Computing sets flags."""
    text, _, rest = repr(context).partition(", flags=")
    return text, rest.partition("traps=")[2]


def _https_context() -> Any:
    """None: the usual one, which checks the server's certificate."""
    ssl = sys.modules.get("ssl")
    make = getattr(ssl, "_create_default_https_context", None)
    return None if make is getattr(ssl, "create_default_context", None) else make


def _start_method() -> Any:
    """None: the usual one. It is made when it is asked for."""
    contexts = getattr(sys.modules.get("multiprocessing.context"), "_default_context", None)
    chosen = getattr(contexts, "_actual_context", None)
    return None if chosen is getattr(contexts, "_default_context", None) else chosen
