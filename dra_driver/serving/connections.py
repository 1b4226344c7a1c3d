"""The connections of one port: how far each has come, since when, and which one has to go.

A connection passes through stages. Each has a limit of time, and where there is no place for a new connection
the one goes that has been in its stage for longest, of the peer that has most of them; never one of a peer
that has fewer than the newcomer's. What is being worked on does not go, nor what has just come to its stage:
such a connection goes once it is answered, or busy ones would keep their places for ever.
"""

from __future__ import annotations

import enum
import itertools
import socket
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from typing import Final

from dra_driver.serving.limits import Limits

__all__ = ["Connection", "Connections", "Stage"]


class Stage(enum.Enum):
    """How far a connection has come."""

    SILENT = "silent"
    """Accepted; its first message is not there as a whole."""
    READY = "ready"
    """Its first message is there; it waits for its turn."""
    HANDSHAKE = "handshake"
    """The TLS handshake is under way."""
    HEADER = "header"
    """A request is awaited for the first time, or its header is."""
    BODY = "body"
    """The body of a request is being received."""
    SERVED = "served"
    """A request is being answered."""
    IDLE = "idle"
    """A request was answered, the next one is awaited."""


NO_PLACE: Final = "no place"
"""Reason for which a connection is closed: another one needed what it had."""
# Peers with waiting connections that are looked at after each request.
_WAITING_PEERS: Final = 16
# Without buffers yet.
_CHEAP: Final = (Stage.SILENT, Stage.READY)
# Those that give way to a new connection when there is no place.
_GIVE_WAY = (Stage.HANDSHAKE, Stage.HEADER, Stage.BODY, Stage.IDLE)


def _closed() -> None:
    return None


@dataclass(slots=True, eq=False)
class Connection:
    """One connection.

    Attributes:
        peer: address of the other side.
        socket: until a transport has it.
        stage: how far it has come.
        since: when it came there, by the clock of ``Connections``.
        close: ends it at once, without waiting for the peer.
        received: bytes since the last request was complete.
        held: bytes of its body in memory.
        stalled: since when the peer does not take what is written; None while it does.
    """

    peer: str
    socket: socket.socket | None
    stage: Stage = Stage.SILENT
    since: float = 0.0
    close: Callable[[], None] = _closed
    received: int = 0
    held: int = 0
    stalled: float | None = None


@dataclass(slots=True)
class _Waiting:
    """The connections of one stage, the one that came first in front, and those of each peer likewise."""

    all: dict[Connection, None] = field(default_factory=dict)
    by_peer: dict[str, dict[Connection, None]] = field(default_factory=dict)

    def add(self, connection: Connection) -> None:
        self.all[connection] = None
        self.by_peer.setdefault(connection.peer, {})[connection] = None

    def remove(self, connection: Connection) -> None:
        del self.all[connection]
        of_peer = self.by_peer[connection.peer]
        del of_peer[connection]
        if not of_peer:
            del self.by_peer[connection.peer]

    def first(self) -> Connection | None:
        return next(iter(self.all), None)


