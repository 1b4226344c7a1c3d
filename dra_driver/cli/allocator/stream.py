"""The allocator as a service on stdin and stdout: one JSON object a line in, one line out, in order."""

from __future__ import annotations

import gc
from typing import Any, BinaryIO

import msgspec

from dra_driver.api import codec
from dra_driver.api.core import Node
from dra_driver.api.meta import DriverName, PoolName
from dra_driver.api.resource import DeviceClass, ResourceClaim, ResourceSlice
from dra_driver.errors import DraError, InvalidInput
from dra_driver.structured import (
    Allocated,
    AllocatedState,
    Cluster,
    DeviceID,
    DoesNotFit,
    Failed,
    Strategy,
    allocate,
)

__all__ = ["Service", "serve"]


class _Device(msgspec.Struct, frozen=True):
    driver: DriverName
    pool: PoolName
    device: str


class _Operation(msgspec.Struct, frozen=True):
    """A line of input; ``op`` decides which fields count."""

    op: str
    strategy: Strategy | None = None
    nodes: tuple[Node, ...] = ()
    slices: tuple[ResourceSlice, ...] = ()
    classes: tuple[DeviceClass, ...] = ()
    allocated: tuple[_Device, ...] = ()
    claim: ResourceClaim | None = None
    commit: bool = False
    uid: str = ""
    slice: ResourceSlice | None = None


class Service:
    """A cluster that operations change, and their answers.

    Args:
        strategy: used until a ``load`` sets another.
    """

    def __init__(self, strategy: Strategy) -> None:
        self._strategy = strategy
        self._cluster = Cluster()

    def answer(self, line: bytes) -> bytes:
        """Return the answer to one line, without the line break.

        Invalid input is answered with ``{"error": TEXT}`` and changes nothing.
        """
        try:
            return self._answer(codec.decode(_Operation, line))
        except DraError as e:
            return codec.encode({"error": str(e)})

    def _answer(self, operation: _Operation) -> bytes:
        match operation:
            case _Operation(op="allocate", claim=ResourceClaim() as claim):
                return self._allocate(claim, operation.commit)
            case _Operation(op="free"):
                self._cluster.free(operation.uid)
            case _Operation(op="slice", slice=ResourceSlice() as slice_):
                self._cluster.apply_slice(slice_)
            case _Operation(op="load"):
                self._load(operation)
            case _Operation(op="allocate" | "slice"):
                raise InvalidInput(f"op {operation.op}: its object is missing")
            case _:
                raise InvalidInput(f"unknown op {operation.op!r}; there are load, allocate, free, slice")
        return b'{"ok":true}'

    def _load(self, operation: _Operation) -> None:
        taken = ((DeviceID(d.driver, d.pool, d.device), "") for d in operation.allocated)
        self._strategy = operation.strategy or self._strategy
        self._cluster = Cluster(
            slices=operation.slices,
            classes=operation.classes,
            nodes=operation.nodes,
            allocated=AllocatedState().with_devices(taken),
        )
        self._cluster.prepare()

    def _allocate(self, claim: ResourceClaim, commit: bool) -> bytes:
        outcome = allocate(self._cluster.snapshot, [claim], strategy=self._strategy)
        answer: dict[str, Any]
        match outcome:
            case Allocated(node, results):
                if commit:
                    self._cluster.commit([claim], outcome)
                answer = {"node": node, "results": results[0].devices.results}
            case DoesNotFit():
                answer = {"node": None, "results": None, "reason": outcome.brief()}
            case Failed(message):
                answer = {"node": None, "results": None, "reason": message}
        return codec.encode(answer)


def serve(source: BinaryIO, sink: BinaryIO, strategy: Strategy) -> None:
    """Answer lines until the input ends."""
    service = Service(strategy)
    for line in source:
        if not line.strip():
            continue
        sink.write(service.answer(line) + b"\n")
        # A client that waits for an answer gets it at once; one that writes ahead gets answers in blocks.
        sink.flush()
        if len(line) > 1 << 20:
            # A loaded cluster stays in memory: without this, every full collection would traverse all of it.
            gc.collect()
            gc.freeze()
