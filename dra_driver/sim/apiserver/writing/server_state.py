"""What parts of a write ask of the registry that they work for."""

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
        kinds: those that are served.
        later: for what is done some time after a write.
        collected: kinds whose dependants somebody deletes: group and plural.
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