class Connections:
    """Keeps count of the connections of one port.

    Attributes:
        closed: how many were ended here, by the reason: ``no place``, or the stage that took too long.
    """

    def __init__(self, limits: Limits, now: Callable[[], float]) -> None:
        """Begin without connections.

        Args:
            limits: of the port.
            now: seconds on a clock that never goes back.
        """
        self._limits = limits
        self._now = now
        self._stages = {stage: _Waiting() for stage in Stage}
        self._stalled: dict[Connection, None] = {}
        self._held = 0
        self.closed: dict[str, int] = {}
        self._seconds = {
            Stage.SILENT: limits.hello,
            Stage.READY: limits.hello,
            Stage.HANDSHAKE: limits.handshake,
            Stage.HEADER: limits.header,
            Stage.BODY: limits.body,
            Stage.IDLE: limits.idle,
        }

    def __iter__(self) -> Iterator[Connection]:
        return iter([c for waiting in self._stages.values() for c in waiting.all])

    def __contains__(self, connection: Connection) -> bool:
        return connection in self._stages[connection.stage].all

    def count(self, *stages: Stage) -> int:
        """Return how many connections are in any of these stages; in all, if none is named."""
        return sum(len(self._stages[stage].all) for stage in stages or Stage)

    def add(self, connection: Connection) -> None:
        """Take in a connection that was accepted; the silent one that is there for longest may have to go."""
        connection.since = self._now()
        self._stages[Stage.SILENT].add(connection)
        while self.count(*_CHEAP) > self._limits.silent:
            self.end(self._victim(_CHEAP, connection.peer) or connection, NO_PLACE)

    def enter(self, connection: Connection, stage: Stage) -> None:
        """Note that a connection has come to another stage; its time begins anew."""
        self._stages[connection.stage].remove(connection)
        connection.stage, connection.since = stage, self._now()
        self._stages[stage].add(connection)

    def next(self, without: Collection[str] = ()) -> Connection | None:
        """Return the connection whose turn it is: of each peer in turn, the one that came last.

        In a crowd whoever came first has waited too long already.

        Args:
            without: peers that get no turn now.
        """
        by_peer = self._stages[Stage.READY].by_peer
        peer = next((p for p in by_peer if p not in without), None)
        if peer is None:
            return None
        by_peer[peer] = by_peer.pop(peer)
        return next(reversed(by_peer[peer]))

    def admit(self, connection: Connection, stage: Stage) -> bool:
        """Give a connection whose turn it is a place among the open ones; return whether there is one now."""
        own = self._open_of(connection.peer) >= self._limits.per_peer
        if own or self.count() - self.count(*_CHEAP) >= self._limits.connections:
            victim = self._victim(_GIVE_WAY, connection.peer, own=own)
            if victim is None:
                return False
            self.end(victim, NO_PLACE)
        self.enter(connection, stage)
        return True

    def is_wanted(self, connection: Connection) -> bool:
        """Return whether a peer that has fewer open connections waits for a place."""
        if self.count() - self.count(*_CHEAP) < self._limits.connections:
            return False
        most = self._open_of(connection.peer)
        # Those whose turn comes next.
        waiting = itertools.islice(self._stages[Stage.READY].by_peer, _WAITING_PEERS)
        return any(self._open_of(peer) < most for peer in waiting)

    def remove(self, connection: Connection) -> None:
        """Forget a connection that has ended; nothing happens if it is forgotten already."""
        if connection in self:
            self._stages[connection.stage].remove(connection)
        self._stalled.pop(connection, None)
        self.release(connection)

    def stall(self, connection: Connection) -> None:
        """Note that the peer does not take what is written to it."""
        connection.stalled = self._now()
        self._stalled[connection] = None

    def flow(self, connection: Connection) -> None:
        """Note that the peer takes it again."""
        connection.stalled = None
        self._stalled.pop(connection, None)

    def hold(self, connection: Connection, size: int) -> None:
        """Count bytes of a body that are kept; of too many one goes, of the peer whose bodies are largest.

        Of its bodies it is the one that is under way for longest.
        """
        connection.held += size
        self._held += size
        while self._held > self._limits.body_bytes:
            bodies = self._stages[Stage.BODY].by_peer
            if not bodies:
                return
            most = max(bodies.values(), key=lambda of_peer: sum(c.held for c in of_peer))
            self.end(next(iter(most)), NO_PLACE)

    def release(self, connection: Connection) -> None:
        """Count the body of a connection no more."""
        self._held -= connection.held
        connection.held = 0

    def sweep(self) -> None:
        """End the connections whose time is over."""
        now = self._now()
        for stage, seconds in self._seconds.items():
            while (first := self._stages[stage].first()) is not None and now - first.since >= seconds:
                self.end(first, stage.value)
        for connection in tuple(self._stalled):
            if connection.stalled is not None and now - connection.stalled >= self._limits.answer:
                self.end(connection, "answer")

    def end(self, connection: Connection, reason: str) -> None:
        """Close a connection at once."""
        self.closed[reason] = self.closed.get(reason, 0) + 1
        self.remove(connection)
        # Let go of what it leads to: buffers of TLS in a circle would stay until the next full collection.
        close, connection.close = connection.close, _closed
        close()

    def _open_of(self, peer: str) -> int:
        stages = (waiting for stage, waiting in self._stages.items() if stage not in _CHEAP)
        return sum(len(waiting.by_peer.get(peer, ())) for waiting in stages)

    def _victim(self, stages: tuple[Stage, ...], newcomer: str, *, own: bool = False) -> Connection | None:
        """Return the connection that gives way to one of a peer: its own, or of a peer that has no fewer.

        Args:
            stages: in which connections give way.
            newcomer: the peer.
            own: only those of the peer itself.
        """
        peers: dict[str, int] = {}
        for stage in stages:
            for peer, connections in self._stages[stage].by_peer.items():
                peers[peer] = peers.get(peer, 0) + len(connections)
        most = peers.get(newcomer, 0)
        for peer in sorted(peers, key=peers.__getitem__, reverse=True):
            if peer != newcomer and (own or peers[peer] < most):
                continue
            first = [
                next(iter(of_peer))
                for stage in stages
                if (of_peer := self._stages[stage].by_peer.get(peer)) is not None
            ]
            waiting = [c for c in first if not self._is_young(c)]
            if waiting:
                return min(waiting, key=lambda connection: connection.since)
        return None

    def _is_young(self, connection: Connection) -> bool:
        """Return whether an open connection has not had the time that a step takes on a busy machine."""
        age = self._now() - connection.since
        return connection.stage not in _CHEAP and age < self._limits.tenure
