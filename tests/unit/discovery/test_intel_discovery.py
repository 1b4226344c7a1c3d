"""The backend ``intel`` on simulated machines."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import hardware_support as hw
import pytest
from nonempty import nonempty

from dra_driver.discovery.core.bus.pci_products import intel_product
from dra_driver.discovery.core.problems import HardwareAbsent
from dra_driver.discovery.intel.backend import IntelGpuBackend
from dra_driver.discovery.intel.samples import IntelSampler
from dra_driver.hardware import DeviceSample, DiscoveredDevice
from dra_driver.ports import TelemetrySource


def backend(root: Path, *, integrated: bool = False) -> IntelGpuBackend:
    return IntelGpuBackend(sysfs_root=root / "sys", dev_root=root / "dev", integrated=integrated)


def discover(root: Path, *, integrated: bool = False) -> Sequence[DiscoveredDevice]:
    return backend(root, integrated=integrated).discover()


class Clock:
    """Seconds that a test sets."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def reasons(device: DiscoveredDevice) -> list[str]:
    return [h.reason for h in device.device.health]


def test_without_sysfs_it_is_absent(tmp_path: Path) -> None:
    with pytest.raises(HardwareAbsent, match="bus/pci/devices is not there"):
        discover(tmp_path)


def test_memory_that_is_not_shown_is_absent_and_the_driver_is_what_is_bound(tmp_path: Path) -> None:
    a770, b580 = discover(hw.machine(tmp_path, "arc"))
    assert (hw.value(a770, "model"), hw.value(a770, "kernelDriver")) == ("A770", "i915")
    assert (hw.value(b580, "model"), hw.value(b580, "kernelDriver")) == ("B580", "xe")
    assert hw.value(b580, "architecture") == "Xe2-HPG"
    assert hw.memory(a770) is None
    assert hw.memory(b580) is None
    assert not reasons(a770)


def test_integrated_gpus_only_where_asked_for(tmp_path: Path) -> None:
    root = hw.machine(tmp_path, "arc")
    one = backend(root)
    assert len(one.discover()) == 2
    assert "left out: 1 integrated" in one.diagnostics
    devices = discover(root, integrated=True)
    assert [hw.value(d, "integrated") for d in devices] == [True, None, None]


def test_names_below_by_path_are_nodes_of_their_own(tmp_path: Path) -> None:
    device = discover(hw.machine(tmp_path, "arc"))[0]
    assert [(n.path, n.host_path) for n in device.material.device_nodes] == [
        ("/dev/dri/card1", ""),
        ("/dev/dri/renderD129", ""),
        ("/dev/dri/by-path/pci-0000:03:00.0-card", "/dev/dri/card1"),
        ("/dev/dri/by-path/pci-0000:03:00.0-render", "/dev/dri/renderD129"),
    ]


def test_virtual_functions_have_their_quota_and_their_physical_one_is_taken(tmp_path: Path) -> None:
    whole, physical, first, second, unbound = discover(hw.machine(tmp_path, "flex"))
    assert hw.memory(whole) == hw.memory(physical) == 14248 * hw.MIB
    assert not reasons(whole)
    assert reasons(physical) == ["VirtualFunctionsEnabled"]
    for device in (first, second):
        assert hw.value(device, "type") == "vf"
        assert hw.value(device, "physicalFunction") == "0000:9a:00.0"
        assert hw.memory(device) == 6 * hw.GIB
        assert not reasons(device)
    assert first.device.name == "gpu-0000-9a-00-1"
    assert reasons(unbound) == ["DriverNotBound"]
    assert hw.value(unbound, "model") == "Flex-140"


def test_quotas_of_xe(tmp_path: Path) -> None:
    spec = (
        'devices:\n- {kind: intel, at: ["0000:03:00.0"], deviceID: e211, driver: xe, memory: 24Gi,\n'
        "   totalVFs: 4, vfs: 1, vfMemory: 10Gi}\n"
    )
    physical, virtual = discover(hw.machine(tmp_path, spec))
    assert (hw.memory(physical), hw.memory(virtual)) == (24 * hw.GIB, 10 * hw.GIB)


def test_tiles_are_added_up(tmp_path: Path) -> None:
    root = hw.machine(tmp_path, "max")
    devices = discover(root)
    assert {hw.memory(d) for d in devices} == {128 * hw.GIB}
    assert {hw.value(d, "tiles") for d in devices} == {2}
    # Half of a sum is no size.
    (root / "sys/bus/pci/devices/0000:18:00.0/tile1/physical_vram_size_bytes").write_text("garbage")
    assert hw.memory(discover(root)[0]) is None


def test_a_gpu_for_virtual_machines_is_not_for_containers(tmp_path: Path) -> None:
    spec = 'devices:\n- {kind: intel, at: ["0000:03:00.0"], deviceID: 56c0, driver: vfio-pci}\n'
    (device,) = discover(hw.machine(tmp_path, spec))
    assert reasons(device) == ["DriverNotBound"]
    assert "vfio-pci" in device.device.health[0].message
    assert hw.nodes(device) == []


