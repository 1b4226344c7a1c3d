"""What the controller and the node agent need of the outside world, as Protocols.

Adapters live in ``dra_driver.kube`` and ``dra_driver.discovery``; tests bring fakes.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol, TypeVar, runtime_checkable

from dra_driver.api.meta import Resource, WireObject
from dra_driver.api.own.kinds import BackendParameters
from dra_driver.api.server.watch import ObjectList, WatchEvent
from dra_driver.hardware import (
    BackendMetric,
    DevicePlan,
    DeviceSample,
    DeviceUse,
    DeviceWork,
    DiscoveredDevice,
    GpuInstance,
    HealthEvent,
)

__all__ = [
    "ClaimPreparation",
    "Clock",
    "Daemons",
    "DeviceBackend",
    "GpuControl",
    "Guardable",
    "HealthMemory",
    "HealthSource",
    "KubeClient",
    "MetricsSource",
    "PartitionMaker",
    "Pausable",
    "TelemetrySource",
    "WriteGuard",
]

T = TypeVar("T", bound=WireObject)


class Clock(Protocol):
    """Time, passed in so that tests decide what it is."""

    def now(self) -> float:
        """Return seconds since the epoch, UTC."""
        ...

    def monotonic(self) -> float:
        """Return seconds on a clock that never goes back."""
        ...


class KubeClient(Protocol):
    """The API server. Every method raises ``ApiError`` (its subclasses) or ``ApiUnavailable``.

    A namespace of ``""`` means cluster-scoped, or all namespaces where a collection is meant.
    """

    async def get(self, resource: Resource[T], name: str, namespace: str = "") -> T:
        """Read one object."""
        ...

    async def list(
        self,
        resource: Resource[T],
        namespace: str = "",
        *,
        label_selector: str = "",
        field_selector: str = "",
    ) -> ObjectList[T]:
        """Read all objects, page by page, as of one resourceVersion."""
        ...

    def watch(
        self,
        resource: Resource[T],
        namespace: str = "",
        *,
        resource_version: str,
        label_selector: str = "",
        field_selector: str = "",
        timeout_seconds: int = 300,
    ) -> AsyncIterator[WatchEvent[T]]:
        """Yield events after ``resource_version`` until the server ends the watch.

        Raises:
            Gone: the version is too old: list again.
        """
        ...

    async def create(
        self, resource: Resource[T], body: Mapping[str, Any], namespace: str = "", *, dry_run: bool = False
    ) -> T:
        """POST. ``body`` is plain data (``codec.to_raw``)."""
        ...

    async def replace(
        self, resource: Resource[T], body: Mapping[str, Any], *, subresource: str = "", dry_run: bool = False
    ) -> T:
        """PUT; ``body.metadata`` names the object and carries its resourceVersion."""
        ...

    async def merge_patch(
        self,
        resource: Resource[T],
        name: str,
        patch: Mapping[str, Any],
        namespace: str = "",
        *,
        subresource: str = "",
        dry_run: bool = False,
    ) -> T:
        """JSON merge patch (RFC 7386). Put ``metadata.resourceVersion`` in it for optimistic locking."""
        ...

    async def apply(
        self,
        resource: Resource[T],
        body: Mapping[str, Any],
        *,
        field_manager: str,
        subresource: str = "",
        force: bool = False,
        dry_run: bool = False,
    ) -> T:
        """Server-side apply."""
        ...

    async def delete(
        self,
        resource: Resource[T],
        name: str,
        namespace: str = "",
        *,
        uid: str = "",
        resource_version: str = "",
        grace_period_seconds: int | None = None,
    ) -> None:
        """DELETE with preconditions where given."""
        ...

    async def evict(self, name: str, namespace: str, *, uid: str = "", resource_version: str = "") -> None:
        """POST an Eviction (``policy/v1``) of a pod, with preconditions where given.

        Raises:
            ServerBusy: a PodDisruptionBudget keeps the pod (429), or the server is busy.
        """
        ...

    async def served(self, group: str, version: str) -> frozenset[str]:
        """Return the plural names of the kinds of one version of a group; empty if it is not served."""
        ...


class WriteGuard(Protocol):
    """Decides whether a write may still leave this process."""

    def check(self) -> None:
        """Return if a write may be sent at this moment.

        Raises:
            NotLeading: it may not.
        """
        ...

    def seconds_left(self) -> float:
        """Return after how many seconds a write that was sent and not answered must be given up."""
        ...


@runtime_checkable
class Guardable(Protocol):
    """A ``KubeClient`` whose writes wait before they are sent, or are sent again."""

    def guarded(self, guard: WriteGuard) -> KubeClient:
        """Return the same client with a guard, which is asked right before each attempt of a write is sent.

        What the guard raises is raised to the caller; then that attempt was not sent.
        """
        ...


class DeviceBackend(Protocol):
    """A way to look at hardware (``nvml``, ``simulated`` …). Calls block; run them in an executor."""

    @property
    def name(self) -> str:
        """The name that ``--backend`` takes."""
        ...

    def discover(self) -> Sequence[DiscoveredDevice]:
        """Return every device, in a stable order.

        Raises:
            DiscoveryError: the backend cannot look at all; one bad device is left out or incomplete instead.
        """
        ...

    def close(self) -> None:
        """Release library handles; ``discover`` may be called again and takes them anew."""
        ...


class GpuControl(Protocol):
    """The settings and partitions of GPUs, by UUID. Calls block; run them in an executor.

    Setting what is set already changes nothing. All raise ``PrepareError`` where the GPU does not do as asked
    (``retryable`` where it may soon), ``DiscoveryError`` where the library or the driver cannot be used.
    """

    @property
    def vendor(self) -> str:
        """The attribute ``vendor`` of the GPUs that it can change; it may be asked about others."""
        ...

    @property
    def runs_daemons(self) -> bool:
        """Whether sharing daemons can run on these GPUs at all."""
        ...

    @property
    def makes_in_steps(self) -> bool:
        """Whether partitions are begun before they are usable, and none outlives a boot of the machine.

        What this driver has made can be proved then. If not, what is at the place of a claim is the claim's.
        """
        ...

    def has(self, gpu: str) -> bool:
        """Return whether the GPU is there; false if its driver is not loaded.

        Raises:
            PrepareError: that cannot be said now; retryable.
        """
        ...

    def compute_mode(self, gpu: str) -> str:
        """Return ``default``, ``prohibited`` or ``exclusive-process``; empty if the GPU knows no modes."""
        ...

    def set_compute_mode(self, gpu: str, mode: str) -> None:
        """Set the compute mode; it is lost at a reboot."""
        ...

    def set_time_slice(self, gpu: str, interval: str) -> None:
        """Set ``Default``, ``Short``, ``Medium`` or ``Long``; it cannot be read back."""
        ...

    def partitioning(self, gpu: str) -> bool:
        """Return whether the GPU is in the mode in which it can be cut into partitions."""
        ...

    def set_partitioning(self, gpu: str, enabled: bool) -> None:
        """Turn that mode on or off, if this needs no reset of the GPU."""
        ...

    def instances(self, gpu: str) -> Sequence[GpuInstance]:
        """Return every partition of the GPU, managed by this driver or not; none if the mode is off."""
        ...

    def begin_instance(self, gpu: str, profile_id: int, start: int, size: int) -> GpuInstance:
        """Make the half of a partition on which nothing can run yet; never take one that is there.

        Raises:
            PrepareError: it cannot be made, and nothing is left of it; or ``makes_in_steps`` is false.
        """
        ...

    def create_instance(self, gpu: str, profile_id: int, start: int, size: int) -> GpuInstance:
        """Make a partition at a place, or finish the half-made one there."""
        ...

    def destroy_instance(self, gpu: str, instance_id: int) -> None:
        """Destroy a partition; success if there is none."""
        ...

    def removal(self, gpu: str, instances: Sequence[int]) -> str:
        """Return how an administrator destroys partitions that are not this driver's, for messages."""
        ...


