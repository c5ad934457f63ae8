"""Handlers that raise, for `test_results.py`. The trace of each contains lines of this file. Not a test itself."""

# The mistakes are what is tested.
# mypy: ignore-errors
# ruff: noqa: B016, B904, C400, E731, F821, PLE0307, PLE0643

from __future__ import annotations

import collections
import concurrent.futures
import contextlib
import functools
import importlib
import json
import threading
from typing import Any, NoReturn


class OutOfStock(Exception):
    pass


class WithFields(Exception):
    def __init__(self, code: int) -> None:
        super().__init__("with fields", code)
        self.code = code


class OwnText(Exception):
    def __str__(self) -> str:
        return "grüße from __str__"


class BrokenText(Exception):
    def __str__(self) -> str:
        raise LookupError("no text")


class TextIsNoText(Exception):
    def __str__(self) -> Any:
        return 5


class Text(str):
    pass


class SubclassText(Exception):
    def __str__(self) -> str:
        return Text("a subclass")


class Outer:
    class Inner(Exception):
        pass


class Unfinished:
    def _asdict(self) -> NoReturn:
        raise OutOfStock("in _asdict")


def deep(depth: int) -> Any:
    if depth == 0:
        raise OutOfStock("deep")
    return deep(depth - 1)


def endless(depth: int) -> int:
    return endless(depth + 1) + 1


def decorated(function: Any) -> Any:
    @functools.wraps(function)
    def inner(event: Any, context: Any) -> Any:
        return function(event, context)

    return inner


@contextlib.contextmanager
def resource() -> Any:
    yield 1


# Errors of the handler


def plain(event: Any, context: Any) -> Any:
    raise ValueError("plain")


def without_text(event: Any, context: Any) -> Any:
    raise ValueError


def empty_text(event: Any, context: Any) -> Any:
    raise ValueError("")


def two_arguments(event: Any, context: Any) -> Any:
    raise ValueError("a", 2)


def not_ascii(event: Any, context: Any) -> Any:
    raise ValueError("grüße 🎈")


def control_characters(event: Any, context: Any) -> Any:
    raise ValueError('line\nline\t"\x00\x7f')


def surrogate(event: Any, context: Any) -> Any:
    raise ValueError("\ud800")


def long_text(event: Any, context: Any) -> Any:
    raise ValueError("x" * 100_000)


def own_class(event: Any, context: Any) -> Any:
    raise OutOfStock("no pears left")


def fields(event: Any, context: Any) -> Any:
    raise WithFields(7)


def own_text(event: Any, context: Any) -> Any:
    raise OwnText


def subclass_text(event: Any, context: Any) -> Any:
    raise SubclassText


def nested_class(event: Any, context: Any) -> Any:
    raise Outer.Inner("inner")


def local_class(event: Any, context: Any) -> Any:
    class Local(Exception):
        pass

    raise Local("local")


def class_of_type(event: Any, context: Any) -> Any:
    raise type("Made", (Exception,), {})("made")


def chained(event: Any, context: Any) -> Any:
    try:
        raise KeyError("first")
    except KeyError as error:
        raise OutOfStock("second") from error


def chained_without_from(event: Any, context: Any) -> Any:
    try:
        raise KeyError("first")
    except KeyError:
        raise OutOfStock("second")


def chained_from_none(event: Any, context: Any) -> Any:
    try:
        raise KeyError("first")
    except KeyError:
        raise OutOfStock("second") from None


def raised_again(event: Any, context: Any) -> Any:
    try:
        deep(2)
    except OutOfStock:
        raise


def in_finally(event: Any, context: Any) -> Any:
    try:
        deep(1)
    finally:
        json.loads("{")


def with_note(event: Any, context: Any) -> Any:
    error = ValueError("text")
    if hasattr(error, "add_note"):
        error.add_note("a note")
    raise error


def group(event: Any, context: Any) -> Any:
    raise __builtins__["ExceptionGroup"]("group", [ValueError("a"), KeyError("b")])


def nested_group(event: Any, context: Any) -> Any:
    of = __builtins__["ExceptionGroup"]
    raise of("outer", [of("inner", [ValueError("a")]), KeyError("b")])


def key_error(event: Any, context: Any) -> Any:
    return {}["missing"]


def index_error(event: Any, context: Any) -> Any:
    return [][1]


def type_error(event: Any, context: Any) -> Any:
    return 1 + "a"


def attribute_error(event: Any, context: Any) -> Any:
    return event.nothing.here


def zero_division(event: Any, context: Any) -> Any:
    return 1 / 0


def name_error(event: Any, context: Any) -> Any:
    return nothing


def unbound(event: Any, context: Any) -> Any:
    value += 1
    return value


def assertion(event: Any, context: Any) -> Any:
    assert event is None, "an assertion"


def os_error(event: Any, context: Any) -> Any:
    with open("/nowhere/at/all") as file:
        return file.read()


def unicode_error(event: Any, context: Any) -> Any:
    return b"\xff".decode()


def import_error(event: Any, context: Any) -> Any:
    import nothing_of_this_name

    return nothing_of_this_name


def import_module(event: Any, context: Any) -> Any:
    return importlib.import_module("nothing_of_this_name")


