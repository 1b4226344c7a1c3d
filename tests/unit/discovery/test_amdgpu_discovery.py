"""The backend ``amdgpu`` on simulated machines, recorded ones and broken ones."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import hardware_support as hw
import pytest
from once import once_in_a_run

from dra_driver.discovery.amd.backend import AmdGpuBackend
from dra_driver.discovery.amd.kfd import gfx_target
from dra_driver.discovery.amd.samples import ras_counts
from dra_driver.discovery.core.problems import HardwareAbsent
from dra_driver.hardware import DeviceSample, DiscoveredDevice
from dra_driver.ports import TelemetrySource

PCI_ID = "resource.kubernetes.io/pciBusID"


def backend(root: Path) -> AmdGpuBackend:
    return AmdGpuBackend(sysfs_root=root / "sys", dev_root=root / "dev")


def discover(root: Path) -> Sequence[DiscoveredDevice]:
    return backend(root).discover()


def recorded(factory: pytest.TempPathFactory, name: str) -> Path:
    """A machine of which only KFD's topology was recorded, to be read only."""
    archive = hw.recording(f"amd/{name}.tar.gz")
    return once_in_a_run(factory, name, lambda root: hw.unpack(archive, root / "sys/class/kfd/kfd"))


def test_a_machine_without_the_driver_says_where_it_was_looked_for(tmp_path: Path) -> None:
    with pytest.raises(HardwareAbsent, match="pci:amdgpu is not there"):
        discover(tmp_path)


def test_a_driver_without_gpus_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "sys/module/amdgpu/drivers/pci:amdgpu").mkdir(parents=True)
    assert discover(tmp_path) == []


def test_whole_gpus_have_memory_links_and_nodes(tmp_path_factory: pytest.TempPathFactory) -> None:
    devices = discover(hw.shared_machine(tmp_path_factory, "mi300x-spx"))
    assert len(devices) == 8
    assert {hw.memory(d) for d in devices} == {196592 * hw.MIB}
    for d in devices:
        assert hw.value(d, "type") == "gpu"
        assert hw.value(d, "architecture") == "gfx942"
        assert {link.peer for link in d.device.links} == {e.device.name for e in devices} - {d.device.name}
    assert hw.nodes(devices[1])[:3] == ["/dev/kfd", "/dev/dri/card8", "/dev/dri/renderD136"]


def test_partitions_are_devices_with_their_share(tmp_path_factory: pytest.TempPathFactory) -> None:
    devices = discover(hw.shared_machine(tmp_path_factory, "mi300x-cpx"))
    assert len(devices) == 64
    assert {hw.memory(d) for d in devices} == {24574 * hw.MIB}
    assert {hw.value(d, "type") for d in devices} == {"partition"}
    assert Counter(hw.value(d, PCI_ID) for d in devices).most_common(1)[0][1] == 8
    assert len({d.uuid for d in devices}) == 64
    assert len({n for d in devices for n in hw.nodes(d)}) == 1 + 2 * 64
    assert devices[9].device.name == "gpu-0000-27-00-0-cpx-1"
    assert devices[9].uuid == f"{hw.value(devices[9], 'parentUUID')}-cpx-1"


def test_a_mode_that_cannot_be_read_during_a_reset_changes_no_name(tmp_path: Path) -> None:
    root = hw.machine(tmp_path, "mi300x-cpx")
    one = backend(root)
    before = [d.device.name for d in one.discover()]
    for file in (root / "sys/devices").glob("*/*/current_compute_partition"):
        file.write_text("UNKNOWN\n")
    assert [d.device.name for d in one.discover()] == before


def test_a_consumer_card_without_partition_files_is_a_whole_gpu(tmp_path: Path) -> None:
    (device,) = discover(hw.machine(tmp_path, "radeon"))
    assert hw.value(device, "model") == "Radeon-RX-7900-XTX"
    assert hw.value(device, "computePartition") is None
    assert hw.value(device, "resource.kubernetes.io/numaNode") is None
    assert hw.memory(device) == 24560 * hw.MIB


