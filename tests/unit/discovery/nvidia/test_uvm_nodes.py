"""The nodes of NVIDIA's unified memory: made as nvidia-modprobe makes them, or missed in words."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from dra_driver.discovery.nvidia.driver.uvm import UvmNodes

DEVICES = "Character devices:\n  1 mem\n195 nvidia-frontend\n{major} nvidia-uvm\n237 nvidia-caps\n"
PARAMS = (
    "ResmanDebugLevel: 4294967295\nModifyDeviceFiles: {modify}\n"
    "DeviceFileUID: 0\nDeviceFileGID: 0\nDeviceFileMode: 432\n"
)


class Machine:
    def __init__(self, root: Path) -> None:
        self.dev, self.proc = root / "dev", root / "proc"
        self.dev.mkdir()
        (self.proc / "driver/nvidia").mkdir(parents=True)
        (self.proc / "self").mkdir()
        self.mount("devtmpfs")
        self.nodes = UvmNodes(proc_root=self.proc, dev_root=self.dev)

    def load(self, major: int, modify: int = 1) -> None:
        (self.proc / "devices").write_text(DEVICES.format(major=major))
        (self.proc / "driver/nvidia/params").write_text(PARAMS.format(modify=modify))

    def mount(self, kind: str) -> None:
        (self.proc / "self/mountinfo").write_text(
            f"1 0 8:1 / / rw - ext4 /dev/sda1 rw\n2 1 0:5 / {self.dev} rw shared:2 - {kind} {kind} rw\n"
        )

    def reported(self) -> list[str]:
        return [p.message for p in self.nodes.ensure()]

    def numbers(self) -> dict[str, tuple[int, int, int]]:
        found = {}
        for node in self.dev.iterdir():
            status = node.lstat()
            assert stat.S_ISCHR(status.st_mode)
            found[node.name] = (
                os.major(status.st_rdev),
                os.minor(status.st_rdev),
                stat.S_IMODE(status.st_mode),
            )
        return found


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


@pytest.fixture
def capable(tmp_path: Path) -> None:
    try:
        os.mknod(tmp_path / "probe", stat.S_IFCHR | 0o600, os.makedev(511, 0))
    except OSError as e:
        pytest.skip(f"device nodes cannot be made here: {e}")


def test_missing_nodes_are_made_with_the_numbers_of_the_loaded_module(
    machine: Machine, capable: None
) -> None:
    machine.load(511)
    assert machine.reported() == []
    assert machine.numbers() == {"nvidia-uvm": (511, 0, 0o660), "nvidia-uvm-tools": (511, 1, 0o660)}
    before = (machine.dev / "nvidia-uvm").stat().st_ino
    assert machine.reported() == []
    assert (machine.dev / "nvidia-uvm").stat().st_ino == before


def test_a_node_of_an_earlier_loading_is_replaced(machine: Machine, capable: None) -> None:
    machine.load(511)
    machine.nodes.ensure()
    machine.load(509)
    assert machine.reported() == []
    assert {n[:2] for n in machine.numbers().values()} == {(509, 0), (509, 1)}


def test_a_node_stays_while_the_module_is_not_loaded(machine: Machine, capable: None) -> None:
    machine.load(511)
    machine.nodes.ensure()
    before = machine.numbers()
    (machine.proc / "devices").write_text("Character devices:\n195 nvidia-frontend\n")
    assert machine.reported() == []
    assert machine.numbers() == before


@pytest.mark.parametrize(
    "devices",
    [
        "",
        "Character devices:\n195 nvidia-frontend\n",
        # Names that only look alike, and numbers that no device has.
        "510 nvidia-uvm-tools\n",
        "510 nvidia-uvmx\n9999 nvidia-uvm\n",
    ],
)
def test_without_the_modules_number_nothing_is_made_and_it_is_told_what_to_do(
    machine: Machine, devices: str
) -> None:
    (machine.proc / "devices").write_text(devices)
    (message,) = machine.reported()
    assert "nvidia-uvm is missing, and CUDA programs do not start without it" in message
    assert "nvidia-modprobe --unified-memory" in message
    assert machine.numbers() == {}


def test_the_drivers_parameter_forbids_it(machine: Machine) -> None:
    machine.load(511, modify=0)
    (message,) = machine.reported()
    assert "ModifyDeviceFiles forbids" in message
    assert machine.numbers() == {}


def test_what_the_agent_may_not_make_is_told_once_for_both(machine: Machine) -> None:
    machine.load(511)
    # Where not even root makes a file, as in a /host/dev that is mounted read-only.
    machine.dev = Path("/sys")
    machine.mount("devtmpfs")
    (message,) = [p.message for p in UvmNodes(proc_root=machine.proc, dev_root=machine.dev).ensure()]
    assert "it cannot be created here" in message


def test_nothing_is_made_in_the_dev_of_a_container(machine: Machine) -> None:
    machine.load(511)
    for kind in ("tmpfs", "ext4"):
        machine.mount(kind)
        (message,) = machine.reported()
        assert "is not the host's" in message
    (machine.proc / "self/mountinfo").unlink()
    (message,) = machine.reported()
    assert "is not the host's" in message
    assert machine.numbers() == {}


def test_a_file_of_the_administrator_is_left_alone(machine: Machine, capable: None) -> None:
    machine.load(511)
    (machine.dev / "nvidia-uvm").symlink_to("/somewhere")
    assert machine.reported() == []
    assert (machine.dev / "nvidia-uvm").is_symlink()
