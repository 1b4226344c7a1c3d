"""Backends say which device nodes belong to one device alone, whatever the nodes are called."""

from __future__ import annotations

from pathlib import Path

import hardware_support as hw
import pytest

from dra_driver.discovery import open_backend
from dra_driver.hardware import DiscoveredDevice


def found(root: Path, spec: str) -> list[DiscoveredDevice]:
    opened = open_backend(spec, sysfs_root=root / "sys", dev_root=root / "dev", node_name="n")
    return list(opened.discover())


@pytest.mark.parametrize(
    ("profile", "spec", "shared"),
    [
        ("mi300x-cpx", "amdgpu", {"/dev/kfd"}),
        ("mi210", "amdgpu", {"/dev/kfd"}),
        ("flex", "intel", set()),
        ("connectx7", "rdma=umad", {"/dev/infiniband/rdma_cm"}),
    ],
)
def test_only_the_nodes_of_the_driver_are_shared(
    tmp_path: Path, profile: str, spec: str, shared: set[str]
) -> None:
    devices = found(hw.machine(tmp_path, profile), spec)
    nodes = {d.device.name: {n.path for n in d.material.device_nodes} for d in devices}
    own = {d.device.name: set(d.own_nodes or ()) for d in devices}
    assert own == {name: paths - shared for name, paths in nodes.items()}
    assert sum(map(len, own.values())) == len(set().union(*own.values())) > 0


def test_what_a_description_finds_is_the_devices_and_what_it_names_is_by_number(tmp_path: Path) -> None:
    (tmp_path / "dev/npu").mkdir(parents=True)
    for name in ("a", "ctl", "queue0"):
        (tmp_path / "dev/npu" / name).touch()
    rules = tmp_path / "rules.yaml"
    rules.write_text(
        "devices: [{name: npu, match: {dev: npu/a}, cdi: {deviceNodes: [/dev/npu/ctl, /dev/npu/queue0]}}]"
    )
    (device,) = found(tmp_path, f"generic={rules}")
    assert [n.path for n in device.material.device_nodes] == ["/dev/npu/a", "/dev/npu/ctl", "/dev/npu/queue0"]
    assert device.own_nodes == ("/dev/npu/a", "/dev/npu/queue0")
