"""Writes what is recalled: one object, one write at a time.

Every write carries the resourceVersion of what it replaces, and a recall changes the object in any case. So
what a process before this one may still have under way is refused once a recall of this one is stored. What
became of a write that was not answered is not known: the object is read again, and written again.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

import structlog

from controller.publish.gates import PoolGates
from controller.publish.loans import PoolLoans, UnitKey
from dra_driver.api.core import CONFIG_MAPS, ConfigMap
from dra_driver.api.names import RECALLED_DEVICES
from dra_driver.errors import Conflict, DraError
from dra_driver.kube import Backoff
from dra_driver.ownership import PoolID, Recalls
from dra_driver.ports import Clock, KubeClient
from dra_driver.publishing.handover import HandoverState
from dra_driver.publishing.loans import Loan

__all__ = ["RecallWriter"]

log = structlog.get_logger(__name__)

# How often the object is read although nothing is to be written: others may have changed it.
_READ_SECONDS: Final = 10.0


class RecallWriter:
    """Keeps the object as the loans want it.

    Args:
        client: of the leader.
        clock: for times.
        namespace: of the object.
        loans: what is lent.
        gates: whose pools are; nothing is recalled of a pool that is kube-scheduler's.
        seconds: for which devices stay recalled after their loan. A process counts from its start.
    """

    def __init__(
        self,
        client: KubeClient,
        clock: Clock,
        namespace: str,
        loans: PoolLoans,
        gates: PoolGates,
        seconds: float,
    ) -> None:
        self._client = client
        self._clock = clock
        self._namespace = namespace
        self._loans = loans
        self._gates = gates
        self._seconds = seconds
        # As read or answered last; the version is empty where something else may be stored.
        self._version = ""
        self._stored = Recalls()
        self._read_at = 0.0
        # What this process knows to be recalled, and since when.
        self._since: dict[tuple[PoolID, str], float] = {}
        self._wanted = asyncio.Event()
        loans.changed.listen(lambda _: self._wanted.set())

    def __len__(self) -> int:
        return len(self._stored.devices)

    async def run(self) -> None:
        """Write until cancelled. What fails is logged and tried again."""
        backoff = Backoff(base=0.1, cap=_READ_SECONDS)
        while True:
            self._wanted.clear()
            try:
                await self.once()
            except Conflict:
                # Somebody else has written it: it is read again.
                await asyncio.sleep(backoff.next())
            except DraError as e:
                delay = backoff.next()
                log.error(
                    "what is recalled cannot be read or written: nothing is lent, nothing comes back",
                    config_map=RECALLED_DEVICES,
                    error=str(e),
                    retry_in=round(delay, 2),
                )
                self._loans.stored(None)
                await asyncio.sleep(delay)
            else:
                backoff.reset()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_READ_SECONDS):
                        await self._wanted.wait()

    async def once(self) -> None:
        """Read the object where that is due, and write it where it should be another.

        Raises:
            DraError: of the API server; what is stored then is not known.
        """
        now = self._clock.monotonic()
        if not self._version or now - self._read_at >= _READ_SECONDS:
            await self._read()
        # From here to the write nothing is awaited.
        asked = self._loans.recalling()
        wanted, written = self._next(asked, now)
        if wanted is not None:
            await self._write(wanted, written)

    async def _read(self) -> None:
        self._version = ""
        found = await self._client.get(CONFIG_MAPS, RECALLED_DEVICES, self._namespace)
        self._read_at = self._clock.monotonic()
        self._take(found)
        self._loans.stored(self._stored)

    def _next(self, asked: Mapping[UnitKey, Loan], now: float) -> tuple[Recalls | None, dict[UnitKey, Loan]]:
        """Return what should be stored, None if it is, and the units that are recalled by that."""
        admitted, touched = self._loans.admitted(), self._loans.touched()
        kept = {
            device
            for device, since in self._since.items()
            if device not in admitted
            and (now - since < self._seconds or device in touched)
            and self._gates.handover(device[0]).state is not HandoverState.SCHEDULER
        }
        wanted = replace(self._stored, devices=frozenset(kept))
        written: dict[UnitKey, Loan] = {}
        for (pool, unit), loan in asked.items():
            more = wanted.recall(pool, loan.touched)
            if more is None:
                log.error("there is no room to recall a unit: it stays blocked", pool=str(pool), unit=unit)
                continue
            wanted, written[pool, unit] = more, loan
        same = not written and wanted.devices == self._stored.devices
        return (None if same else wanted), written

    async def _write(self, wanted: Recalls, asked: Mapping[UnitKey, Loan]) -> None:
        version, self._version = self._version, ""
        patch = {"metadata": {"resourceVersion": version}, "data": wanted.data()}
        answer = await self._client.merge_patch(CONFIG_MAPS, RECALLED_DEVICES, patch, self._namespace)
        if answer.metadata.resource_version == version:
            raise DraError(f"the API server has not changed the ConfigMap {RECALLED_DEVICES}")
        self._since = {device: since for device, since in self._since.items() if device in wanted.devices}
        for (pool, _), loan in asked.items():
            self._since |= {(pool, name): self._clock.monotonic() for name in loan.touched}
        self._take(answer)
        self._loans.stored(self._stored, asked)

    def _take(self, found: ConfigMap) -> None:
        self._stored = Recalls.of_data(found.data or {})
        for device in self._stored.devices:
            self._since.setdefault(device, self._clock.monotonic())
        self._version = found.metadata.resource_version
