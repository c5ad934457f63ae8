"""Inputs of which a decoder has made an array, a table or a JSON text (PROTOCOL.md, `Decoded`). Imported only if there is one.

Nothing is copied: arrays are views of the memory that the daemon has sealed. They are numpy's where it can be imported, and
otherwise memoryviews. A file of Arrow is read in place by pyarrow, which is the function's own. The values of JSON are objects.
What lies where was checked by the daemon, but for the ends of texts, which are checked here.
"""

from __future__ import annotations

import ctypes
import json
import struct
from collections.abc import Mapping, Sequence
from math import prod

from .received import Input

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, Iterator, List, Optional, Tuple

# The letters of `struct` for numpy's names of types, without the byte order, which is that of this machine.
_FORMATS = {
    "b1": "?",
    "i1": "b",
    "u1": "B",
    "i2": "h",
    "u2": "H",
    "i4": "i",
    "u4": "I",
    "i8": "q",
    "u8": "Q",
    "f2": "e",
    "f4": "f",
    "f8": "d",
}


class Decoded(Input):
    """An input that was decoded: `array`, `columns` of a table, `table` of Arrow, or `value` of JSON."""

    __slots__ = ("by", "_arrow", "_array_layout", "_table", "_array", "_columns", "_value")

    def __init__(self, name: str, size: int, descriptor: int, decoded: Dict[str, Any]) -> None:
        super().__init__(name, "memory", size, descriptor)
        self.by = decoded["by"]  # the decoder
        self._array_layout: Optional[Dict[str, Any]] = decoded.get("array")
        self._table: Optional[Dict[str, Any]] = decoded.get("table")
        self._arrow: Optional[Dict[str, Any]] = decoded.get("arrow")
        self._value: Any = None  # a list of the value, when it was made
        self._array: Any = None
        self._columns: Optional[Columns] = None

    @property
    def shape(self) -> Tuple[int, ...]:
        """The length of the array in each dimension."""
        return tuple(self._of_array()["shape"])

    @property
    def dtype(self) -> str:
        """numpy's name for the type of the array's values, for example `|u1`."""
        return str(self._of_array()["element"])

    @property
    def array(self) -> Any:
        """The array, read-only and always the same one: numpy's, or a memoryview with shape and format."""
        if self._array is None:
            self._array = _shaped(self.view(), self.dtype, self.shape)
        return self._array

    @property
    def rows(self) -> int:
        """How many rows the table has."""
        return int((self._arrow or self._of_table())["rows"])

    @property
    def columns(self) -> Columns:
        """The columns of the table by name."""
        if self._columns is None:
            self._columns = Columns(self.view(), self.rows, self._of_table()["columns"])
        return self._columns

    @property
    def table(self) -> Any:
        """A `pyarrow.Table` over the memory, always the same one. ImportError if the function has no pyarrow."""
        if self._arrow is None:
            raise self._is_other()
        if self._value is None:
            import pyarrow  # type: ignore[import-not-found,import-untyped,unused-ignore]  # the function's own

            self._value = [pyarrow.ipc.open_file(pyarrow.py_buffer(self.view())).read_all()]
        return self._value[0]

    @property
    def value(self) -> Any:
        """The value of the JSON text, made at the first call and always the same one."""
        if self._use() != "value":
            raise self._is_other()
        if self._value is None:
            self._value = [json.loads(bytes(self.view()))]
        return self._value[0]

    def _use(self) -> str:
        """The attribute that this input has."""
        layouts = {"array": self._array_layout, "columns": self._table, "table": self._arrow}
        return next((name for name, layout in layouts.items() if layout is not None), "value")

    def _is_other(self) -> TypeError:
        return TypeError(f"input {self.name!r} was decoded as {self.by}: use {self._use()}")

    def _of_array(self) -> Dict[str, Any]:
        if self._array_layout is None:
            raise self._is_other()
        return self._array_layout

    def _of_table(self) -> Dict[str, Any]:
        if self._table is None:
            raise self._is_other()
        return self._table

    def __repr__(self) -> str:
        what = f", dtype={self.dtype!r}, shape={self.shape}" if self._array_layout is not None else ""
        if self._table is not None:
            what = f", rows={self.rows}, columns={list(self.columns)}"
        return f"Decoded(name={self.name!r}, by={self.by!r}{what})"


