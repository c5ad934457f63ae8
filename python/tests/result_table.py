"""Values and handlers, as text, which `test_results.py` evaluates for awslambdaric and for this worker. Not a test itself."""

# ruff: noqa: F401 - the expressions use these modules

from __future__ import annotations

import array
import collections
import dataclasses
import datetime
import decimal
import enum
import fractions
import importlib
import pathlib
import types
import typing
import uuid
from typing import Any

import simplejson  # type: ignore[import-untyped]

Point = collections.namedtuple("Point", "x y")
Empty = collections.namedtuple("Empty", "")


class Typed(typing.NamedTuple):
    price: decimal.Decimal
    name: str = "n"


@dataclasses.dataclass
class Data:
    x: int = 1


@dataclasses.dataclass
class DataAsDict:
    x: int = 1

    def _asdict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


class Color(enum.Enum):
    RED = "red"


class Level(enum.IntEnum):
    HIGH = 3


class Flags(enum.IntFlag):
    A = 1
    B = 2


class Word(str, enum.Enum):
    YES = "yes"


class Text(str):
    def __str__(self) -> str:
        return "not this"

    __repr__ = __str__


class Number(int):
    def __str__(self) -> str:
        return "not this"

    __repr__ = __str__


class Real(float):
    def __str__(self) -> str:
        return "not this"

    __repr__ = __str__


class Bytes(bytes):
    pass


class Money(decimal.Decimal):
    def __str__(self) -> str:
        return "7.50"


class List(list):  # type: ignore[type-arg]
    pass


class ListIter(list):  # type: ignore[type-arg]
    def __iter__(self) -> Any:
        return iter([7, 8])


class Tuple(tuple):  # type: ignore[type-arg]
    pass


class Dict(dict):  # type: ignore[type-arg]
    pass


class DictItems(dict):  # type: ignore[type-arg]
    def items(self) -> Any:
        return [("other", decimal.Decimal("1.10"))]


class ListAsDict(list):  # type: ignore[type-arg]
    def _asdict(self) -> dict[str, Any]:
        return {"list": list(self)}


class AsDictIsNot:
    def _asdict(self) -> Any:
        return [1]


class AsDictIsDict:
    def _asdict(self) -> Any:
        return Dict(a=Point(1, 2))


class AsDictIsValue:
    _asdict = 5


class AsDictRaises:
    def _asdict(self) -> Any:
        raise LookupError("mine")


class AsDictTypeError:
    def _asdict(self) -> Any:
        raise TypeError("mine")


class AsDictProperty:
    @property
    def _asdict(self) -> Any:
        raise LookupError("mine")


class Anything:
    def __getattr__(self, name: str) -> Any:
        return lambda: {"any": name}


class ItemsRaise(dict):  # type: ignore[type-arg]
    def items(self) -> Any:
        raise LookupError("items")


class HasDict:
    def __init__(self) -> None:
        self.a = 1


def nested(depth: int, leaf: Any, kind: str = "list") -> Any:
    for _ in range(depth):
        leaf = [leaf] if kind == "list" else {"k": leaf}
    return leaf


def cycle(kind: str) -> Any:
    if kind == "list":
        items: list[Any] = [1]
        items.append(items)
        return items
    if kind == "dict":
        fields: dict[str, Any] = {}
        fields["self"] = fields
        return fields
    if kind == "namedtuple":
        inner: list[Any] = []
        inner.append(Point(1, inner))
        return inner
    both: dict[str, Any] = {"a": [Dict()]}
    both["a"][0]["back"] = both
    return both


def shared() -> Any:
    part = {"a": [1]}
    return [part, part, Point(part, part)]


NAMES: dict[str, Any] = {
    **globals(),
    "numpy": importlib.import_module("numpy"),
    "simplejson": simplejson,
    "types": types,
    "nan": float("nan"),
    "inf": float("inf"),
}
del NAMES["Any"]

