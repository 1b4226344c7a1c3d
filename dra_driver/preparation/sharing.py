"""From parameters to what a GPU and a container need: time slices, MPS, partitioning mode."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

from dra_driver import cdi
from dra_driver.api.own.parameters import (
    DEFAULT_SHARE,
    DeviceType,
    KernelDriver,
    Parameters,
    Strategy,
)
from dra_driver.api.quantity import Quantity
from dra_driver.errors import PrepareError
from dra_driver.preparation.claim import DeviceSetting
from dra_driver.preparation.node_device import NodeDevice

__all__ = ["MPS_PIPES", "SharingPlan", "device_type", "plan_sharing", "read_only_pipes", "settings_of"]

# Where a container finds the pipes of the daemon; the daemon's own shared memory goes with them.
MPS_PIPES: Final = "/var/run/dra-driver/mps"
_MIB: Final = 1 << 20
# Clients connect to the sockets of the daemon; whoever could write there could put others in their place.
_PIPE_OPTIONS: Final = ("ro", "nosuid", "nodev", "noexec", "rbind", "rprivate")
_MEMORY_OPTIONS: Final = ("rw", "nosuid", "nodev", "noexec", "rbind", "rprivate")


class SharingPlan:
    """What one allocated device gets.

    Attributes:
        setting: what is needed of its GPU; if None, nothing is, and whatever is set may stay.
        edits: for the container.
        enforced: of a share, what keeps it to its memory: ``mps`` or ``none``; else empty.
        daemon: MPS runs on the partition itself.
        passthrough: parameters of a device that is bound to another kernel driver; None where it keeps the
            one that it has.
    """

    __slots__ = ("daemon", "edits", "enforced", "passthrough", "setting")

    def __init__(
        self,
        setting: DeviceSetting | None = None,
        edits: cdi.ContainerEdits | None = None,
        enforced: str = "",
        daemon: bool = False,
        passthrough: Parameters | None = None,
    ) -> None:
        self.setting = setting
        self.edits = edits or cdi.ContainerEdits()
        self.enforced = enforced
        self.daemon = daemon
        self.passthrough = passthrough


def device_type(device: NodeDevice, share_id: str | None) -> DeviceType:
    """Return what kind of device a result is of."""
    if device.partition is not None or device.is_partition:
        return DeviceType.PARTITION
    return DeviceType.GPU if share_id is None else DeviceType.SHARE


def plan_sharing(
    device: NodeDevice,
    kind: DeviceType,
    parameters: Parameters | None,
    *,
    position: int,
    memory: Quantity | None,
) -> SharingPlan:
    """Return what a device gets under its parameters.

    Args:
        device: as the node sees it.
        kind: see ``device_type``.
        parameters: None where none are given.
        position: among the claim's devices.
        memory: what the share may use.

    Raises:
        PrepareError: the device or the node cannot do what is asked.
    """
    if parameters is None:
        parameters = DEFAULT_SHARE if kind is DeviceType.SHARE else None
    planned = _plan(device, kind, parameters, position, memory)
    if parameters is not None and parameters.own_namespace and planned.setting is not None:
        planned.setting = msgspec.structs.replace(planned.setting, own_namespace=True)
    return planned


def _plan(
    device: NodeDevice,
    kind: DeviceType,
    parameters: Parameters | None,
    position: int,
    memory: Quantity | None,
) -> SharingPlan:
    strategy = parameters.strategy if parameters is not None else Strategy.NONE
    if strategy is Strategy.AUTO:
        strategy = Strategy.MPS if device.mps_directory else Strategy.NONE
    if parameters is not None and parameters.driver is not KernelDriver.DEFAULT:
        return _passed_through(device, parameters)
    if kind is DeviceType.PARTITION:
        return _partition(device, parameters if strategy is Strategy.MPS else None, position)
    if strategy is Strategy.TIME_SLICING and parameters is not None and parameters.interval is not None:
        if not device.controllable:
            raise PrepareError(f"device {device.name}: {device.no_time_slices}")
        return SharingPlan(
            _whole(device, time_slice=parameters.interval.value, daemon=False),
            enforced="none" if kind is DeviceType.SHARE else "",
        )
    if strategy is Strategy.MPS:
        assert parameters is not None
        return _mps(device, kind, parameters, position=position, memory=memory)
    if kind is DeviceType.SHARE:
        return SharingPlan(_whole(device, daemon=False), enforced="none")
    return SharingPlan(_whole(device) if device.partitioning and device.controllable else None)


def _passed_through(device: NodeDevice, parameters: Parameters) -> SharingPlan:
    driver = parameters.driver
    if not device.address or device.found is None:
        raise PrepareError(f"device {device.name} cannot be bound to {driver.value}: {device.no_passthrough}")
    if device.partitioning:
        raise PrepareError(
            f"device {device.name} cannot be bound to {driver.value}: its {device.partitioning} is on, and "
            "partitions of it may be in use"
        )
    return SharingPlan(passthrough=parameters)


def _whole(device: NodeDevice, *, time_slice: str = "", daemon: bool | None = None) -> DeviceSetting:
    """Return what a GPU needs that is not cut up."""
    return DeviceSetting(
        device=device.name,
        uuid=device.uuid,
        time_slice=time_slice,
        daemon=daemon,
        whole=bool(device.partitioning) and device.controllable,
    )


def _partition(device: NodeDevice, mps: Parameters | None, position: int) -> SharingPlan:
    if device.partition is None:
        if mps is not None:
            raise PrepareError(
                f"device {device.name}: MPS is set up on partitions that this driver makes; this one is its "
                "administrator's"
            )
        return SharingPlan()
    setting = DeviceSetting(device=device.partition.gpu, uuid=device.uuid, partitioned=True)
    if mps is None:
        return SharingPlan(setting)
    return SharingPlan(
        setting, _mps(device, DeviceType.PARTITION, mps, position=position, memory=None).edits, daemon=True
    )


def _mps(
    device: NodeDevice, kind: DeviceType, parameters: Parameters, *, position: int, memory: Quantity | None
) -> SharingPlan:
    if not device.mps_directory:
        raise PrepareError(f"device {device.name}: MPS is not available: {device.no_mps}")
    share = int(memory.value()) if memory is not None and kind is DeviceType.SHARE else None
    asked = parameters.memory_limit_of(device.uuid, position)
    limits = [limit for limit in (share, asked) if limit is not None]
    env = [f"CUDA_MPS_PIPE_DIRECTORY={MPS_PIPES}"]
    if limits:
        # The daemon sees one GPU, so it is number 0 for its clients. A share of less than a MiB gets one.
        env.append(f"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0={max(1, min(limits) // _MIB)}M")
    if parameters.thread_percentage is not None:
        env.append(f"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE={parameters.thread_percentage}")
    mounts = (
        cdi.Mount(host_path=f"{device.mps_directory}/pipe", container_path=MPS_PIPES, options=_PIPE_OPTIONS),
        cdi.Mount(
            host_path=f"{device.mps_directory}/shm",
            container_path="/dev/shm",  # noqa: S108
            options=_MEMORY_OPTIONS,
        ),
    )
    return SharingPlan(
        _whole(device, daemon=True),
        cdi.ContainerEdits(env=tuple(env), mounts=mounts),
        enforced=("mps" if limits else "none") if kind is DeviceType.SHARE else "",
    )


def read_only_pipes(edits: cdi.ContainerEdits) -> cdi.ContainerEdits:
    """Return what a container gets, with pipes of MPS read-only: earlier versions let it write there."""
    return msgspec.structs.replace(
        edits,
        mounts=tuple(
            msgspec.structs.replace(m, options=_PIPE_OPTIONS) if m.container_path == MPS_PIPES else m
            for m in edits.mounts
        ),
    )


def settings_of(treatments: Iterable[SharingPlan]) -> tuple[DeviceSetting, ...]:
    """Return what a claim needs of each GPU, one entry for each.

    Raises:
        PrepareError: the claim needs one GPU in two ways, or MPS on two GPUs.
    """
    settings: dict[str, DeviceSetting] = {}
    on_partitions = 0
    for sharing in treatments:
        on_partitions += sharing.daemon
        setting = sharing.setting
        if setting is not None and settings.setdefault(setting.uuid, setting) != setting:
            raise PrepareError(
                f"the claim holds device {setting.device} more than once, under different parameters"
            )
    daemons = on_partitions + sum(1 for s in settings.values() if s.daemon)
    if daemons > 1:
        raise PrepareError(
            f"MPS on {daemons} devices of one claim: a process talks to one MPS daemon, and each device has "
            "its own; ask for one device per claim"
        )
    return tuple(settings.values())