class Daemons(Protocol):
    """The sharing daemons of a node. Calls block."""

    def directory(self, device: str) -> str:
        """Return the host directory of the device's daemon; empty where no daemon can run."""
        ...

    def start(self, device: str, gpu: str) -> None:
        """Start the daemon for the GPU with this UUID if it does not run; it is ready on return.

        Raises:
            PrepareError: it cannot be started or does not become ready.
        """
        ...

    def stop(self, device: str) -> None:
        """End the daemon and put its directory aside; success where there is none.

        Raises:
            PrepareError: it does not end.
        """
        ...

    def present(self) -> Sequence[str]:
        """Return the devices that have a daemon or what is left of one."""
        ...

    def sweep(self) -> bool:
        """Remove some of what ended daemons left; return whether there is more.

        Raises:
            OSError: it cannot be looked at.
        """
        ...


@runtime_checkable
class HealthSource(Protocol):
    """A ``DeviceBackend`` whose hardware reports trouble by itself.

    Conditions that an event makes, and their end, appear in ``discover``: after an event, call it.
    """

    def wait_for_events(self, seconds: float) -> Sequence[HealthEvent]:
        """Block until there are events, at most so many seconds (a little longer, or less, is allowed).

        Runs in a thread of its own, beside the other calls. Returns at once or early, without events, while
        the hardware cannot be asked.
        """
        ...


