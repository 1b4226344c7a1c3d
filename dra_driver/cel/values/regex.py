"""Regular expressions: RE2, which never backtracks, with bounds of our own.

RE2 takes time in proportion to the text times the program, and a program may be a thousand times longer than
its pattern: ``.{1000}`` has 8,000 instructions. So the size of programs is bounded, patterns share a cache of
bounded memory, and a match is charged with text times program before it starts.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Final, NamedTuple, Protocol, cast

import re2

from dra_driver.caches import BoundedCache
from dra_driver.cel.errors import CelRuntimeError
from dra_driver.cel.values.meter import Meter, bytes_of
from dra_driver.cel.values.values import Value, shown

__all__ = [
    "MAX_PATTERN_LENGTH",
    "METERED",
    "ON_PATTERNS",
    "Pattern",
    "compile_pattern",
    "matching_work",
]

# Selectors that the API accepts have no longer one; expressions could compute one.
MAX_PATTERN_LENGTH: Final = 10 * 1024
_MAX_NESTING: Final = 1000
# Characters, classes and groups after repeats are expanded, which RE2 does before it counts instructions.
_MAX_EXPANDED: Final = 16_384
# Memory of RE2 for a pattern: a quarter of it for 16 bytes an instruction, the rest for states. What people
# write gets along with the first; the second lets a match on 64 characters take 5 ms at worst.
_MEMORY: Final = (128 << 10, 1 << 20)
_MAX_SIZE: Final = 16_384
_CACHE: Final = 24 << 20
# Memory besides RE2's limit: the parsed pattern, and our own objects.
_OVERHEAD: Final = 8 << 10
# Measured at worst: 5 to 10 ns per character and instruction to match, 0.3 µs per instruction to compile.
_PER_UNIT: Final = 32
_COMPILING_BASE, _COMPILING_PER_INSTRUCTION, _SEARCH = 100, 2, 16
# Of Unicode, which are parsed to hundreds of ranges even where one class is made of all of them: 4 µs.
_COMPILING_PER_CLASS: Final = 20
# Memory of a string in a list besides its characters, in bytes.
_STRING = 64


class _Match(Protocol):
    def group(self) -> str: ...
    def start(self) -> int: ...
    def end(self) -> int: ...


class _Compiled(Protocol):
    @property
    def programsize(self) -> int: ...
    @property
    def reverseprogramsize(self) -> int: ...
    def search(self, text: str | bytes) -> _Match | None: ...
    def finditer(self, text: str) -> Iterator[_Match]: ...


class Pattern(NamedTuple):
    """A compiled pattern.

    Attributes:
        compiled: RE2's object.
        size: instructions of its program.
        weight: maximum size in memory, in bytes.
    """

    compiled: _Compiled
    size: int
    weight: int

    def matches(self, text: str) -> bool:
        """Return whether it matches anywhere."""
        # Bytes, so that re2 does not translate offsets to positions in the text.
        return self.compiled.search(text.encode()) is not None


_known: BoundedCache[str, Pattern] = BoundedCache(_CACHE)


def compile_pattern(pattern: str) -> Pattern:
    """Return the compiled pattern.

    Raises:
        CelRuntimeError: RE2 or Go does not accept it, or it is too large.
    """
    known = _known.get(pattern)
    if known is None:
        known = _compiled(pattern)
        _known.put(pattern, known, known.weight)
    return known


def _compiled(pattern: str) -> Pattern:
    if len(pattern) > MAX_PATTERN_LENGTH:
        raise _error(pattern, f"{len(pattern)} characters are too long: {MAX_PATTERN_LENGTH} are allowed")
    _check_expansion(pattern)
    for memory in _MEMORY:
        options = re2.Options()
        options.log_errors = False
        options.never_capture = True
        options.max_mem = memory
        try:
            compiled = cast("_Compiled", re2.compile(pattern, options))
        except re2.error as e:
            reason = e.args[0].decode(errors="replace") if e.args and isinstance(e.args[0], bytes) else e
            if "too large" not in str(reason):
                raise _error(pattern, shown(str(reason))) from None
            continue
        finally:
            # The module's own cache would keep 128 of them.
            re2.purge()
        size = max(compiled.programsize, compiled.reverseprogramsize)
        return Pattern(compiled, size, memory + _OVERHEAD + 40 * len(pattern))
    raise _TooLargeError(
        str(_error(pattern, f"expression too large: its program has more than {_MAX_SIZE} instructions"))
    )


class _TooLargeError(CelRuntimeError):
    """A pattern whose program is too large, which only compiling it shows."""


def _error(pattern: str, reason: str) -> CelRuntimeError:
    return CelRuntimeError(f"error parsing regexp {shown(pattern)!r}: {reason}")


# --- size ---------------------------------------------------------------------------------------------------

_TOKEN = re.compile(
    r"""
    \\Q(?P<quoted>.*?)(?:\\E|$)
  | (?P<any_byte>\\C)
  | (?P<repeat>\{(?P<least>[0-9]+)(?:(?P<comma>,)(?P<most>[0-9]*))?\})
  | (?P<often>[*+?])
  | (?P<flags>\(\?[a-zA-Z-]{0,99}\))
  | (?P<group>\((?:\?(?:P?<[^>]{0,99}>|[a-zA-Z-]{0,99}:))?)
  | (?P<close>\))
  | (?P<bar>\|)
  | (?P<bracket>\[\^?\]?(?:\[:\^?[a-z]{0,9}:\]|\\.|[^\]\\])*\])
  | (?P<open>\[)
  | (?P<script>\\[pP](?:\{[^}]{0,99}\}|.))
  | \\(?:x(?:\{[^}]{0,9}\}|..)|.)
  | .
    """,
    re.VERBOSE | re.DOTALL,
)


_SCRIPT = re.compile(r"\\[pP](?:\{[^}]{0,99}\}|.)", re.DOTALL)
# Instructions of a class for each part that it counts as. Where RE2 makes one of alternatives that are equal,
# their program is smaller than their number says.
_INSTRUCTIONS_PER_PART: Final = 32


@lru_cache(maxsize=1024)
def _class_size(name: str) -> int:
    """Return the parts that a class of Unicode (letters, a script, or all others) counts as."""
    options = re2.Options()
    options.log_errors = False
    try:
        program = cast("_Compiled", re2.compile(name, options))
        return max(1, program.programsize // _INSTRUCTIONS_PER_PART)
    except re2.error:
        return 1  # there is no such class: the whole pattern is refused for it
    finally:
        re2.purge()


def _check_expansion(pattern: str) -> None:
    """Refuse a pattern that is nested too deeply or grows too large when its repeats are expanded.

    Linear in the length of the pattern: every look-ahead is bounded. RE2 itself refuses ``{1001}``, and
        nested
    repeats of more than 1,000 in all, as Go does.

    Raises:
        CelRuntimeError: says what is allowed.
    """
    # Size of the groups that are open, and of the last piece in each, which a repeat multiplies.
    sizes, last = [0], 0
    for token in _TOKEN.finditer(pattern):
        kind = token.lastgroup
        piece = 1
        _check_token(token, pattern)
        if token["flags"] or token["bar"] or token["often"]:
            piece, last = 1, last if token["often"] else 0
            sizes[-1] += piece
            continue
        if token["group"]:
            if len(sizes) > _MAX_NESTING:
                raise _error(pattern, f"expression nests too deeply: {_MAX_NESTING} groups are allowed")
            sizes.append(0)
            last = 0
            continue
        if token["close"]:
            piece = sizes.pop() + 1 if len(sizes) > 1 else 1
        elif token["repeat"]:
            least, most = token["least"][:5], token["most"]
            times = int(most[:5]) if most else int(least) + (token["comma"] is not None)
            piece = last * max(times - 1, 0)
        elif kind == "quoted":
            piece = len(token["quoted"])
        elif kind in ("script", "bracket"):
            # Such a class has up to 1,200 instructions, which RE2 makes before it finds them to be too many.
            piece = max((_class_size(name[0]) for name in _SCRIPT.finditer(token[0])), default=1)
        sizes[-1] += piece
        last = last + piece if token["repeat"] else (1 if kind == "quoted" else piece)
        if sizes[-1] > _MAX_EXPANDED:
            raise _error(
                pattern,
                f"expression too large: with its repeats written out it has more than {_MAX_EXPANDED} parts",
            )


def _check_token(token: re.Match[str], pattern: str) -> None:
    if token["any_byte"]:
        raise _error(pattern, "invalid escape sequence: `\\C`")
    if token["open"]:
        # Refused here: the end of each further class would be searched for to the end of the pattern.
        raise _error(pattern, "missing closing ]")


# --- functions ----------------------------------------------------------------------------------------------


def matching_work(length: int, size: int) -> int:
    """Return the work of matching a program against a text of so many bytes."""
    return (length + 1) * size // _PER_UNIT


def prepared(meter: Meter, pattern: str) -> Pattern:
    """Return a pattern that is computed by an expression, charged whether or not it is cached."""
    classes = pattern.count("\\p") + pattern.count("\\P")
    meter.spend(_COMPILING_BASE + len(pattern) + _COMPILING_PER_CLASS * classes)
    try:
        compiled = compile_pattern(pattern)
    except _TooLargeError:
        meter.spend(_COMPILING_PER_INSTRUCTION * _MAX_SIZE)
        raise
    meter.spend(_COMPILING_PER_INSTRUCTION * compiled.size)
    return compiled


def matches(meter: Meter, text: str, pattern: Pattern) -> bool:
    """Return whether the pattern matches anywhere."""
    meter.spend(matching_work(bytes_of(text), pattern.size))
    return pattern.matches(text)


def find(meter: Meter, text: str, pattern: Pattern) -> str:
    """Return the first match, or an empty text."""
    meter.spend(matching_work(bytes_of(text), pattern.size))
    match = pattern.compiled.search(text)
    return match.group() if match else ""


def find_all(meter: Meter, text: str, pattern: Pattern, limit: int = -1) -> list[str]:
    """Return the matches, at most ``limit`` of them; all if it is negative."""
    size = bytes_of(text)
    meter.spend(matching_work(size, pattern.size))
    found: list[str] = []
    last = -1
    if limit == 0:
        return found
    for match in pattern.compiled.finditer(text):
        start, end = match.start(), match.end()
        # An empty match right behind the last one does not count.
        if end > start or start != last:
            # A slot of the list, and the string with its head.
            meter.make(_STRING + end - start, "list")
            found.append(match.group())
            last = end
        if len(found) == limit:
            break
        # The next search may run to the end of the text.
        meter.spend(_SEARCH + matching_work(max(size - end, 0), pattern.size))
    return found


def _dynamic(function: Callable[..., Value]) -> Callable[..., Value]:
    return lambda meter, text, pattern, *limit: function(meter, text, prepared(meter, pattern), *limit)


ON_PATTERNS: dict[str, Callable[..., Value]] = {"matches": matches, "find": find, "findAll": find_all}
"""By the name of the function, for patterns that are compiled."""

METERED: dict[str, Callable[..., Value]] = {
    "matches": _dynamic(matches),
    "matches_string": _dynamic(matches),
    "string_find_string": _dynamic(find),
    "string_find_all_string": _dynamic(find_all),
    "string_find_all_string_int": _dynamic(find_all),
}
