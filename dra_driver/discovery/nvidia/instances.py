"""Backend ``nvml=mig``: NVIDIA GPUs, and of those in MIG mode the MIG devices that are there already.

For nodes whose administrator cuts GPUs up by hand or by another tool: each MIG device is a device of its own,
``gpu-0000-07-00-0-mig-1g-5gb-4`` (profile and first memory slice), in place of its GPU. Plain ``nvml`` tells
of whole GPUs, whose partitions this driver makes and destroys itself; the two are never mixed on a node.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

import msgspec

from dra_driver.api.own.inventory import DeviceHealth, InventoryDevice, PartitionProfile
from dra_driver.api.own.partitions import partition_name
from dra_driver.api.resource import DeviceAttribute
from dra_driver.cdi import ContainerEdits, DeviceNode, own_nodes
from dra_driver.discovery.core.control import ToolPaths
from dra_driver.discovery.core.hotplug import HotplugHints
from dra_driver.discovery.core.last_known_good import DRIVER_HANGING
from dra_driver.discovery.core.problems import Problem, ProblemLog
from dra_driver.discovery.nvidia.driver.lanes import Lanes
from dra_driver.errors import DraError
from dra_driver.hardware import DeviceSample, DiscoveredDevice, GpuInstance, HealthEvent
from dra_driver.ports import GpuControl

__all__ = ["NvmlInstancesBackend", "WholeGpus"]

# Facts of the whole GPU that do not hold of a part, or that the partition reports itself.
_OF_THE_WHOLE = frozenset({"index", "migCapable", "uuid", "nvlinkGroup"})


class WholeGpus(Protocol):
    """The backend of whole GPUs that this one refines."""

    patience: float
    unnamed: bool

    @property
    def problems(self) -> tuple[Problem, ...]:
        """What the last ``discover`` could not learn."""
        ...

    def discover(self) -> Sequence[DiscoveredDevice]:
        """See ``ports.DeviceBackend``."""
        ...

    def close(self) -> None:
        """See ``ports.DeviceBackend``."""
        ...

    def control(self, places: ToolPaths) -> GpuControl | None:
        """See ``control.ControllableBackend``."""
        ...

    def wait_for_events(self, seconds: float) -> Sequence[HealthEvent]:
        """See ``ports.HealthSource``."""
        ...

    def health_memory(self) -> bytes:
        """See ``ports.HealthMemory``."""
        ...

    def recall_health(self, data: bytes) -> None:
        """See ``ports.HealthMemory``."""
        ...

    def sample(self) -> Sequence[DeviceSample]:
        """See ``ports.TelemetrySource``: of GPUs and of their MIG devices."""
        ...

    def paused(self) -> AbstractContextManager[None]:
        """See ``ports.Pausable``."""
        ...

    def hotplug(self) -> HotplugHints:
        """See ``hotplug.HotplugSource``."""
        ...


class NvmlInstancesBackend:
    """MIG devices that exist, and GPUs that are not cut up.

    Args:
        gpus: the backend of whole GPUs.
        proc_root: where procfs is mounted: it shows the device nodes of MIG devices.
    """

    def __init__(self, gpus: WholeGpus, *, proc_root: Path = Path("/proc")) -> None:
        self._gpus = gpus
        self._proc_root = proc_root
        self._log = ProblemLog("nvml")
        self._published: frozenset[str] = frozenset()
        self._lanes = Lanes(gpus.patience)
        # The MIG devices of each GPU, by its UUID.
        self._last: dict[str, list[DiscoveredDevice] | None] = {}

    @property
    def name(self) -> str:
        """``nvml``."""
        return "nvml"

    @property
    def unnamed(self) -> bool:
        """Whether there are GPUs that have never said which they are, or which MIG devices they have."""
        return self._gpus.unnamed or any(devices is None for devices in self._last.values())

    @property
    def patience(self) -> float:
        """Seconds after which a call about one GPU counts as hanging."""
        return self._gpus.patience

    @patience.setter
    def patience(self, seconds: float) -> None:
        self._gpus.patience = seconds

    @property
    def problems(self) -> tuple[Problem, ...]:
        """What the last ``discover`` could not learn."""
        return (*self._gpus.problems, *self._log.current)

    def discover(self) -> Sequence[DiscoveredDevice]:
        """Return every GPU that is not in MIG mode and every MIG device, by name.

        Raises:
            HardwareAbsent: there is no library, or no driver is loaded.
            DiscoveryError: the library or the driver is broken.
        """
        problems: list[Problem] = []
        devices: list[DiscoveredDevice] = []
        last: dict[str, list[DiscoveredDevice] | None] = {}
        gpus = self._gpus.discover()
        answers = self._ask(gpus)
        for gpu in gpus:
            if gpu.partitioning is None:
                # What is not cut up now must not be cut up by us either.
                whole = msgspec.structs.replace(gpu.device, partitions=())
                devices.append(dataclasses.replace(gpu, device=whole))
                continue
            last[gpu.uuid] = self._instances(gpu, answers.get(gpu.uuid, ()), problems)
            devices += last[gpu.uuid] or ()
        self._last = last
        self._log.replace(problems)
        self._published = frozenset(d.device.name for d in devices)
        return sorted(devices, key=lambda d: d.device.name)

    def control(self, places: ToolPaths) -> GpuControl | None:
        """Return the control for settings of whole GPUs; MIG devices are their administrator's."""
        return self._gpus.control(places)

    def wait_for_events(self, seconds: float) -> Sequence[HealthEvent]:
        """See ``ports.HealthSource``: of whole GPUs; what events make of MIG devices is in ``discover``."""
        return self._gpus.wait_for_events(seconds)

    def health_memory(self) -> bytes:
        """See ``ports.HealthMemory``."""
        return self._gpus.health_memory()

    def recall_health(self, data: bytes) -> None:
        """See ``ports.HealthMemory``."""
        self._gpus.recall_health(data)

    def sample(self) -> Sequence[DeviceSample]:
        """See ``ports.TelemetrySource``: of what the last ``discover`` found, so not of GPUs that are cut."""
        return [s for s in self._gpus.sample() if s.device in self._published]

    def paused(self) -> AbstractContextManager[None]:
        """See ``ports.Pausable``."""
        return self._gpus.paused()

    def hotplug(self) -> HotplugHints:
        """See ``hotplug.HotplugSource``."""
        return self._gpus.hotplug()

    def close(self) -> None:
        """Close the library."""
        self._gpus.close()

    def _ask(self, gpus: Sequence[DiscoveredDevice]) -> Mapping[str, Sequence[GpuInstance] | str]:
        """Return the MIG devices of each GPU by its UUID, or why they cannot be learned."""
        control = self._gpus.control(ToolPaths(proc_root=self._proc_root))
        if control is None:
            return {}
        cut = {gpu.uuid: gpu.partitioning is not None for gpu in gpus}

        hanging = {
            gpu.uuid: h.message for gpu in gpus for h in gpu.device.health if h.reason == DRIVER_HANGING
        }

        def ask(uuid: str) -> Sequence[GpuInstance] | str:
            if uuid in hanging:
                return hanging[uuid]
            try:
                # One that is not cut has none; that it answers shows that the library does.
                if cut[uuid]:
                    return control.instances(uuid)
                control.partitioning(uuid)
                return ()
            except DraError as e:
                return str(e)

        self._lanes.patience = self._gpus.patience
        answers = (
            self._lanes.each(cut, "the question for its MIG devices", ask) if any(cut.values()) else None
        )
        return {} if answers is None else answers.found | {g: str(call) for g, call in answers.late.items()}

    def _instances(
        self, gpu: DiscoveredDevice, instances: Sequence[GpuInstance] | str, problems: list[Problem]
    ) -> list[DiscoveredDevice] | None:
        """Return the MIG devices of a GPU; None if they have never been learned."""
        if isinstance(instances, str):
            problems.append(Problem(gpu.device.name, "MIG devices", instances))
            last = self._last.get(gpu.uuid)
            # What they were stays, with what is known of the GPU now.
            return None if last is None else [_with_health(d, gpu.health_of_partitions) for d in last]
        profiles = {p.profile_id: p for p in gpu.device.partitions}
        found: list[DiscoveredDevice] = []
        for instance in instances:
            profile = profiles.get(instance.profile_id)
            if profile is None or not instance.uuid or not instance.device_nodes:
                what = "profile" if profile is None else "identity" if not instance.uuid else "device nodes"
                message = f"GPU instance {instance.instance_id} is left out: its {what} cannot be learned"
                problems.append(Problem(gpu.device.name, "MIG devices", message))
                continue
            found.append(_device(gpu, instance, profile))
        return found


