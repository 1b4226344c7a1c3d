"""Semantic versions (semver.org 2.0.0) as Kubernetes compares them: build metadata is ignored."""

from __future__ import annotations

import re
from functools import total_ordering

from dra_driver.errors import InvalidVersion

__all__ = ["Version"]

_NUMBER = r"(0|[1-9][0-9]*)"
_IDENTIFIER = r"(?:0|[1-9][0-9]*|[0-9]*[A-Za-z-][0-9A-Za-z-]*)"
_PATTERN = re.compile(
    rf"{_NUMBER}\.{_NUMBER}\.{_NUMBER}(?:-({_IDENTIFIER}(?:\.{_IDENTIFIER})*))?(?:\+([0-9A-Za-z.-]+))?",
    re.ASCII,
)


@total_ordering
class Version:
    """An immutable version. Equality and order ignore build metadata."""

    __slots__ = ("_key", "build", "major", "minor", "patch", "prerelease")

    def __init__(
        self, major: int, minor: int, patch: int, prerelease: tuple[str, ...] = (), build: str = ""
    ) -> None:
        self.major = major
        self.minor = minor
        self.patch = patch
        self.prerelease = prerelease
        self.build = build
        # A version without prerelease is greater; numeric identifiers sort below alphanumeric ones.
        identifiers = tuple((0, int(p), "") if p.isdigit() else (1, 0, p) for p in prerelease)
        self._key = (major, minor, patch, not prerelease, identifiers)

    @classmethod
    def parse(cls, text: str) -> Version:
        """Parses ``1.2.3-rc.1+build``.

        Raises:
            InvalidVersion: the text is no semantic version.
        """
        match = _PATTERN.fullmatch(text)
        if match is None:
            raise InvalidVersion(
                f"{text[:80]!r} is not a semantic version: MAJOR.MINOR.PATCH is required, each a number "
                "without leading zeros, then optionally -prerelease and +build"
            )
        major, minor, patch, prerelease, build = match.groups()
        return cls(
            int(major),
            int(minor),
            int(patch),
            tuple(prerelease.split(".")) if prerelease else (),
            build or "",
        )

    def __eq__(self, other: object) -> bool:
        return self._key == other._key if isinstance(other, Version) else NotImplemented

    def __lt__(self, other: Version) -> bool:
        return self._key < other._key

    def __hash__(self) -> int:
        return hash(self._key)

    def __str__(self) -> str:
        text = f"{self.major}.{self.minor}.{self.patch}"
        if self.prerelease:
            text += "-" + ".".join(self.prerelease)
        return f"{text}+{self.build}" if self.build else text

    def __repr__(self) -> str:
        return f"Version({str(self)!r})"
