"""Looks now and then for what no claim holds: MIG instances that strangers made, MPS daemons of ours.

Strangers' instances are reported and left alone. A daemon in our directory is ours, and is ended. What is
being prepared just now is in no record that we see, so that only what is found twice counts.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from typing import Final

import structlog

from dra_driver.errors import DraError
from kubelet_plugin.claims.engine import Engine
from kubelet_plugin.core.notices import FOREIGN_INSTANCE, IDLE_DAEMON
from kubelet_plugin.devices.table import DeviceTable
from kubelet_plugin.gpu.hardware import GpuHardware, daemons_of

__all__ = ["Leftovers"]

log = structlog.get_logger(__name__)

FIRST_SECONDS: Final = 10.0
EVERY_SECONDS: Final = 300.0
# Longer than any prepare takes.
CONFIRM_SECONDS: Final = 60.0


class Leftovers:
    """Runs beside the calls.

    Attributes:
        strangers: number of instances that no claim holds, as of the last round.
    """

    def __init__(
        self,
        *,
        engine: Engine,
        hardware: GpuHardware,
        table: DeviceTable,
        leads: Callable[[], bool] = lambda: True,
        tell: Callable[[str, str], None] = lambda *_: None,
    ) -> None:
        self._tell = tell
        self._engine = engine
        self._hardware = hardware
        self._table = table
        self._leads = leads
        self._seen: set[tuple[str, str]] = set()
        self._told: set[tuple[str, str]] = set()
        self.strangers = 0

    async def run(
        self,
        first: float = FIRST_SECONDS,
        every: float = EVERY_SECONDS,
        confirm: float = CONFIRM_SECONDS,
    ) -> None:
        """Works until cancelled. Times are in seconds: after the start, between rounds, after a finding."""
        await asyncio.sleep(first)
        while True:
            before = self._seen
            try:
                await self.look()
            except (DraError, OSError) as e:
                log.warning("leftovers on the GPUs could not be looked for", error=str(e))
            await asyncio.sleep(every if self._seen <= before else min(every, confirm))

    async def look(self) -> None:
        """One round.

        Raises:
            DraError: the hardware or the node's memory cannot be asked.
            OSError: likewise.
        """
        if not self._leads():
            return
        records = await self._engine.prepared()
        uuids = {d.device.name: d.uuid for d in self._table.devices}
        gpus = [d.uuid for d in self._table.devices if d.device.partitions]
        found = await self._hardware.strangers(gpus, records)
        idle = await self._hardware.idle_daemons(records)
        now = {("instance", f"{gpu}/{i.instance_id}/{i.uuid}") for gpu, i in found}
        now |= {("daemon", device) for device in idle}
        confirmed = now & self._seen
        self._seen = now
        for gpu, instance in found:
            key = ("instance", f"{gpu}/{instance.instance_id}/{instance.uuid}")
            if key in confirmed and key not in self._told:
                log.warning(
                    "a MIG instance belongs to no claim; it is left alone, and partitions that overlap it "
                    "cannot be prepared",
                    gpu=gpu,
                    instance=instance.instance_id,
                    uuid=instance.uuid,
                    placement=f"{instance.start}:{instance.size}",
                )
                self._tell(
                    FOREIGN_INSTANCE,
                    f"GPU {gpu}: partition {instance.uuid or instance.instance_id} at "
                    f"{instance.start}:{instance.size} belongs to no claim; it is left alone, and claims of "
                    "partitions that overlap it cannot be prepared",
                )
        self._told = {key for key in confirmed | self._told if key in now}
        self.strangers = sum(1 for kind, _ in confirmed if kind == "instance")
        for kind, device in confirmed:
            if kind == "daemon" and self._is_idle(device):
                log.warning("an MPS daemon serves no claim; ending it", device=device)
                self._tell(IDLE_DAEMON, f"device {device}: its MPS daemon serves no claim and is ended")
                idle_still = functools.partial(self._is_idle, device)
                await self._hardware.stop_daemon(device, uuids.get(device, device), idle_still)

    def _is_idle(self, device: str) -> bool:
        # A claim has its record before it starts a daemon.
        return not any(device in daemons_of(record) for record in self._engine.claims)