def test_unknown_memory_is_absent(tmp_path: Path) -> None:
    root = hw.machine(tmp_path, "radeon")
    for file in (
        *root.glob("sys/devices/*/*/mem_info_vram_total"),
        *root.glob("sys/**/mem_banks/0/properties"),
    ):
        file.unlink()
    (device,) = discover(root)
    assert hw.memory(device) is None


def test_a_gpu_without_kfd_is_known_by_sysfs(tmp_path: Path) -> None:
    root = hw.machine(tmp_path, "mi300x-spx")
    shutil.rmtree(root / "sys/class/kfd")
    devices = discover(root)
    assert len(devices) == 8
    assert {hw.value(d, "model") for d in devices} == {"MI300X"}
    assert {hw.value(d, "architecture") for d in devices} == {None}


def test_a_partition_without_drm_entry_takes_no_neighbours_nodes(tmp_path: Path) -> None:
    root = hw.machine(tmp_path, "mi300x-cpx")
    shutil.rmtree(root / "sys/devices/platform/amdgpu_xcp_2")
    one = backend(root)
    device = one.discover()[3]
    assert hw.nodes(device) == ["/dev/kfd", "/dev/dri/renderD131"]
    assert [str(p) for p in one.problems] == [
        "gpu-0000-05-00-0-cpx-3: device node: no DRM device has render minor 131: its card node is unknown"
    ]


def test_partitions_with_ids_of_their_own_belong_to_their_gpu(tmp_path: Path) -> None:
    """Newer drivers: the id of a partition is not that of the GPU."""
    root = hw.machine(tmp_path, "mi300x-cpx")
    before = [d.uuid for d in discover(root)]
    for i, file in enumerate(sorted(root.glob("sys/class/kfd/kfd/topology/nodes/*/properties"))):
        lines = [line for line in file.read_text().splitlines() if not line.startswith("unique_id")]
        file.write_text("\n".join([*lines, f"unique_id {10**18 + i}"]))
    assert [d.uuid for d in discover(root)] == before


def test_the_number_of_a_partition_may_stand_above_the_address(tmp_path: Path) -> None:
    """Kernels of 2023 put it into bits 28 to 31 of location_id."""
    root = hw.machine(tmp_path, "mi300x-cpx")
    before = [d.device.name for d in discover(root)]
    for file in root.glob("sys/class/kfd/kfd/topology/nodes/*/properties"):
        lines = []
        for line in file.read_text().splitlines():
            name, _, text = line.partition(" ")
            number = int(text)
            lines.append(f"{name} {(number & ~7) | (number & 7) << 28 if name == 'location_id' else number}")
        file.write_text("\n".join(lines))
    assert [d.device.name for d in discover(root)] == before


def test_virtual_functions_are_gpus_not_partitions(tmp_path: Path) -> None:
    root = hw.machine(
        tmp_path,
        'devices:\n- {kind: amdgpu, at: ["0000:05:02.0", "0000:05:02.1"], deviceID: 74b5}\n',
    )
    devices = discover(root)
    assert [d.device.name for d in devices] == ["gpu-0000-05-02-0", "gpu-0000-05-02-1"]
    assert {hw.value(d, "type") for d in devices} == {"gpu"}


def test_errors_that_were_not_corrected_are_health(tmp_path: Path) -> None:
    root = hw.machine(tmp_path, "mi210")
    function = root / "sys/bus/pci/devices/0000:26:00.0"
    (function / "ras/umc_err_count").write_text("ue: 2\nce: 17\n")
    assert ras_counts(function)["umc"] == (2, 17)
    devices = discover(root)
    assert [h.reason for h in devices[1].device.health] == ["UncorrectableErrors"]
    assert "umc 2" in devices[1].device.health[0].message
    assert not devices[0].device.health


