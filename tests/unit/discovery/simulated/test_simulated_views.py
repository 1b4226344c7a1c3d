"""A simulated machine has two views, devices and trees of files: what is published is the same for both."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

import hardware_support as hw
import pytest

from dra_driver.api import names
from dra_driver.api.resource import DeviceAttribute
from dra_driver.discovery import open_backend
from dra_driver.discovery.core import schema
from dra_driver.discovery.simulated import profile
from dra_driver.discovery.simulated.machine import AmdGpu, IntelGpu, NvidiaGpu, RdmaNic
from dra_driver.errors import ConfigurationError
from dra_driver.hardware import DiscoveredDevice

# Backend, how it is opened, and what it discovers. GPUs of processors are published on request only.
BACKENDS = {
    "amdgpu": ("amdgpu", AmdGpu),
    "intel": ("intel=integrated", IntelGpu),
    "rdma": ("rdma", RdmaNic),
}
# Names that are made of the hardware itself: in one view of the seed, in the other of the address.
IDENTITIES = {"uuid", "parentUUID", "nodeGUID"}
TOLD_BY = {spec.name: spec.by for spec in (*schema.ATTRIBUTES, *schema.CAPACITIES)}


def kind_of(device: DiscoveredDevice) -> str:
    """The backend that discovers such a device."""
    vendor = hw.value(device, "vendor")
    if device.device.name.startswith("nic-"):
        return "rdma"
    return {"nvidia": "nvml", "amd": "amdgpu", "intel": "intel"}[str(vendor)]


def simulated(name: str) -> list[DiscoveredDevice]:
    opened = open_backend(
        f"simulated={name}", sysfs_root=Path("/none"), dev_root=Path("/none"), node_name="n"
    )
    return list(opened.discover())


def in_files(root: Path, spec: str) -> dict[str, DiscoveredDevice]:
    opened = open_backend(spec, sysfs_root=root / "sys", dev_root=root / "dev", node_name="n")
    return {device.device.name: device for device in opened.discover()}


def by_backend(devices: Iterable[DiscoveredDevice], kind: str) -> dict[str, DiscoveredDevice]:
    return {device.device.name: device for device in devices if kind_of(device) == kind}


def attributes(device: DiscoveredDevice, kind: str) -> Mapping[str, DeviceAttribute]:
    """What the backend of this kind may tell of a device, without identities."""
    return {
        name: value
        for name, value in device.device.attributes.items()
        if kind in TOLD_BY[name] and name not in IDENTITIES
    }


def assert_same(said: DiscoveredDevice, found: DiscoveredDevice, kind: str, *, stated: bool) -> None:
    expected, actual = attributes(said, kind), attributes(found, kind)
    if stated:
        # An entry of "gpus" need not say everything that files show.
        actual = {name: value for name, value in actual.items() if name in expected}
    assert actual == expected
    assert IDENTITIES & found.device.attributes.keys() >= IDENTITIES & said.device.attributes.keys() - (
        {"uuid"} if stated else set()
    )
    assert found.device.links == said.device.links
    told = {name for name in said.device.capacity if kind in TOLD_BY[name]}
    assert {n: c.value for n, c in found.device.capacity.items() if n in told or not stated} == {
        n: c.value for n, c in said.device.capacity.items() if n in told
    }
    conditions = [(h.reason, h.severity) for h in found.device.health]
    assert conditions == [(h.reason, h.severity) for h in said.device.health]


@pytest.mark.parametrize("name", profile.built_in_profiles())
def test_backends_find_in_the_tree_what_the_simulated_backend_publishes(
    name: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    machine = profile.load(name)
    root = hw.shared_machine(tmp_path_factory, name)
    stated = {schema.device_name(d.function.address) for d in machine.devices if d.published is not None}
    published = simulated(name)
    for kind, (spec, hardware) in BACKENDS.items():
        said = by_backend(published, kind)
        if not any(isinstance(d.hardware, hardware) for d in machine.devices):
            assert not said
            continue
        found = in_files(root, spec)
        assert found.keys() == said.keys()
        for device, expected in said.items():
            assert_same(expected, found[device], kind, stated=device in stated)


@pytest.mark.parametrize("name", profile.built_in_profiles())
def test_a_description_of_nvidias_gpus_finds_them_where_the_simulated_backend_puts_them(
    name: str, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    root = hw.shared_machine(tmp_path_factory, name)
    rules = tmp_path / "rules.yaml"
    rules.write_text('devices: [{name: gpu, match: {pci: {vendor: "10de", class: "03"}}}]')
    found = in_files(root, f"generic={rules}")
    said = by_backend(simulated(name), "nvml")
    assert found.keys() == said.keys()
    for device, expected in said.items():
        for place in (names.PCI_BUS_ID, names.PCIE_ROOT, names.NUMA_NODE):
            assert found[device].device.attributes.get(place) == expected.device.attributes.get(place), place


EVERYTHING = """
driverVersion: "1.2.3"
modules: {amdgpu: "6.10.5", xe: "1.1"}
gpus:
- {vendor: amd, productName: AMD Instinct MI210, model: MI210, architecture: gfx90a,
   memory: 64Gi, multiprocessors: 104, pciAddress: "0000:01:00.0", pcieRoot: "pci0000:00", eccEnabled: true}
