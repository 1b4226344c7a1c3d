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


class Answers(attack_probes._Asker):
    """Answers what it was told, one after the other."""

    def __init__(self, *answers: tuple[float, str]) -> None:
        self._answers = iter(answers)

    def ask(self, port: int, method: str, path: str) -> tuple[float, str] | None:
        return next(self._answers)


def test_the_first_review_of_each_process_may_wait_for_its_start() -> None:
    controllers = attack_cluster.Controllers(Api(0))
    replica = attack_cluster.Replica(0, 1, 1, 1, Silent("silent", (), Path(os.devnull)), began=1)
    controllers.replicas.append(replica)
    watchers = attack_probes.Watchers(controllers)
    asker = Answers((0.3, "503"), (2.5, ""), (2.5, ""), (2.5, ""))
    counted = [watchers._ask(asker, replica, 1, "POST", "/validate") for _ in range(3)]
    assert counted == [attack_probes._GIVE_UP, 0.5, 2.5]
    replica.began += 1
    assert watchers._ask(asker, replica, 1, "POST", "/validate") == 0.5


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