def test_what_a_gpu_does_is_sampled_without_discovery(tmp_path: Path) -> None:
    root = hw.machine(tmp_path, "radeon")
    one = backend(root)
    assert one.sample() == []
    one.discover()
    function = root / "sys/bus/pci/devices/0000:03:00.0"
    (function / "gpu_busy_percent").write_text("37\n")
    (function / "mem_info_vram_used").write_text("1073741824\n")
    monitor = function / "hwmon/hwmon4"
    monitor.mkdir(parents=True)
    (monitor / "temp1_input").write_text("45000\n")
    (monitor / "power1_average").write_text("91000000\n")
    (sample,) = one.sample()
    assert isinstance(one, TelemetrySource)
    assert sample == DeviceSample(
        device="gpu-0000-03-00-0",
        utilization=0.37,
        memory_used=hw.GIB,
        memory_total=24560 * hw.MIB,
        temperature=45.0,
        power=91.0,
    )
    (function / "gpu_busy_percent").write_text("many")
    (monitor / "temp1_input").unlink()
    (sample,) = one.sample()
    assert (sample.utilization, sample.temperature, sample.power) == (None, None, 91.0)


def test_an_accelerator_without_edge_sensor_tells_the_next(tmp_path: Path) -> None:
    root = hw.machine(tmp_path, "mi210")
    one = backend(root)
    one.discover()
    monitor = root / "sys/bus/pci/devices/0000:03:00.0/hwmon/hwmon4"
    monitor.mkdir(parents=True)
    (monitor / "temp10_input").write_text("90000\n")
    (monitor / "temp2_input").write_text("61000\n")
    (monitor / "power1_input").write_text("120000000\n")
    (root / "sys/bus/pci/devices/0000:03:00.0/ras").mkdir(exist_ok=True)
    (root / "sys/bus/pci/devices/0000:03:00.0/ras/umc_err_count").write_text("ue: 2\nce: 17\n")
    first = one.sample()[0]
    assert (first.device, first.temperature, first.power) == ("gpu-0000-03-00-0", 61.0, 120.0)
    assert (first.errors["umc", "uncorrected"], first.errors["umc", "corrected"]) == (2, 17)


def test_partitions_tell_their_memory_and_the_temperature_of_their_gpu(tmp_path: Path) -> None:
    root = hw.machine(tmp_path, "mi300x-cpx")
    one = backend(root)
    names = [d.device.name for d in one.discover()]
    function = root / "sys/bus/pci/devices/0000:05:00.0"
    (function / "gpu_busy_percent").write_text("37\n")
    monitor = function / "hwmon/hwmon4"
    monitor.mkdir(parents=True)
    (monitor / "temp2_input").write_text("45000\n")
    nodes = root / "sys/class/kfd/kfd/topology/nodes"
    (nodes / "2/mem_banks/0/used_memory").write_text("3149352960\n")
    (nodes / "3/mem_banks/0/used_memory").write_text("much\n")
    samples = one.sample()
    assert [s.device for s in samples] == names
    # The load that the function shows is that of no partition alone.
    expected: dict[str, Any] = {"memory_total": 24574 * hw.MIB, "temperature": 45.0}
    assert samples[0] == DeviceSample("gpu-0000-05-00-0-cpx-0", memory_used=3149352960, **expected)
    assert samples[1] == DeviceSample("gpu-0000-05-00-0-cpx-1", **expected)


def test_recorded_partitions_tell_what_is_in_use(tmp_path_factory: pytest.TempPathFactory) -> None:
    one = backend(recorded(tmp_path_factory, "kfd-mi308x-8gpu-cpx"))
    one.discover()
    samples = one.sample()
    assert len(samples) == 32
    assert all(0 < (s.memory_used or 0) < (s.memory_total or 0) for s in samples)


@pytest.mark.parametrize(
    ("number", "name"),
    [(90402, "gfx942"), (90010, "gfx90a"), (110000, "gfx1100"), (120001, "gfx1201"), (0, None)],
)
def test_the_target_is_named_as_compilers_name_it(number: int, name: str | None) -> None:
    assert gfx_target(number) == name


# --- recorded machines ---


