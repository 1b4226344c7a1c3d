"""Looks now and then for what no claim holds: unmanaged partitions, and MPS daemons of this driver.

Instances that this driver did not make are left alone: they are reported, and their device gets a condition,
because it cannot be used as a whole, nor where they are. At the start, where that is wanted, those are
destroyed that no claim holds and no administrator owns. A daemon in this driver's directory is its own, and
is ended. What is being prepared just now is in no record that is seen for the reports, so that only what is
found twice counts. For the condition all records count, those of before the look and of after it.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

import structlog

from dra_driver.api.own.inventory import DeviceHealth, OccupiedPlace
from dra_driver.errors import DraError
from dra_driver.hardware import GpuInstance
from kubelet_plugin.claims.preparer import Preparer
from kubelet_plugin.core.notices import FOREIGN_INSTANCE, IDLE_DAEMON, PARTITION_DESTROYED
from kubelet_plugin.devices.table import UNMANAGED_PARTITIONS, DeviceTable
from kubelet_plugin.gpu.hardware import GpuHardware, daemons_of
from kubelet_plugin.gpu.partitions import is_claimed

__all__ = ["Leftovers"]

# As many as the CRD takes.
_MOST_PLACES: Final = 64

log = structlog.get_logger(__name__)

# Steps of one round: some hundred thousand files.
_SWEEPS: Final = 200
_SWEEP_PAUSE_SECONDS: Final = 0.05


class Leftovers:
    """The look at what no claim holds, beside the kubelet's calls.

    Args:
        leads: whether this instance of the plugin represents the node; another one's claims are its own.
        report: called with the kind (see ``notices``) and the text of what is found.

    Attributes:
        unmanaged: number of instances that no claim holds, as of the last round.
    """

    def __init__(
        self,
        *,
        preparer: Preparer,
        hardware: GpuHardware,
        table: DeviceTable,
        leads: Callable[[], bool] = lambda: True,
        report: Callable[[str, str], None] = lambda *_: None,
    ) -> None:
        self._report = report
        self._preparer = preparer
        self._hardware = hardware
        self._table = table
        self._leads = leads
        self._seen: set[tuple[str, str]] = set()
        self._reported: set[tuple[str, str]] = set()
        self.unmanaged = 0

    async def run(
        self,
        first: float,
        every: float,
        confirm: float,
    ) -> None:
        """Look until cancelled. Times are in seconds: after the start, between rounds, after a finding."""
        await asyncio.sleep(first)
        while True:
            before = self._seen
            try:
                await self.look()
            except (DraError, OSError) as e:
                log.warning("leftovers on the GPUs could not be looked for", error=str(e))
            await asyncio.sleep(every if self._seen <= before else min(every, confirm))

    async def watch(self, every: float) -> None:
        """Look for instances of others until cancelled: after changes of hardware, and every few seconds."""
        seen = 0
        while True:
            try:
                await self.occupy()
            except (DraError, OSError) as e:
                log.warning("partitions of others could not be looked for", error=str(e))
            seen = await self._hardware.changes.wait(seen, every)

    async def occupy(self) -> None:
        """Note on each device what instances of others take of it; one that cannot be asked stays as it is.

        Raises:
            DraError: the node's records cannot be read.
            OSError: likewise.
        """
        if not self._leads():
            return
        partitions = self._hardware.partitions
        before = await self._preparer.recorded()
        there: dict[str, Sequence[GpuInstance]] = {}
        for gpu in [d.uuid for d in self._table.devices if d.device.partitions]:
            try:
                there[gpu] = await partitions.existing(gpu)
            except DraError as e:
                log.info("the partitions of a GPU could not be looked for", gpu=gpu, error=str(e))
        records = (*before, *await self._preparer.recorded())
        occupied: dict[str, DeviceHealth | None] = {}
        for gpu, instances in there.items():
            others = [i for i in instances if not is_claimed(gpu, i, records)]
            occupied[gpu] = _condition(others, await partitions.describe(gpu, others)) if others else None
        await self._table.occupied(occupied)

    async def look(self) -> None:
        """Look once, report what is found for the second time, and end daemons that serve no claim.

        Raises:
            DraError: the hardware or the node's records cannot be read.
            OSError: likewise.
        """
        if not self._leads():
            return
        # Before the hardware: a claim has its record before it changes anything.
        records = await self._preparer.prepared()
        gpus = [d.uuid for d in self._table.devices if d.device.partitions]
        instances = {
            ("instance", f"{gpu}/{i.instance_id}/{i.uuid}"): (gpu, i)
            for gpu, i in await self._hardware.partitions.unmanaged(gpus, records)
        }
        daemons = {("daemon", device) for device in await self._hardware.idle_daemons(records)}
        now = instances.keys() | daemons
        confirmed = now & self._seen
        self._seen = now
        for key, (gpu, instance) in instances.items():
            if key in confirmed and key not in self._reported:
                self._report_unmanaged(gpu, instance)
        self._reported = (confirmed | self._reported) & now
        self.unmanaged = len(confirmed & instances.keys())
        for _, device in confirmed & daemons:
            await self._end_daemon(device)

    async def sweep(self, every: float) -> None:
        """Remove what ended daemons left until cancelled: soon after one has ended, and every few seconds.

        By itself, because a GPU that does not answer keeps a look at the hardware waiting.
        """
        seen = 0
        while True:
            try:
                await self._sweep()
            except (DraError, OSError) as e:
                log.warning("what ended daemons left could not be removed", error=str(e))
            seen = await self._hardware.ended_daemons.wait(seen, every)

    async def _sweep(self) -> None:
        """Remove what containers wrote for ended daemons, in steps; the next round goes on."""
        for _ in range(_SWEEPS if self._leads() else 0):
            if not await self._hardware.sweep_daemons():
                return
            await asyncio.sleep(_SWEEP_PAUSE_SECONDS)

    def _report_unmanaged(self, gpu: str, instance: GpuInstance) -> None:
        log.warning(
            "a partition belongs to no claim; it is left alone, and the whole GPU and partitions that "
            "overlap it cannot be prepared",
            gpu=gpu,
            instance=instance.instance_id,
            uuid=instance.uuid,
            placement=f"{instance.start}:{instance.size}",
        )
        self._report(
            FOREIGN_INSTANCE,
            f"GPU {gpu}: partition {instance.uuid or instance.instance_id} at "
            f"{instance.start}:{instance.size} belongs to no claim; it is left alone, and claims of the "
            "whole GPU, or of partitions that overlap it, cannot be prepared",
        )

    async def destroy_unowned(self, owner: Callable[[str, GpuInstance], Awaitable[str]]) -> None:
        """Destroy the partitions that no claim holds and no administrator owns; log what cannot be done.

        For the start: before the kubelet can call, and while no other instance of the plugin runs.

        Args:
            owner: returns what says that an administrator owns a partition of the GPU with this UUID, as a
                clause; empty if nothing does.
        """
        if not self._preparer.intact:
            log.warning("no partition is destroyed: records of claims were lost, and one may be needed")
            return
        try:
            gpus = [d.uuid for d in self._table.devices if d.device.partitions]
            found = await self._hardware.partitions.unmanaged(gpus, self._preparer.claims)
        except (DraError, OSError) as e:
            log.warning("partitions that belong to no claim could not be looked for", error=str(e))
            return
        for gpu, instance in found:
            try:
                await self._destroy(gpu, instance, await owner(gpu, instance))
            except (DraError, OSError) as e:
                log.warning(
                    "a partition that belongs to no claim stays",
                    gpu=gpu,
                    instance=instance.instance_id,
                    error=str(e),
                )

    async def _destroy(self, gpu: str, instance: GpuInstance, owned: str) -> None:
        if owned:
            log.info("a partition is its administrator's", gpu=gpu, uuid=instance.uuid, why=owned)
            return
        if await self._hardware.partitions.destroy_unmanaged(gpu, instance, lambda: self._preparer.claims):
            self._report(
                PARTITION_DESTROYED,
                f"GPU {gpu}: partition {instance.uuid or instance.instance_id} at "
                f"{instance.start}:{instance.size} belonged to no claim and no administrator, and was "
                "destroyed (--destroy-unowned-partitions)",
            )

    async def _end_daemon(self, device: str) -> None:
        if not self._is_idle(device):
            return
        log.warning("an MPS daemon serves no claim; ending it", device=device)
        self._report(IDLE_DAEMON, f"device {device}: its MPS daemon serves no claim and is ended")
        uuids = {d.device.name: d.uuid for d in self._table.devices}
        # Asked again when nothing else changes the GPU: a claim may want the daemon meanwhile.
        idle_still = functools.partial(self._is_idle, device)
        await self._hardware.stop_daemon(device, uuids.get(device, device), idle_still)

    def _is_idle(self, device: str) -> bool:
        # A claim has its record before it starts a daemon.
        return not any(device in daemons_of(record) for record in self._preparer.claims)


def _condition(instances: Sequence[GpuInstance], text: str) -> DeviceHealth:
    return DeviceHealth(
        reason=UNMANAGED_PARTITIONS,
        severity="degraded",
        message=f"neither the whole device nor these places can be used: {text}",
        places=tuple(
            OccupiedPlace(profile_id=i.profile_id, start=i.start, size=i.size)
            for i in instances[:_MOST_PLACES]
        ),
    )
