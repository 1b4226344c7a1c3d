"""``status.devices`` of the claims on this node: a condition ``Healthy`` for each of our devices (KEP-4817).

Only what is worth saying is written: a device that is not healthy, and its recovery. Server-side apply keeps
the entries of other drivers, and the conditions of others in ours, as they are.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

import structlog

from dra_driver.api import codec, names
from dra_driver.api.meta import Uid
from dra_driver.api.own.inventory import DeviceHealth
from dra_driver.api.resource import RESOURCE_CLAIMS, AllocatedDeviceStatus, Condition, ResourceClaim
from dra_driver.errors import DraError, NotFound
from dra_driver.kube.clock import rfc3339
from dra_driver.ports import Clock, KubeClient
from dra_driver.preparation import ClaimState, PreparedClaim, PreparedDevice
from kubelet_plugin.core.signals import Changes
from kubelet_plugin.devices.table import DeviceTable
from kubelet_plugin.health.health import ailments, is_unknown

__all__ = ["CONDITION", "ClaimStatusWriter"]

CONDITION: Final = "Healthy"
FIELD_MANAGER: Final = f"{names.PLUGIN_FIELD_MANAGER}-health"

_RESYNC_SECONDS: Final = 60.0
_MAX_MESSAGE: Final = 1024

log = structlog.get_logger(__name__)

# By device: why it is not healthy; empty where it is.
_View = Mapping[tuple[str, str | None], tuple[DeviceHealth, ...]]


class ClaimStatusWriter:
    """A writer that keeps the conditions of prepared claims true.

    Args:
        claims: what is prepared now.
        leads: whether this instance speaks for the node.
    """

    def __init__(
        self,
        *,
        client: KubeClient,
        clock: Clock,
        driver: str,
        table: DeviceTable,
        claims: Callable[[], Iterable[PreparedClaim]],
        leads: Callable[[], bool],
    ) -> None:
        self._client = client
        self._clock = clock
        self._driver = driver
        self._table = table
        self._claims = claims
        self._leads = leads
        self._written: dict[Uid, _View] = {}
        self._refused: dict[Uid, str] = {}
        self._changes = Changes()

    def prepared(self) -> None:
        """Note that claims were prepared: what has to be written about them is written at once."""
        # Nearly always their devices are healthy, and nothing in the way of the next call is to be woken.
        if self._due(frozenset()):
            self._changes.notify()

    async def run(self) -> None:
        """Run until cancelled."""
        # A device that is not found means something only when every backend has answered.
        await self._table.complete.wait()
        # What a plugin before us wrote is not known: everything is looked at once.
        inherited: frozenset[Uid] = frozenset(c.uid for c in self._claims())
        while True:
            seen = self._table.changes.count, self._changes.count
            if (due := self._due(inherited)) and self._leads():
                await self._write(due)
                inherited = frozenset(self._refused.keys() & inherited)
            await self._wait(*seen)

    async def _wait(self, table: int, claims: int) -> None:
        waits = {
            asyncio.create_task(self._table.changes.wait_beyond(table)),
            asyncio.create_task(self._changes.wait_beyond(claims)),
        }
        try:
            await asyncio.wait(waits, timeout=_RESYNC_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in waits:
                task.cancel()

    def _due(self, look_at: frozenset[Uid]) -> list[tuple[PreparedClaim, _View]]:
        """Return the claims whose devices' health is to be written, with that health.

        Args:
            look_at: claims whose status is to be compared although there is nothing new about them.
        """
        found = {d.device.name: d for d in self._table.devices}
        due: list[tuple[PreparedClaim, _View]] = []
        for record in self._claims():
            if record.state is not ClaimState.COMPLETED:
                continue
            view = {(d.device, d.share_id): ailments(d, found) for d in record.devices}
            before = self._written.get(record.uid)
            sick = any(view.values())
            if view != before and (before is not None or sick or record.uid in look_at):
                due.append((record, view))
        return due

    async def _write(self, due: Iterable[tuple[PreparedClaim, _View]]) -> None:
        for record, view in due:
            await self._write_one(record, view)
        present = {c.uid for c in self._claims() if c.state is ClaimState.COMPLETED}
        self._written = {u: v for u, v in self._written.items() if u in present}
        self._refused = {u: v for u, v in self._refused.items() if u in present}

    async def _write_one(self, record: PreparedClaim, view: _View) -> None:
        try:
            claim = await self._client.get(RESOURCE_CLAIMS, record.name, record.namespace)
            if claim.metadata.uid == record.uid and claim.status.allocation is not None:
                await self._apply(record, claim, view)
        except NotFound:
            pass  # it is being unprepared
        except DraError as e:
            # Tried again at the next change or round, logged once.
            if self._refused.get(record.uid) != str(e):
                log.warning(
                    "the health of a claim's devices was not written", claim=str(record.key), error=str(e)
                )
            self._refused[record.uid] = str(e)
            return
        self._refused.pop(record.uid, None)
        self._written[record.uid] = view

    async def _apply(self, record: PreparedClaim, claim: ResourceClaim, view: _View) -> None:
        mine = {
            (d.device, d.share_id): d
            for d in claim.status.devices
            if d.driver == self._driver and d.pool in {p.pool for p in record.devices}
        }
        known = {key: c for key, d in mine.items() for c in d.conditions or () if c.type == CONDITION}
        entries = [
            self._entry(d, view[d.device, d.share_id], known.get((d.device, d.share_id)))
            for d in record.devices
            # What was never said to be sick need not be said to be healthy.
            if view[d.device, d.share_id] or (d.device, d.share_id) in known
        ]
        if all(_condition(e) == known.get((e.device, e.share_id)) for e in entries):
            return
        body: dict[str, Any] = {
            "apiVersion": RESOURCE_CLAIMS.api_version,
            "kind": RESOURCE_CLAIMS.kind,
            "metadata": {"name": record.name, "namespace": record.namespace, "uid": record.uid},
            "status": {"devices": codec.plain(entries)},
        }
        await self._client.apply(
            RESOURCE_CLAIMS, body, field_manager=FIELD_MANAGER, subresource="status", force=True
        )
        log.info("health of a claim's devices written", claim=str(record.key))

    def _entry(
        self, device: PreparedDevice, sick: Sequence[DeviceHealth], known: Condition | None
    ) -> AllocatedDeviceStatus:
        status = "Unknown" if is_unknown(sick) else "False" if sick else "True"
        message = "; ".join(f"{h.reason}: {h.message}" if h.message else h.reason for h in sick)
        unchanged = known is not None and known.status == status
        return AllocatedDeviceStatus(
            driver=self._driver,  # type: ignore[arg-type]
            pool=device.pool,
            device=device.device,
            share_id=device.share_id,
            conditions=(
                Condition(
                    type=CONDITION,
                    status=status,
                    last_transition_time=known.last_transition_time
                    if known is not None and unchanged
                    else rfc3339(self._clock.now()),
                    reason=sick[0].reason if sick else "Healthy",
                    message=message[:_MAX_MESSAGE],
                ),
            ),
        )


def _condition(entry: AllocatedDeviceStatus) -> Condition | None:
    return entry.conditions[0] if entry.conditions else None
