"""The effects on hardware: settings of whole GPUs, partitions, sharing daemons; made and undone.

Every method may be called twice and after a crash at any point. What belongs to a whole GPU is undone only
when no other claim needs it; what was there before is in the claims' records.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor
from pathlib import Path
from typing import Final, Protocol, TypeVar

import msgspec
import structlog

from dra_driver.errors import PrepareError
from dra_driver.ports import Daemons, GpuControl
from dra_driver.preparation import (
    ClaimState,
    DeviceSetting,
    Holdings,
    PreparedClaim,
    annotated,
)
from kubelet_plugin.core.signals import Changes
from kubelet_plugin.gpu.bindings import Bindings, bindings_of
from kubelet_plugin.gpu.calls import CALL_SECONDS, GpuCalls
from kubelet_plugin.gpu.partitions import Partitions, held_partitions

__all__ = ["GpuHardware", "Hardware", "daemons_of", "is_change"]

log = structlog.get_logger(__name__)

_T = TypeVar("_T")
_NO_SLICE: Final = "Default"
_DEFAULT_MODE: Final = "default"
# One at a time: devices of one IOMMU group meet, and libraries close all devices for it.
_BINDING: Final = "kernel drivers"


class Hardware(Protocol):
    """What the engine asks for. All raise ``DraError`` or ``OSError`` where it cannot be done."""

    async def look(self, record: PreparedClaim, holdings: Holdings) -> PreparedClaim:
        """Note how the GPUs are before anything is changed, and refuse what cannot go well."""
        ...

    async def locate(self, record: PreparedClaim) -> PreparedClaim:
        """Return the record and its document with the nodes that passed-through functions have now."""
        ...

    async def configure(self, record: PreparedClaim) -> None:
        """Set time slice, compute mode and partitioning mode."""
        ...

    async def restore(self, record: PreparedClaim, holdings: Holdings) -> None:
        """Set them back where no other claim needs them."""
        ...

    async def drop_missing_partitions(self, record: PreparedClaim) -> PreparedClaim:
        """Return the record without the identities of instances that are gone, or only half there."""
        ...

    async def create_partitions(
        self, record: PreparedClaim, note: Callable[[PreparedClaim], Awaitable[None]]
    ) -> PreparedClaim:
        """Make the partitions that are not there; the returned record knows the instances.

        ``note`` writes a record durably: after each instance is begun, before it can be used.
        Those that the claim has admin access to are looked up: ``PartitionAbsent`` if one is not there.
        """
        ...

    async def destroy_partitions(self, record: PreparedClaim, *, rebooted: bool = False) -> None:
        """Destroy the claim's instances; what is not proved to be this driver's is left alone.

        ``rebooted``: the record is of an earlier boot of the machine.
        """
        ...

    async def start_daemons(self, record: PreparedClaim) -> None:
        """Start the daemons that do not run."""
        ...

    async def stop_daemons(self, record: PreparedClaim, holdings: Holdings) -> None:
        """Stop the daemons that no other claim needs."""
        ...

    async def bind_drivers(self, record: PreparedClaim) -> PreparedClaim:
        """Bind devices to the kernel drivers that the claim asks for; the record knows their nodes then."""
        ...

    async def restore_drivers(self, record: PreparedClaim) -> None:
        """Bind devices to what they were bound to before."""
        ...

    def forgotten(self, record: PreparedClaim) -> None:
        """Note that the record of a claim that touched hardware is gone."""
        ...


class GpuHardware:
    """``Hardware`` by what the backends, the MPS daemons and the kernel offer.

    Attributes:
        changes: notified when partitions, MIG modes or kernel drivers have changed: discovery sees other GPUs
            then.
        calls: to the GPUs.
        partitions: of the GPUs.
    """

    def __init__(
        self,
        controls: Iterable[GpuControl],
        daemons: Daemons,
        executor: Executor,
        *,
        bindings: Bindings | None = None,
        call_seconds: float = CALL_SECONDS,
        locks: Path | None = None,
    ) -> None:
        self._daemons = daemons
        self._bindings = bindings
        self._slices: dict[str, str] = {}
        self.changes = Changes()
        self.ended_daemons = Changes()
        self.calls = GpuCalls(controls, executor, call_seconds, locks, daemons)
        self.partitions = Partitions(self.calls, self.changes)

    async def look(self, record: PreparedClaim, holdings: Holdings) -> PreparedClaim:
        """See ``Hardware``."""
        if not record.touches_hardware:
            return record
        settings = []
        for setting in record.settings:
            async with self.calls.alone(setting.uuid):
                settings.append(await self._looked(setting, holdings.others(record.uid, setting.uuid)))
        await self.partitions.look(record, holdings)
        record = annotated(msgspec.structs.replace(record, settings=tuple(settings)))
        if bindings_of(record):
            record = await self.calls.call(self._needed_bindings().look, record)
        return record

    async def locate(self, record: PreparedClaim) -> PreparedClaim:
        """See ``Hardware``."""
        if not bindings_of(record):
            return record
        return await self.calls.call(self._needed_bindings().locate, record)

    async def configure(self, record: PreparedClaim) -> None:
        """See ``Hardware``."""
        for setting in record.settings:
            async with self.calls.alone(setting.uuid):
                # What is set cannot be read back, and setting it again costs a process; another instance of
                # the plugin may have changed it since, so that only a repetition relies on it.
                await self._configure(setting, anew=record.state is not ClaimState.COMPLETED)

    async def restore(self, record: PreparedClaim, holdings: Holdings) -> None:
        """See ``Hardware``."""
        for setting in record.settings:
            async with self.calls.alone(setting.uuid):
                await self._restore(setting, holdings.successors(record.uid, setting.uuid))

    async def drop_missing_partitions(self, record: PreparedClaim) -> PreparedClaim:
        """See ``Hardware``."""
        return await self.partitions.strike(record)

    async def create_partitions(
        self, record: PreparedClaim, note: Callable[[PreparedClaim], Awaitable[None]]
    ) -> PreparedClaim:
        """See ``Hardware``."""
        return await self.partitions.create(record, note)

    async def destroy_partitions(self, record: PreparedClaim, *, rebooted: bool = False) -> None:
        """See ``Hardware``."""
        await self.partitions.destroy(record, rebooted=rebooted)

    async def start_daemons(self, record: PreparedClaim) -> None:
        """See ``Hardware``."""
        for setting in record.settings:
            if setting.daemon:
                async with self.calls.alone(setting.uuid):
                    await self.calls.call(self._daemons.start, setting.device, setting.uuid)
        for device, partition in held_partitions(record):
            if partition.daemon:
                async with self.calls.alone(device.uuid):
                    await self.calls.call(self._daemons.start, device.device, partition.uuid)

    async def stop_daemons(self, record: PreparedClaim, holdings: Holdings) -> None:
        """See ``Hardware``."""
        for setting in record.settings:
            async with self.calls.alone(setting.uuid):
                others = holdings.successors(record.uid, setting.uuid)
                if setting.daemon and not any(o.daemon for o in others):
                    await self._stop(setting.device)
        for device, partition in held_partitions(record):
            if partition.daemon:
                async with self.calls.alone(device.uuid):
                    await self._stop(device.device)

    async def bind_drivers(self, record: PreparedClaim) -> PreparedClaim:
        """See ``Hardware``."""
        if not bindings_of(record):
            return record
        bindings = self._needed_bindings()
        async with self.calls.alone(_BINDING):
            # Each has the time of a call: a driver may need seconds to release one.
            for one in _one_by_one(record):
                if await self.calls.call(bindings.bind, one):
                    self.changes.notify()
            return await self.calls.call(bindings.locate, record)

    async def restore_drivers(self, record: PreparedClaim) -> None:
        """See ``Hardware``."""
        bindings = self._needed_bindings() if bindings_of(record) else None
        if bindings is not None:
            async with self.calls.alone(_BINDING):
                for one in _one_by_one(record):
                    await self.calls.call(bindings.restore, one)

    def forgotten(self, record: PreparedClaim) -> None:
        """See ``Hardware``. Its devices are the vendor's driver's again, and discovery sees them."""
        if bindings_of(record):
            self.changes.notify()

    def _needed_bindings(self) -> Bindings:
        if self._bindings is None:
            raise PrepareError("kernel drivers of devices cannot be changed here")
        return self._bindings

    async def idle_daemons(self, records: Iterable[PreparedClaim]) -> Sequence[str]:
        """Return the devices whose daemon, or what is left of one, serves no claim."""
        needed = {device for r in records for device in daemons_of(r)}
        return [d for d in await self.calls.call(self._daemons.present) if d not in needed]

    async def stop_daemon(self, device: str, gpu: str, still_idle: Callable[[], bool]) -> None:
        """Stop a daemon that serves no claim, if that is still so when nothing else changes the GPU.

        Raises:
            PrepareError: it does not end.
        """
        async with self.calls.alone(gpu):
            if still_idle():
                await self._stop(device)

    async def _stop(self, device: str) -> None:
        await self.calls.call(self._daemons.stop, device)
        self.ended_daemons.notify()

    async def sweep_daemons(self) -> bool:
        """Remove some of what ended daemons left; return whether there is more.

        Raises:
            DraError: the daemons are not to be touched now.
            OSError: nothing can be looked at.
        """
        return await self.calls.call(self._daemons.sweep)

    # --- settings -------------------------------------------------------------------------------------------

    async def _looked(self, setting: DeviceSetting, others: Sequence[DeviceSetting]) -> DeviceSetting:
        if not is_change(setting):
            return setting
        control = await self.calls.needed(setting.device, setting.uuid)
        mode = next((o.compute_mode_before for o in others if o.compute_mode_before), "")
        partitioned = next((o.partitioned_before for o in others if o.partitioned_before is not None), None)
        if not mode and not setting.partitioned:
            mode = await self.calls.call(control.compute_mode, setting.uuid)
        if partitioned is None and (setting.partitioned or setting.whole):
            partitioned = await self.calls.call(control.partitioning, setting.uuid)
        return msgspec.structs.replace(setting, compute_mode_before=mode, partitioned_before=partitioned)

    async def _configure(self, setting: DeviceSetting, *, anew: bool) -> None:
        if not is_change(setting):
            return
        control = await self.calls.needed(setting.device, setting.uuid)
        switched = setting.partitioned or setting.whole
        if switched and await self.calls.call(control.partitioning, setting.uuid) != setting.partitioned:
            await self.calls.call(control.set_partitioning, setting.uuid, setting.partitioned)
            self.changes.notify()
        if setting.daemon and setting.compute_mode_before:
            await self.calls.call(control.set_compute_mode, setting.uuid, "exclusive-process")
        if setting.time_slice and (anew or self._slices.get(setting.uuid) != setting.time_slice):
            if setting.compute_mode_before:
                await self.calls.call(control.set_compute_mode, setting.uuid, _DEFAULT_MODE)
            await self.calls.call(control.set_time_slice, setting.uuid, setting.time_slice)
            self._slices[setting.uuid] = setting.time_slice

    async def _restore(self, setting: DeviceSetting, others: Sequence[DeviceSetting]) -> None:
        control = await self.calls.control(setting.uuid)
        if control is None:
            log.warning("a GPU is gone; its settings went with it", device=setting.device, uuid=setting.uuid)
            return
        modes = [o for o in others if o.daemon or o.time_slice]
        if (setting.daemon or setting.time_slice) and setting.compute_mode_before and not modes:
            await self.calls.call(control.set_compute_mode, setting.uuid, setting.compute_mode_before)
        if setting.time_slice and not any(o.time_slice for o in others):
            self._slices.pop(setting.uuid, None)
            await self._set_back(setting, "time slice", control.set_time_slice, _NO_SLICE)
        if (
            setting.partitioned
            and setting.partitioned_before is False
            and not any(o.partitioned for o in others)
        ):
            await self._leave_partitioning(control, setting)

        if setting.whole and setting.partitioned_before and not any(o.whole for o in others):
            await self._set_back(setting, "MIG mode", control.set_partitioning, True)
            self.changes.notify()

    async def _leave_partitioning(self, control: GpuControl, setting: DeviceSetting) -> None:
        if not await self.calls.call(control.partitioning, setting.uuid):
            return
        left = await self.calls.call(control.instances, setting.uuid)
        if left:
            log.warning("MIG mode stays on: there are still instances", device=setting.device)
            return
        await self._set_back(setting, "MIG mode", control.set_partitioning, False)
        self.changes.notify()

    async def _set_back(
        self, setting: DeviceSetting, what: str, call: Callable[[str, _T], None], value: _T
    ) -> None:
        """Set back what the next claim sets anew anyway; a pod is not kept from ending for it."""
        try:
            await self.calls.call(call, setting.uuid, value)
        except PrepareError as e:
            log.error("a setting could not be set back", setting=what, device=setting.device, error=str(e))


def daemons_of(record: PreparedClaim) -> Iterator[str]:
    """Yield the devices whose MPS daemon the claim needs."""
    yield from (s.device for s in record.settings if s.daemon)
    yield from (d.device for d, partition in held_partitions(record) if partition.daemon)


def _one_by_one(record: PreparedClaim) -> Iterator[PreparedClaim]:
    """Yield the record with one device at a time of those that are bound to another driver."""
    for device, _ in bindings_of(record):
        yield msgspec.structs.replace(record, devices=(device,))


def is_change(setting: DeviceSetting) -> bool:
    """Return whether anything of the GPU has to be set for it."""
    return bool(setting.time_slice or setting.daemon or setting.partitioned or setting.whole)
