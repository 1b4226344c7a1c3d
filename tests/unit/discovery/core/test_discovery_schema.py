"""The schema of attributes, and what sysfs tells of PCI functions."""

from __future__ import annotations

from pathlib import Path

import pytest
from nonempty import nonempty

from dra_driver.discovery.core import links, schema
from dra_driver.discovery.core.bus import pci
from dra_driver.discovery.core.bus.pci import PciAddress


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("550.54.15", "550.54.15"),
        ("560.35.03", "560.35.3"),
        ("12.4", "12.4.0"),
        ("13", "13.0.0"),
        ("1.2.3.4", "1.2.3"),
        ("v6.8.0-45", "6.8.0-45"),
        ("1.2-rc1", "1.2.0-rc1"),
        (" 1.2.3\n", "1.2.3"),
        ("", None),
        ("N/A", None),
        ("1.2.3-", None),
        ("1..2", None),
        ("1.2.3-" + "a" * 80, None),
        ("9999999999.1", None),
        ("²", None),
    ],
)
def test_versions_become_semantic(text: str, version: str | None) -> None:
    assert schema.semantic_version(text) == version


@pytest.mark.parametrize(
    ("name", "model"),
    [
        ("NVIDIA A100-SXM4-40GB", "A100-SXM4-40GB"),
        ("NVIDIA H100 80GB HBM3", "H100-80GB-HBM3"),
        ("Tesla T4", "T4"),
        ("Tesla V100-SXM2-16GB", "V100-SXM2-16GB"),
        ("NVIDIA GeForce RTX 4090", "GeForce-RTX-4090"),
        ("NVIDIA", "NVIDIA"),
        ("Graphics (rev. 2)", "Graphics-rev.-2"),
        ("***", None),
    ],
)
def test_models_are_short_and_stable(name: str, model: str | None) -> None:
    assert schema.model_of(name) == model


@pytest.mark.parametrize(
    ("number", "version"), [(12040, "12.4.0"), (13020, "13.2.0"), (9020, "9.2.0"), (0, None)]
)
def test_cuda_versions_are_taken_apart(number: int, version: str | None) -> None:
    assert schema.cuda_version(number) == version


def test_values_that_the_api_would_refuse_are_left_out_and_named() -> None:
    properties = schema.build(
        {
            "type": "gpu",
            "model": "ä" * 33,
            "uuid": "\n",
            "brand": "\x00",
            "architecture": 7,
            "index": 2**63,
            "eccEnabled": "yes",
            "driverVersion": "latest",
            "productName": "x" * 64,
            "vendor": None,
        },
        {"memory": -1, "multiprocessors": 0, "decoders": None},
    )
    assert properties.attributes.keys() == {"type", "productName"}
    assert properties.capacity.keys() == {"multiprocessors"}
    assert {name for name, _ in properties.rejected} == {
        "model", "uuid", "brand", "architecture", "index", "eccEnabled", "driverVersion", "memory"
    }  # fmt: skip


def test_a_name_outside_the_schema_is_a_mistake_of_the_backend() -> None:
    with pytest.raises(KeyError, match="not in the schema: colour, speed"):
        schema.build({"colour": "green"}, {"speed": 1})


def test_the_least_important_are_dropped_first() -> None:
    values: dict[str, str | int | bool] = {"string": "x", "int": 1, "bool": True, "version": "1.0"}
    facts = {spec.name: values[spec.kind] for spec in schema.ATTRIBUTES}
    capacity = {spec.name: 1 for spec in schema.CAPACITIES}
    everything = len(facts) + len(capacity)
    properties = schema.build(facts, capacity, most=everything - 3)
    assert properties.dropped == ("boardID", "hcaType", "firmwareVersion")
    properties = schema.build(facts, capacity, most=2)
    assert (*properties.attributes, *properties.capacity) == ("type", "memory")


@pytest.mark.parametrize("backend", ["nvml", "amdgpu", "intel", "rdma"])
def test_no_backend_tells_more_than_the_api_takes(backend: str) -> None:
    rows = [s for s in (*schema.ATTRIBUTES, *schema.CAPACITIES) if backend in s.by]
    assert 0 < len(rows) <= schema.MAX_FACTS, "mind what is dropped"


