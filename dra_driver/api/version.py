"""Semantic versions (semver.org 2.0.0) as Kubernetes reads and compares them (``blang/semver``).

All three numbers are required; each number, also in a prerelease, is at most 2**64 - 1.
"""

from __future__ import annotations

import re
from functools import lru_cache, total_ordering

from dra_driver.errors import InvalidVersion

__all__ = ["Version"]

_NUMBER = r"(0|[1-9][0-9]{0,19})"
_PRERELEASE = r"(?:0|[1-9][0-9]*|[0-9]*[A-Za-z-][0-9A-Za-z-]*)"
_BUILD = r"[0-9A-Za-z-]+"
_PATTERN = re.compile(
    rf"{_NUMBER}\.{_NUMBER}\.{_NUMBER}"
    rf"(?:-({_PRERELEASE}(?:\.{_PRERELEASE})*))?(?:\+({_BUILD}(?:\.{_BUILD})*))?",
    re.ASCII,
)
_MAX = 2**64 - 1
# Attributes of devices are no longer; what is longer comes from an expression, of which there is no end.
_LONGEST_KEPT = 64


@total_ordering
class Version:
    """An immutable version. Equality, order and hash ignore build metadata."""

    __slots__ = ("_key", "build", "major", "minor", "patch", "prerelease")

    _key: tuple[int, int, int, bool, tuple[tuple[int, int, str], ...]]
    major: int
    minor: int
    patch: int
    prerelease: tuple[str, ...]
    build: str

    def __init__(
        self, major: int, minor: int, patch: int, prerelease: tuple[str, ...] = (), build: str = ""
    ) -> None:
        # A version without prerelease is greater; numeric identifiers sort below alphanumeric ones.
        identifiers = tuple((0, int(p), "") if p.isdigit() else (1, 0, p) for p in prerelease)
        put = object.__setattr__
        put(self, "major", major)
        put(self, "minor", minor)
        put(self, "patch", patch)
        put(self, "prerelease", prerelease)
        put(self, "build", build)
        put(self, "_key", (major, minor, patch, not prerelease, identifiers))

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError("a Version is immutable")

    def __reduce__(self) -> tuple[object, ...]:
        return Version, (self.major, self.minor, self.patch, self.prerelease, self.build)

    @staticmethod
    def parse(text: str) -> Version:
        """Parse ``1.2.3-rc.1+build``.

        Raises:
            InvalidVersion: the text is no semantic version.
        """
        return _parse(text) if len(text) <= _LONGEST_KEPT else _read(text)

    def __eq__(self, other: object) -> bool:
        return self._key == other._key if isinstance(other, Version) else NotImplemented

    def __lt__(self, other: Version) -> bool:
        return self._key < other._key

    def __gt__(self, other: Version) -> bool:
        return self._key > other._key

    def __hash__(self) -> int:
        return hash(self._key)

    def __str__(self) -> str:
        text = f"{self.major}.{self.minor}.{self.patch}"
        if self.prerelease:
            text += "-" + ".".join(self.prerelease)
        return f"{text}+{self.build}" if self.build else text

    def __repr__(self) -> str:
        return f"Version({str(self)!r})"


@lru_cache(maxsize=4096)
def _parse(text: str) -> Version:
    return _read(text)


def _read(text: str) -> Version:
    match = _PATTERN.fullmatch(text)
    if match is None:
        raise InvalidVersion(
            f"{text[:80]!r} is not a semantic version: MAJOR.MINOR.PATCH is required, each a number "
            "without leading zeros, then optionally -prerelease and +build"
        )
    major, minor, patch = int(match[1]), int(match[2]), int(match[3])
    prerelease = tuple(match[4].split(".")) if match[4] else ()
    # Compared as text first: int() of thousands of digits is slow, and refused by Python.
    too_long = any(len(p) > 20 and p.isdigit() for p in prerelease)
    if too_long or max(major, minor, patch, *(int(p) for p in prerelease if p.isdigit())) > _MAX:
        raise InvalidVersion(f"{text[:80]!r} is not a semantic version: a number is above {_MAX}")
    return Version(major, minor, patch, prerelease, match[5] or "")