def test_unknown_without_driver_is_no_gpu_but_unknown_with_one_is(tmp_path: Path) -> None:
    spec = (
        'devices:\n- {kind: intel, at: ["0000:03:00.0"], deviceID: ffff, driver: none}\n'
        '- {kind: intel, at: ["0000:04:00.0"], deviceID: fffe, driver: xe}\n'
    )
    (device,) = discover(hw.machine(tmp_path, spec))
    assert device.device.name == "gpu-0000-04-00-0"
    assert hw.value(device, "model") is None
    assert hw.value(device, "pciID") == "8086:fffe"


def test_an_npu_is_no_gpu(tmp_path: Path) -> None:
    root = hw.machine(
        tmp_path, 'devices:\n- {kind: intel, at: ["0000:00:0b.0"], deviceID: 7d1d, class: "120000"}\n'
    )
    assert discover(root, integrated=True) == []


def test_what_the_driver_counts_is_health(tmp_path: Path) -> None:
    root = hw.machine(tmp_path, "flex")
    function = root / "sys/bus/pci/devices/0000:4d:00.0"
    counters = function / "drm/card0/gt/gt0/error_counter"
    counters.mkdir(parents=True)
    (counters / "fatal_guc").write_text("3\n")
    (counters / "correctable_guc").write_text("9\n")
    (function / "aer_dev_fatal").write_text("DLP 1\nTOTAL_ERR_FATAL 1\n")
    (function / "survivability_mode").write_text("Boot\n")
    device = discover(root)[0]
    assert [(h.reason, h.severity) for h in device.device.health] == [
        ("SurvivabilityMode", "failed"),
        ("FatalErrors", "degraded"),
        ("PcieFatalErrors", "info"),
    ]
    assert "gt0/fatal_guc 3" in device.device.health[1].message


def test_what_a_gpu_does_comes_from_counters_of_xe(tmp_path: Path) -> None:
    root = hw.machine(tmp_path, "max")
    one = backend(root)
    assert isinstance(one, TelemetrySource)
    assert one.sample() == []
    one.discover()
    clock = Clock()
    one._sampler = IntelSampler(clock)
    function = root / "sys/bus/pci/devices/0000:18:00.0"
    gts = [function / f"tile{n}/gt0/gtidle" for n in (0, 1)]
    for gt in gts:
        gt.mkdir()
    monitor = function / "hwmon/hwmon2"
    monitor.mkdir(parents=True)
    (monitor / "name").write_text("xe\n")
    (monitor / "temp2_input").write_text("51000\n")

    def counters(first: int, second: int, microjoules: int) -> None:
        (gts[0] / "idle_residency_ms").write_text(f"{first}\n")
        (gts[1] / "idle_residency_ms").write_text(f"{second}\n")
        (monitor / "energy1_input").write_text(f"{microjoules}\n")

    def sample() -> DeviceSample:
        clock.now += 10
        return one.sample()[0]

    name = "gpu-0000-18-00-0"
    fixed: dict[str, Any] = {"memory_total": 128 * hw.GIB, "temperature": 51.0}
    counters(5000, 5000, 10**9)
    assert sample() == DeviceSample(name, **fixed)
    # The second GT slept 2.5 of the 10 seconds, and 3 kJ were used.
    counters(15000, 7500, 4 * 10**9)
    assert sample() == DeviceSample(name, utilization=0.75, power=300.0, **fixed)
    # Too soon after the last one: the same again.
    clock.now -= 9.9
    counters(15000, 7500, 4 * 10**9)
    assert sample() == DeviceSample(name, utilization=0.75, power=300.0, **fixed)
    # A little more sleep than time is rounding; a counter that went back is a reset.
    counters(25200, 17700, 4 * 10**9)
    assert (one_more := sample()).utilization == 0.0
    assert one_more.power == 0.0
    counters(100, 100, 0)
    assert sample() == DeviceSample(name, **fixed)
    (gts[1] / "idle_residency_ms").write_text("long\n")
    assert sample().utilization is None


@pytest.mark.parametrize("file", ["gt/gt0/rc6_residency_ms", "power/rc6_residency_ms"])
def test_what_a_gpu_does_comes_from_counters_of_i915(tmp_path: Path, file: str) -> None:
    root = hw.machine(tmp_path, "flex")
    one = backend(root)
    one.discover()
    clock = Clock()
    one._sampler = IntelSampler(clock)
    counter = root / "sys/bus/pci/devices/0000:4d:00.0/drm/card0" / file
    counter.parent.mkdir(parents=True)
    used: list[float | None] = []
    for asleep in (1000, 1500, 2500):
        counter.write_text(f"{asleep}\n")
        clock.now += 1
        used.append(one.sample()[0].utilization)
    assert used == [None, 0.5, 0.0]


def test_a_gpu_that_containers_cannot_use_is_not_sampled(tmp_path: Path) -> None:
    root = hw.machine(
        tmp_path,
        "devices:\n- {kind: intel, at: ['0000:03:00.0 pci0000:00'], deviceID: 56c0, driver: vfio-pci}",
    )
    one = backend(root)
    one.discover()
    assert one.sample() == []


def test_every_model_of_intels_own_table_is_known() -> None:
    models = json.loads(hw.recording("intel/driver-models.json").read_text())
    for number, facts in nonempty(models.items()):
        product = intel_product(int(number, 16))
        assert product is not None, number
        assert product.family == facts["family"]
        assert product.model == re.sub(r"[ /]", "-", facts["model"])