def import_of_a_broken_module(event: Any, context: Any) -> Any:
    import broken_module

    return broken_module


def import_module_of_a_broken_module(event: Any, context: Any) -> Any:
    return importlib.import_module("broken_module")


def syntax_error(event: Any, context: Any) -> Any:
    return eval("1 +")


def compiled(event: Any, context: Any) -> Any:
    exec("def f():\n    raise ValueError('in exec')\nf()")


def recursion(event: Any, context: Any) -> Any:
    return endless(0)


def many_frames(event: Any, context: Any) -> Any:
    return deep(20)


@decorated
def in_a_decorator(event: Any, context: Any) -> Any:
    raise ValueError("decorated")


in_a_lambda = lambda event, context: 1 / 0
in_a_partial = functools.partial(lambda extra, event, context: 1 / extra, 0)


class Callable:
    def __call__(self, event: Any, context: Any) -> Any:
        raise ValueError("callable")

    def method(self, event: Any, context: Any) -> Any:
        raise ValueError("method")


in_a_callable = Callable()
in_a_method = Callable().method


def in_a_comprehension(event: Any, context: Any) -> Any:
    return [1 / number for number in (1, 0)]


def in_a_generator(event: Any, context: Any) -> Any:
    return list(1 / number for number in (1, 0))  # a generator has a frame of its own


def in_a_context_manager(event: Any, context: Any) -> Any:
    with resource():
        raise ValueError("with")


def in_a_thread(event: Any, context: Any) -> Any:
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        future = pool.submit(deep, 1)
        concurrent.futures.wait([future])  # else it depends on the thread which line of result() is in the traceback
        return future.result()


def in_a_sort(event: Any, context: Any) -> Any:
    return sorted([1, 2], key=lambda number: 1 // (number - 2))


def stop_iteration(event: Any, context: Any) -> Any:
    return next(iter(()))


def several_lines(event: Any, context: Any) -> Any:
    return deep(
        # The line of the frame is the one of the call.
        0
    )


def warning(event: Any, context: Any) -> Any:
    raise UserWarning("warned")


def raises_a_class(event: Any, context: Any) -> Any:
    raise OutOfStock


def raises_no_exception(event: Any, context: Any) -> Any:
    raise "text"


def wrong_arguments() -> Any:
    return 1


def too_few_arguments(event: Any) -> Any:
    return 1


not_callable = 5
no_function = None


def context_attribute(event: Any, context: Any) -> Any:
    return context.nothing_of_this_name


# Errors of the result


def returns_an_object(event: Any, context: Any) -> Any:
    return object()


def returns_a_set(event: Any, context: Any) -> Any:
    return {"a": {1, 2}}


def returns_a_cycle(event: Any, context: Any) -> Any:
    items: list[Any] = []
    items.append(items)
    return items


def returns_a_key_of_another_type(event: Any, context: Any) -> Any:
    return {(1, 2): 3}


def returns_deep_nesting(event: Any, context: Any) -> Any:
    items: list[Any] = []
    for _ in range(5000):
        items = [items]
    return items


def returns_bytes_that_are_not_utf8(event: Any, context: Any) -> Any:
    return {"a": b"\xff"}


def returns_a_huge_number(event: Any, context: Any) -> Any:
    return [10**5000]


def returns_what_raises(event: Any, context: Any) -> Any:
    return [Unfinished()]


def returns_a_generator(event: Any, context: Any) -> Any:
    return (number for number in (1, 2))


def returns_an_error(event: Any, context: Any) -> Any:
    return ValueError("returned")


def returns_a_lock(event: Any, context: Any) -> Any:
    return threading.Lock()


# No errors


def returns_bytes(event: Any, context: Any) -> Any:
    return b"\x00\xff not JSON"


def returns_empty_bytes(event: Any, context: Any) -> Any:
    return b""


def returns_nothing(event: Any, context: Any) -> Any:
    pass


def returns_text(event: Any, context: Any) -> Any:
    return "grüße"


def returns_a_namedtuple(event: Any, context: Any) -> Any:
    return collections.namedtuple("Made", "a b")(1, 2)


def returns_the_event(event: Any, context: Any) -> Any:
    return event


def exits(event: Any, context: Any) -> Any:
    raise SystemExit(3)


# Known differences: `test_results.py` gives the reason of each


def broken_text(event: Any, context: Any) -> Any:
    raise BrokenText


def text_is_no_text(event: Any, context: Any) -> Any:
    raise TextIsNoText


def keyboard_interrupt(event: Any, context: Any) -> Any:
    raise KeyboardInterrupt


def base_exception(event: Any, context: Any) -> Any:
    raise BaseException("base")


def generator_exit(event: Any, context: Any) -> Any:
    raise GeneratorExit


def very_long_text(event: Any, context: Any) -> Any:
    raise ValueError("x" * 1_000_000)


HANDLERS: dict[str, Any] = {
    name: value
    for name, value in list(globals().items())
    if not isinstance(value, type)
    and (callable(value) or name in ("not_callable", "no_function"))
    and name not in ("Any", "NoReturn", "deep", "endless", "decorated", "resource")
}