# One thing each. `WRAPPED` puts it into every place of a result.
SCALARS = """
None
True
False
0
-0
1
-1
2**31
2**53
2**53 + 1
-2**63
2**64
10**40
10**4299
10**4300
0.0
-0.0
0.1
1.0
1.5
-2.5
1e15
1e16
1e17
1e22
1e100
1e-4
1e-5
1e-7
5e-324
1.7976931348623157e308
123456789.123456789
1/3
nan
-nan
inf
-inf
''
'a'
'with "quotes" and \\\\ and /'
'\\n\\r\\t\\b\\f'
'\\x00\\x01\\x1f\\x7f'
'\\x80\\xa0\\xad\\xff'
'grüße'
'日本語'
'🎈'
'\\u2028\\u2029'
'\\ufeff'
'\\uffff'
'</script>'
'e\\u0301'
'\\ud800'
'\\udc00'
'a\\udfffb'
'\\ud83c\\udf88'
'\\udc00\\ud800'
Text('text')
Word.YES
Text('ü')
b''
b'bytes'
b'"'
'grüße'.encode()
b'\\xff'
b'\\x00'
Bytes(b'sub')
bytearray(b'array')
memoryview(b'view')
array.array('i', [1, 2])
decimal.Decimal('0')
decimal.Decimal('-0')
decimal.Decimal('1')
decimal.Decimal('-1')
decimal.Decimal('19.99')
decimal.Decimal('1.10')
decimal.Decimal('1.50')
decimal.Decimal('100')
decimal.Decimal('1E+2')
decimal.Decimal('1E+30')
decimal.Decimal('1E-30')
decimal.Decimal('0E-10')
decimal.Decimal('0.1')
decimal.Decimal('0.10')
decimal.Decimal('0.1000000000000000055511151231257827')
decimal.Decimal('1234567890123456789.123456789')
decimal.Decimal('12345678901234567890123456789012345678901234567890')
decimal.Decimal('9007199254740993')
decimal.Decimal('1E+400')
decimal.Decimal(1) / 3
decimal.Decimal('NaN')
decimal.Decimal('-NaN')
decimal.Decimal('sNaN')
decimal.Decimal('NaN123')
decimal.Decimal('Infinity')
decimal.Decimal('-Infinity')
Money('1')
Number(5)
Real(1.5)
Real('nan')
Real('inf')
Level.HIGH
Flags.A | Flags.B
Color.RED
fractions.Fraction(1, 3)
1j
object()
object
int
len
nested
lambda: 1
...
NotImplemented
range(3)
iter([1])
(i for i in [1])
map(str, [1])
zip([1], [2])
{1}
frozenset([1])
set()
{}.keys()
{'a': 1}.values()
types.MappingProxyType({'a': 1})
types.SimpleNamespace(a=1)
collections.deque([1])
collections.ChainMap({'a': 1})
collections.UserDict(a=1)
collections.UserList([1])
collections.UserString('a')
datetime.datetime(2024, 1, 2)
datetime.date(2024, 1, 2)
datetime.timedelta(1)
uuid.UUID(int=1)
pathlib.PurePosixPath('/a')
Data()
Data
DataAsDict()
HasDict()
ValueError('x')
Point(1, 2)
Point
Point(Point(1, b'a'), [Point(3, decimal.Decimal('4.40'))])
Empty()
Typed(decimal.Decimal('3.30'))
()
(1, 2)
Tuple((1, 2))
Tuple()
[]
List()
List([1, decimal.Decimal('2.20')])
ListIter([1])
ListIter()
ListAsDict([1])
ListAsDict()
{}
Dict()
Dict(a=1)
DictItems(a=1)
DictItems()
ItemsRaise(a=1)
AsDictIsNot()
AsDictIsDict()
AsDictIsValue()
AsDictRaises()
AsDictTypeError()
AsDictProperty()
Anything()
simplejson.RawJSON('{"raw":  1}')
numpy.float64(1.5)
numpy.float64('nan')
numpy.float32(1.5)
numpy.int64(1)
numpy.bool_(True)
numpy.str_('text')
numpy.bytes_(b'bytes')
numpy.array([1, 2])
numpy.array(1.5)
numpy.datetime64('2024-01-02')
""".strip().splitlines()