def test_names_keep_the_limits_of_the_api() -> None:
    for name in nonempty(s.name for s in (*schema.ATTRIBUTES, *schema.CAPACITIES)):
        domain, _, identifier = name.rpartition("/")
        assert identifier.isidentifier()
        assert len(identifier) <= 32
        assert domain in ("", "resource.kubernetes.io")


@pytest.mark.parametrize(
    ("text", "address", "name"),
    [
        ("0000:3b:00.0", "0000:3b:00.0", "gpu-0000-3b-00-0"),
        ("00000000:3B:1F.7", "0000:3b:1f.7", "gpu-0000-3b-1f-7"),
        ("00000009:01:00.0", "0009:01:00.0", "gpu-0009-01-00-0"),
        ("10000:01:00.0", "10000:01:00.0", "gpu-10000-01-00-0"),
    ],
)
def test_pci_addresses_are_written_as_the_kernel_does(text: str, address: str, name: str) -> None:
    parsed = PciAddress.parse(text)
    assert parsed is not None
    assert str(parsed) == address
    assert schema.device_name(parsed) == name


@pytest.mark.parametrize(
    "text", ["", "3b:00.0", "0000:3b:00", "0000:3b:20.0", "0000:3b:00.8", "0000:3b:00.0 ", "../x"]
)
def test_what_is_no_pci_address_is_refused(text: str) -> None:
    assert PciAddress.parse(text) is None


ADDRESS = PciAddress(0, 0x3B, 0)


def function(root: Path, link: str | None, node: bytes | None) -> None:
    folder = root / "bus" / "pci" / "devices"
    folder.mkdir(parents=True)
    if link is None:
        (folder / str(ADDRESS)).mkdir()
    else:
        (folder / str(ADDRESS)).symlink_to(link)
        if node is not None:
            (folder / link).mkdir(parents=True)
    if node is not None:
        (folder / str(ADDRESS) / "numa_node").write_bytes(node)


@pytest.mark.parametrize(
    ("link", "root"),
    [
        ("../../../devices/pci0000:3a/0000:3a:00.0/0000:3b:00.0", "pci0000:3a"),
        ("../../../devices/platform/NVDA0:00/pci0009:00/0009:00:00.0/0000:3b:00.0", "pci0009:00"),
        ("../../../devices/LNXSYSTM:00/whatever", None),
        (str(ADDRESS), None),  # a loop
        (None, None),
    ],
)
def test_the_pcie_root_is_read_from_the_link(tmp_path: Path, link: str | None, root: str | None) -> None:
    function(tmp_path, link, None)
    assert pci.pcie_root(tmp_path, ADDRESS) == root
    assert pci.numa_node(tmp_path, ADDRESS) is None


@pytest.mark.parametrize(
    ("text", "node"),
    [
        (b"1\n", 1),
        (b"0", 0),
        (b"-1\n", None),
        (b"", None),
        (b"\xff", None),
        (b"9" * 5000, None),
        ("²".encode(), None),
    ],
)
def test_the_numa_node_is_absent_where_the_kernel_does_not_know(
    tmp_path: Path, text: bytes, node: int | None
) -> None:
    function(tmp_path, "../../../devices/pci0000:3a/0000:3b:00.0", text)
    assert pci.numa_node(tmp_path, ADDRESS) == node


def test_links_make_groups() -> None:
    assert links.groups({}) == {}
    assert links.groups({"a": [], "b": []}) == {}
    assert links.groups({"a": ["switch"], "b": ["switch"], "c": []}) == {"a": "a", "b": "a"}
    assert links.groups({"d": ["c"], "c": [], "b": ["a"], "a": ["b"]}) == {
        "a": "a",
        "b": "a",
        "c": "c",
        "d": "c",
    }
    assert links.groups({"z": ["y"], "y": ["x"], "x": []}) == {"x": "x", "y": "x", "z": "x"}
    assert links.groups({"a": ["somewhere else"]}) == {}
