"""MIG and compute mode through the real binding, on the stub of NVIDIA's library.

ctypes loads a library once per process, so every question is asked by a process of its own, which has the
stub in LD_LIBRARY_PATH; the state of the GPUs is in a file between them.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import nvml_stub_support as stub
import pytest
from forked import ForkedScript

_SCRIPT = """
import dataclasses, json, msgspec, sys
from pathlib import Path
from dra_driver.cli import common
from dra_driver.discovery import open_backend
from dra_driver.discovery.core.control import ToolPaths
from dra_driver.errors import DraError
common.configure_logging("error", "json")
root, calls = Path(sys.argv[1]), json.loads(sys.argv[2])
backend = open_backend("nvml", sysfs_root=root / "sys", dev_root=root / "dev", node_name="n")
control = backend.control(ToolPaths(nvidia_smi=str(root / "nvidia-smi"), proc_root=root / "proc"))
control._patience = 1.0
for name, *arguments in calls:
    try:
        answer = getattr(control, name)(*arguments)
        if dataclasses.is_dataclass(answer):
            answer = [answer]
        if isinstance(answer, (list, tuple)):
            answer = [
                dataclasses.asdict(a) | {"device_nodes": [msgspec.structs.asdict(n) for n in a.device_nodes]}
                for a in answer
            ]
    except DraError as e:
        answer = {"error": str(e), "retryable": getattr(e, "retryable", None)}
    print(json.dumps(answer))