def _device(gpu: DiscoveredDevice, instance: GpuInstance, profile: PartitionProfile) -> DiscoveredDevice:
    whole = {n: a for n, a in gpu.device.attributes.items() if n not in _OF_THE_WHOLE}
    of_gpu = own_nodes(gpu.material, gpu.own_nodes)
    return DiscoveredDevice(
        device=InventoryDevice(
            name=partition_name(gpu.device.name, profile.name, instance.start),
            attributes={
                **whole,
                **profile.attributes,
                "uuid": DeviceAttribute(string_value=instance.uuid),
            },
            capacity=profile.capacity,
            health=gpu.health_of_partitions,
        ),
        uuid=instance.uuid,
        material=ContainerEdits(
            device_nodes=_nodes(gpu, instance), mounts=gpu.material.mounts, env=gpu.material.env
        ),
        own_nodes=tuple(dict.fromkeys(n.path for n in (*instance.device_nodes, *of_gpu))),
        is_partition=True,
    )


def _with_health(device: DiscoveredDevice, health: tuple[DeviceHealth, ...]) -> DiscoveredDevice:
    return dataclasses.replace(device, device=msgspec.structs.replace(device.device, health=health))


def _nodes(gpu: DiscoveredDevice, instance: GpuInstance) -> tuple[DeviceNode, ...]:
    """Return the instance's own nodes, then those of the GPU; each once."""
    return tuple({n.path: n for n in (*instance.device_nodes, *gpu.material.device_nodes)}.values())