- {vendor: intel, productName: Intel Data Center GPU Flex 170, model: Flex-170, memory: 14Gi,
   pciAddress: "0000:02:00.0", pcieRoot: "pci0000:00", numaNode: 1}
devices:
- kind: amdgpu
  at: ["0000:05:00.0 pci0000:00 0"]
  deviceID: "74a1"
  computeUnits: 304
  computePartitions: [SPX, CPX]
  computePartition: CPX
  memory: 1Gi
  ecc: true
  uncorrectableErrors: 3
- {kind: amdgpu, at: ["0000:06:00.0"], deviceID: "ffff", uniqueIDs: false, partitions: 2}
- {kind: intel, at: ["0000:07:00.0"], deviceID: 56c0, driver: xe, tiles: 3, memory: 16Gi,
   totalVFs: 4, vfs: 3, vfMemory: 1Gi}
- {kind: intel, at: ["0000:08:00.0"], deviceID: 56c0, driver: vfio-pci, memory: 16Gi}
- {kind: intel, at: ["0000:09:00.0"], deviceID: 56c0, driver: none, totalVFs: 0}
- {kind: rdma, at: ["0000:0a:00.0"], deviceID: "1021", state: "1: DOWN", rate: 400 Gb/sec (4X NDR)}
- {kind: rdma, at: ["0000:0b:00.0"], deviceID: "16d7", vendorID: "14e4", driver: bnxt_en, linkLayer: Ethernet,
   netdev: eth, totalVFs: 9, vfs: 9}
"""


def test_both_views_agree_on_every_key_of_a_profile(tmp_path: Path) -> None:
    (tmp_path / "everything.yaml").write_text(EVERYTHING)
    root = hw.machine(tmp_path, EVERYTHING)
    published = simulated(str(tmp_path / "everything.yaml"))
    for kind, (spec, _) in BACKENDS.items():
        said, found = by_backend(published, kind), in_files(root, spec)
        assert found.keys() == said.keys()
        for device, expected in said.items():
            stated = device in ("gpu-0000-01-00-0", "gpu-0000-02-00-0")
            assert_same(expected, found[device], kind, stated=stated)
    versions = {d.device.name: hw.value(d, "driverVersion") for d in published}
    assert versions["gpu-0000-01-00-0"] == "6.10.5", "a module's version goes before driverVersion"
    assert versions["gpu-0000-02-00-0"] == "1.2.3"


def test_an_nvidia_gpu_of_either_spelling_is_the_same_product(tmp_path: Path) -> None:
    (tmp_path / "p.yaml").write_text("""
driverVersion: "570.148.08"
modules: {nvidia: "570.148.08"}
gpus: [{pciAddress: "0000:01:00.0", pcieRoot: "pci0000:00", product: A100-40}]
devices:
- {kind: nvidia, at: ["0000:02:00.0 pci0000:00"], deviceID: "20b0", productName: NVIDIA A100-SXM4-40GB}
- {kind: nvidia, at: ["0000:03:00.0 pci0000:00"], deviceID: "ffff", productName: NVIDIA Unknown}
""")
    first, second, unknown = simulated(str(tmp_path / "p.yaml"))
    own = {"uuid", "index", names.PCI_BUS_ID}
    assert {n: a for n, a in first.device.attributes.items() if n not in own} == {
        n: a for n, a in second.device.attributes.items() if n not in own
    }
    assert first.device.capacity == second.device.capacity
    assert [p.name for p in first.device.partitions] == [p.name for p in second.device.partitions]
    assert [hw.value(d, "index") for d in (first, second, unknown)] == [0, 1, 2]
    assert hw.value(unknown, "model") == "Unknown"
    assert not unknown.device.capacity


def test_the_same_address_in_both_lists_is_refused(tmp_path: Path) -> None:
    text = """
gpus: [{pciAddress: "0000:01:00.0", product: T4}]
devices: [{kind: rdma, at: ["0000:01:00.0"], deviceID: "1021"}]
"""
    with pytest.raises(ConfigurationError, match=r"devices: '0000:01:00\.0' is given twice"):
        profile.decode(text, "p")


def test_a_tree_needs_the_pci_device_id(tmp_path: Path) -> None:
    text = 'gpus: [{pciAddress: "0000:01:00.0", productName: NVIDIA Unknown}]\n'
    with pytest.raises(ConfigurationError, match=r"deviceID of 0000:01:00\.0: it is not known"):
        hw.machine(tmp_path, text)
    root = hw.machine(tmp_path, text.replace("}", ', deviceID: "1234"}'))
    assert (root / "sys/bus/pci/devices/0000:01:00.0/device").read_text() == "0x1234\n"
    assert isinstance(profile.decode(text, "p").devices[0].hardware, NvidiaGpu)
