"""Strict decoding of YAML that people write: every mistake at once, with path, value and what is allowed.

All scalars are read as text (YAML's own guessing turns ``0000:07:00.0`` into a number of base 60 and
``12.10`` into 12.1), so that the field decides what its text means.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import yaml

from dra_driver.api.quantity import Quantity
from dra_driver.discovery.core import schema
from dra_driver.errors import ConfigurationError, InvalidQuantity

__all__ = ["MAX_BYTES", "Reader", "parse_yaml", "read_text"]

MAX_BYTES = 1 << 20

_T = TypeVar("_T")


class _TextLoader(yaml.BaseLoader):
    """Scalars stay text; a key given twice is an error instead of the last one winning in silence."""

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[str] = set()
        for key, _ in getattr(node, "value", ()):
            if isinstance(key, yaml.ScalarNode) and key.value in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"{key.value!r} is given twice", key.start_mark
                )
            seen.add(getattr(key, "value", "") if isinstance(key, yaml.ScalarNode) else "")
        return dict(super().construct_mapping(node, deep=deep))


def read_text(path: Path, what: str) -> str:
    """Return the text of a file that people write.

    Raises:
        ConfigurationError: it cannot be read, or is not UTF-8.
    """
    try:
        with path.open("rb") as stream:
            # One byte more than allowed, so that a text that is too long is noticed.
            return stream.read(MAX_BYTES + 1).decode("utf-8")
    except OSError as e:
        raise ConfigurationError(f"{what} {path}: cannot be read: {e.strerror or e}") from e
    except UnicodeDecodeError as e:
        raise ConfigurationError(f"{what} {path}: not UTF-8 text: {e.reason}") from e


def parse_yaml(text: str, what: str) -> object:
    """Return the document as mappings, lists and text.

    Raises:
        ConfigurationError: too long, not YAML, nested too deeply, or a key given twice.
    """
    if len(text) > MAX_BYTES:
        raise ConfigurationError(
            f"{what}: {len(text)} characters are too long: at most {MAX_BYTES} are allowed"
        )
    try:
        return yaml.load(text, Loader=_TextLoader)  # noqa: S506 - makes text, lists and mappings only
    except yaml.MarkedYAMLError as e:
        mark = f" (line {e.problem_mark.line + 1})" if e.problem_mark else ""
        raise ConfigurationError(f"{what}: not valid YAML: {e.problem or e.context}{mark}") from e
    except yaml.YAMLError as e:
        raise ConfigurationError(f"{what}: not valid YAML: {str(e).splitlines()[0]}") from e
    except RecursionError as e:
        raise ConfigurationError(f"{what}: nested too deeply") from e


def _show(value: object) -> str:
    # Never the repr of a container: aliases make a document of one kilobyte expand to gigabytes.
    if value is None or value == "":
        return "nothing"
    if isinstance(value, str):
        return repr(value[:80])
    if isinstance(value, Mapping):
        return "a mapping"
    return "a list" if isinstance(value, Sequence) else type(value).__name__


class Reader:
    """A reader of values that collects what is wrong with them.

    A method whose value is wrong notes a finding and returns None (or nothing of a sequence); ``finish``
    raises them all. Absent values (None) stay None and are no mistake.
    """

    def __init__(self, what: str) -> None:
        self._what = what
        self._findings: list[str] = []

    def finding(self, path: str, message: str) -> None:
        """Note a mistake."""
        self._findings.append(f"{self._what}: {path}: {message}" if path else f"{self._what}: {message}")

    def finish(self) -> None:
        """Raise what was found.

        Raises:
            ConfigurationError: with every finding.
        """
        if self._findings:
            raise ConfigurationError(self._findings)

    def mapping(
        self, value: object, path: str, allowed: Iterable[str], required: Iterable[str] = ()
    ) -> dict[str, object]:
        """Return a mapping with no keys but ``allowed``; empty where it is none."""
        if not isinstance(value, Mapping):
            self.finding(path, f"{_show(value)} is not a mapping; its keys may be {', '.join(allowed)}")
            return {}
        known = tuple(allowed)
        for key in value:
            if key not in known:
                self.finding(path, f"unknown key {_show(key)}; allowed are {', '.join(known)}")
        for key in required:
            if key not in value:
                self.finding(path, f"{key} is missing")
        return {k: v for k, v in value.items() if k in known}

    def items(self, value: object, path: str, limit: int) -> Iterator[tuple[str, object]]:
        """Yield ``(path, item)`` of a list of at most ``limit``."""
        if value is None:
            return
        if not isinstance(value, list):
            self.finding(path, f"{_show(value)} is not a list")
            return
        if len(value) > limit:
            self.finding(path, f"{len(value)} items are too many: at most {limit} are allowed")
            return
        for i, item in enumerate(value):
            yield f"{path}[{i}]", item

    def text(
        self,
        value: object,
        path: str,
        pattern: re.Pattern[str] | None = None,
        allowed: str = "",
        limit: int = 64,
    ) -> str | None:
        """Return printable text of at most ``limit`` bytes; ``allowed`` describes what ``pattern`` wants."""
        if value is None:
            return None
        if not isinstance(value, str) or not value:
            self.finding(path, f"{_show(value)} is not a text")
        elif not value.isprintable() or len(value.encode("utf-8", "surrogatepass")) > limit:
            self.finding(path, f"{_show(value)} is not printable text of at most {limit} bytes")
        elif pattern is not None and pattern.fullmatch(value) is None:
            self.finding(path, f"{_show(value)} is not {allowed}")
        else:
            return value
        return None

    def choice(self, value: object, path: str, choices: Sequence[str]) -> str | None:
        """Return one of ``choices``."""
        if value is None:
            return None
        if isinstance(value, str) and value in choices:
            return value
        self.finding(path, f"{_show(value)} is not allowed; allowed are {', '.join(choices)}")
        return None

    def integer(self, value: object, path: str, least: int, most: int) -> int | None:
        """Return a whole number from ``least`` to ``most``."""
        if value is None:
            return None
        if (
            isinstance(value, str)
            and re.fullmatch(r"-?[0-9]{1,18}", value, re.ASCII)
            and least <= int(value) <= most
        ):
            return int(value)
        self.finding(path, f"{_show(value)} is not a whole number from {least} to {most}")
        return None

    def boolean(self, value: object, path: str) -> bool | None:
        """Return ``true`` or ``false``."""
        chosen = self.choice(value, path, ("true", "false"))
        return None if chosen is None else chosen == "true"

    def version(self, value: object, path: str) -> str | None:
        """Return a version such as ``570.148.08`` or ``12.4``, made semantic."""
        if value is None:
            return None
        version = schema.semantic_version(value) if isinstance(value, str) else None
        if version is None:
            self.finding(
                path, f"{_show(value)} is not a version; allowed are one to three numbers, for example 12.4"
            )
        return version

    def byte_count(self, value: object, path: str) -> int | None:
        """Return a positive whole number of bytes written as a quantity (``40960Mi``)."""
        if value is None:
            return None
        if not isinstance(value, str):
            self.finding(path, f"{_show(value)} is not a quantity, for example 40960Mi")
            return None
        try:
            amount = Quantity.parse(value)
        except InvalidQuantity as e:
            self.finding(path, str(e))
            return None
        if amount.nano <= 0 or amount.nano % 10**9 or amount.nano >= 2**63 * 10**9:
            self.finding(path, f"{_show(value)} is not a positive whole number of bytes")
            return None
        return amount.value()
