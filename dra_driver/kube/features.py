"""What the API server keeps of ResourceSlices and of claims, found out before the first slice is published.

The server drops fields of disabled feature gates in silence, and a slice without its counters or taints means
something else than the one that was sent. Version numbers say nothing about gates, so each field is sent in a
dry run and looked for in the answer; again and again, for an upgrade or a rollback of the server changes it.
"""

from __future__ import annotations

import asyncio
import dataclasses
import re
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

import msgspec
import structlog

from dra_driver.api import codec
from dra_driver.api.meta import DriverName, ObjectMeta, PoolName
from dra_driver.api.quantity import Quantity
from dra_driver.api.resource import (
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    Counter,
    CounterSet,
    Device,
    DeviceAttribute,
    DeviceCapacity,
    DeviceCounterConsumption,
    DeviceTaint,
    ResourcePool,
    ResourceSlice,
    ResourceSliceSpec,
)
from dra_driver.errors import ApiError, ApiUnavailable, DraError, Invalid
from dra_driver.ports import Clock, KubeClient
from dra_driver.resourceslice import ServerFeatures, altered

__all__ = ["KeptFields", "drops_capacity", "keeps_capacity", "probe_features", "probe_problem"]

log = structlog.get_logger(__name__)

_NAME = "dra-driver-probe"
_ONE = Quantity.of(1)
# After which a field counts that was dropped before.
_LOOKS: Final = 3


class KeptFields:
    """Which fields the API server keeps, asked again and again.

    A field that is dropped counts as dropped at once: what is published would mean something else. One that
    is kept now and was not counts after some looks in a row: while the API servers of a control plane are
    upgraded one after the other, one of them answers so and the next otherwise.

    Args:
        client: the server.
        driver: ours.
        clock: of the time between two looks.
        seconds: between two looks.
        node_name: see ``probe_features``.
        changed: called with what is known when that has changed; not for the first answer.

    Attributes:
        known: what counts; None before the server was asked.
    """

    def __init__(
        self,
        client: KubeClient,
        driver: DriverName,
        clock: Clock,
        seconds: float,
        node_name: str | None = None,
        changed: Callable[[ServerFeatures], None] = lambda _: None,
    ) -> None:
        self._client = client
        self._driver = driver
        self._clock = clock
        self._seconds = seconds
        self._node_name = node_name or _NAME
        self._changed = changed
        self._looks: deque[ServerFeatures] = deque(maxlen=_LOOKS)
        self._due = float("-inf")
        self._doubted = False
        self._asking = asyncio.Lock()
        self.known: ServerFeatures | None = None

    def doubt(self) -> None:
        """Ask again at the next call: the server has made something else of what it was sent."""
        self._doubted = True

    async def now(self) -> ServerFeatures:
        """Return what counts, after another look where one is due.

        A server that does not answer keeps what it kept, unless that is in doubt.

        Raises:
            ApiError, ApiUnavailable: see ``probe_features``.
        """
        async with self._asking:
            if self.known is not None and not self._doubted and self._clock.monotonic() < self._due:
                return self.known
            return await self._look()

    async def look(self) -> ServerFeatures:
        """Return what counts after another look, whenever the last one was.

        Raises:
            ApiError, ApiUnavailable: see ``now``.
        """
        async with self._asking:
            return await self._look()

    async def _look(self) -> ServerFeatures:
        known = self.known
        try:
            look = await probe_features(self._client, self._driver, self._node_name)
        except DraError as e:
            if known is None or self._doubted:
                raise
            self._due = self._clock.monotonic() + self._seconds
            log.warning("cannot ask the API server what it keeps; it counts as before", error=str(e))
            return known
        self._due = self._clock.monotonic() + self._seconds
        self._doubted = False
        self._looks.append(look)
        self.known = now = look if known is None else _after(known, look, self._looks)
        if now != known:
            log.info(
                "what the API server keeps of slices counts from now on",
                **dataclasses.asdict(now),
                gates_off=",".join(now.missing_gates()) or "none",
            )
            if known is not None:
                self._changed(now)
        return now


def _after(known: ServerFeatures, look: ServerFeatures, looks: Sequence[ServerFeatures]) -> ServerFeatures:
    """Return what counts after a look, the last one of ``looks``."""

    def counts(name: str) -> bool:
        confirmed = len(looks) >= _LOOKS and all(getattr(each, name) for each in looks)
        return bool(getattr(look, name)) and (bool(getattr(known, name)) or confirmed)

    after = ServerFeatures(**{f.name: counts(f.name) for f in dataclasses.fields(ServerFeatures)})
    # Where counters have to stand is one of two forms, of which each server refuses the other.
    agreed = len(looks) >= _LOOKS and all(each.together is look.together for each in looks)
    return dataclasses.replace(
        after, together=look.together if agreed or not known.counters else known.together
    )


