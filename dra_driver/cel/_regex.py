"""Regular expressions: RE2, which never backtracks; a pattern cannot make a selector slow."""

from __future__ import annotations

from functools import lru_cache
from typing import Protocol, cast

import re2

from dra_driver.cel.errors import CelRuntimeError

__all__ = ["compile_pattern", "find", "find_all", "matches"]


class _Match(Protocol):
    def group(self) -> str: ...
    def start(self) -> int: ...
    def end(self) -> int: ...


class _Pattern(Protocol):
    def search(self, text: str, pos: int = 0) -> _Match | None: ...


_OPTIONS = re2.Options()
_OPTIONS.log_errors = False
_OPTIONS.max_mem = 8 << 20


@lru_cache(maxsize=512)
def compile_pattern(pattern: str) -> _Pattern:
    """The compiled pattern.

    Raises:
        CelRuntimeError: RE2 does not accept it.
    """
    try:
        return cast("_Pattern", re2.compile(pattern, _OPTIONS))
    except re2.error as e:
        raise CelRuntimeError(f"error parsing regexp {pattern[:80]!r}: {e}") from None


def matches(text: str, pattern: str) -> bool:
    """Whether the pattern matches anywhere."""
    return compile_pattern(pattern).search(text) is not None


def find(text: str, pattern: str) -> str:
    """The first match, or the empty text."""
    match = compile_pattern(pattern).search(text)
    return match.group() if match else ""


def find_all(text: str, pattern: str, limit: int = -1) -> list[str]:
    """The matches, at most ``limit`` of them; all where it is negative."""
    compiled = compile_pattern(pattern)
    found: list[str] = []
    at, last = 0, -1
    while at <= len(text) and (limit < 0 or len(found) < limit):
        match = compiled.search(text, at)
        if match is None:
            break
        start, end = match.start(), match.end()
        # An empty match right behind the last one does not count.
        if end > start or start != last:
            found.append(match.group())
            last = end
        at = end if end > start else end + 1
    return found
