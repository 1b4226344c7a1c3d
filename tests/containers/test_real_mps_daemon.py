"""NVIDIA's MPS control daemon as this driver starts, finds and ends it; that takes no GPU.

Debian has its program in the package nvidia-cuda-mps (non-free). Its server needs a GPU, so that a stand-in
takes its place; ``test_real_mps_clients.py`` is about what needs one.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import glibc_images
import pytest
from mps_containers import CONTROL, DEVICE, USERS, agent, can_mount, eventually, finish, folder, pipes, start

from kubelet_plugin.gpu import mps_processes
from kubelet_plugin.gpu.mps import MpsDaemons

_program = shutil.which(CONTROL)
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(_program is None, reason=f"there is no {CONTROL} in PATH"),
    pytest.mark.skipif(not can_mount(), reason="needs root and mounts of its own"),
]

# Says as whom it runs, and what it meets where NVIDIA's server connects, in the /dev/shm of the daemon.
_SERVER = """
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>
int main(void) {
    struct sockaddr_un place = {.sun_family = AF_UNIX};
    int client = socket(AF_UNIX, SOCK_SEQPACKET, 0);
    snprintf(place.sun_path, sizeof place.sun_path, "%s/control", getenv("CUDA_MPS_PIPE_DIRECTORY"));
    int failed = connect(client, (struct sockaddr *)&place, sizeof place) ? errno : 0;
    FILE *file = fopen("/dev/shm/answer.new", "w");
    fprintf(file, "user %d: %s", getuid(), strerror(failed));
    fclose(file);
    rename("/dev/shm/answer.new", "/dev/shm/answer");
    close(client);
    sleep(60);
}
"""


@pytest.fixture
def root() -> Iterator[Path]:
    with folder() as made:
        yield made


@pytest.fixture
def control(root: Path) -> Path:
    """NVIDIA's program, with a stand-in for its server beside it."""
    (root / "bin").mkdir()
    source = root / "server.c"
    source.write_text(_SERVER)
    glibc_images.compile_file(source, root / "bin/nvidia-cuda-mps-server")
    assert _program is not None
    shutil.copy(_program, root / "bin" / CONTROL)
    return root / "bin" / CONTROL


@pytest.fixture
def daemons(root: Path, control: Path) -> Iterator[MpsDaemons]:
    made = agent(root, str(control))
    made.start(DEVICE, "GPU-1")
    yield made
    made.stop(DEVICE)


def say(root: Path, control: Path, words: str, seconds: float = 10) -> str:
    """Say something to the daemon, on the host and as root."""
    environment = {**os.environ, "CUDA_MPS_PIPE_DIRECTORY": str(pipes(root))}
    done = subprocess.run(
        [control], input=f"{words}\n", text=True, env=environment, capture_output=True, timeout=seconds
    )
    return done.stdout.strip()


def say_in_container(root: Path, control: Path, user: int, words: str) -> str:
    """Say something to the daemon where a container has its pipes."""
    status, answer, errors = finish(start(root, user, str(control)), f"{words}\n")
    assert status == 0, errors
    return answer.strip()


def test_containers_of_every_user_reach_it_and_only_root_changes_it(
    root: Path, control: Path, daemons: MpsDaemons
) -> None:
    for user in USERS:
        assert say_in_container(root, control, user, "get_default_active_thread_percentage") == "100.0"
    for user in USERS[1:]:
        refused = say_in_container(root, control, user, "set_default_active_thread_percentage 50")
        assert "Insufficient privileges" in refused
        assert "Not enough privilege" in say_in_container(root, control, user, "quit")
    assert say_in_container(root, control, 0, "set_default_active_thread_percentage 50") == "50.0"
    say_in_container(root, control, 0, "quit")
    eventually(lambda: mps_processes.find(str(control), pipes(root)) == ())
    daemons.start(DEVICE, "GPU-1")
    assert say_in_container(root, control, 1000, "get_default_active_thread_percentage") == "100.0"


def test_its_server_runs_as_its_client_and_reaches_it(root: Path, control: Path, daemons: MpsDaemons) -> None:
    answer = pipes(root).with_name("shm") / "answer"
    for user in USERS:
        say(root, control, f"start_server -uid {user}")
        eventually(answer.exists)
        assert answer.read_text() == f"user {user}: Success"
        answer.unlink()
        running = mps_processes.find(str(control), pipes(root))
        assert sorted(p.is_control for p in running) == [False, True]
        daemons.stop(DEVICE)
        assert not any(mps_processes.is_running(p) for p in running)
        daemons.start(DEVICE, "GPU-1")


@contextlib.contextmanager
def a_connection_that_says_nothing(pipes: Path) -> Iterator[None]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as client:
        client.connect(str(pipes / "control"))
        yield


@contextlib.contextmanager
def garbage_in_its_log(pipes: Path) -> Iterator[None]:
    """It stays so when the tenant has gone."""
    log = os.open(pipes / "log", os.O_WRONLY | os.O_NONBLOCK)
    try:
        deadline = time.monotonic() + 2
        while time.monotonic() < deadline:
            try:
                os.write(log, b"x" * 4096)
            except BlockingIOError:
                time.sleep(0.01)
    finally:
        os.close(log)
    yield


@pytest.mark.parametrize("hold_up", [a_connection_that_says_nothing, garbage_in_its_log])
def test_one_that_a_tenant_holds_up_is_ended_all_the_same(
    root: Path,
    control: Path,
    daemons: MpsDaemons,
    hold_up: Callable[[Path], contextlib.AbstractContextManager[None]],
) -> None:
    with hold_up(pipes(root)):
        with pytest.raises(subprocess.TimeoutExpired):
            say(root, control, "get_server_list", 2)
        # The agent does not ask it anything.
        agent(root, str(control)).start(DEVICE, "GPU-1")
        before = mps_processes.find(str(control), pipes(root))
        daemons.stop(DEVICE)
        assert not any(mps_processes.is_running(p) for p in before)
        daemons.start(DEVICE, "GPU-1")
        assert say(root, control, "get_default_active_thread_percentage") == "100.0"


def test_one_that_died_is_followed_by_another(root: Path, control: Path, daemons: MpsDaemons) -> None:
    (first,) = mps_processes.find(str(control), pipes(root))
    agent(root, str(control)).start(DEVICE, "GPU-1")
    assert mps_processes.find(str(control), pipes(root)) == (first,)
    os.kill(first.pid, signal.SIGKILL)
    eventually(lambda: not mps_processes.is_running(first))
    daemons.start(DEVICE, "GPU-1")
    (second,) = mps_processes.find(str(control), pipes(root))
    assert second != first
    assert say_in_container(root, control, 1000, "get_default_active_thread_percentage") == "100.0"
