"""The backend ``rdma`` on simulated machines, recorded ones and broken ones."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

import hardware_support as hw
import pytest

from dra_driver.api import names
from dra_driver.discovery.core.problems import HardwareAbsent
from dra_driver.discovery.rdma.backend import RdmaBackend, parse_rate
from dra_driver.hardware import DiscoveredDevice


def backend(root: Path, *, umad: bool = False) -> RdmaBackend:
    return RdmaBackend(sysfs_root=root / "sys", dev_root=root / "dev", umad=umad)


def discover(root: Path, *, umad: bool = False) -> Sequence[DiscoveredDevice]:
    return backend(root, umad=umad).discover()


def bandwidth(device: DiscoveredDevice) -> int | None:
    capacity = device.device.capacity.get("bandwidth")
    return None if capacity is None else capacity.value.value()


def test_without_rdma_it_is_absent(tmp_path: Path) -> None:
    with pytest.raises(HardwareAbsent, match="class/infiniband is not there"):
        discover(tmp_path)


def test_adapters_have_their_place_rate_and_nodes(tmp_path: Path) -> None:
    first, roce, *virtual, last = discover(hw.machine(tmp_path, "connectx7"))
    assert first.device.name == "nic-0000-1a-00-0"
    assert hw.value(first, "model") == "ConnectX-7"
    assert hw.value(first, "linkLayer") == "InfiniBand"
    assert hw.value(first, "netdev") is None
    assert hw.value(first, names.PCIE_ROOT) == "pci0000:15"
    assert bandwidth(first) == 400 * 10**9
    assert hw.nodes(first) == ["/dev/infiniband/uverbs0", "/dev/infiniband/rdma_cm"]
    assert hw.value(roce, "linkLayer") == "Ethernet"
    assert hw.value(roce, "netdev") == "eth2"
    assert hw.value(roce, "sriovVFs") == 2
    assert [hw.value(v, "type") for v in virtual] == ["vf", "vf"]
    assert {hw.value(v, "physicalFunction") for v in virtual} == {"0000:3a:00.0"}
    assert not any(d.device.health for d in (first, roce, *virtual, last))


def test_access_to_the_subnet_manager_only_where_asked_for(tmp_path: Path) -> None:
    device = discover(hw.machine(tmp_path, "connectx7"), umad=True)[0]
    assert hw.nodes(device) == [f"/dev/infiniband/{n}" for n in ("uverbs0", "umad0", "rdma_cm")]


def test_character_devices_are_found_by_what_they_say(tmp_path: Path) -> None:
    """Their numbers are not those of the RDMA devices."""
    root = hw.machine(tmp_path, "connectx7")
    verbs = root / "sys/class/infiniband_verbs"
    for n, other in ((0, "mlx5_1"), (1, "mlx5_0")):
        (verbs / f"uverbs{n}/ibdev").write_text(f"{other}\n")
    device = discover(root)[0]
    assert hw.value(device, "rdmaDevice") == "mlx5_0"
    assert hw.nodes(device)[0] == "/dev/infiniband/uverbs1"


def test_a_port_that_is_down_is_health_and_has_no_bandwidth(tmp_path: Path) -> None:
    root = hw.machine(tmp_path, "connectx7")
    (root / "sys/class/infiniband/mlx5_0/ports/1/state").write_text("1: DOWN\n")
    (root / "sys/class/infiniband/mlx5_0/ports/1/rate").write_text("10 Gb/sec (4X SDR)\n")
    device = discover(root)[0]
    assert [h.reason for h in device.device.health] == ["PortDown"]
    assert bandwidth(device) is None


def test_a_guid_of_zeros_is_none(tmp_path: Path) -> None:
    root = hw.machine(tmp_path, "connectx7")
    (root / "sys/class/infiniband/mlx5_0/node_guid").write_text("0000:0000:0000:0000\n")
    device = discover(root)[0]
    assert hw.value(device, "uuid") is None
    assert device.uuid == "pci:0000:1a:00.0"


def test_two_adapters_of_one_function_and_one_without(tmp_path: Path) -> None:
    root = hw.machine(tmp_path, "connectx7")
    function = root / "sys/bus/pci/devices/0000:1a:00.0"
    folder = root / "sys/class/infiniband"
    for name in ("mlx5_9", "rxe0"):
        (folder / name).mkdir()
        (folder / name / "ports/1").mkdir(parents=True)
        (folder / name / "ports/1/state").write_text("4: ACTIVE")
    (folder / "mlx5_9/device").symlink_to(function)
    names_found = [d.device.name for d in discover(root)]
    assert "nic-0000-1a-00-0-mlx5-9" in names_found
    assert "nic-rxe0" in names_found


@pytest.mark.parametrize(
    ("text", "rate"),
    [
        ("400 Gb/sec (4X NDR)", 400 * 10**9),
        ("2.5 Gb/sec (1X SDR)", 25 * 10**8),
        ("10 Gb/sec (4X)", 10**10),
        ("", None),
        ("fast", None),
        ("0 Gb/sec", None),
    ],
)
def test_rates(text: str, rate: int | None) -> None:
    assert parse_rate(text) == rate


# --- recorded machines ---


def test_recorded_mlx4_mlx5_and_hfi1(tmp_path: Path) -> None:
    hw.write_tree(hw.recording("nic/infiniband-mlx4-mlx5-hfi1.json"), tmp_path)
    hfi1, mlx4, mlx5 = discover(tmp_path)
    assert [d.device.name for d in (hfi1, mlx4, mlx5)] == ["nic-hfi1-0", "nic-mlx4-0", "nic-mlx5-0"]
    assert hw.value(hfi1, "hcaType") is None
    # The board's name is longer than the API takes: left out, not cut.
    assert hw.value(hfi1, "boardID") is None
    assert hw.value(mlx4, "ports") == 2
    assert hw.value(mlx4, "linkLayer") == "InfiniBand"
    assert hw.value(mlx4, "firmwareVersion") == "2.31.5050"
    assert bandwidth(mlx4) == 80 * 10**9
    assert hw.value(mlx5, "uuid") == "0a7f:bc12:45ef:d23b"
    assert hw.value(mlx5, "hcaType") == "MT4118"
    assert bandwidth(mlx5) == 25 * 10**9


def test_recorded_i40iw(tmp_path: Path) -> None:
    hw.write_tree(hw.recording("nic/infiniband-i40iw0.json"), tmp_path)
    (device,) = discover(tmp_path)
    assert hw.value(device, "hcaType") == "I40IW"
    assert hw.value(device, "firmwareVersion") == "0.2.0"
    assert bandwidth(device) == 10**10


def test_recorded_e810(tmp_path: Path) -> None:
    """The PCI function was recorded; the RDMA device on it is made up."""
    hw.write_tree(hw.recording("nic/pci-ice-e810.json"), tmp_path)
    function = tmp_path / "sys/devices/pci0000:a2/0000:a2:00.0"
    folder = tmp_path / "sys/class/infiniband/irdma0"
    (folder / "ports/1").mkdir(parents=True)
    (folder / "device").symlink_to(function)
    devices = tmp_path / "sys/bus/pci/devices"
    devices.mkdir(parents=True)
    (devices / function.name).symlink_to(Path("../../../devices/pci0000:a2") / function.name)
    (device,) = discover(tmp_path)
    assert hw.value(device, "model") == "E810"
    assert hw.value(device, names.NUMA_NODE) == 1
    assert hw.value(device, names.PCIE_ROOT) == "pci0000:a2"
    assert hw.value(device, "netdev") == "enp162s0f0np0"
    assert hw.value(device, "kernelDriver") == "ice"
    assert hw.value(device, "sriovCapable") is True
    assert hw.value(device, "sriovVFs") is None
    shutil.rmtree(folder)
    assert discover(tmp_path) == []


def test_an_adapter_with_ports_on_two_functions_has_the_place_of_both(tmp_path: Path) -> None:
    """Its own function's first; of a bond, which may be over other adapters, nothing is taken."""
    root = hw.machine(tmp_path, "connectx7")
    roce = next(d for d in discover(root) if hw.value(d, "netdev") == "eth2")
    name = str(hw.value(roce, "rdmaDevice"))
    own = hw.value(roce, names.PCIE_ROOT)
    other = next(
        d for d in discover(root) if hw.value(d, names.PCIE_ROOT) != own and hw.value(d, "type") == "nic"
    )
    folder = root / "sys/class/infiniband" / name
    shutil.copytree(folder.resolve() / "ports/1", folder.resolve() / "ports/2", symlinks=True)
    table = folder.resolve() / "ports/2/gid_attrs/ndevs"
    table.mkdir(parents=True, exist_ok=True)
    interface = root / "sys/class/net/second"
    interface.mkdir(parents=True)

    def found() -> DiscoveredDevice:
        return next(d for d in discover(root) if hw.value(d, "rdmaDevice") == name)

    (table / "0").write_text("second\n")
    assert hw.value(found(), names.PCIE_ROOT) == own
    function = root / "sys/bus/pci/devices" / str(hw.value(other, names.PCI_BUS_ID))
    (interface / "device").symlink_to(function.resolve())
    device = found().device
    assert device.attributes[names.PCIE_ROOT].strings == (own, hw.value(other, names.PCIE_ROOT))
    assert device.attributes[names.PCI_BUS_ID].string_value == hw.value(roce, names.PCI_BUS_ID)
    for hostile in ("../../etc", "", "x" * 300):
        (table / "0").write_text(hostile)
        assert hw.value(found(), names.PCIE_ROOT) == own
