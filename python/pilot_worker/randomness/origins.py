"""Reads in the source where a program has a seed from, if its value does not tell: `seed(int(time.time() * 1000) ^ getpid())`.

The statement that seeds is looked at, and those that assign the names in it, in the same file. A date
(`strftime("%Y%m%d")`) is not from the system, because all processes of a day have it. Such a generator gets a new seed in
each worker, and the deployment says so, because a line can be misread.
"""

from __future__ import annotations

import re

from ..forking import opened

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import CodeType, FrameType
    from typing import Dict, List, Tuple

# Patterns. `re` compiles them when a seed is looked for, because every worker without a template imports this file.
_SYSTEM = (
    r"\b(?:(?:time\.)?time(?:_ns)?|monotonic(?:_ns)?|perf_counter(?:_ns)?|now|utcnow|urandom|getrandom|getpid|uuid[1-8]"
    r"|SystemRandom|secrets\.\w+|token_(?:bytes|hex|urlsafe)|randbelow|randbits)\s*\("
)
_COARSE = r"\bstrftime\b|\btoday\b|\btoordinal\b|\bdate\s*\(|\.(?:year|month|day|hour|tm_\w+)\b|86_?400|\b3_?600\b"
_DRAWN = r"(?<![\w.])random\.(?:random|randint|randrange|getrandbits|randbytes|uniform|choice|sample)\s*\("
_NAME = r"(?<![\w.\"'])[A-Za-z_]\w*"
_ROUNDS = 3  # names that are assigned from names
_LINES_MAX = 10  # of one statement
_FILE_MAX = 1 << 20
_READ_MAX = 1000  # lines
_REPORTED_MAX = 50

# Where and what, for the report of the deployment.
reported: List[Tuple[str, str]] = []
_files: Dict[str, List[str]] = {}
_read: Dict[Tuple[CodeType, int, bool], str] = {}


def is_of_the_system(is_random_unseeded: bool) -> bool:
    """Whether the source of the running line of the program says so, or of the line of a package that the program has called.
    `is_random_unseeded`: what the functions of `random` give is from the system."""
    for frame in opened.program_frames():
        key = frame.f_code, frame.f_lineno, is_random_unseeded
        if key not in _read and len(_read) < _READ_MAX:
            _read[key] = _what(frame, is_random_unseeded)
        what = _read.get(key, "")
        if what:
            row = opened.place(), what
            if row not in reported and len(reported) < _REPORTED_MAX:
                reported.append(row)
            return True
        if not opened.is_of_package(frame):
            return False
    return False


def _what(frame: FrameType, is_random_unseeded: bool) -> str:
    lines, code = _lines(frame.f_code.co_filename), frame.f_code
    given = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]  # whoever calls has chosen them
    of_function = range(code.co_firstlineno, frame.f_lineno) if code.co_name != "<module>" else range(0)
    texts, seen = [_statement(lines, frame.f_lineno - 1)], set(given)
    for _ in range(_ROUNDS):
        for text in texts:
            if re.search(_COARSE, text):
                return ""
            match = re.search(_SYSTEM, text) or (re.search(_DRAWN, text) if is_random_unseeded else None)
            if match is not None:
                return match[0].rstrip(" (")
        names = {name for text in texts for name in re.findall(_NAME, text)} - seen
        seen |= names
        texts = [text for name in sorted(names) for text in _assignment(lines, name, of_function)]
    return ""


def forget() -> None:
    """After the imports: the text of the files."""
    _files.clear()
    _read.clear()


def _lines(path: str) -> List[str]:
    if path not in _files:
        try:
            with open(path, encoding="utf-8", errors="replace") as file:
                _files[path] = file.read(_FILE_MAX).splitlines()
        except (OSError, ValueError):
            _files[path] = []  # there is only bytecode
    return _files[path]


def _statement(lines: List[str], index: int) -> str:
    """From this line to the one that closes its brackets. Comments may be in it, so it is not exact."""
    text = ""
    for line in lines[index : index + _LINES_MAX] if index >= 0 else ():
        text += line.partition(" #")[0] + "\n"
        if sum(text.count(sign) for sign in "([{") <= sum(text.count(sign) for sign in ")]}"):
            break
    return text


def _assignment(lines: List[str], name: str, of_function: range) -> List[str]:
    """The only assignment of a name, in the function or at the top of the file. Of several, nobody knows which one counts."""
    assigns = re.compile(rf"^\s*{name}\s*(?::[^=]+)?[-+*/%^|&]*=(?!=)")
    found = [
        _statement(lines, index)
        for index, line in enumerate(lines)
        if name in line and assigns.match(line) and (index in of_function or not line[0].isspace())
    ]
    return found if len(found) == 1 else []