"""
H100, A100 = "GPU-11111111-0000-0000-0000-000000000000", "GPU-22222222-0000-0000-0000-000000000000"
T4 = "GPU-33333333-0000-0000-0000-000000000000"


class Node:
    """A machine: stub, its state, and a procfs."""

    def __init__(self, library: Path, root: Path) -> None:
        self._library = library
        self.root = root
        self.state = root / "state"
        self.gpus = [
            stub.Gpu("H100-80", "00000000:07:00.0", 0, H100),
            stub.Gpu("A100-80", "00000000:08:00.0", 1, A100, extra=["reset_required 1"]),
            stub.Gpu("T4", "00000000:09:00.0", 2, T4),
        ]
        self.table([(0, gi) for gi in range(15)])

    def table(self, places: list[tuple[int, int]]) -> None:
        """mig-minors as the driver writes it, by its formula."""
        folder = self.root / "proc/driver/nvidia-caps"
        folder.mkdir(parents=True, exist_ok=True)
        lines = ["config 1", "monitor 2"]
        for gpu, gi in places:
            minor = 3 + 135 * gpu + 9 * gi
            lines += [f"gpu{gpu}/gi{gi}/access {minor}", f"gpu{gpu}/gi{gi}/ci0/access {minor + 1}"]
        (folder / "mig-minors").write_text("\n".join(lines) + "\n")

    def ask(self, *calls: tuple[Any, ...]) -> list[Any]:
        """Answers of the control, one for each call."""
        file = self.root / "nvml.conf"
        file.write_text(stub.config(self.gpus))
        environment = {
            "LD_LIBRARY_PATH": str(self._library),
            "NVML_STUB_CONFIG": str(file),
            "NVML_STUB_STATE": str(self.state),
        }
        return ask(self.root, *calls, environment=environment)


def ask(root: Path, *calls: tuple[Any, ...], environment: Mapping[str, str]) -> list[Any]:
    """Answers of the control of a process with these variables, one for each call."""
    process = ForkedScript(_SCRIPT, str(root), json.dumps(calls), environment=environment)
    return [json.loads(line) for line in process.finish()]


@pytest.fixture
def node(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Node:
    return Node(stub.shared(tmp_path_factory), tmp_path)


def test_compute_mode(node: Node) -> None:
    answers = node.ask(
        ("compute_mode", H100),
        ("set_compute_mode", H100, "exclusive-process"),
        ("compute_mode", H100),
        ("has", H100),
        ("has", "GPU-none"),
    )
    assert answers == ["default", None, "exclusive-process", True, False]
    assert node.ask(("compute_mode", H100)) == ["exclusive-process"]


def test_an_instance_is_made_listed_and_destroyed(node: Node) -> None:
    assert node.ask(("instances", H100), ("set_partitioning", H100, True)) == [[], None]
    (made,) = node.ask(("create_instance", H100, 9, 4, 4))
    assert (made[0]["instance_id"], made[0]["start"], made[0]["size"]) == (1, 4, 4)
    assert made[0]["uuid"].startswith("MIG-11111111-0001")
    nodes = [n["path"] for n in made[0]["device_nodes"]]
    assert nodes == ["/dev/nvidia0", "/dev/nvidia-caps/nvidia-cap12", "/dev/nvidia-caps/nvidia-cap13"]
    # Again, and in another process: the same instance.
    again, listed, mode = node.ask(
        ("create_instance", H100, 9, 4, 4), ("instances", H100), ("set_partitioning", H100, False)
    )
    assert made == again == listed
    assert mode["error"].startswith(f"GPU {H100}: MIG mode cannot be turned off")
    assert mode["retryable"]
    assert node.ask(
        ("destroy_instance", H100, 1),
        ("destroy_instance", H100, 1),
        ("instances", H100),
        ("set_partitioning", H100, False),
        ("partitioning", H100),
    ) == [None, None, [], None, False]


def test_half_an_instance_is_finished(node: Node) -> None:
    node.ask(("set_partitioning", H100, True))
    with node.state.open("a") as file:
        file.write(f"instance 0 {H100} 2 9 0 4 3 0 77\n")
    listed, made = node.ask(("instances", H100), ("create_instance", H100, 9, 0, 4))
    assert (listed[0]["uuid"], listed[0]["device_nodes"]) == ("", [])
    assert made[0]["uuid"].endswith("77")


def test_an_instance_is_begun_and_finished_and_never_one_that_is_there(node: Node) -> None:
    _, begun, listed, again, made, taken = node.ask(
        ("set_partitioning", H100, True),
        ("begin_instance", H100, 9, 4, 4),
        ("instances", H100),
        ("begin_instance", H100, 9, 4, 4),
        ("create_instance", H100, 9, 4, 4),
        ("begin_instance", H100, 9, 4, 4),
    )
    assert begun == listed
    assert (begun[0]["uuid"], begun[0]["device_nodes"]) == ("", [])
    assert made[0]["instance_id"] == begun[0]["instance_id"]
    assert made[0]["uuid"].startswith("MIG-")
    for refused in (again, taken):
        assert "MIG instance of profile 9 at 4:4 cannot be created" in refused["error"]


def test_an_occupied_place(node: Node) -> None:
    *_, refused = node.ask(
        ("set_partitioning", H100, True),
        ("create_instance", H100, 19, 1, 1),
        ("create_instance", H100, 9, 0, 4),
    )
    assert "MIG instance of profile 9 at 0:4 cannot be created" in refused["error"]
    assert "the place is taken by an instance that this driver did not create" in refused["error"]
    assert not refused["retryable"]


def test_a_busy_instance_is_tried_again(node: Node) -> None:
    node.gpus[0] = stub.Gpu("H100-80", "00000000:07:00.0", 0, H100, extra=["busy 2"])
    *_, destroyed, left = node.ask(
        ("set_partitioning", H100, True),
        ("create_instance", H100, 0, 0, 8),
        ("destroy_instance", H100, 0),
        ("instances", H100),
    )
    assert (destroyed, left) == (None, [])
    node.gpus[0] = stub.Gpu("H100-80", "00000000:07:00.0", 0, H100, extra=["busy 99"])
    _, busy = node.ask(("create_instance", H100, 0, 0, 8), ("destroy_instance", H100, 0))
    assert busy["retryable"]
    assert "MIG instance 0 cannot be destroyed" in busy["error"]


def test_mode_that_needs_a_reset_is_not_left_pending(node: Node) -> None:
    refused, mode = node.ask(("set_partitioning", A100, True), ("partitioning", A100))
    assert f"nvidia-smi -i {A100} -mig 1, then nvidia-smi -i {A100} --gpu-reset" in refused["error"]
    assert (refused["retryable"], mode) == (False, False)
    assert f"mode {A100} 0 0 0 0" in node.state.read_text()


def test_a_gpu_that_cannot_be_partitioned(node: Node) -> None:
    mode, listed, refused = node.ask(("partitioning", T4), ("instances", T4), ("set_partitioning", T4, True))
    assert (mode, listed) == (False, [])
    assert "MIG mode cannot be turned on" in refused["error"]


def test_capabilities_that_nobody_tells(node: Node) -> None:
    node.table([])
    _, refused = node.ask(("set_partitioning", H100, True), ("create_instance", H100, 9, 0, 4))
    assert "the device nodes of its MIG instance 2 are unknown" in refused["error"]
    folder = node.root / "proc/driver/nvidia/capabilities/gpu0/mig/gi2"
    (folder / "ci0").mkdir(parents=True)
    text = "DeviceFileMinor: {}\nDeviceFileMode: 292\nDeviceFileModify: 1\n"
    (folder / "access").write_text(text.format(21))
    (folder / "ci0/access").write_text(text.format(22).replace("292", "256"))
    (node.root / "proc/devices").write_text("237 nvidia-caps\n")
    (made,) = node.ask(("create_instance", H100, 9, 0, 4))
    assert [n["path"] for n in made[0]["device_nodes"]][1:] == [
        "/dev/nvidia-caps/nvidia-cap21",
        "/dev/nvidia-caps/nvidia-cap22",
    ]
    assert [(n["minor"], n["file_mode"]) for n in made[0]["device_nodes"][1:]] == [(21, 0o444), (22, 0o400)]


def test_capability_nodes_are_told_with_their_numbers(node: Node) -> None:
    """The host need not have them, and a /dev that cannot be written to is no obstacle."""
    devices = "Character devices:\n  1 mem\n195 nvidia\n237 nvidia-caps\n238 nvidia-caps-imex-channels\n"
    (node.root / "proc/devices").write_text(devices)
    (node.root / "dev").touch()
    made = node.ask(("set_partitioning", H100, True), ("create_instance", H100, 9, 4, 4))[1]
    gpu, outer, inner = made[0]["device_nodes"]
    assert (gpu["path"], gpu["major"], gpu["file_mode"]) == ("/dev/nvidia0", 0, None)
    numbers = [(n["path"], n["host_path"], n["major"], n["minor"], n["file_mode"]) for n in (outer, inner)]
    assert numbers == [
        ("/dev/nvidia-caps/nvidia-cap12", "", 237, 12, 0o444),
        ("/dev/nvidia-caps/nvidia-cap13", "", 237, 13, 0o444),
    ]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make device nodes")
def test_where_the_agent_may_it_makes_the_nodes_on_the_host(node: Node) -> None:
    (node.root / "proc/devices").write_text("237 nvidia-caps\n")
    (node.root / "dev").mkdir()
    made = node.ask(("set_partitioning", H100, True), ("create_instance", H100, 9, 4, 4))[1]
    path = node.root / "dev/nvidia-caps/nvidia-cap12"
    if not path.exists():
        pytest.skip("this machine lets nobody make device nodes")
    status = path.stat()
    assert (os.major(status.st_rdev), os.minor(status.st_rdev)) == (237, 12)
    assert stat.filemode(status.st_mode) == "cr--r--r--"
    assert [n["major"] for n in made[0]["device_nodes"]] == [0, 237, 237]


@pytest.mark.parametrize(
    "devices", ["", "195 nvidia\n", "99999 nvidia-caps\n", "238 nvidia-caps-imex-channels\n"]
)
def test_without_their_major_number_capability_nodes_are_the_hosts(node: Node, devices: str) -> None:
    (node.root / "proc/devices").write_text(devices)
    made = node.ask(("set_partitioning", H100, True), ("create_instance", H100, 9, 4, 4))[1]
    assert [n["major"] for n in made[0]["device_nodes"]] == [0, 0, 0]


def test_no_permission(node: Node) -> None:
    node.gpus[0] = stub.Gpu("H100-80", "00000000:07:00.0", 0, H100, fail={"nvmlDeviceSetMigMode": 4})
    (refused,) = node.ask(("set_partitioning", H100, True))
    assert refused["error"].endswith("that needs root")


def test_without_a_driver(node: Node) -> None:
    if ask(node.root, ("has", H100), environment={}) != [False]:
        pytest.skip("this machine has a driver of its own")
