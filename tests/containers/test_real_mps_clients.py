"""Programs compute under NVIDIA's MPS on a real GPU, with the mounts and the limit of a claim's document.

No setting of the GPU is changed: it keeps its compute mode, in which MPS serves as well.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import glibc_images
import pytest
import real_gpu
from mps_containers import CONTROL, DEVICE, USERS, agent, can_mount, finish, folder, kill, pipes, start

from dra_driver.hardware import DiscoveredDevice
from kubelet_plugin.gpu import mps_processes
from kubelet_plugin.gpu.mps import MpsDaemons

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which(CONTROL) is None, reason=f"there is no {CONTROL} in PATH"),
    pytest.mark.skipif(not can_mount(), reason="needs root and mounts of its own"),
]

MIB = 2**20
# Of CUDA (CUresult).
OUT_OF_MEMORY, MPS_RPC_FAILURE = 2, 806


@pytest.fixture(scope="module")
def gpu() -> DiscoveredDevice:
    return real_gpu.first()


@pytest.fixture
def root() -> Iterator[Path]:
    with folder() as made:
        yield made


@pytest.fixture
def program(root: Path) -> str:
    glibc_images.compile_file(Path(__file__).with_name("cuda_program.c"), root / "compute")
    return str(root / "compute")


@pytest.fixture
def daemons(root: Path, gpu: DiscoveredDevice) -> Iterator[MpsDaemons]:
    made = agent(root, CONTROL)
    made.start(DEVICE, real_gpu.uuid_of(gpu))
    yield made
    made.stop(DEVICE)


def compute(root: Path, user: int, program: str, size: int) -> tuple[int, str, str]:
    return finish(start(root, user, program, str(size), memory="2Gi"))


def right(answer: tuple[int, str, str], gpu: DiscoveredDevice) -> bool:
    status, out, errors = answer
    lines = dict(line.split() for line in out.splitlines())
    assert status == 0, errors
    return lines["uuid"] == real_gpu.uuid_of(gpu) and lines["result"] == "right"


def begun(root: Path, user: int, program: str, seconds: float) -> subprocess.Popen[str]:
    """Start a program that computes and goes on computing; return once it has computed."""
    process = start(root, user, program, str(64 * MIB), str(seconds), memory="2Gi")
    assert process.stdout is not None
    while (line := process.stdout.readline()) != "result right\n":
        assert line
    return process


def servers(root: Path) -> list[mps_processes.Process]:
    return [p for p in mps_processes.find(CONTROL, pipes(root)) if not p.is_control]


def test_programs_of_every_user_compute_within_their_share(
    root: Path, gpu: DiscoveredDevice, daemons: MpsDaemons, program: str
) -> None:
    for user in USERS:
        assert right(compute(root, user, program, 64 * MIB), gpu)
        (server,) = servers(root)
        assert f"Uid:\t{user}\t" in Path(f"/proc/{server.pid}/status").read_text()
        status, _, errors = compute(root, user, program, 2048 * MIB)
        assert (status, errors) == (2, f"cuMemAlloc_v2: {OUT_OF_MEMORY}\n")


def test_they_compute_where_shared_memory_is_full(
    root: Path, gpu: DiscoveredDevice, daemons: MpsDaemons, program: str
) -> None:
    shared = pipes(root).with_name("shm")
    assert shared.is_mount(), "else the disk would be filled"
    while room := os.statvfs(shared).f_bavail * os.statvfs(shared).f_frsize:
        with (shared / "full").open("ab") as file:
            file.write(bytes(min(room, MIB)))
    for user in USERS:
        assert right(compute(root, user, program, 64 * MIB), gpu)


def test_a_program_of_another_user_waits_until_the_first_has_ended(
    root: Path, gpu: DiscoveredDevice, daemons: MpsDaemons, program: str
) -> None:
    first = begun(root, 1000, program, 60)
    (server,) = servers(root)
    other = start(root, 65534, program, str(64 * MIB), memory="2Gi")
    try:
        assert right(compute(root, 1000, program, 64 * MIB), gpu)
        with pytest.raises(subprocess.TimeoutExpired):
            other.communicate(timeout=3)
        assert first.poll() is None
        kill(first)
        assert right(finish(other), gpu)
        assert not mps_processes.is_running(server)
    finally:
        kill(first)
        kill(other)


def test_the_daemon_ends_while_programs_compute_and_the_next_one_serves(
    root: Path, gpu: DiscoveredDevice, daemons: MpsDaemons, program: str
) -> None:
    computes = begun(root, 1000, program, 60)
    running = mps_processes.find(CONTROL, pipes(root))
    assert len(running) == 2
    begin = time.monotonic()
    daemons.stop(DEVICE)
    assert time.monotonic() - begin < 3, "asked to end, not killed"
    assert not any(mps_processes.is_running(p) for p in running)
    _, _, errors = finish(computes)
    assert errors == f"cuCtxSynchronize: {MPS_RPC_FAILURE}\n"
    daemons.start(DEVICE, real_gpu.uuid_of(gpu))
    assert right(compute(root, 1000, program, 64 * MIB), gpu)
