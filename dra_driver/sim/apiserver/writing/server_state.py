"""The part of the registry that the parts of a write use."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from dra_driver.sim.apiserver.objects.kinds import Kind, Kinds
from dra_driver.sim.apiserver.storage.store import Collection, Store, Stored

__all__ = ["Later", "ServerState"]

Later = Callable[[float, Callable[[], None]], None]
"""Runs work after some seconds."""


class ServerState(Protocol):
    """The objects, the kinds and the clock of a server.

    Attributes:
        store: all objects.
        kinds: the kinds that are served.
        later: runs work some time after a write.
        collected: group and plural name of the kinds that a garbage collector handles.
    """

    store: Store
    kinds: Kinds
    later: Later
    collected: frozenset[tuple[str, str]]

    def collection(self, kind: Kind) -> Collection:
        """Return the objects of a kind."""
        ...

    def get(self, kind: Kind, namespace: str, name: str) -> Stored:
        """Return one object.

        Raises:
            StatusError: there is no such object.
        """
        ...

    def now(self) -> str:
        """Return the time as objects carry it."""
        ...

    def at(self, seconds: float) -> str:
        """Return the time in ``seconds`` from now."""
        ...
