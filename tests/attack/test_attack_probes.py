"""What looks at the controllers counts answers that never come, and memory of children too."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dra_driver.sim.processes import ManagedProcess

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))

import attack_cluster
import attack_probes
from attack_api import Api


class Silent(ManagedProcess):
    """A process that is there, in name."""

    @property
    def pid(self) -> int | None:
        return os.getpid()


def until(there: Callable[[], object]) -> None:
    deadline = time.monotonic() + 60
    while not there():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@contextlib.contextmanager
def watched(port: int) -> Iterator[tuple[attack_probes.Watchers, attack_cluster.Replica]]:
    controllers = attack_cluster.Controllers(Api(0))
    replica = attack_cluster.Replica(0, port, port, port, Silent("silent", (), Path(os.devnull)), began=1)
    controllers.replicas.append(replica)
    watchers = attack_probes.Watchers(controllers)
    watchers.start()
    try:
        yield watchers, replica
    finally:
        watchers.stop()


def test_an_answer_that_is_still_waited_for_counts() -> None:
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(socket.create_server(("127.0.0.1", 0)))  # accepts, and says nothing
        watchers, replica = stack.enter_context(watched(server.getsockname()[1]))
        until(lambda: (watchers.longest()[0] or 0) > 0 and (watchers.longest()[1] or 0) > 0)
        replica.excused = True
        assert watchers.longest() == (None, None)
        server.close()


def test_a_refused_connection_is_left_to_the_count_of_restarts() -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))  # so that nobody else gets the port; nobody listens
        with watched(server.getsockname()[1]) as (watchers, _):
            until(lambda: watchers.memory)
            assert watchers.longest() == (None, None)
            assert watchers.failures == []


@pytest.mark.slow
def test_children_of_children_belong_to_a_process() -> None:
    nested = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'input()'])"
    with subprocess.Popen([sys.executable, "-c", nested], stdin=subprocess.PIPE) as process:
        try:
            until(lambda: len(attack_cluster.children(process.pid)) == 1)
            assert set(attack_cluster.children(process.pid)) <= set(attack_cluster.children(os.getpid()))
            assert attack_probes.pss(process.pid) > 0
        finally:
            process.communicate(b"\n")
    assert attack_probes.pss(process.pid) == 0