@runtime_checkable
class HealthMemory(Protocol):
    """A ``HealthSource`` whose conditions would be forgotten with the process.

    The agent keeps what it is given over its own restarts, not over a reboot of the machine.
    """

    @property
    def name(self) -> str:
        """The backend's name, under which its conditions are kept."""
        ...

    def health_memory(self) -> bytes:
        """Return what has to be kept, as JSON; the same until something changes. Does not block."""
        ...

    def recall_health(self, data: bytes) -> None:
        """Add what was kept by an earlier process, or by another one beside this.

        Raises:
            DecodeError: it is not what ``health_memory`` gives.
        """
        ...


@runtime_checkable
class Pausable(Protocol):
    """A ``DeviceBackend`` that holds devices open while it is open."""

    def paused(self) -> AbstractContextManager[None]:
        """Release the devices for the time of a block; every other call waits meanwhile. Blocks."""
        ...


@runtime_checkable
class TelemetrySource(Protocol):
    """A ``DeviceBackend`` whose devices report what they do. Calls block."""

    def sample(self) -> Sequence[DeviceSample]:
        """Return a sample of every device; a call that fails costs one value. Opens no library by itself."""
        ...


@runtime_checkable
class MetricsSource(Protocol):
    """A ``DeviceBackend`` with metrics of its own. Calls block, in the backend's thread."""

    def metrics(self) -> Sequence[BackendMetric]:
        """Return what is measured now. At most 32 names and 1,000 values are taken, and 3 s waited for."""
        ...


@runtime_checkable
class ClaimPreparation(Protocol):
    """A ``DeviceBackend`` that does something to a device while a claim has it.

    The agent plans, writes the plan down durably, prepares, and only then tells the kubelet. Whatever it is
    killed in, and however often: at its next start what was begun and not finished is unprepared by its plan.
    Calls block and run in threads, one at a time for each device, several for different ones. After 5 s
    (``plan_device``), 25 s (the others) or ``DevicePlan.seconds`` (``prepare_device``) the claim is refused
    for now, and the device is not asked again before the call has come back; then what it has done is undone.
    An exception refuses the claim; its text goes to the pod's Event.
    """

    @property
    def name(self) -> str:
        """The backend's name, by which plans are known again after a restart."""
        ...

    @property
    def parameters(self) -> Sequence[type[BackendParameters]]:
        """The kinds of opaque parameters that it understands."""
        ...

    def plan_device(self, use: DeviceUse) -> DevicePlan | None:
        """Return what is to be done; None if nothing is. Changes nothing, and may be called several times.

        Raises:
            PrepareError: the claim cannot have it; ``retryable`` where it can soon.
        """
        ...

    def prepare_device(self, work: DeviceWork) -> None:
        """Do what was planned. What is done already stays as it is: it is called again and again.

        Raises:
            PrepareError: it cannot be done; then ``unprepare_device`` is called.
        """
        ...

    def unprepare_device(self, work: DeviceWork) -> None:
        """Undo it: all of it, a part of it, or what was never done.

        The device may be gone, the machine may have been started anew, and the process be another one than
        that which has prepared.

        Raises:
            PrepareError: it cannot be undone; the claim keeps the device, and the call is repeated.
        """
        ...


@runtime_checkable
class PartitionMaker(Protocol):
    """A ``DeviceBackend`` whose devices are cut into partitions for claims (``InventoryDevice.partitions``).

    Calls block. What is made already stays as it is, for calls are repeated. All raise ``PrepareError`` where
    the device does not do as asked (``retryable`` where it may soon), ``DiscoveryError`` where the driver
    cannot be used. ``uuid`` is the identity of the device that is cut; it may be another backend's device.
    """

    @property
    def vendor(self) -> str:
        """The attribute ``vendor`` of the devices that it can cut."""
        ...

    def partitions(self, uuid: str) -> Sequence[GpuInstance] | None:
        """Return every partition that exists, whoever made it; None if the device is gone, and they with it.

        Raises:
            PrepareError: the device is away for a moment, and what there is of it cannot be known.
        """
        ...

    def create_partition(self, uuid: str, profile_id: int, start: int, size: int) -> GpuInstance:
        """Make a partition at a place, or finish the half-made one there.

        Raises:
            PrepareError: it cannot be made.
        """
        ...

    def destroy_partition(self, uuid: str, instance_id: int) -> None:
        """Destroy a partition, and return when it is gone; success if there is none.

        Raises:
            PrepareError: it cannot be destroyed; the claim keeps it, and the call is repeated.
        """
        ...
