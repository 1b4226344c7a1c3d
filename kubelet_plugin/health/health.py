"""Device health: wakes discovery when hardware reports trouble, and reports changes in Events and conditions.

Conditions live in the backends and come out of ``discover``; here is what happens around them: a rescan at
once after an event, Events on the Node and on the pods concerned when a condition begins or ends.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import structlog

from dra_driver.api.core import NODES, PODS, Node, Pod
from dra_driver.api.meta import ObjectMeta
from dra_driver.api.own.inventory import DeviceHealth
from dra_driver.errors import DraError
from dra_driver.hardware import DiscoveredDevice, HealthEvent
from dra_driver.kube import EventRecorder
from dra_driver.ports import Clock, DeviceBackend, HealthSource, KubeClient
from dra_driver.preparation import PreparedClaim, PreparedDevice
from kubelet_plugin.core.notices import DRIVER_HANGING
from kubelet_plugin.devices.table import DeviceTable

__all__ = [
    "HealthEvents",
    "HealthMonitor",
    "ailments",
    "health_sources",
    "is_unknown",
    "physical_device",
    "troubles",
]

COMPONENT: Final = "dra-driver-kubelet-plugin"

_WAIT_SECONDS: Final = 1.0
# Between two rescans for events: a GPU that breaks down reports a hundred errors a second.
_PAUSE_SECONDS: Final = 0.5
_BROKEN_SECONDS: Final = 5.0
# Beyond what a wait may take: then it hangs.
_LATE_SECONDS: Final = 30.0

_VANISHED: Final = (
    DeviceHealth(reason="NotFound", severity="degraded", message="discovery no longer finds the device"),
)

log = structlog.get_logger(__name__)


def physical_device(device: PreparedDevice) -> str:
    """Return the name of the device that discovery knows: of a partition, the one that is cut."""
    return device.partition.gpu if device.partition is not None else device.device


def troubles(health: Iterable[DeviceHealth]) -> tuple[DeviceHealth, ...]:
    """Return what keeps a device from being healthy; what is for information only does not."""
    return tuple(h for h in health if h.severity != "info")


def is_unknown(sick: Collection[DeviceHealth]) -> bool:
    """Return whether conditions mean that the health cannot be determined, rather than that it is bad.

    What makes a device fail is known all the same.
    """
    reasons = {h.reason for h in sick}
    return DRIVER_HANGING in reasons and not any(h.severity == "failed" for h in sick)


def ailments(device: PreparedDevice, found: Mapping[str, DiscoveredDevice]) -> tuple[DeviceHealth, ...]:
    """Return what keeps a device that a claim holds from being healthy.

    Args:
        device: of the claim.
        found: the devices that discovery finds, by name.
    """
    here = found.get(physical_device(device))
    if here is None:
        return _VANISHED
    return troubles(here.device.health if device.partition is None else here.health_of_partitions)


def health_sources(backends: Sequence[DeviceBackend]) -> Iterator[HealthSource]:
    """Return the backends that report trouble by themselves."""
    return (b for b in backends if isinstance(b, HealthSource))


class HealthMonitor:
    """A monitor of events of the hardware, each source in a thread of its own.

    Args:
        seen: called for each event.
        late: seconds beyond the time of a wait after which it counts as hanging.
    """

    def __init__(
        self,
        backends: Sequence[DeviceBackend],
        table: DeviceTable,
        seen: Callable[[HealthEvent], None],
        late: float = _LATE_SECONDS,
    ) -> None:
        self._late = late
        self._sources = tuple(health_sources(backends))
        self._table = table
        self._seen = seen

    async def run(self) -> None:
        """Run until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for source in self._sources:
                tasks.create_task(self._watch(source))

    async def _watch(self, source: HealthSource) -> None:
        loop = asyncio.get_running_loop()
        executor = ThreadPoolExecutor(1, thread_name_prefix="events")
        try:
            while True:
                try:
                    waiting = loop.run_in_executor(executor, source.wait_for_events, _WAIT_SECONDS)
                    events = await self._wait(waiting, source)
                except DraError as e:
                    log.warning("waiting for hardware events failed", error=str(e))
                    await asyncio.sleep(_BROKEN_SECONDS)
                    continue
                except Exception:
                    # As in discovery: a bug in a backend must not end the plugin.
                    log.exception("waiting for hardware events failed unexpectedly")
                    await asyncio.sleep(_BROKEN_SECONDS)
                    continue
                if events:
                    self._note(events)
                    await self._table.scan()
                    await asyncio.sleep(_PAUSE_SECONDS)
        finally:
            # The thread ends with its wait, within a second or so.
            executor.shutdown(wait=False, cancel_futures=True)

    async def _wait(
        self, waiting: asyncio.Future[Sequence[HealthEvent]], source: HealthSource
    ) -> Sequence[HealthEvent]:
        """Return the events; while the source does not come back, its backend counts as hanging."""
        done, _ = await asyncio.wait({waiting}, timeout=_WAIT_SECONDS + self._late)
        if not done:
            await self._table.stall(source, "the wait for events of the hardware does not end")
            await asyncio.wait({waiting})
            await self._table.stall(source, "")
        return await waiting

    def _note(self, events: Sequence[HealthEvent]) -> None:
        for event in events:
            write = log.warning if event.severity in ("degraded", "failed") else log.info
            write("hardware event", uuid=event.uuid, reason=event.reason, message=event.message)
            self._seen(event)


