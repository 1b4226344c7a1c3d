"""What waits: looked at for all readers of the page together, and searched for what one of them looks for."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final, NamedTuple

import msgspec

from dra_driver.fleet import Problem, WaitingClaim

__all__ = ["LOOK_SECONDS", "Found", "Looked", "Waits", "waiting_filter"]

LOOK_SECONDS: Final = 2.0
"""How often reasons of waiting claims are looked at again; they change without an object changing."""
LOOK_SHARE: Final = 0.1
"""The part of the time, at most, in which what waits is looked at, however much waits and changes."""

# As the script of the page takes a filter apart (store.js).
_WORD: Final = re.compile(r'(?:[a-z]+:)?"[^"]*"|\S+')
_FIELDS: Final[dict[str, Callable[[WaitingClaim], str]]] = {
    "": lambda claim: "\n".join((claim.claim, *_pods(claim), claim.reason)),
    "ns": lambda claim: claim.claim.partition("/")[0],
    "claim": lambda claim: claim.claim,
    "pod": lambda claim: "\n".join(_pods(claim)),
    "state": lambda _: "waits",
}


class Waits(NamedTuple):
    """What waits at a moment.

    Attributes:
        claims: the most urgent ones.
        total: how many there are.
        nodes: of the cluster.
        problems: of the fleet, the first of them.
        problems_total: how many there are.
    """

    claims: tuple[WaitingClaim, ...] = ()
    total: int = 0
    nodes: int = 0
    problems: tuple[Problem, ...] = ()
    problems_total: int = 0


class Found(msgspec.Struct, frozen=True):
    """What matches a filter.

    Attributes:
        waiting: the most urgent claims of those that match.
        total: how many match.
        of: how many wait.
    """

    waiting: tuple[WaitingClaim, ...]
    total: int
    of: int


class Looked:
    """What waits, for all readers together: among thousands of claims it takes a while to find the first.

    Args:
        look: finds it.
        now: seconds on a clock that never goes back.

    Attributes:
        stale: something has changed since it was looked at.
    """

    def __init__(self, look: Callable[[], Waits], now: Callable[[], float]) -> None:
        self._look = look
        self._now = now
        self._found = Waits()
        self._at = self._next = float("-inf")
        self.stale = True

    def get(self) -> Waits:
        """Return it as it was when there was last time to look."""
        now = self._now()
        if now >= self._next and (self.stale or now - self._at >= LOOK_SECONDS):
            self._found = self._look()
            self.stale = False
            self._at = self._now()
            self._next = self._at + (self._at - now) * (1 / LOOK_SHARE - 1)
        return self._found


def waiting_filter(query: str) -> Callable[[WaitingClaim], bool]:
    """Return whether a claim has all words of a filter; ``name:value`` looks at one field, as on the page."""
    words = dict.fromkeys(map(_field, _WORD.findall(query.lower())))
    fields = {field: _FIELDS[field] for field, _ in words}

    def matches(claim: WaitingClaim) -> bool:
        texts = {name: text(claim).lower() for name, text in fields.items()}
        return all(value in texts[field] for field, value in words)

    return matches


def _field(word: str) -> tuple[str, str]:
    word = word.replace('"', "")
    name, _, value = word.partition(":")
    return (name, value) if name in _FIELDS and name else ("", word)


def _pods(claim: WaitingClaim) -> list[str]:
    namespace = claim.claim.partition("/")[0]
    return [f"{namespace}/{pod}" for pod in claim.pods]
