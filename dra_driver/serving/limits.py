"""How much one port takes from those who connect to it."""

from __future__ import annotations

import resource
from dataclasses import dataclass, replace

__all__ = ["Limits"]

_DESCRIPTORS_FOR_THE_REST = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Bounds of one port. Times are in seconds.

    The defaults are for TLS, where an open connection costs about 290 kB, most of it a buffer of asyncio's:
    all of them together stay below 40 MB.

    Attributes:
        connections: that are open at a time, from the TLS handshake on.
        silent: that are accepted and have not sent a whole first message (a byte of HTTP, or the client's
            part of the handshake); they cost a socket and no buffer.
        per_peer: of the open ones, of one address; further ones wait until one of them has gone.
        hello: for the first message.
        handshake: for the rest of the handshake.
        tenure: for which a connection that has come one step further does not give way to others.
        header: from the end of the handshake, or the first byte of a request, to the end of its header.
        body: for the body of a request.
        idle: between two requests. Go's HTTP client, which the API server and Prometheus use, gives a
            connection up after 90 s, so that it is the client that closes.
        answer: for a client to take what is written to it, where that does not fit into its buffers.
        sweep: between two looks for connections whose time is over.
        header_bytes: of the header of one request, in all.
        request_bytes: of the body of one request.
        body_bytes: of all bodies that are being received at a time.
    """

    connections: int = 128
    silent: int = 1024
    per_peer: int = 128
    hello: float = 5.0
    handshake: float = 5.0
    tenure: float = 0.25
    header: float = 5.0
    body: float = 15.0
    idle: float = 120.0
    answer: float = 30.0
    sweep: float = 0.5
    header_bytes: int = 64 << 10
    request_bytes: int = 16 << 10
    body_bytes: int = 4 << 20

    def within_descriptors(self, soft: int | None = None) -> Limits:
        """Return limits that leave three quarters of the process's file descriptors to everything else.

        Args:
            soft: how many the process may have; if None, its soft ``RLIMIT_NOFILE``.
        """
        if soft is None:
            soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
            if soft == resource.RLIM_INFINITY:
                return self
        share = max(8, (soft - _DESCRIPTORS_FOR_THE_REST) // 4)
        if self.connections + self.silent <= share:
            return self
        connections = min(self.connections, max(4, share // 2))
        return replace(self, connections=connections, silent=min(self.silent, max(4, share - connections)))
