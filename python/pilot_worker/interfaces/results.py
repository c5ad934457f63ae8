"""A result as JSON, byte for byte as awslambdaric writes it.

awslambdaric encodes with simplejson. The encoder of the standard library gives the same text for values that consist only of
None, booleans, numbers, strings, lists, tuples and dictionaries. It gives another text for a namedtuple, and none for a Decimal
or bytes. So there are two paths: the standard library's C encoder for plain values, and `_encode_any` for all others.
"""

from __future__ import annotations

import json
import marshal
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, Iterable, List, Optional, Set

    Encode = Callable[[Any], bytes]
    EncodeText = Callable[[Any], str]

# Version 2 writes floats as bytes and looks for no repeated objects. Both make it faster.
_MARSHAL_VERSION = 2

_Names = json.encoder  # c_encode_basestring and others: the functions of the C accelerator, or of Python without it


class NotPlain(TypeError):
    """The C encoder found an object that it cannot encode."""


def make_encoder(is_ascii: bool) -> Encode:
    """The encoder for a Python of Lambda. `is_ascii` escapes all characters that are not ASCII."""
    general = _GeneralEncoder(_Names.encode_basestring_ascii if is_ascii else _Names.encode_basestring)
    fast = _make_fast_encoder(general)
    dumps = marshal.dumps

    def encode(value: Any) -> bytes:
        """Encodes as UTF-8. Raises what methods of the value raise, and what awslambdaric's encoder raises."""
        try:
            # marshal accepts only exact built-in types. So it finds a namedtuple at any depth, in C. Its output is not used.
            if type(value) is not str:
                dumps(value, _MARSHAL_VERSION)
            return "".join(fast(value, 0)).encode()
        except Exception:  # not plain, nested too deeply, a cycle, a lone surrogate: the general encoder decides
            pass
        try:
            return general.encode(value).encode()
        except UnicodeEncodeError:  # a lone surrogate has no UTF-8 form, so it is escaped
            return _escaping.encode(value).encode()

    return encode


def _make_fast_encoder(general: _GeneralEncoder) -> Callable[[Any, int], Iterable[str]]:
    """The C encoder that JSONEncoder creates for every call, without its check for cycles: marshal has refused those."""
    make: Any = getattr(_Names, "c_make_encoder", None)
    encode_string = general.encode_string
    try:
        fast: Callable[[Any, int], Iterable[str]] = make(None, _refuse, encode_string, None, ": ", ", ", False, False, True)
        if "".join(fast({"a": [1]}, 0)) == '{"a": [1]}':
            return fast
    except (TypeError, ValueError):  # a Python with another private interface, or without the C accelerator
        pass
    return lambda value, _level: (general.encode(value),)


def _refuse(value: Any) -> Any:
    raise NotPlain


class _GeneralEncoder:
    """simplejson's rules, in the order in which simplejson checks them."""

    def __init__(self, encode_string: EncodeText) -> None:
        self.encode_string = encode_string
        self._texts: Dict[type, EncodeText] = {
            str: encode_string,
            int: str,
            float: _float,
            bool: lambda value: "true" if value else "false",
            type(None): lambda value: "null",
            bytes: lambda value: encode_string(str(value, "utf-8")),
        }

    def encode(self, value: Any) -> str:
        pieces: List[str] = []
        try:
            self._write("", value, pieces.append, set())
        except RecursionError as error:
            raise RecursionError("maximum recursion depth exceeded while encoding a JSON object") from error
        return "".join(pieces)

    def _write(self, before: str, value: Any, write: Callable[[str], None], parents: Set[int]) -> None:
        """Writes `before` and the value. A level of nesting is one call, because Python limits the depth of calls."""
        encode_text = self._texts.get(type(value)) or self._of_subclass(value)
        if encode_text is not None:
            write(before + encode_text(value))
            return
        identity = id(value)
        if identity in parents:
            raise ValueError("Circular reference detected")
        parents.add(identity)
        fields = _fields(value)
        if fields is not None:
            before += "{"
            for key, item in fields.items() if fields else ():
                self._write(f"{before}{self.encode_string(_key(key))}: ", item, write, parents)
                before = ", "
            write("}" if before == ", " else before + "}")
        elif isinstance(value, (list, tuple)):
            before += "["
            for item in value:
                self._write(before, item, write, parents)
                before = ", "
            write("]" if before == ", " else before + "]")
        else:
            write(before + self._number(value))
        parents.discard(identity)

    def _of_subclass(self, value: Any) -> Optional[EncodeText]:
        """How to write a value without parts whose class is derived from one in `_texts`. None for all others."""
        if isinstance(value, str):
            return self.encode_string
        if isinstance(value, int):
            return lambda number: str(int(number))  # the number of an IntEnum, not its text
        if isinstance(value, float):
            return _float
        if isinstance(value, bytes):
            return self._texts[bytes]
        raw = _imported("simplejson.raw_json", "RawJSON")
        if raw is not None and isinstance(value, raw):
            return lambda document: str(document.encoded_json)
        return None

    def _number(self, value: Any) -> str:
        """A Decimal with all its digits. TypeError for everything else."""
        kind = _imported("decimal", "Decimal")
        if kind is None or not isinstance(value, kind):
            raise TypeError(f"Object of type {value.__class__.__name__} is not JSON serializable")
        self._texts[kind] = _decimal  # the next one is found at once
        return _decimal(value)


def _fields(value: Any) -> Optional[Dict[Any, Any]]:
    """The dictionary that becomes an object: the value itself, or what its `_asdict` returns. None if it is neither."""
    as_dict = getattr(value, "_asdict", None)
    if callable(as_dict):
        try:
            fields = as_dict()
        except TypeError:
            pass  # a class with this method, not an instance
        else:
            if not isinstance(fields, dict):
                raise TypeError(f"_asdict() must return a dict, not {type(fields).__name__}")
            return fields
    return value if isinstance(value, dict) else None


def _key(key: Any) -> str:
    if isinstance(key, str):
        return key
    if isinstance(key, bytes):
        return str(key, "utf-8")
    if isinstance(key, float):
        return _float(key)
    if key is None or isinstance(key, bool):
        return {None: "null", True: "true", False: "false"}[key]
    if isinstance(key, int):
        return str(int(key))
    raise TypeError(f"keys must be str, int, float, bool or None, not {key.__class__.__name__}")


def _float(value: float) -> str:
    if value != value:  # noqa: PLR0124 - true only for NaN
        return "NaN"
    if value in (float("inf"), float("-inf")):
        return "Infinity" if value > 0 else "-Infinity"
    return repr(float(value))


def _decimal(value: Any) -> str:
    return "NaN" if value.is_nan() else str(value)


def _imported(module: str, name: str) -> Any:
    """A class of a module, if user code has imported it. There is no instance of it otherwise."""
    return getattr(sys.modules.get(module), name, None)


_escaping = _GeneralEncoder(_Names.encode_basestring_ascii)

# Lambda's Pythons up to 3.11 escape all characters that are not ASCII.
encode_json = make_encoder(is_ascii=sys.version_info < (3, 12))
