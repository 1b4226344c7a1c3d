"""The backend ``generic``: what a description finds, and what it may not."""

from __future__ import annotations

from pathlib import Path

import hardware_support as hw
import pytest

from dra_driver.api import names
from dra_driver.discovery import open_backend
from dra_driver.discovery.core.bus.pci import PciAddress
from dra_driver.discovery.generic.backend import GenericBackend
from dra_driver.discovery.simulated.machine import PciFunction
from dra_driver.discovery.simulated.tree import TreeWriter
from dra_driver.errors import ConfigurationError

PCI = """
devices:
- name: npu
  match: {pci: {vendor: "1e52", class: "1200"}}
  nodes: [{sysfs: "accel/accel*", dev: "accel/{name}"}]
  attributes:
    vendor: {value: acme}
    model: {value: NPU-1}
    uuid: {sysfs: serial_number}
    firmwareVersion: {sysfs: fw/version}
    secure: {sysfs: secure, type: bool}
    dies: {sysfs: dies, type: int}
    colour: {sysfs: colour}
  capacity:
    memory: {sysfs: mem_mib, factor: 1048576}
    cores: {value: "8"}
  cdi:
    deviceNodes: [/dev/npu_ctl]
    env: {NPU_HOME: /opt/npu}
    mounts: [{hostPath: /opt/npu/lib, containerPath: /opt/npu/lib}]
"""
DEV = """
devices:
- name: fpga
  match: {dev: "fpga/card?"}
  sysfs: class/fpga/{name}/device
  attributes: {serial: {sysfs: serial}}
"""


def npu_tree(root: Path) -> Path:
    tree = TreeWriter(root / "machine")
    for i, bus in enumerate((0x3B, 0x5E)):
        function = PciFunction(
            address=PciAddress(0, bus, 0),
            vendor_id="1e52",
            class_code="120000",
            device_id="0401",
            root=f"pci0000:{bus - 1:02x}",
            numa_node=i,
            driver="npu",
        )
        tree.pci_function(function, {"mem_mib": 32768, "dies": "0x2"})
        tree.files(function.folder, {"serial_number": f"S{i}", "fw/version": "1.2", "secure": 1})
        tree.folder(f"{function.folder}/accel/accel{i}")
        tree.node(f"accel/accel{i}")
    tree.node("npu_ctl")
    return root / "machine"


def backend(root: Path, text: str) -> GenericBackend:
    file = root / "devices.yaml"
    file.write_text(text)
    machine = root / "machine"
    return GenericBackend(file, sysfs_root=machine / "sys", dev_root=machine / "dev")


def test_pci_functions_with_facts_from_files(tmp_path: Path) -> None:
    npu_tree(tmp_path)
    one = backend(tmp_path, PCI)
    first, second = one.discover()
    assert (first.device.name, second.device.name) == ("npu-0000-3b-00-0", "npu-0000-5e-00-0")
    assert {n: hw.value(first, n) for n in first.device.attributes} == {
        "type": "accelerator",
        "vendor": "acme",
        "model": "NPU-1",
        "uuid": "S0",
        "firmwareVersion": "1.2.0",
        "secure": True,
        "dies": 2,
        names.PCI_BUS_ID: "0000:3b:00.0",
        names.PCIE_ROOT: "pci0000:3a",
        names.NUMA_NODE: 0,
    }
    assert hw.memory(first) == 32 * hw.GIB
    assert str(first.device.capacity["cores"].value) == "8"
    assert hw.nodes(second) == ["/dev/accel/accel1", "/dev/npu_ctl"]
    assert first.material.env == ("NPU_HOME=/opt/npu",)
    assert first.material.mounts[0].container_path == "/opt/npu/lib"
    assert first.uuid == "S0"
    assert one.problems == ()


def test_lists_are_given_or_read_as_words(tmp_path: Path) -> None:
    function = npu_tree(tmp_path) / "sys/bus/pci/devices/0000:3b:00.0"
    (function / "fabrics").write_text("f1 f0\n")
    (function / "lanes").write_text("4 many\n")
    attributes = """
    rails: {values: ["1", "0x2"], type: int}
    one: {values: [alone]}
    fabrics: {sysfs: fabrics, list: true}
    lanes: {sysfs: lanes, list: true, type: int}
    """
    text = PCI.split("  attributes:")[0] + "  attributes:" + attributes
    one = backend(tmp_path, text)
    first, second = one.discover()
    assert first.device.attributes["rails"].ints == (1, 2)
    assert first.device.attributes["one"].strings == ("alone",)
    assert first.device.attributes["fabrics"].strings == ("f1", "f0")
    assert "lanes" not in first.device.attributes
    assert "fabrics" not in second.device.attributes
    assert [p.subject for p in one.problems] == ["lanes"]


def test_device_nodes_with_facts_from_a_directory(tmp_path: Path) -> None:
    tree = TreeWriter(tmp_path / "machine")
    function = PciFunction(
        address=PciAddress(0, 0x17, 0), vendor_id="1e52", class_code="120000", root="pci0000:16"
    )
    tree.pci_function(function, {"serial": "F7"})
    tree.folder("sys/class/fpga/card0")
    tree.link("sys/class/fpga/card0/device", function.folder)
    for name in ("card0", "card1", "card10", "other"):
        tree.node(f"fpga/{name}")
    first, second = backend(tmp_path, DEV).discover()
    assert (first.device.name, second.device.name) == ("fpga-card0", "fpga-card1")
    assert hw.value(first, "serial") == "F7"
    assert hw.value(first, names.PCIE_ROOT) == "pci0000:16"
    assert hw.value(second, "serial") is None
    assert second.uuid == "dev:fpga/card1"