async def probe_features(client: KubeClient, driver: DriverName, node_name: str = _NAME) -> ServerFeatures:
    """Ask the server by dry runs which fields it keeps; nothing is stored.

    Args:
        client: the server.
        driver: ours.
        node_name: of the slices that are sent, and of their pool; a node agent may send its own node's only.

    Raises:
        ApiError, ApiUnavailable: the server could not be asked (``Forbidden``: no right to create slices).
    """
    # Where counters have to stand in the slice of what consumes them, the first of these is refused.
    apart = await _survives(client, driver, node_name, _consuming())
    together = not apart and await _survives(client, driver, node_name, _consuming(), counters=True)
    return ServerFeatures(
        taints=await _survives(client, driver, node_name, _tainted()),
        counters=apart or together,
        together=together,
        multi_allocation=await _survives(client, driver, node_name, _shareable()),
        lists=await _survives(client, driver, node_name, _listed()),
        partition_types=apart
        and await _survives(client, driver, node_name, _typed(), partition_type=f"{driver}/probe"),
    )


def probe_problem(error: DraError) -> str:
    """Return why the API server could not be asked, in the same words for every try: names are generated."""
    return re.sub(rf"{_NAME}-\w+", _NAME, str(error))


async def drops_capacity(client: KubeClient, driver: DriverName) -> bool:
    """Ask the server by a dry run of a slice whether DRAConsumableCapacity is off; nothing is stored.

    Args:
        client: the server.
        driver: ours.

    Raises:
        ApiError, ApiUnavailable: the server could not be asked.
    """
    return not await _survives(client, driver, _NAME, _shareable())


async def keeps_capacity(client: KubeClient, namespace: str) -> bool | None:
    """Ask the server by a dry run whether it keeps ``capacity`` in the requests of claims; nothing is stored.

    Args:
        client: the server.
        namespace: of the claim that is sent.

    Returns:
        None where it does not say: no right to create claims there, for example.
    """
    exactly = {"deviceClassName": "probe", "capacity": {"requests": {"memory": "1"}}}
    body = {
        "apiVersion": RESOURCE_CLAIMS.api_version,
        "kind": RESOURCE_CLAIMS.kind,
        "metadata": {"generateName": f"{_NAME}-", "namespace": namespace},
        "spec": {"devices": {"requests": [{"name": "probe", "exactly": exactly}]}},
    }
    try:
        answer = await client.create(RESOURCE_CLAIMS, body, namespace, dry_run=True)
    except (ApiError, ApiUnavailable) as e:
        log.debug("probe refused", problem=str(e))
        # By our webhook, which is there where capacity is dropped.
        return False if "DRAConsumableCapacity is off" in str(e) else None
    requests = answer.spec.devices.requests or ()
    return any(r.exactly is not None and r.exactly.capacity is not None for r in requests)


def _tainted() -> Device:
    return Device(name="probe", taints=(DeviceTaint(key="dra-driver.dev/probe", effect="NoSchedule"),))


def _consuming() -> Device:
    consumed = DeviceCounterConsumption(counter_set="probe", counters={"memory": Counter(value=_ONE)})
    return Device(name="probe", consumes_counters=(consumed,))


def _typed() -> Device:
    attributes = {"probe": DeviceAttribute(string_value="probe")}
    return msgspec.structs.replace(_consuming(), attributes=attributes)


def _shareable() -> Device:
    return Device(
        name="probe", allow_multiple_allocations=True, capacity={"memory": DeviceCapacity(value=_ONE)}
    )


def _listed() -> Device:
    return Device(name="probe", attributes={"probe": DeviceAttribute(strings=("a", "b"))})


async def _survives(
    client: KubeClient,
    driver: DriverName,
    node_name: str,
    device: Device,
    *,
    counters: bool = False,
    partition_type: str | None = None,
) -> bool:
    spec = ResourceSliceSpec(
        driver=driver,
        pool=ResourcePool(name=PoolName(node_name), generation=1, resource_slice_count=1),
        node_name=node_name,
        devices=(device,),
        shared_counters=(CounterSet(name="probe", counters={"memory": Counter(value=_ONE)}),)
        if counters
        else (),
        partition_type_attribute=partition_type,
    )
    slice_ = ResourceSlice(metadata=ObjectMeta(generate_name=f"{_NAME}-"), spec=spec)
    try:
        answer = await client.create(RESOURCE_SLICES, codec.to_raw(RESOURCE_SLICES, slice_), dry_run=True)
    except Invalid as e:
        # What is left after dropping the field may not be a valid slice; then the field was dropped.
        log.debug("probe refused", problem=str(e))
        return False
    return not altered(spec, answer.spec)
