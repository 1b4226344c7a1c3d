"""MIG devices that exist: published in place of their GPU, and never beside partitions that we would make."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path

import hardware_support as hw
import msgspec
import pytest

from dra_driver.api.own.inventory import DeviceHealth
from dra_driver.cdi import ContainerEdits, DeviceNode
from dra_driver.discovery import open_backend
from dra_driver.discovery.core.control import ToolPaths
from dra_driver.discovery.core.hotplug import HotplugSource
from dra_driver.discovery.core.problems import Problem
from dra_driver.discovery.nvidia.instances import NvmlInstancesBackend
from dra_driver.discovery.nvidia.mig_mode import mig_mode
from dra_driver.discovery.simulated.backend import SimulatedBackend
from dra_driver.errors import ConfigurationError, PrepareError
from dra_driver.hardware import DiscoveredDevice, GpuInstance
from dra_driver.ports import HealthMemory, HealthSource, Pausable, TelemetrySource

MIG = mig_mode(needs_reset=True)
LOST = DeviceHealth(reason="XidError", severity="degraded")


class Control:
    def __init__(self, instances: Sequence[GpuInstance] | PrepareError) -> None:
        self._instances = instances

    def partitioning(self, gpu: str) -> bool:
        return False

    def instances(self, gpu: str) -> Sequence[GpuInstance]:
        if isinstance(self._instances, PrepareError):
            raise self._instances
        return self._instances


class Gpus:
    """Two A100, of which the first is in MIG mode."""

    problems: tuple[Problem, ...] = ()
    patience = 20.0
    unnamed = False

    def __init__(self, instances: Sequence[GpuInstance] | PrepareError) -> None:
        self._control = Control(instances)
        self.closed = False

    def discover(self) -> Sequence[DiscoveredDevice]:
        first, second, *_ = SimulatedBackend("dgx-a100-40", seed="n").discover()
        return [
            dataclasses.replace(
                first,
                device=msgspec.structs.replace(first.device, health=(MIG.condition, LOST)),
                material=ContainerEdits(
                    device_nodes=(DeviceNode("/dev/nvidia0"), DeviceNode("/dev/nvidiactl"))
                ),
                own_nodes=("/dev/nvidia0",),
                partitioning=MIG,
            ),
            dataclasses.replace(second, own_nodes=("/dev/nvidia1",)),
        ]

    def close(self) -> None:
        self.closed = True

    def control(self, places: ToolPaths) -> Control:
        assert places.proc_root == Path("/host/proc")
        return self._control


def backend(instances: Sequence[GpuInstance] | PrepareError) -> NvmlInstancesBackend:
    return NvmlInstancesBackend(Gpus(instances), proc_root=Path("/host/proc"))  # type: ignore[arg-type]


def instance(number: int, profile: int, start: int, size: int, **facts: object) -> GpuInstance:
    known = {"uuid": f"MIG-{number}", "device_nodes": (DeviceNode(f"/dev/nvidia-caps/nvidia-cap{number}"),)}
    return GpuInstance(number, profile, start, size, **{**known, **facts})  # type: ignore[arg-type]


@pytest.mark.parametrize("offer", [HealthSource, HealthMemory, HotplugSource, TelemetrySource, Pausable])
def test_it_offers_what_the_backend_of_whole_gpus_does(offer: type) -> None:
    """One that could not be paused would keep open a GPU that is to be passed through."""
    opened = [
        open_backend(spec, sysfs_root=Path("/sys"), dev_root=Path("/dev"), node_name="n")
        for spec in ("nvml", "nvml=mig")
    ]
    assert all(isinstance(backend, offer) for backend in opened)


def test_it_is_paused_with_the_library() -> None:
    paused: list[str] = []

    class Pausing(Gpus):
        @contextlib.contextmanager
        def paused(self) -> Iterator[None]:
            paused.append("begun")
            yield
            paused.append("ended")

    with NvmlInstancesBackend(Pausing([])).paused():  # type: ignore[arg-type]
        assert paused == ["begun"]
    assert paused == ["begun", "ended"]


def test_mig_devices_stand_in_for_their_gpu() -> None:
    devices = backend([instance(9, 19, 4, 1), instance(2, 9, 0, 4)]).discover()
    assert [d.device.name for d in devices] == [
        "gpu-0000-07-00-0-mig-1g-5gb-4",
        "gpu-0000-07-00-0-mig-3g-20gb-0",
        "gpu-0000-0f-00-0",
    ]
    small = devices[0]
    assert hw.value(small, "type") == "mig"
    assert hw.value(small, "profile") == "1g.5gb"
    assert hw.value(small, "architecture") == "Ampere"
    assert hw.value(small, "uuid") == small.uuid == "MIG-9"
    assert str(hw.value(small, "parentUUID")).startswith("GPU-")
    assert hw.value(small, "index") is None
    assert hw.memory(small) == 4864 * hw.MIB
    assert "/dev/nvidia-caps/nvidia-cap9" in hw.nodes(small)
    assert small.own_nodes == ("/dev/nvidia-caps/nvidia-cap9", "/dev/nvidia0")
    # The fault of the GPU is that of its parts; its MIG mode is not.
    assert [h.reason for h in small.device.health] == ["XidError"]
    assert [d.is_partition for d in devices] == [True, True, False]


def test_a_whole_gpu_is_not_offered_in_parts() -> None:
    whole = backend([]).discover()[-1]
    assert whole.device.name == "gpu-0000-0f-00-0"
    assert whole.device.partitions == ()
    assert whole.own_nodes == ("/dev/nvidia1",)


def test_mig_devices_stay_while_their_gpu_does_not_list_them() -> None:
    gpus = Gpus([instance(9, 19, 4, 1)])
    one = NvmlInstancesBackend(gpus, proc_root=Path("/host/proc"))  # type: ignore[arg-type]
    before = one.discover()
    gpus._control._instances = PrepareError("NVML says 999")
    assert one.discover() == before
    assert [p.message for p in one.problems] == ["NVML says 999"]
    assert not one.unnamed
    gpus._control._instances = []
    assert [d.device.name for d in one.discover()] == ["gpu-0000-0f-00-0"]


def test_mig_devices_that_were_never_listed_may_be_there() -> None:
    one = backend(PrepareError("NVML says 999"))
    assert [d.device.name for d in one.discover()] == ["gpu-0000-0f-00-0"]
    assert one.unnamed


def test_what_is_half_made_is_left_out_with_the_reason() -> None:
    half = [instance(9, 19, 4, 1, uuid=""), instance(8, 999, 5, 1), instance(7, 19, 6, 1, device_nodes=())]
    one = backend(half)
    assert len(one.discover()) == 1
    assert [p.message for p in one.problems] == [
        "GPU instance 9 is left out: its identity cannot be learned",
        "GPU instance 8 is left out: its profile cannot be learned",
        "GPU instance 7 is left out: its device nodes cannot be learned",
    ]


def test_a_gpu_whose_instances_cannot_be_listed_costs_no_other() -> None:
    one = backend(PrepareError("that needs root"))
    assert [d.device.name for d in one.discover()] == ["gpu-0000-0f-00-0"]
    assert "that needs root" in str(one.problems[0])


def test_the_argument_is_mig() -> None:
    roots = {"sysfs_root": Path("/nonexistent"), "dev_root": Path("/nonexistent")}
    assert isinstance(open_backend("nvml=mig", **roots, node_name="n"), NvmlInstancesBackend)
    with pytest.raises(ConfigurationError, match="allowed are --backend nvml, and --backend nvml=mig"):
        open_backend("nvml=x", **roots, node_name="n")