KEYS = """
''
'a'
'ü'
'"'
'\\ud800'
Text('text')
Word.YES
b'bytes'
b'\\xff'
Bytes(b'sub')
0
1
-1
2**64
10**4300
1.5
-0.0
1e22
nan
inf
-inf
True
False
None
Number(5)
Real(1.5)
Level.HIGH
Color.RED
decimal.Decimal('1.10')
decimal.Decimal('NaN')
(1, 2)
Point(1, 2)
frozenset()
object
fractions.Fraction(1, 2)
datetime.date(2024, 1, 2)
uuid.UUID(int=1)
""".strip().splitlines()

WHOLE = """
[1, 2.5, None, True, 'ü', {}]
[[], [[]], {}, [{}]]
{'a': {'b': {'c': [1, 2, {'d': None}]}}}
{'statusCode': 200, 'headers': {'content-type': 'application/json'}, 'body': '{"a": 1}', 'isBase64Encoded': False}
{'Items': [{'id': 'a', 'price': decimal.Decimal('19.99'), 'n': decimal.Decimal('3')}], 'Count': 1}
{1: 'a', '1': 'b', True: 'c'}
{True: 1, 1.0: 2}
{None: 1, 'null': 2}
{'b': 1, 'a': 2}
collections.OrderedDict(b=1, a=2)
collections.OrderedDict(b=decimal.Decimal('1.0'), a=Point(1, 2))
collections.defaultdict(list, a=[1])
collections.Counter('abca')
[b'a', 'ü', b'\\xc3\\xbc']
{'a': b'\\xff', 'b': 1}
[decimal.Decimal('1.10'), float('nan'), -0.0, 'grüße', '\\ud800']
['grüße', '\\ud800']
[Level.HIGH, Word.YES, Number(1), Real(2.5), Text('t')]
{'list': [Point(1, 2), Typed(decimal.Decimal('1.00'))], 'tuple': (Point(3, 4),)}
{'outer': Point({'inner': Point(1, 2)}, [Empty(), ()])}
[Tuple((1, Point(2, 3)))]
[{1, 2}, decimal.Decimal('1')]
[decimal.Decimal('1'), {1, 2}]
{'a': [datetime.date(2024, 1, 2)]}
shared()
cycle('list')
cycle('dict')
cycle('namedtuple')
cycle('both')
nested(100, 1)
nested(100, decimal.Decimal('1.10'))
nested(100, Point(1, 2), 'dict')
nested(900, 1)
nested(900, 1, 'dict')
nested(5000, 1)
nested(5000, 1, 'dict')
nested(5000, decimal.Decimal('1.10'))
['x' * 100000, 'ü' * 100000]
[1.1] * 10000
[decimal.Decimal('1.10')] * 1000
{str(n): n for n in range(1000)}
(e for e in ())
[i for i in range(3)]
[array.array('i', [1])]
[bytearray(b'a'), decimal.Decimal(1)]
[memoryview(b'a')]
{'a': ...}
[1j, decimal.Decimal(1)]
[ValueError('x')]
""".strip().splitlines()

IN_PLACES = ("@", "[@]", "{'k': @}", "(1, @,)", "Point(@, [@])", "[decimal.Decimal('1.10'), @, 'ü']")

VALUES: list[str] = [
    *(place.replace("@", value) for value in SCALARS for place in IN_PLACES),
    *(f"{{{key}: 1}}" for key in KEYS),
    *(f"[{{{key}: decimal.Decimal('1.10')}}]" for key in KEYS),
    *WHOLE,
]
