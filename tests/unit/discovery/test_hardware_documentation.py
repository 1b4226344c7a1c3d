"""Pages about hardware (attributes, backends, XIDs): drawn from the code, and what they promise holds."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import hardware_support as hw
import msgspec
import pytest
import yaml
from nonempty import nonempty
from paths import PROJECT

from dra_driver import cel
from dra_driver.api import codec
from dra_driver.api.names import DEFAULT_DRIVER_NAME, RDMA_DRIVER_NAME
from dra_driver.api.resource import Device
from dra_driver.cli import main
from dra_driver.discovery import open_backend, schema_docs
from dra_driver.discovery.core import schema
from dra_driver.discovery.generic import spec as generic_spec
from dra_driver.discovery.simulated import profile as simulated_profile
from dra_driver.discovery.simulated.machine import AmdGpu, IntelGpu, RdmaNic
from dra_driver.hardware import DiscoveredDevice

DOCS = PROJECT / "docs"
ATTRIBUTES = (DOCS / "attributes.md").read_text()
BACKENDS = (DOCS / "backends.md").read_text()
FILE_BACKENDS = {"amdgpu": AmdGpu, "intel": IntelGpu, "rdma": RdmaNic}
OF_KIND = {"amdgpu": DEFAULT_DRIVER_NAME, "intel": DEFAULT_DRIVER_NAME, "rdma": RDMA_DRIVER_NAME}


def blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def found_by(backend: str, root: Path) -> list[DiscoveredDevice]:
    return list(
        open_backend(backend, sysfs_root=root / "sys", dev_root=root / "dev", node_name="n").discover()
    )


def view(driver: str, found: DiscoveredDevice) -> cel.DeviceView:
    inventory = found.device
    device = Device(name=inventory.name, attributes=inventory.attributes, capacity=inventory.capacity)
    return cel.DeviceView(driver, device)


@pytest.fixture(scope="module")
def everything(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[str, str, DiscoveredDevice]]:
    """Backend, driver and device of every machine that we can build."""
    devices: list[tuple[str, str, DiscoveredDevice]] = []
    for spec in simulated_profile.built_in_profiles():
        root = hw.shared_machine(tmp_path_factory, spec)
        kinds = {type(device.hardware) for device in simulated_profile.load(spec).devices}
        for backend in sorted(name for name, kind in FILE_BACKENDS.items() if kind in kinds):
            devices += [(backend, OF_KIND[backend], d) for d in found_by(backend, root)]
    for profile in ("dgx-h100", "mixed", "t4x2"):
        found = found_by(f"simulated={profile}", Path("/nonexistent"))
        devices += [("nvml", DEFAULT_DRIVER_NAME, d) for d in found]
    return devices


def test_the_attributes_of_the_page_are_those_of_the_schema() -> None:
    by = {spec.name: spec.by for spec in (*schema.ATTRIBUTES, *schema.CAPACITIES)}
    rows = nonempty(re.findall(r"^\| `([^`]+)` \| (?:string|int|bool|version|quantity) \|", ATTRIBUTES, re.M))
    assert [name for name in rows if name not in by] == []
    tables = schema_docs.schema_tables()
    assert [name for name in by if f"| `{name}` |" not in tables] == []
    assert (
        "| `nvlinkGroup` | string | the same for all devices of a node that NVLink connects | nvml |"
        in tables
    )


def test_xids_are_listed_by_what_they_mean_for_the_gpu() -> None:
    effects = dict(re.findall(r"(?ms)^## ([^\n]+)\n(.*?)(?=^## |\Z)", schema_docs.xid_tables()))
    faults = effects["A program's fault: `info` for 10 minutes"]
    assert "| 11, 32 | a program's push buffer is corrupt | `RESTART_APP` |\n" in faults
    assert "| 79 |" not in faults
    assert "| 79 |" in effects["`failed` until a reset"]


def test_the_table_says_who_tells_what(everything: list[tuple[str, str, DiscoveredDevice]]) -> None:
    by = {spec.name: spec.by for spec in (*schema.ATTRIBUTES, *schema.CAPACITIES)}
    told: dict[str, set[str]] = {}
    for backend, _, found in everything:
        for name in (*found.device.attributes, *found.device.capacity):
            assert backend in by[name], f"{name} is told by {backend}"
            told.setdefault(backend, set()).add(name)
    # What the fakes do not have: errors of hardware apart, everything in the table is told by somebody.
    for backend in OF_KIND:
        missing = {name for name, backends in by.items() if backend in backends} - told[backend]
        assert missing <= {"driverVersion", "integrated"}, f"{backend} never tells {sorted(missing)}"


def selectors() -> Iterator[tuple[str, str]]:
    yield from re.findall(r"^\| ([^|`]+) \| `(.+)` \|$", ATTRIBUTES, re.MULTILINE)
    for block in blocks(ATTRIBUTES, "yaml"):
        for document in yaml.safe_load_all(block):
            for selector in document["spec"].get("selectors", []):
                yield document["metadata"]["name"], selector["cel"]["expression"]


@pytest.mark.parametrize(("wanted", "expression"), list(selectors()))
def test_every_selector_finds_something_and_fails_on_nothing(
    wanted: str, expression: str, everything: list[tuple[str, str, DiscoveredDevice]]
) -> None:
    assert cel.validate_selector(expression) == []
    selector = cel.compile_selector(expression)
    driver = RDMA_DRIVER_NAME if RDMA_DRIVER_NAME in expression else DEFAULT_DRIVER_NAME
    found = [d for _, of, d in everything if of == driver and selector.matches(view(of, d))]
    assert found, f"nobody is {wanted}"
    if "device.driver" in expression:
        assert not [d for _, of, d in everything if of != driver and selector.matches(view(of, d))]


def test_the_installed_classes_tell_vendors_apart(
    everything: list[tuple[str, str, DiscoveredDevice]],
) -> None:
    file = DOCS.parent / "deploy/manifests/20-deviceclasses.yaml"
    for document in nonempty(yaml.safe_load_all(file.read_text())):
        vendor = document["metadata"]["name"].partition(".gpu.")[0]
        selector = cel.compile_selector(document["spec"]["selectors"][0]["cel"]["expression"])
        if vendor in ("partition", "vf"):
            kinds = {hw.value(d, "type") for _, of, d in everything if selector.matches(view(of, d))}
            assert kinds == {vendor}
        if vendor not in ("nvidia", "amd", "intel"):
            continue
        vendors = {hw.value(d, "vendor") for _, of, d in everything if selector.matches(view(of, d))}
        assert vendors == {vendor}


def slices(root: Path) -> Iterator[dict[str, object]]:
    """ResourceSlices of a machine, one pool per driver."""
    for backend, driver in (("amdgpu", DEFAULT_DRIVER_NAME), ("rdma", RDMA_DRIVER_NAME)):
        yield {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceSlice",
            "metadata": {"name": f"node-{backend}"},
            "spec": {
                "driver": driver,
                "nodeName": "node",
                "pool": {"name": "node", "generation": 1, "resourceSliceCount": 1},
                "devices": [
                    json.loads(
                        codec.encode(
                            Device(
                                name=d.device.name, attributes=d.device.attributes, capacity=d.device.capacity
                            )
                        )
                    )
                    for d in found_by(backend, root)
                ],
            },
        }


def test_a_claim_gets_a_gpu_and_a_nic_under_one_root(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = hw.machine(
        tmp_path,
        "devices:\n"
        '- {kind: amdgpu, at: ["0000:05:00.0 pci0000:00", "0000:47:00.0 pci0000:40"], deviceID: 74a1}\n'
        '- {kind: rdma, at: ["0000:49:00.0 pci0000:40"], deviceID: "1021"}\n',
    )
    documents: list[object] = list(slices(root))
    for block in blocks(ATTRIBUTES, "yaml"):
        documents += yaml.safe_load_all(block)
    documents += yaml.safe_load_all((DOCS.parent / "deploy/manifests/20-deviceclasses.yaml").read_text())
    documents.append({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node"}})
    file = tmp_path / "all.yaml"
    file.write_text(yaml.safe_dump_all(documents))
    assert main.main(["allocate", "-f", str(file), "--output", "json"]) == 0
    text = capsys.readouterr().out
    assert "gpu-0000-47-00-0" in text
    assert "nic-0000-49-00-0" in text
    assert "gpu-0000-05-00-0" not in text


def test_the_descriptions_in_the_page_are_valid(tmp_path: Path) -> None:
    generic, machine = blocks(BACKENDS, "yaml")
    assert [rule.name for rule in generic_spec.decode(generic, "docs")] == ["npu"]
    root = hw.machine(tmp_path, machine)
    (gpu,) = found_by("amdgpu", root)
    assert msgspec.json.decode(codec.encode(gpu.device))["name"] == "gpu-0000-05-00-0"
    for name in simulated_profile.built_in_profiles():
        assert name in BACKENDS
