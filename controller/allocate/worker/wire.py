"""What the controller and its worker write to each other: frames of a header and JSON.

A frame is its length, a code for what it is, a number, and JSON.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import msgspec

from controller.allocate.decide import (
    Change,
    ClaimAssumed,
    ClaimGone,
    ClaimRenewed,
    ClaimSeen,
    DecisionOverran,
    DevicesSetAside,
    GroupHeld,
    NamespaceStruck,
    NodeTurnedDown,
    ObjectGone,
    ObjectSeen,
    PodExpected,
    PodGroupsUnknown,
    PoolBusy,
    PoolChanged,
    QuestionHeavy,
    Settings,
    VolumesKnown,
    Watched,
)
from dra_driver.api import codec
from dra_driver.api.core import Node, Pod
from dra_driver.api.meta import ObjectKey
from dra_driver.api.resource import (
    DeviceClass,
    DeviceTaintRule,
    ResourceClaim,
    ResourceSlice,
)
from dra_driver.api.scheduling import PodGroup
from dra_driver.api.storage import (
    CSINode,
    PersistentVolume,
    PersistentVolumeClaim,
    StorageClass,
    VolumeAttachment,
)
from dra_driver.errors import DecodeError

__all__ = [
    "ANSWER_LIMIT",
    "LARGEST",
    "LARGEST_ANSWER",
    "Code",
    "Frame",
    "Frames",
    "Start",
    "change_of",
    "frame",
    "frame_of_answer",
    "frame_of_change",
    "frame_of_counts",
]

_HEADER: Final = struct.Struct(">IBQ")
LARGEST: Final = 64 * 1024 * 1024
# Allocations of some thousand pods. What is beyond holds up the controller's event loop while it is decoded.
LARGEST_ANSWER: Final = 16 * 1024 * 1024
ANSWER_LIMIT: Final = f"{LARGEST_ANSWER >> 20} MiB for its allocations and their parameters"
_KINDS: Final[tuple[type[Watched], ...]] = (
    Node,
    Pod,
    DeviceClass,
    ResourceSlice,
    DeviceTaintRule,
    PersistentVolumeClaim,
    PersistentVolume,
    StorageClass,
    CSINode,
    VolumeAttachment,
    PodGroup,
)
_CHANGES: Final[tuple[type[Any], ...]] = (
    ClaimAssumed,
    ClaimGone,
    PoolChanged,
    PodExpected,
    NodeTurnedDown,
    DecisionOverran,
    QuestionHeavy,
    NamespaceStruck,
    GroupHeld,
    DevicesSetAside,
    VolumesKnown,
    PodGroupsUnknown,
    ClaimRenewed,
    PoolBusy,
)


class Code:
    """What a frame is. From 32: an object was seen, from 48: it is gone, from 64: another change."""

    START: Final = 1
    """To the worker, once: ``Start``."""
    READY: Final = 2
    """To the worker: the number is the version of everything that was sent so far."""
    QUESTION: Final = 3
    """To the worker: ``PodQuestion``; the number is the question's."""
    BEGUN: Final = 4
    """From the worker: it works on the question with the number, and on nothing else until it is answered."""
    ANSWER: Final = 5
    """From the worker: ``Answer`` to the question with the number."""
    SHAPES: Final = 6
    """From the worker, now and then: ``ShapeCount`` of every shape of the settings, in their order."""
    PLAN: Final = 7
    """To the worker: ``PlanQuestion``; the number is the question's."""
    PLANNED: Final = 8
    """From the worker: ``PlanAnswer`` to the plan with the number."""
    CLAIM_SEEN: Final = 31
    SEEN: Final = 32
    GONE: Final = 48
    CHANGE: Final = 64


class Frame(NamedTuple):
    """One message."""

    code: int
    number: int
    body: bytes


class Start(msgspec.Struct, frozen=True):
    """How a worker works.

    Attributes:
        settings: of the decisions.
        slow: questions of the slow lane that it works on at a time.
        memory: bytes that a question may take beyond what the worker has.
    """

    settings: Settings
    slow: int
    memory: int


def frame(code: int, number: int, value: object = None) -> bytes:
    """Return the bytes of a message."""
    body = b"" if value is None else codec.encode(value)
    return _HEADER.pack(len(body), code, number) + body


class Frames:
    """Cuts a stream of bytes into messages."""

    def __init__(self) -> None:
        self._data = bytearray()

    def feed(self, data: bytes) -> Iterator[Frame]:
        """Yield the messages that are complete with these bytes.

        Raises:
            DecodeError: a message is longer than any can be.
        """
        self._data += data
        at = 0
        try:
            while len(self._data) - at >= _HEADER.size:
                size, code, number = _HEADER.unpack_from(self._data, at)
                if size > LARGEST:
                    raise DecodeError(f"a message of {size} bytes")
                end = at + _HEADER.size + size
                if len(self._data) < end:
                    return
                body = bytes(memoryview(self._data)[at + _HEADER.size : end])
                at = end
                yield Frame(code, number, body)
        finally:
            del self._data[:at]


# --- changes ------------------------------------------------------------------------------------------------


def frame_of_change(version: int, change: Change) -> bytes:
    """Return the message that carries a change."""
    match change:
        case ObjectSeen(item):
            return frame(Code.SEEN + _KINDS.index(type(item)), version, item)
        case ObjectGone(kind, key):
            return frame(Code.GONE + _KINDS.index(kind), version, key)
        case ClaimSeen(claim):
            return frame(Code.CLAIM_SEEN, version, claim)
        case _:
            return frame(Code.CHANGE + _CHANGES.index(type(change)), version, change)


def change_of(message: Frame) -> Change:
    """Return the change that a message carries.

    Raises:
        DecodeError: it tells of none.
    """
    code, body = message.code, message.body
    if code == Code.CLAIM_SEEN:
        return ClaimSeen(codec.decode(ResourceClaim, body))
    if Code.SEEN <= code < Code.SEEN + len(_KINDS):
        return ObjectSeen(codec.decode(_KINDS[code - Code.SEEN], body))
    if Code.GONE <= code < Code.GONE + len(_KINDS):
        return ObjectGone(_KINDS[code - Code.GONE], codec.decode(ObjectKey, body))
    if Code.CHANGE <= code < Code.CHANGE + len(_CHANGES):
        change: Change = codec.decode(_CHANGES[code - Code.CHANGE], body)
        return change
    raise DecodeError(f"a message of unknown code {code}")


# --- answers ------------------------------------------------------------------------------------------------


def frame_of_answer(question: int, body: bytes) -> bytes:
    """Return the message that carries an answer to the question with this number."""
    return _HEADER.pack(len(body), Code.ANSWER, question) + body


def frame_of_counts(body: bytes) -> bytes:
    """Return the message that carries counts of request shapes."""
    return _HEADER.pack(len(body), Code.SHAPES, 0) + body