class Columns(Mapping):  # type: ignore[type-arg]  # a type parameter would be evaluated at run time
    """The columns of a table by name: arrays of numbers, and `Texts`.

    Where a number is missing, there is a 0. `present` says where that is."""

    def __init__(self, view: memoryview, rows: int, columns: List[Dict[str, Any]]) -> None:
        self._view = view
        self._rows = rows
        self._columns = {column["name"]: column for column in columns}

    def __getitem__(self, name: str) -> Any:
        values = self._columns[name]["values"]
        if "fixed" in values:
            return self._part(values["fixed"]["at"], values["fixed"]["element"])
        return Texts(self._view, self._rows, values["bytes"], self._columns[name].get("present"))

    def present(self, name: str) -> Any:
        """An array of truth values: whether each row has a value in this column. None: all have one."""
        at = self._columns[name].get("present")
        return None if at is None else self._part(at, "|b1")

    def _part(self, at: int, element: str) -> Any:
        length = self._rows * int(element[2:])
        return _shaped(self._view[at : at + length], element, (self._rows,))

    def __iter__(self) -> Iterator[str]:
        return iter(self._columns)

    def __len__(self) -> int:
        return len(self._columns)


class Texts(Sequence):  # type: ignore[type-arg]  # as above
    """The texts (or byte strings) of a column. Each is made when it is asked for; None: the row has none."""

    def __init__(self, view: memoryview, rows: int, values: Dict[str, Any], present: Optional[int]) -> None:
        at = values["at"]
        self._bytes = view[at : at + values["len"]]
        self._ends = view[values["ends"] : values["ends"] + 8 * rows].cast("Q")
        self._present = None if present is None else view[present : present + rows]
        self._is_text = values["text"]

    def __getitem__(self, row: Any) -> Any:
        if isinstance(row, slice):
            return [self[index] for index in range(*row.indices(len(self)))]
        if row < 0:
            row += len(self)
        if not 0 <= row < len(self):
            raise IndexError(f"row {row} of {len(self)}")
        if self._present is not None and not self._present[row]:
            return None
        begin, end = self._ends[row - 1] if row else 0, self._ends[row]
        if not begin <= end <= len(self._bytes):
            raise ValueError(f"row {row} is damaged")
        value = bytes(self._bytes[begin:end])
        return value.decode() if self._is_text else value

    def __len__(self) -> int:
        return len(self._ends)


def _shaped(view: memoryview, element: str, shape: Tuple[int, ...]) -> Any:
    try:
        import numpy
    except ImportError:
        form = _FORMATS[element[1:]]
        try:
            return _cast(view, form, shape)
        except ValueError:
            if form != "e":
                raise
            return _cast(view, "H", shape)  # before Python 3.12, memoryview has no halves: these are their bits
    return numpy.ndarray(shape, element, view)


def _cast(view: memoryview, form: str, shape: Tuple[int, ...]) -> memoryview:
    if prod(shape):
        return view.cast(form, list(shape))  # type: ignore[call-overload,no-any-return]  # letters of `struct`
    return view.cast(form) if len(shape) == 1 else _empty(form, shape)  # type: ignore[call-overload]  # as above


def _empty(form: str, shape: Tuple[int, ...]) -> memoryview:
    """An array of several dimensions without values. No cast makes a dimension of length 0."""
    row = struct.calcsize(form) * prod(shape[1:])
    if 0 < row <= _ROW_LEN_MAX:
        return memoryview(bytes(row)).cast(form, [1, *shape[1:]])[:0]  # type: ignore[call-overload,no-any-return]  # as above
    # The format of this one names the byte order, too. It takes no memory, however long the other dimensions are.
    kind: Any = getattr(ctypes, _TYPES[form])
    for length in reversed(shape):
        kind = kind * length
    return memoryview(kind()).toreadonly()


# Of ctypes, which has no halves.
_TYPES = {
    "?": "c_bool",
    "b": "c_int8",
    "B": "c_uint8",
    "h": "c_int16",
    "H": "c_uint16",
    "i": "c_int32",
    "I": "c_uint32",
    "q": "c_int64",
    "Q": "c_uint64",
    "e": "c_uint16",
    "f": "c_float",
    "d": "c_double",
}
_ROW_LEN_MAX = 1 << 20
