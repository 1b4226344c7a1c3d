"""The control of devices that can be cut into partitions, and of which nothing else can be changed.

What makes the partitions is code of a third party. What it raises becomes an error of the device, and what it
returns is compared with the partitions that there are then.
"""

from __future__ import annotations

import posixpath
from collections import Counter
from collections.abc import Sequence
from itertools import islice
from typing import Final

from dra_driver import cdi
from dra_driver.discovery.core.third_parties import guarded, rebuilt
from dra_driver.errors import PrepareError
from dra_driver.hardware import GpuInstance
from dra_driver.ports import PartitionMaker

__all__ = ["PartitionsOnly"]

# Of one device. More are a mistake, or never end.
_MOST: Final = 4096
# It is in the record of the claim, in a variable of its containers and in messages.
_MOST_OF_UUID: Final = 253
_MOST_NODES: Final = 64


class PartitionsOnly:
    """A ``GpuControl`` by a ``PartitionMaker``: no time slices, no daemons, no mode to be turned on first."""

    def __init__(self, maker: PartitionMaker) -> None:
        self._maker = maker
        # Once: it is asked for in the event loop, and may be code.
        self._vendor = guarded("a backend that cuts devices", lambda: rebuilt(str, maker.vendor))

    @property
    def vendor(self) -> str:
        """See ``GpuControl``."""
        return self._vendor

    @property
    def runs_daemons(self) -> bool:
        """See ``GpuControl``."""
        return False

    @property
    def makes_in_steps(self) -> bool:
        """See ``GpuControl``. A maker returns what is complete, and says nothing of reboots."""
        return False

    def has(self, gpu: str) -> bool:
        """See ``GpuControl``."""
        return self._found(gpu) is not None

    def compute_mode(self, gpu: str) -> str:
        """See ``GpuControl``."""
        return ""

    def set_compute_mode(self, gpu: str, mode: str) -> None:
        """See ``GpuControl``."""
        raise PrepareError(f"device {gpu} has no compute modes")

    def set_time_slice(self, gpu: str, interval: str) -> None:
        """See ``GpuControl``."""
        raise PrepareError(f"device {gpu} has no time slices that could be set")

    def partitioning(self, gpu: str) -> bool:
        """See ``GpuControl``. Devices are cut as they are."""
        return True

    def set_partitioning(self, gpu: str, enabled: bool) -> None:
        """See ``GpuControl``."""

    def instances(self, gpu: str) -> Sequence[GpuInstance]:
        """See ``GpuControl``."""
        found = self._found(gpu)
        if found is None:
            raise PrepareError(f"device {gpu} is not there", retryable=True)
        return found

    def begin_instance(self, gpu: str, profile_id: int, start: int, size: int) -> GpuInstance:
        """See ``GpuControl``."""
        raise PrepareError(f"device {gpu}: its partitions are made in one step")

    def create_instance(self, gpu: str, profile_id: int, start: int, size: int) -> GpuInstance:
        """See ``GpuControl``."""
        before = self.instances(gpu)
        made = guarded(
            f"device {gpu}", lambda: _checked(self._maker.create_partition(gpu, profile_id, start, size))
        )
        # A maker may return what it has not made, or has made elsewhere: the claim would have nothing, and
        # what is left of it would not be found by its place and its identity when it is to be destroyed.
        there = self.instances(gpu)
        wanted = (profile_id, start, size)
        if _place(made) != wanted:
            if made in there and _place(made) not in map(_place, before):
                self.destroy_instance(gpu, made.instance_id)
            raise PrepareError(
                f"device {gpu}: a partition of profile {profile_id} was to be made at {start}:{size}; made "
                f"was one of profile {made.profile_id} at {made.start}:{made.size}"
            )
        found = next((p for p in there if _place(p) == wanted), None)
        if found is None or not found.uuid or found.uuid != made.uuid:
            has = "none" if found is None else f"one with uuid {found.uuid!r}"
            raise PrepareError(
                f"device {gpu}: a partition with uuid {made.uuid!r} was made at {start}:{size}, and then "
                f"there is {has}",
                retryable=True,
            )
        return made

    def destroy_instance(self, gpu: str, instance_id: int) -> None:
        """See ``GpuControl``."""
        guarded(f"device {gpu}", self._maker.destroy_partition, gpu, instance_id)
        # A maker may return although the device has refused. Its claim would be forgotten, and the partition
        # would be nobody's.
        if any(p.instance_id == instance_id for p in self._found(gpu) or ()):
            raise PrepareError(
                f"device {gpu}: partition {instance_id} is still there after it was destroyed", retryable=True
            )

    def removal(self, gpu: str, instances: Sequence[int]) -> str:
        """See ``GpuControl``."""
        numbers = ", ".join(map(str, instances))
        return f"destroy {numbers} with the tool that made them" if instances else ""

    def _found(self, gpu: str) -> Sequence[GpuInstance] | None:
        """Return the partitions that the maker names; None where the device is not there."""

        def ask() -> Sequence[GpuInstance] | None:
            found = self._maker.partitions(gpu)
            return None if found is None else _distinct([_checked(p) for p in islice(found, _MOST + 1)])

        return guarded(f"device {gpu}", ask)


def _place(partition: GpuInstance) -> tuple[int, int, int]:
    return partition.profile_id, partition.start, partition.size


def _distinct(found: Sequence[GpuInstance]) -> Sequence[GpuInstance]:
    """Return the partitions, if it is clear of each which one is meant when it is to be destroyed."""
    if len(found) > _MOST:
        raise PrepareError(f"it has more than {_MOST} partitions")
    numbers, places = Counter(p.instance_id for p in found), Counter(map(_place, found))
    for partition in found:
        if numbers[partition.instance_id] > 1 or places[_place(partition)] > 1:
            raise PrepareError(
                f"several of its partitions are number {partition.instance_id}, or at "
                f"{partition.start}:{partition.size}"
            )
    return found


def _checked(partition: object) -> GpuInstance:
    """Return a partition as a third party's code has made it, if it is one that a claim can have."""
    checked = rebuilt(GpuInstance, partition)
    what = f"partition {checked.instance_id}"
    if len(checked.uuid) > _MOST_OF_UUID or not checked.uuid.isprintable():
        raise PrepareError(
            f"{what}: its uuid is {checked.uuid[:80]!r}; expected {_MOST_OF_UUID} printable characters at "
            "most"
        )
    if len(checked.device_nodes) > _MOST_NODES:
        raise PrepareError(
            f"{what} has {len(checked.device_nodes)} device nodes; at most {_MOST_NODES} go on"
        )
    # As a document of its own, of any kind: what a runtime would refuse.
    edits = cdi.ContainerEdits(device_nodes=checked.device_nodes)
    spec = cdi.Spec(
        cdi_version="", kind="k8s.any/claim", devices=(cdi.Device(name="any", container_edits=edits),)
    )
    for finding in cdi.validate(cdi.with_minimum_version(spec)) if checked.device_nodes else ():
        raise PrepareError(f"{what}: {finding}")
    for path in (p for node in checked.device_nodes for p in _paths(node)):
        if not path.startswith("/dev/") or posixpath.normpath(path) != path:
            raise PrepareError(f"{what}: its device node {path[:80]!r} is not below /dev")
    return checked


def _paths(node: cdi.DeviceNode) -> Sequence[str]:
    return (node.path, node.host_path) if node.host_path else (node.path,)