def test_recorded_mi300x_in_cpx(tmp_path_factory: pytest.TempPathFactory) -> None:
    devices = discover(recorded(tmp_path_factory, "kfd-mi300x-8gpu-cpx"))
    # The last partition of the last GPU had no node: the render minors end at 190.
    assert len(devices) == 63
    assert {d.device.capacity["multiprocessors"].value.value() for d in devices} == {38}
    assert {hw.value(d, "architecture") for d in devices} == {"gfx942"}
    assert {hw.value(d, "model") for d in devices} == {"MI300X"}
    assert {hw.value(d, "xgmiHive") for d in devices} == {f"{15188982192727901047:016x}"}
    assert Counter(hw.value(d, PCI_ID) for d in devices) == {
        "0000:05:00.0": 8, "0000:27:00.0": 8, "0000:47:00.0": 8, "0000:65:00.0": 8,
        "0000:85:00.0": 8, "0000:a7:00.0": 8, "0000:c7:00.0": 8, "0000:e5:00.0": 7,
    }  # fmt: skip
    assert devices[-1].device.name == "gpu-0000-e5-00-0-xcp-6"
    assert hw.nodes(devices[-1]) == ["/dev/kfd", "/dev/dri/renderD190"]
    # No memory banks were recorded: unknown, not invented.
    assert {hw.memory(d) for d in devices} == {None}


def test_recorded_mi308x_in_cpx_on_two_pci_domains(tmp_path_factory: pytest.TempPathFactory) -> None:
    devices = discover(recorded(tmp_path_factory, "kfd-mi308x-8gpu-cpx"))
    assert len(devices) == 32
    # The last partition of each GPU has 16 MiB less than the others.
    sizes = Counter(hw.memory(d) for d in devices)
    assert sizes == {51539607552: 24, 51522830336: 8}
    assert {d.device.capacity["multiprocessors"].value.value() for d in devices} == {20}
    assert {hw.value(d, "model") for d in devices} == {"MI308X"}
    addresses = [str(hw.value(d, PCI_ID)) for d in devices]
    assert Counter(a[:4] for a in addresses) == {"0000": 16, "0001": 16}
    assert set(Counter(addresses).values()) == {4}
    assert {hw.value(d, "eccEnabled") for d in devices} == {True}


def test_recorded_mi210_in_two_hives(tmp_path_factory: pytest.TempPathFactory) -> None:
    devices = discover(recorded(tmp_path_factory, "kfd-mi210-8gpu-xgmi-pcie"))
    assert len(devices) == 8
    assert {hw.value(d, "type") for d in devices} == {"gpu"}
    assert {hw.value(d, "architecture") for d in devices} == {"gfx90a"}
    hives = {d.device.name: hw.value(d, "xgmiHive") for d in devices}
    assert sorted(Counter(hives.values()).values()) == [4, 4]
    for d in devices:
        peers = {link.peer: link.count for link in d.device.links}
        assert set(peers.values()) == {1}
        assert set(peers) == {n for n in hives if hives[n] == hives[d.device.name]} - {d.device.name}


def test_recorded_vega_of_an_old_kernel_and_its_edited_copy(tmp_path_factory: pytest.TempPathFactory) -> None:
    one = backend(recorded(tmp_path_factory, "kfd-vega10-1gpu-plus-copy"))
    (device,) = one.discover()
    assert device.device.name == "gpu-0000-19-00-0"
    assert hw.memory(device) == 17163091968
    assert hw.value(device, "architecture") is None
    # Two nodes at one address cannot be two GPUs.
    assert any("KFD node 1 has the same address" in str(p) for p in one.problems)


def test_recorded_sysfs_of_a_desktop_vega(tmp_path: Path) -> None:
    hw.write_tree(hw.recording("amd/sysfs-drm-vega-card0.json"), tmp_path / "record")
    function = tmp_path / "sys/bus/pci/devices/0000:09:00.0"
    shutil.copytree(tmp_path / "record/sys/class/drm/card0/device", function, symlinks=True)
    (function / "drm/card0").mkdir(parents=True)
    (function / "drm/renderD128").mkdir()
    (tmp_path / "sys/module/amdgpu/drivers/pci:amdgpu/0000:09:00.0").mkdir(parents=True)
    (device,) = discover(tmp_path)
    assert hw.memory(device) == 8573157376
    assert hw.value(device, "uuid") == "0123456789abcdef"
    # product_name is empty on Vega: the name is that of device and revision.
    assert hw.value(device, "productName") == "AMD Radeon RX Vega"
    assert hw.value(device, "pciID") == "1002:687f"
    assert hw.value(device, "resource.kubernetes.io/numaNode") is None
    assert not device.device.health
