"""The effects on hardware: settings of whole GPUs, partitions, sharing daemons; made and undone.

Every method may be called twice and after a crash at any point. What belongs to a whole GPU is undone only
when no other claim needs it; what was there before is in the claims' records.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor
from contextlib import asynccontextmanager
from typing import Any, Final, Protocol, TypeVar

import msgspec
import structlog

from dra_driver import cdi
from dra_driver.errors import DraError, PartitionAbsent, PrepareError
from dra_driver.hardware import GpuInstance
from dra_driver.ports import Daemons, GpuControl
from dra_driver.preparation import (
    ClaimState,
    DeviceSetting,
    Holdings,
    PartitionRecord,
    PreparedClaim,
    PreparedDevice,
    annotated,
    complete,
    without_instances,
)
from kubelet_plugin.core.signals import Changes
from kubelet_plugin.gpu.bindings import Bindings, bindings_of

__all__ = ["GpuHardware", "Hardware", "daemons_of", "is_change"]

log = structlog.get_logger(__name__)

_T = TypeVar("_T")
_NO_SLICE: Final = "Default"
_DEFAULT_MODE: Final = "default"
# One at a time: devices of one IOMMU group meet, and libraries close all devices for it.
_BINDING: Final = "kernel drivers"
# Of one call to a GPU; a library that hangs must not use up the time of the kubelet's call.
CALL_SECONDS: Final = 25.0


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

    async def strike_partitions(self, record: PreparedClaim) -> PreparedClaim:
        """Return the record without the identities of instances that are gone, or only half there."""
        ...

    async def create_partitions(self, record: PreparedClaim) -> PreparedClaim:
        """Make the partitions that are not there; the returned record knows the instances.

        Those that the claim has admin access to are looked up: ``PartitionAbsent`` if one is not there.
        """
        ...

    async def destroy_partitions(self, record: PreparedClaim) -> None:
        """Destroy the claim's instances; unmanaged ones are left alone."""
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
        released: why nothing can be changed now, as a clause; empty if it can.
    """

    def __init__(
        self,
        controls: Iterable[GpuControl],
        daemons: Daemons,
        executor: Executor,
        *,
        bindings: Bindings | None = None,
        call_seconds: float = CALL_SECONDS,
    ) -> None:
        self._controls = tuple(controls)
        self._daemons = daemons
        self._executor = executor
        self._bindings = bindings
        self._seconds = call_seconds
        self._locks: dict[str, asyncio.Lock] = {}
        self._slices: dict[str, str] = {}
        # Calls that did not come back in time. Until they do, no other is tried: it would wait as well.
        self._stuck: set[asyncio.Future[Any]] = set()
        self.changes = Changes()
        self.released = ""

    async def look(self, record: PreparedClaim, holdings: Holdings) -> PreparedClaim:
        """See ``Hardware``."""
        if not record.touches_hardware:
            return record
        settings = []
        for setting in record.settings:
            async with self._alone(setting.uuid):
                settings.append(await self._looked(setting, holdings.others(record.uid, setting.uuid)))
        for device, partition in _partitions(record):
            async with self._alone(device.uuid):
                await self._check_place(device, partition, holdings)
        for device, partition in _watched_partitions(record):
            async with self._alone(device.uuid):
                await self._existing(device, partition)
        record = annotated(msgspec.structs.replace(record, settings=tuple(settings)))
        if bindings_of(record):
            record = await self._call(self._needed_bindings().look, record)
        return record

    async def locate(self, record: PreparedClaim) -> PreparedClaim:
        """See ``Hardware``."""
        if not bindings_of(record):
            return record
        return await self._call(self._needed_bindings().locate, record)

    async def configure(self, record: PreparedClaim) -> None:
        """See ``Hardware``."""
        for setting in record.settings:
            async with self._alone(setting.uuid):
                # What is set cannot be read back, and setting it again costs a process; another instance of
                # the plugin may have changed it since, so that only a repetition relies on it.
                await self._configure(setting, anew=record.state is not ClaimState.COMPLETED)

    async def restore(self, record: PreparedClaim, holdings: Holdings) -> None:
        """See ``Hardware``."""
        for setting in record.settings:
            async with self._alone(setting.uuid):
                await self._restore(setting, holdings.successors(record.uid, setting.uuid))

    async def strike_partitions(self, record: PreparedClaim) -> PreparedClaim:
        """See ``Hardware``."""
        gone: set[str] = set()
        for device, partition in _partitions(record):
            if not partition.uuid:
                continue
            async with self._alone(device.uuid):
                control = await self._needed(DeviceSetting(device=partition.gpu, uuid=device.uuid))
                there = await self._at(control, device, partition)
            if there is None or not there.uuid:
                gone.add(device.device)
        return without_instances(record, gone) if gone else record

    async def create_partitions(self, record: PreparedClaim) -> PreparedClaim:
        """See ``Hardware``."""
        made: dict[str, tuple[str, cdi.ContainerEdits]] = {}
        for device, partition in _partitions(record):
            async with self._alone(device.uuid):
                instance = await self._create(device, partition)
            made[device.device] = (instance.uuid, cdi.ContainerEdits(device_nodes=instance.device_nodes))
        for device, partition in _watched_partitions(record):
            async with self._alone(device.uuid):
                instance = await self._existing(device, partition)
            made[device.device] = (instance.uuid, cdi.ContainerEdits(device_nodes=instance.device_nodes))
        return annotated(complete(record, made)) if made else record

    async def destroy_partitions(self, record: PreparedClaim) -> None:
        """See ``Hardware``."""
        for device, partition in _partitions(record):
            async with self._alone(device.uuid):
                await self._destroy(device, partition)

    async def start_daemons(self, record: PreparedClaim) -> None:
        """See ``Hardware``."""
        for setting in record.settings:
            if setting.daemon:
                async with self._alone(setting.uuid):
                    await self._call(self._daemons.start, setting.device, setting.uuid)
        for device, partition in _partitions(record):
            if partition.daemon:
                async with self._alone(device.uuid):
                    await self._call(self._daemons.start, device.device, partition.uuid)

    async def stop_daemons(self, record: PreparedClaim, holdings: Holdings) -> None:
        """See ``Hardware``."""
        for setting in record.settings:
            async with self._alone(setting.uuid):
                others = holdings.successors(record.uid, setting.uuid)
                if setting.daemon and not any(o.daemon for o in others):
                    await self._call(self._daemons.stop, setting.device)
        for device, partition in _partitions(record):
            if partition.daemon:
                async with self._alone(device.uuid):
                    await self._call(self._daemons.stop, device.device)

    async def bind_drivers(self, record: PreparedClaim) -> PreparedClaim:
        """See ``Hardware``."""
        if not bindings_of(record):
            return record
        bindings = self._needed_bindings()
        async with self._alone(_BINDING):
            # Each has the time of a call: a driver may need seconds to release one.
            for one in _one_by_one(record):
                if await self._call(bindings.bind, one):
                    self.changes.notify()
            return await self._call(bindings.locate, record)

    async def restore_drivers(self, record: PreparedClaim) -> None:
        """See ``Hardware``."""
        bindings = self._needed_bindings() if bindings_of(record) else None
        if bindings is not None:
            async with self._alone(_BINDING):
                for one in _one_by_one(record):
                    await self._call(bindings.restore, one)

    def forgotten(self, record: PreparedClaim) -> None:
        """See ``Hardware``. Its devices are the vendor's driver's again, and discovery sees them."""
        if bindings_of(record):
            self.changes.notify()

    def _needed_bindings(self) -> Bindings:
        if self._bindings is None:
            raise PrepareError("kernel drivers of devices cannot be changed here")
        return self._bindings

    async def unmanaged(
        self, gpus: Iterable[str], records: Iterable[PreparedClaim]
    ) -> Sequence[tuple[str, GpuInstance]]:
        """Return instances that no claim holds, on the GPUs with these UUIDs; they are left alone.

        Raises:
            DraError: a GPU cannot be asked.
        """
        ours = {(d.uuid, p.start, p.size) for r in records for d, p in _partitions(r)}
        found: list[tuple[str, GpuInstance]] = []
        for gpu in gpus:
            async with self._alone(gpu):
                control = await self._control(gpu)
                instances = await self._call(control.instances, gpu) if control is not None else ()
            found += [(gpu, i) for i in instances if (gpu, i.start, i.size) not in ours]
        return found

    async def destroy_unmanaged(
        self, gpu: str, instance: GpuInstance, records: Callable[[], Iterable[PreparedClaim]]
    ) -> bool:
        """Destroy an instance if, when nothing else changes the GPU, it is still there and no claim holds it.

        Args:
            gpu: UUID of the GPU.
            instance: as it was found.
            records: the claims that hold something or are about to.

        Raises:
            DraError: the GPU cannot be asked, or does not let go of it.
        """
        async with self._alone(gpu):
            held = {(d.uuid, p.start, p.size) for r in records() for d, p in _partitions(r)}
            control = await self._control(gpu)
            if control is None or (gpu, instance.start, instance.size) in held:
                return False
            if instance not in await self._call(control.instances, gpu):
                return False
            await self._call(control.destroy_instance, gpu, instance.instance_id)
            self.changes.notify()
            return True

    async def idle_daemons(self, records: Iterable[PreparedClaim]) -> Sequence[str]:
        """Return the devices whose daemon, or what is left of one, serves no claim."""
        needed = {device for r in records for device in daemons_of(r)}
        return [d for d in await self._call(self._daemons.present) if d not in needed]

    async def stop_daemon(self, device: str, gpu: str, still_idle: Callable[[], bool]) -> None:
        """Stop a daemon that serves no claim, if that is still so when nothing else changes the GPU.

        Raises:
            PrepareError: it does not end.
        """
        async with self._alone(gpu):
            if still_idle():
                await self._call(self._daemons.stop, device)

    # --- settings -------------------------------------------------------------------------------------------

    async def _looked(self, setting: DeviceSetting, others: Sequence[DeviceSetting]) -> DeviceSetting:
        if not is_change(setting):
            return setting
        control = await self._needed(setting)
        mode = next((o.compute_mode_before for o in others if o.compute_mode_before), "")
        partitioned = next((o.partitioned_before for o in others if o.partitioned_before is not None), None)
        if not mode and not setting.partitioned:
            mode = await self._call(control.compute_mode, setting.uuid)
        if partitioned is None and (setting.partitioned or setting.whole):
            partitioned = await self._call(control.partitioning, setting.uuid)
        return msgspec.structs.replace(setting, compute_mode_before=mode, partitioned_before=partitioned)

    async def _configure(self, setting: DeviceSetting, *, anew: bool) -> None:
        if not is_change(setting):
            return
        control = await self._needed(setting)
        switched = setting.partitioned or setting.whole
        if switched and await self._call(control.partitioning, setting.uuid) != setting.partitioned:
            await self._call(control.set_partitioning, setting.uuid, setting.partitioned)
            self.changes.notify()
        if setting.daemon and setting.compute_mode_before:
            await self._call(control.set_compute_mode, setting.uuid, "exclusive-process")
        if setting.time_slice and (anew or self._slices.get(setting.uuid) != setting.time_slice):
            if setting.compute_mode_before:
                await self._call(control.set_compute_mode, setting.uuid, _DEFAULT_MODE)
            await self._call(control.set_time_slice, setting.uuid, setting.time_slice)
            self._slices[setting.uuid] = setting.time_slice

    async def _restore(self, setting: DeviceSetting, others: Sequence[DeviceSetting]) -> None:
        control = await self._control(setting.uuid)
        if control is None:
            log.warning("a GPU is gone; its settings went with it", device=setting.device, uuid=setting.uuid)
            return
        modes = [o for o in others if o.daemon or o.time_slice]
        if (setting.daemon or setting.time_slice) and setting.compute_mode_before and not modes:
            await self._call(control.set_compute_mode, setting.uuid, setting.compute_mode_before)
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
        if not await self._call(control.partitioning, setting.uuid):
            return
        left = await self._call(control.instances, setting.uuid)
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
            await self._call(call, setting.uuid, value)
        except PrepareError as e:
            log.error("a setting could not be set back", setting=what, device=setting.device, error=str(e))

    # --- partitions -----------------------------------------------------------------------------------------

    async def _check_place(
        self, device: PreparedDevice, partition: PartitionRecord, holdings: Holdings
    ) -> None:
        control = await self._needed(DeviceSetting(device=partition.gpu, uuid=device.uuid))
        ours = {
            d.partition.start
            for d in holdings.partitions(device.uuid)
            if d.device != device.device and d.partition
        }
        for instance in await self._call(control.instances, device.uuid):
            overlaps = (
                instance.start < partition.start + partition.size
                and partition.start < instance.start + instance.size
            )
            if overlaps and instance.start not in ours:
                raise PrepareError(
                    f"device {device.device}: its place {partition.start}:{partition.size} on "
                    f"{partition.gpu} is taken by instance {instance.instance_id} "
                    f"({instance.uuid or 'half made'}) at {instance.start}:{instance.size}, which this "
                    "driver did not make"
                )

    async def _create(self, device: PreparedDevice, partition: PartitionRecord) -> GpuInstance:
        control = await self._needed(DeviceSetting(device=partition.gpu, uuid=device.uuid))
        if partition.uuid:
            there = await self._at(control, device, partition)
            if there is not None and there.uuid not in ("", partition.uuid):
                raise PrepareError(
                    f"device {device.device}: instance {partition.uuid} is gone, and an unmanaged one "
                    f"({there.uuid}) is at its place"
                )
            if there is not None and there.uuid and there.device_nodes:
                return there
        instance = await self._call(
            control.create_instance, device.uuid, partition.profile_id, partition.start, partition.size
        )
        self.changes.notify()
        return instance

    async def _existing(self, device: PreparedDevice, partition: PartitionRecord) -> GpuInstance:
        """Return the instance that a claim with admin access looks at, whichever claim has made it.

        Raises:
            PartitionAbsent: there is none, or it is half made.
        """
        control = await self._needed(DeviceSetting(device=partition.gpu, uuid=device.uuid))
        there = await self._at(control, device, partition)
        if there is None or not there.uuid or not (there.device_nodes or device.simulated):
            raise PartitionAbsent(
                f"device {device.device}: there is no such partition of {partition.gpu} now; admin access "
                "attaches to a partition while a claim has it, and makes none",
                retryable=True,
            )
        return there

    async def _destroy(self, device: PreparedDevice, partition: PartitionRecord) -> None:
        control = await self._control(device.uuid)
        if control is None:
            log.warning("a GPU is gone; its instances went with it", device=device.device, uuid=device.uuid)
            return
        there = await self._at(control, device, partition)
        if there is None:
            return
        if partition.uuid and there.uuid not in ("", partition.uuid):
            log.warning(
                "an instance of a claim was replaced by an unmanaged one, which is left alone",
                device=device.device,
                expected=partition.uuid,
                found=there.uuid,
            )
            return
        await self._call(control.destroy_instance, device.uuid, there.instance_id)
        self.changes.notify()

    async def _at(
        self, control: GpuControl, device: PreparedDevice, partition: PartitionRecord
    ) -> GpuInstance | None:
        place = (partition.profile_id, partition.start, partition.size)
        instances = await self._call(control.instances, device.uuid)
        return next((i for i in instances if (i.profile_id, i.start, i.size) == place), None)

    # --- calls ----------------------------------------------------------------------------------------------

    async def _control(self, gpu: str) -> GpuControl | None:
        """Return the control that can change the GPU; None if the GPU is not here.

        Raises:
            DraError: none says that it has the GPU, and one cannot say whether it has.
        """
        unknown: DraError | None = None
        for control in self._controls:
            try:
                if await self._call(control.has, gpu):
                    return control
            except DraError as e:
                unknown = unknown or e
        if unknown is not None:
            raise unknown
        return None

    async def _needed(self, setting: DeviceSetting) -> GpuControl:
        control = await self._control(setting.uuid)
        if control is None:
            raise PrepareError(
                f"device {setting.device}: there is no GPU {setting.uuid} that could be configured",
                retryable=True,
            )
        return control

    async def _call(self, work: Callable[..., _T], *args: object) -> _T:
        done: set[asyncio.Future[_T]] = set()
        if self.released:
            raise PrepareError(f"the GPUs cannot be changed now: {self.released}", retryable=True)
        if not self._stuck:
            future = asyncio.get_running_loop().run_in_executor(self._executor, work, *args)
            done, late = await asyncio.wait([future], timeout=self._seconds)
            for hanging in late:
                self._stuck.add(hanging)
                hanging.add_done_callback(self._stuck.discard)
        if not done:
            raise PrepareError(
                f"the GPU or its library does not answer after {self._seconds:g} s", retryable=True
            )
        return done.pop().result()

    @asynccontextmanager
    async def _alone(self, gpu: str) -> AsyncIterator[None]:
        """Allow one change at a time for one GPU, so that its last user and its next one do not cross."""
        async with self._locks.setdefault(gpu, asyncio.Lock()):
            yield


def daemons_of(record: PreparedClaim) -> Iterator[str]:
    """Yield the devices whose MPS daemon the claim needs."""
    yield from (s.device for s in record.settings if s.daemon)
    yield from (d.device for d, partition in _partitions(record) if partition.daemon)


def _one_by_one(record: PreparedClaim) -> Iterator[PreparedClaim]:
    """Yield the record with one device at a time of those that are bound to another driver."""
    for device, _ in bindings_of(record):
        yield msgspec.structs.replace(record, devices=(device,))


def is_change(setting: DeviceSetting) -> bool:
    """Return whether anything of the GPU has to be set for it."""
    return bool(setting.time_slice or setting.daemon or setting.partitioned or setting.whole)


def _partitions(record: PreparedClaim) -> list[tuple[PreparedDevice, PartitionRecord]]:
    """Return the partitions that the claim holds: it makes and destroys them."""
    return [(d, d.partition) for d in record.devices if d.partition is not None and not d.admin_access]


def _watched_partitions(record: PreparedClaim) -> list[tuple[PreparedDevice, PartitionRecord]]:
    """Return the partitions that the claim has admin access to and does not hold itself."""
    held = {d.device for d, _ in _partitions(record)}
    return [
        (d, d.partition)
        for d in record.devices
        if d.partition is not None and d.admin_access and d.device not in held
    ]
