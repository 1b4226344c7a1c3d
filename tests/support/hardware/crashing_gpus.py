"""GPUs and sharing daemons that survive, with a crash or an error around every change of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from crashing_stores import Disk

from dra_driver.cdi import DeviceNode
from dra_driver.errors import PrepareError
from dra_driver.hardware import GpuInstance


@dataclass
class Gpu:
    """The state of one GPU. An instance is (profile, start, size) → (serial, whether it is whole, maker)."""

    compute: str = "default"
    slice: str = "Default"
    mig: bool = False
    instances: dict[tuple[int, int, int], tuple[int, bool, str]] = field(default_factory=dict)


@dataclass
class Machine:
    """GPUs by UUID, daemons by device."""

    disk: Disk
    gpus: dict[str, Gpu]
    daemons: dict[str, str] = field(default_factory=dict)
    serial: int = 0

    def state(self) -> dict[str, object]:
        """Everything but the identities of instances, which differ from run to run."""
        return {
            "daemons": set(self.daemons),
            **{
                uuid: (g.compute, g.slice, g.mig, {p: maker for p, (_, _, maker) in g.instances.items()})
                for uuid, g in self.gpus.items()
            },
        }


class Control:
    """Implements ``ports.GpuControl``."""

    vendor = "nvidia"
    runs_daemons = True
    makes_in_steps = True

    def __init__(self, machine: Machine) -> None:
        self._machine = machine

    def has(self, gpu: str) -> bool:
        return gpu in self._machine.gpus

    def compute_mode(self, gpu: str) -> str:
        return self._machine.gpus[gpu].compute

    def set_compute_mode(self, gpu: str, mode: str) -> None:
        if self.compute_mode(gpu) != mode:
            self._machine.disk.effect(done=False)
            self._machine.gpus[gpu].compute = mode
            self._machine.disk.effect(done=True)

    def set_time_slice(self, gpu: str, interval: str) -> None:
        self._machine.disk.effect(done=False)
        self._machine.gpus[gpu].slice = interval
        self._machine.disk.effect(done=True)

    def partitioning(self, gpu: str) -> bool:
        return self._machine.gpus[gpu].mig

    def set_partitioning(self, gpu: str, enabled: bool) -> None:
        if not enabled and self._machine.gpus[gpu].instances:
            raise PrepareError("there are instances")
        self._machine.disk.effect(done=False)
        self._machine.gpus[gpu].mig = enabled
        self._machine.disk.effect(done=True)

    def instances(self, gpu: str) -> Sequence[GpuInstance]:
        return [self._instance(gpu, place) for place in sorted(self._machine.gpus[gpu].instances)]

    def begin_instance(self, gpu: str, profile_id: int, start: int, size: int) -> GpuInstance:
        state, place = self._machine.gpus[gpu], (profile_id, start, size)
        if not state.mig:
            raise PrepareError("MIG mode is off")
        if any(start < s + n and s < start + size for _, s, n in state.instances):
            raise PrepareError("the place is taken")
        self._machine.disk.effect(done=False)
        self._machine.serial += 1
        state.instances[place] = (self._machine.serial, False, "driver")
        self._machine.disk.effect(done=True)
        return self._instance(gpu, place)

    def create_instance(self, gpu: str, profile_id: int, start: int, size: int) -> GpuInstance:
        """In two steps, as hardware does it: a crash between them leaves half an instance."""
        state, place = self._machine.gpus[gpu], (profile_id, start, size)
        if place not in state.instances:
            self.begin_instance(gpu, profile_id, start, size)
        serial, whole, maker = state.instances[place]
        if not whole:
            self._machine.disk.effect(done=False)
            state.instances[place] = (serial, True, maker)
            self._machine.disk.effect(done=True)
        return self._instance(gpu, place)

    def destroy_instance(self, gpu: str, instance_id: int) -> None:
        state = self._machine.gpus[gpu]
        for place, (serial, whole, maker) in list(state.instances.items()):
            if serial != instance_id:
                continue
            assert maker == "driver", "a stranger's instance was destroyed"
            if whole:
                self._machine.disk.effect(done=False)
                state.instances[place] = (serial, False, maker)
                self._machine.disk.effect(done=True)
            self._machine.disk.effect(done=False)
            del state.instances[place]
            self._machine.disk.effect(done=True)

    def removal(self, gpu: str, instances: Sequence[int]) -> str:
        return f"destroy {instances} of {gpu}"

    def _instance(self, gpu: str, place: tuple[int, int, int]) -> GpuInstance:
        serial, whole, _ = self._machine.gpus[gpu].instances[place]
        profile, start, size = place
        uuid = f"MIG-{serial}" if whole else ""
        nodes = (DeviceNode(f"/dev/nvidia-caps/nvidia-cap{serial}"),) if whole else ()
        return GpuInstance(serial, profile, start, size, uuid, nodes)


class MachineDaemons:
    """Implements ``ports.Daemons``."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine

    def directory(self, device: str) -> str:
        return f"/mps/{device}"

    def start(self, device: str, gpu: str) -> None:
        if device not in self._machine.daemons:
            assert gpu.startswith("MIG-") or self._machine.gpus[gpu].compute == "exclusive-process"
            self._machine.disk.effect(done=False)
            self._machine.daemons[device] = gpu
            self._machine.disk.effect(done=True)

    def stop(self, device: str) -> None:
        if device in self._machine.daemons:
            self._machine.disk.effect(done=False)
            del self._machine.daemons[device]
            self._machine.disk.effect(done=True)

    def present(self) -> Sequence[str]:
        return sorted(self._machine.daemons)

    def sweep(self) -> bool:
        return False
