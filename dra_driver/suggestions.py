"""The known name that a mistyped one is probably meant for."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from functools import lru_cache
from typing import Final

__all__ = ["did_you_mean", "nearest"]

# difflib compares each pair of characters, and both texts may be from strangers.
_CHARACTERS: Final = 253
_NAMES: Final = 1000
# Names that share fewer of their characters are different words: "dgx-b900" is no mistyped "dgx-h200".
_ALIKE: Final = 0.78
_WORDS: Final = re.compile(r"[^A-Za-z0-9]+")


def nearest(name: str, known: Iterable[str]) -> str:
    """Return the known name that is most like a name, or the only one with its words; empty if none is."""
    names = tuple(sorted({k for k in known if len(k) <= _CHARACTERS})[:_NAMES])
    return _nearest(name, names) if 0 < len(name) <= _CHARACTERS else ""


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return "; did you mean `model`?" for the end of a message; nothing if no known name is like it."""
    found = nearest(name, known)
    return f"; did you mean `{found}`?" if found else ""


@lru_cache(maxsize=256)
def _nearest(name: str, known: tuple[str, ...]) -> str:
    if name in known:
        return ""
    folded = name.casefold()
    by_folded = {k.casefold(): k for k in reversed(known)}
    if folded in by_folded:
        return by_folded[folded]
    alike = difflib.get_close_matches(folded, by_folded, n=1, cutoff=_ALIKE)
    if alike:
        return by_folded[alike[0]]
    words = set(_WORDS.split(folded))
    holding = [k for k in known if words <= set(_WORDS.split(k.casefold()))]
    beginning = [k for k in holding if k.casefold().startswith(folded)]
    return next((found[0] for found in (holding, beginning) if len(found) == 1), "")