class HealthEvents:
    """Events where a condition of a device begins or ends.

    Args:
        claims: what is prepared now; its pods get Events too.
        leads: whether this instance speaks for the node.
        refresh: awaited before the pods of a device get Events; makes ``claims`` know all of them.
    """

    def __init__(
        self,
        *,
        client: KubeClient,
        clock: Clock,
        node_name: str,
        table: DeviceTable,
        claims: Callable[[], Iterable[PreparedClaim]],
        leads: Callable[[], bool],
        refresh: Callable[[str], Awaitable[None]] | None = None,
    ) -> None:
        self._client = client
        self._recorder = EventRecorder(client, COMPONENT, clock)
        self._node_name = node_name
        self._table = table
        self._claims = claims
        self._leads = leads
        self._refresh = refresh
        self._known: Mapping[str, Mapping[str, DeviceHealth]] = {}

    async def run(self) -> None:
        """Run until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._recorder.run())
            tasks.create_task(self._compare())

    async def _compare(self) -> None:
        seen = 0
        while True:
            seen = await self._table.changes.wait_beyond(seen)
            now = {
                d.device.name: {h.reason: h for h in troubles(d.device.health)} for d in self._table.devices
            }
            before, self._known = self._known, now
            if not self._leads():
                continue
            for device in sorted(before.keys() | now.keys()):
                await self._report(device, before.get(device, {}), now.get(device, {}))

    async def _report(
        self, device: str, before: Mapping[str, DeviceHealth], now: Mapping[str, DeviceHealth]
    ) -> None:
        begun = [now[r] for r in sorted(now.keys() - before.keys())]
        ended = sorted(before.keys() - now.keys())
        if not begun and not ended:
            return
        node = await self._node()
        if node is None:
            return
        if begun and self._refresh is not None:
            await self._refresh(device)
        for h in begun:
            text = (
                f"device {device}: {h.reason}: {h.message}" if h.message else f"device {device}: {h.reason}"
            )
            self._recorder.event(
                NODES, node, "Warning", "DeviceUnhealthy", text, about=f"{device}/{h.reason}"
            )
            for pod in self._pods(device):
                self._recorder.event(
                    PODS, pod, "Warning", "DeviceUnhealthy", text, about=f"{device}/{h.reason}"
                )
        if ended:
            left = f"; still: {', '.join(sorted(now))}" if now else ""
            text = f"device {device}: ended: {', '.join(ended)}{left}"
            self._recorder.event(NODES, node, "Normal", "DeviceRecovered", text, about=device)

    async def _node(self) -> Node | None:
        try:
            return await self._client.get(NODES, self._node_name)
        except DraError as e:
            log.info("no Event about a device: the Node cannot be read", error=str(e))
            return None

    def _pods(self, device: str) -> Iterator[Pod]:
        for claim in self._claims():
            if any(physical_device(d) == device for d in claim.devices):
                for pod in claim.pods:
                    meta = ObjectMeta(name=pod.name, namespace=claim.namespace, uid=pod.uid)
                    yield Pod(metadata=meta)
