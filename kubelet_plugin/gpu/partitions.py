"""Partitions of GPUs that claims hold: found, made and destroyed; instances of others are left alone.

Nothing is destroyed or finished but what is proved to be this driver's (``Partitions._is_proved``). The
record of a claim is the intent, and the place was free when that was written. A MIG instance is begun first,
and the number that the call returned is written down before a compute instance makes it usable. So what is
usable at the place of an interrupted claim without that note is an administrator's, made after the driver
hung, say.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence

import structlog

from dra_driver import cdi
from dra_driver.errors import DraError, PartitionAbsent, PrepareError
from dra_driver.hardware import GpuInstance
from dra_driver.ports import GpuControl
from dra_driver.preparation import (
    DeviceSetting,
    Holdings,
    PartitionRecord,
    PreparedClaim,
    PreparedDevice,
    annotated,
    complete,
    with_begun,
    without_instances,
)
from kubelet_plugin.core.signals import Changes
from kubelet_plugin.gpu.calls import GpuCalls, NoAnswer

__all__ = ["Partitions", "held_partitions", "is_claimed"]

log = structlog.get_logger(__name__)


class Partitions:
    """The partitions of the GPUs of a node. The methods that ``Hardware`` has as well are described there.

    Args:
        calls: to the GPUs.
        changes: notified when there are other partitions than before.
    """

    def __init__(self, calls: GpuCalls, changes: Changes) -> None:
        self._calls = calls
        self._changes = changes
        # Places at which this process could not begin an instance: UUID of the GPU, profile, start, size.
        self._failed: set[tuple[str, int, int, int]] = set()

    async def look(self, record: PreparedClaim, holdings: Holdings) -> None:
        """Look whether the claim's partitions can be made, and whether those that it looks at are there.

        Raises:
            PrepareError: a place, or a part of a GPU that is to be used whole, is taken by an instance that
                this driver did not make.
            PartitionAbsent: there is no partition to look at.
        """
        for setting in record.settings:
            if setting.whole:
                async with self._calls.alone(setting.uuid):
                    await self._check_whole(setting)
        for device, partition in held_partitions(record):
            async with self._calls.alone(device.uuid):
                await self._check_place(device, partition, holdings)
        for device, partition in _watched_partitions(record):
            async with self._calls.alone(device.uuid):
                await self._existing(device, partition)

    async def strike(self, record: PreparedClaim) -> PreparedClaim:
        """See ``Hardware.drop_missing_partitions``."""
        gone: set[str] = set()
        for device, partition in held_partitions(record):
            if not partition.uuid:
                continue
            async with self._calls.alone(device.uuid):
                control = await self._calls.needed(partition.gpu, device.uuid)
                there = await self._at(control, device, partition)
            if there is None or not there.uuid:
                gone.add(device.device)
        return without_instances(record, gone) if gone else record

    async def create(
        self, record: PreparedClaim, note: Callable[[PreparedClaim], Awaitable[None]]
    ) -> PreparedClaim:
        """See ``Hardware.create_partitions``."""
        made: dict[str, tuple[str, cdi.ContainerEdits]] = {}
        for device, partition in held_partitions(record):
            async with self._calls.alone(device.uuid):
                begun = await self._begin(device, partition)
                if begun is not None:
                    record = with_begun(record, device.device, begun.instance_id)
                    await note(record)
                instance = await self._create(device, partition)
            made[device.device] = (instance.uuid, cdi.ContainerEdits(device_nodes=instance.device_nodes))
        for device, partition in _watched_partitions(record):
            async with self._calls.alone(device.uuid):
                instance = await self._existing(device, partition)
            made[device.device] = (instance.uuid, cdi.ContainerEdits(device_nodes=instance.device_nodes))
        return annotated(complete(record, made)) if made else record

    async def destroy(self, record: PreparedClaim, *, rebooted: bool = False) -> None:
        """See ``Hardware.destroy_partitions``."""
        for device, partition in held_partitions(record):
            async with self._calls.alone(device.uuid):
                await self._destroy(device, partition, rebooted=rebooted)

    async def unmanaged(
        self, gpus: Iterable[str], records: Iterable[PreparedClaim]
    ) -> Sequence[tuple[str, GpuInstance]]:
        """Return instances that no claim holds, on the GPUs with these UUIDs; they are left alone.

        A GPU that cannot be asked, maybe of a third party's backend, keeps none of the others from it.

        Raises:
            DraError: no GPU can be asked.
        """
        held = tuple(records)
        found: list[tuple[str, GpuInstance]] = []
        failed: list[tuple[str, DraError]] = []
        asked = tuple(gpus)
        for gpu in asked:
            try:
                instances = await self.existing(gpu)
            except DraError as e:
                failed.append((gpu, e))
                continue
            found += [(gpu, i) for i in instances if not is_claimed(gpu, i, held)]
        if failed and len(failed) == len(asked):
            raise failed[0][1]
        for gpu, error in failed:
            log.warning("the partitions of a GPU could not be looked for", gpu=gpu, error=str(error))
        return found

    async def existing(self, gpu: str) -> Sequence[GpuInstance]:
        """Return all instances of the GPU with this UUID; none if it is not here.

        Raises:
            DraError: the GPU cannot be asked.
        """
        async with self._calls.alone(gpu):
            control = await self._calls.control(gpu)
            return await self._calls.call(control.instances, gpu) if control is not None else ()

    async def describe(self, gpu: str, instances: Iterable[GpuInstance]) -> str:
        """Return what the instances are, and how an administrator destroys them, as two clauses.

        Raises:
            DraError: the GPU cannot be asked.
        """
        control = await self._calls.control(gpu)
        found = tuple(instances)
        return _unmanaged_text(found, control.removal(gpu, [i.instance_id for i in found]) if control else "")

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
        async with self._calls.alone(gpu):
            control = await self._calls.control(gpu)
            if control is None or is_claimed(gpu, instance, records()):
                return False
            if instance not in await self._calls.call(control.instances, gpu):
                return False
            await self._calls.call(control.destroy_instance, gpu, instance.instance_id)
            self._changes.notify()
            return True

    async def _check_place(
        self, device: PreparedDevice, partition: PartitionRecord, holdings: Holdings
    ) -> None:
        control = await self._calls.needed(partition.gpu, device.uuid)
        ours = {
            d.partition.start
            for d in holdings.partitions(device.uuid)
            if d.device != device.device and d.partition
        }
        for instance in await self._calls.call(control.instances, device.uuid):
            overlaps = (
                instance.start < partition.start + partition.size
                and partition.start < instance.start + instance.size
            )
            if overlaps and instance.start not in ours:
                # The look at what no claim holds is due: others would be refused for it as well.
                self._changes.notify()
                raise PrepareError(
                    f"device {device.device}: its place {partition.start}:{partition.size} on "
                    f"{partition.gpu} is taken: "
                    f"{_unmanaged_text((instance,), control.removal(device.uuid, [instance.instance_id]))}"
                )

    async def _check_whole(self, setting: DeviceSetting) -> None:
        """Refuse a GPU with instances: no claim has one, for it would exclude the use of the whole GPU."""
        control = await self._calls.needed(setting.device, setting.uuid)
        instances = await self._calls.call(control.instances, setting.uuid)
        if instances:
            self._changes.notify()
            way = control.removal(setting.uuid, [i.instance_id for i in instances])
            raise PrepareError(
                f"device {setting.device}: it cannot be used as a whole: {_unmanaged_text(instances, way)}"
            )

    async def _begin(self, device: PreparedDevice, partition: PartitionRecord) -> GpuInstance | None:
        """Begin the instance if nothing is at its place; return it.

        Raises:
            PrepareError: what is there is not this driver's, or it cannot be begun.
        """
        control = await self._calls.needed(partition.gpu, device.uuid)
        there = await self._at(control, device, partition)
        if there is not None:
            if self._is_proved(control, device, partition, there):
                return None
            gone = f"instance {partition.uuid} is gone, and " if partition.uuid else ""
            way = control.removal(device.uuid, [there.instance_id])
            raise PrepareError(
                f"device {device.device}: {gone}at its place is {_unmanaged_text((there,), way)}"
            )
        if not control.makes_in_steps:
            return None
        place = (device.uuid, partition.profile_id, partition.start, partition.size)
        self._failed.discard(place)
        try:
            begun = await self._calls.call(control.begin_instance, *place)
        except NoAnswer as e:
            if not e.begun:
                self._failed.add(place)
            raise
        except DraError:
            # Nothing is left of it. What is at the place afterwards is somebody else's.
            self._failed.add(place)
            raise
        self._changes.notify()
        return begun

    async def _create(self, device: PreparedDevice, partition: PartitionRecord) -> GpuInstance:
        """Return the instance, which is begun; make it whole if it is not, or anew where that is one step."""
        control = await self._calls.needed(partition.gpu, device.uuid)
        there = await self._at(control, device, partition)
        if there is not None and there.uuid and there.device_nodes:
            return there
        instance = await self._calls.call(
            control.create_instance, device.uuid, partition.profile_id, partition.start, partition.size
        )
        self._changes.notify()
        return instance

    def _is_proved(
        self, control: GpuControl, device: PreparedDevice, partition: PartitionRecord, there: GpuInstance
    ) -> bool:
        """Return whether what is at the place of a claim's partition is this driver's.

        * Usable: it has the identity, or the number, that a call of this driver returned.
        * Half made: nothing can run on it. It is what such a call has left, if none of them came back with an
          error, and if it has no other number than the one that was returned.
        * Where partitions are made in one step, nothing more can be known than that a claim was to have it.
        """
        if there.uuid and partition.uuid:
            return there.uuid == partition.uuid
        if not control.makes_in_steps:
            return True
        if there.uuid:
            return there.instance_id == partition.begun
        place = (device.uuid, partition.profile_id, partition.start, partition.size)
        return partition.begun in (None, there.instance_id) and place not in self._failed

    async def _existing(self, device: PreparedDevice, partition: PartitionRecord) -> GpuInstance:
        """Return the instance that a claim with admin access looks at, whichever claim has made it.

        Raises:
            PartitionAbsent: there is none, or it is half made.
        """
        control = await self._calls.needed(partition.gpu, device.uuid)
        there = await self._at(control, device, partition)
        if there is None or not there.uuid or not (there.device_nodes or device.simulated):
            raise PartitionAbsent(
                f"device {device.device}: there is no such partition of {partition.gpu} now; admin access "
                "attaches to a partition that a claim holds, and creates none",
                retryable=True,
            )
        return there

    async def _destroy(self, device: PreparedDevice, partition: PartitionRecord, *, rebooted: bool) -> None:
        control = await self._calls.control(device.uuid)
        if control is None and self._calls.is_found(device.uuid):
            # A file that cannot be read for a moment looks like a device that is gone. If it is gone, the
            # next look says so.
            self._changes.notify()
            raise PrepareError(
                f"device {device.device}: its backend has found {partition.gpu} and cannot find its "
                "partitions",
                retryable=True,
            )
        if control is None:
            log.warning("a GPU is gone; its instances went with it", device=device.device, uuid=device.uuid)
            return
        there = await self._at(control, device, partition)
        if there is None:
            return
        # Instances of a profile at a place have the same identity each time, so that it proves nothing then.
        ended = rebooted and control.makes_in_steps
        if ended or not self._is_proved(control, device, partition, there):
            log.warning(
                "an instance at the place of a claim is not proved to be this driver's; it is left alone",
                device=device.device,
                expected=partition.uuid or partition.begun,
                found=there.uuid or there.instance_id,
            )
            self._changes.notify()
            return
        await self._calls.call(control.destroy_instance, device.uuid, there.instance_id)
        self._changes.notify()

    async def _at(
        self, control: GpuControl, device: PreparedDevice, partition: PartitionRecord
    ) -> GpuInstance | None:
        place = (partition.profile_id, partition.start, partition.size)
        instances = await self._calls.call(control.instances, device.uuid)
        return next((i for i in instances if (i.profile_id, i.start, i.size) == place), None)


def is_claimed(gpu: str, instance: GpuInstance, records: Iterable[PreparedClaim]) -> bool:
    """Return whether a claim holds the instance, or the place where it is making one."""
    place = (gpu, instance.profile_id, instance.start, instance.size)
    return any(
        (d.uuid, p.profile_id, p.start, p.size) == place and (not p.uuid or instance.uuid in ("", p.uuid))
        for r in records
        for d, p in held_partitions(r)
    )


def _unmanaged_text(instances: Sequence[GpuInstance], way: str) -> str:
    names = ", ".join(
        f"{i.uuid or 'an incomplete one'} (number {i.instance_id} at {i.start}:{i.size})" for i in instances
    )
    what = "partition" if len(instances) == 1 else "partitions"
    return f"{what} {names}, not created by this driver; if it is not needed, run: {way}"


def held_partitions(record: PreparedClaim) -> list[tuple[PreparedDevice, PartitionRecord]]:
    """Return the partitions that the claim holds: it makes and destroys them."""
    return [(d, d.partition) for d in record.devices if d.partition is not None and not d.admin_access]


def _watched_partitions(record: PreparedClaim) -> list[tuple[PreparedDevice, PartitionRecord]]:
    """Return the partitions that the claim has admin access to and does not hold itself."""
    held = {d.device for d, _ in held_partitions(record)}
    return [
        (d, d.partition)
        for d in record.devices
        if d.partition is not None and d.admin_access and d.device not in held
    ]
