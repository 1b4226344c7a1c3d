"""Messages between the controller and the process that reviews: JSON, one to a line.

The controller does not trust that process, which reads what anybody sends: it decodes strictly, and bounds
what it takes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Final

import msgspec

__all__ = [
    "LARGEST",
    "Capacity",
    "Certificate",
    "Ping",
    "Pong",
    "Refused",
    "Start",
    "ToReviewer",
    "line",
    "pong_of",
    "told",
]

LARGEST: Final = 1 << 20
"""Bytes of one message at most; a certificate with its chain is the largest one."""
MOST_REFUSED: Final = 16

_Count = Annotated[int, msgspec.Meta(ge=0)]
_Text = Annotated[str, msgspec.Meta(max_length=1000)]


class Start(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="start"):
    """The first message: how reviews are judged, and what they may take.

    Attributes:
        listening: file descriptors of the sockets that listen.
        drivers: whose parameters are checked.
        others: those among them of third parties.
        resources: whether pods get the gate for extended resources, too.
        client_authorities: PEM; callers without a certificate of one of them are refused. Empty: anybody.
        client_names: of their certificates, common or DNS name; empty: any.
        receive_seconds: in which the body of a review must be there.
        cpu_seconds: that judging one may take.
        memory: bytes that the process may take beyond what it begins with.
    """

    listening: tuple[int, ...]
    drivers: tuple[str, ...]
    others: tuple[str, ...]
    resources: bool
    client_authorities: str
    client_names: tuple[str, ...]
    receive_seconds: float
    cpu_seconds: float
    memory: int


class Certificate(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="certificate"):
    """What is served from now on, PEM."""

    certificate: str
    key: str


class Capacity(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="capacity"):
    """Whether the API server keeps requests for capacity. Before it is told, they are refused."""

    kept: bool


class Ping(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="ping"):
    """Asks for a ``Pong``."""

    number: int


class Refused(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An object that was refused, for the log."""

    kind: _Text
    object: _Text
    reason: _Text


class Pong(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Answers a ``Ping``, and says what has happened since the last one.

    Attributes:
        number: of the ``Ping``.
        reviews: how many there were, by kind and outcome, joined by a slash.
        refused: some of the objects that were refused.
    """

    number: int
    reviews: Mapping[_Text, _Count]
    refused: Annotated[tuple[Refused, ...], msgspec.Meta(max_length=MOST_REFUSED)]


ToReviewer = Start | Certificate | Capacity | Ping

_to_reviewer: Final[msgspec.json.Decoder[ToReviewer]] = msgspec.json.Decoder(ToReviewer)
_pongs: Final = msgspec.json.Decoder(Pong)


def line(message: ToReviewer | Pong) -> bytes:
    """Return a message as it is sent."""
    return msgspec.json.encode(message) + b"\n"


def told(text: bytes) -> ToReviewer:
    """Return what the controller has sent.

    Raises:
        msgspec.DecodeError: it makes no sense.
    """
    return _to_reviewer.decode(text)


def pong_of(text: bytes) -> Pong:
    """Return what the process that reviews has sent.

    Raises:
        msgspec.DecodeError: it makes no sense.
    """
    return _pongs.decode(text)
