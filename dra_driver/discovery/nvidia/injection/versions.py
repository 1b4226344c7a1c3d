"""Versions of NVIDIA's driver, as its files are named after them and as it is published."""

from __future__ import annotations

import re
from typing import Final

__all__ = ["is_version", "same_version"]

_VERSION: Final = re.compile(r"[0-9]+(?:\.[0-9]+){1,3}")


def is_version(text: str) -> bool:
    """Return whether the text has the form of a version: ``570.148.08``, ``460.32``."""
    return _VERSION.fullmatch(text) is not None


def same_version(text: str, version: str) -> bool:
    """Return whether a name's version is the wanted one; any is if that is empty.

    ``570.148.08`` is published as ``570.148.8``, and ``460.32`` as ``460.32.0``.
    """
    if not version:
        return True
    if not (is_version(version) and is_version(text)):
        return text == version
    wanted, there = ([int(n) for n in v.split(".")] for v in (version, text))
    length = max(len(wanted), len(there))
    return wanted + [0] * (length - len(wanted)) == there + [0] * (length - len(there))