def test_garbage_costs_the_fact(tmp_path: Path) -> None:
    function = npu_tree(tmp_path) / "sys/bus/pci/devices/0000:3b:00.0"
    (function / "mem_mib").write_text("many")
    (function / "dies").write_text("none")
    (function / "secure").write_bytes(b"\xff\xfe")
    one = backend(tmp_path, PCI)
    device = one.discover()[0]
    assert hw.memory(device) is None
    assert hw.value(device, "model") == "NPU-1"
    assert [p.subject for p in one.problems] == ["dies", "memory"]


def test_links_out_of_the_roots_are_not_followed(tmp_path: Path) -> None:
    machine = npu_tree(tmp_path)
    (tmp_path / "secret").write_text("secret")
    function = machine / "sys/bus/pci/devices/0000:3b:00.0"
    (function / "serial_number").unlink()
    (function / "serial_number").symlink_to(tmp_path / "secret")
    (function / "colour").symlink_to("colour")
    (function / "accel/accel7").symlink_to(tmp_path)
    device = backend(tmp_path, PCI).discover()[0]
    assert hw.value(device, "uuid") is None
    assert hw.value(device, "colour") is None
    assert hw.nodes(device) == ["/dev/accel/accel0", "/dev/npu_ctl"]
    (machine / "dev/fpga").mkdir()
    (machine / "dev/fpga/card0").symlink_to(tmp_path / "secret")
    assert backend(tmp_path, DEV).discover() == []


@pytest.mark.parametrize(
    ("text", "finding"),
    [
        ("devices: 7", "devices: '7' is not a list"),
        ("devices: [{name: a}]", "devices[0]: match is missing"),
        ("devices: [{name: A, match: {dev: x}}]", "devices[0].name: 'A' is not up to 20 lower-case"),
        ("devices: [{name: a, match: {dev: x}, color: red}]", "unknown key 'color'"),
        ("devices: [{name: a, match: {}}]", "exactly one of pci and dev"),
        ("devices: [{name: a, match: {dev: ../etc/passwd}}]", "'../etc/passwd' is not a relative path"),
        ("devices: [{name: a, match: {dev: /etc}}]", "'/etc' is not a relative path"),
        ("devices: [{name: a, match: {dev: a/**/..}}]", "is not a relative path"),
        ("devices: [{name: a, match: {dev: x}, sysfs: '{name}/../..'}]", "is not a relative path"),
        ("devices: [{name: a, match: {pci: {vendor: '1'}}}]", "devices[0].match.pci.vendor: '1' is not hex"),
        ("devices: [{name: a, match: {pci: {vendor: '1002'}}}]", "device or class is missing"),
        ("devices: [{name: a, match: {dev: x}, nodes: []}]", "nodes: only with match.pci"),
        ("devices: [{name: a, match: {dev: x}, attributes: {m: {}}}]", "exactly one of value and sysfs"),
        ("devices: [{name: a, match: {dev: x}, attributes: {m: {sysfs: ../x}}}]", "'../x' is not a relative"),
        ("devices: [{name: a, match: {dev: x}, attributes: {a/b: {value: x}}}]", "'a/b' is not a name"),
        (
            "devices: [{name: a, match: {dev: x}, attributes: {model: {value: '1', type: int}}}]",
            "of type string",
        ),
        ("devices: [{name: a, match: {dev: x}, attributes: {n: {value: z, type: int}}}]", "no whole number"),
        (
            "devices: [{name: a, match: {dev: x}, attributes: {n: {values: ['1', z], type: int}}}]",
            "n.values: 'z' is no whole number",
        ),
        (
            "devices: [{name: a, match: {dev: x}, attributes: {n: {values: []}}}]",
            "not a list of at least one",
        ),
        (
            "devices: [{name: a, match: {dev: x}, attributes: {n: {values: [a], value: b}}}]",
            "exactly one of value, values and sysfs",
        ),
        ("devices: [{name: a, match: {dev: x}, attributes: {n: {value: a, list: true}}}]", "goes with sysfs"),
        ("devices: [{name: a, match: {dev: x}, attributes: {model: {values: [a]}}}]", "has one value"),
        ("devices: [{name: a, match: {dev: x}, capacity: {memory: {value: 1Zi}}}]", "1Zi"),
        ("devices: [{name: a, match: {dev: x}, cdi: {deviceNodes: [/dev/../etc]}}]", "a path below /dev"),
        (
            "devices: [{name: a, match: {dev: x}, cdi: {mounts: [{hostPath: x, containerPath: /x}]}}]",
            "absolute",
        ),
        ("devices: [{name: a, match: {dev: x}}, {name: a, match: {dev: y}}]", "'a' is given twice"),
    ],
)
def test_mistakes_are_named_with_their_place(tmp_path: Path, text: str, finding: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        backend(tmp_path, text)
    assert finding in str(caught.value)


def test_the_file_is_the_argument(tmp_path: Path) -> None:
    roots = {"sysfs_root": tmp_path, "dev_root": tmp_path}
    with pytest.raises(ConfigurationError, match="a file is missing"):
        open_backend("generic", **roots, node_name="n")
    with pytest.raises(ConfigurationError, match="cannot be read"):
        open_backend(f"generic={tmp_path}/none.yaml", **roots, node_name="n")
