"""The control of devices that can be cut into partitions, and of which nothing else can be changed."""

from __future__ import annotations

from collections.abc import Sequence

from dra_driver.discovery.core.strangers import guarded
from dra_driver.errors import PrepareError
from dra_driver.hardware import GpuInstance
from dra_driver.ports import PartitionMaker

__all__ = ["PartitionsOnly"]


class PartitionsOnly:
    """A ``GpuControl`` by a ``PartitionMaker``: no time slices, no daemons, no mode to be turned on first."""

    def __init__(self, maker: PartitionMaker) -> None:
        self._maker = maker

    @property
    def vendor(self) -> str:
        """See ``GpuControl``."""
        return self._maker.vendor

    @property
    def runs_daemons(self) -> bool:
        """See ``GpuControl``."""
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

    def create_instance(self, gpu: str, profile_id: int, start: int, size: int) -> GpuInstance:
        """See ``GpuControl``."""
        return guarded(f"device {gpu}", self._maker.create_partition, gpu, profile_id, start, size)

    def destroy_instance(self, gpu: str, instance_id: int) -> None:
        """See ``GpuControl``."""
        guarded(f"device {gpu}", self._maker.destroy_partition, gpu, instance_id)
        # A maker may return although the device has refused. Its claim would be forgotten, and the partition
        # would be nobody's.
        if any(p.instance_id == instance_id for p in self._found(gpu) or ()):
            raise PrepareError(
                f"device {gpu}: partition {instance_id} is still there after it was destroyed", retryable=True
            )

    def _found(self, gpu: str) -> Sequence[GpuInstance] | None:
        return guarded(f"device {gpu}", self._maker.partitions, gpu)
