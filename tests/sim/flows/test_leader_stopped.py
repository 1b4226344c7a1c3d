"""Two controllers, of which the leader is stopped again and again in the middle of its work."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from controller.app import LEASE
from dra_driver.api.names import ALLOCATION_GATE, CONTROLLER_TAINT, DEFAULT_DRIVER_NAME, SYSTEM_NAMESPACE
from dra_driver.api.resource import RESOURCE_CLAIMS
from dra_driver.kube.leader import LEASES
from dra_driver.sim.apiserver import ApiServer
from dra_driver.sim.assets import own_manifests
from dra_driver.sim.processes import ManagedProcess

STOPS = 3
BATCH = 240  # pods that come before each stop, with one device each
SECONDS = 90.0  # on a machine that others use too


class Audit:
    """What a real API server's audit log shows: who wrote while whose the lease was.

    Attributes:
        writes: number of writes by who sent them, those of the lease left out.
        late: those that did not come from the holder of the lease.
    """

    def __init__(self) -> None:
        self.server = ApiServer(audit=self._heard)
        self.writes: Counter[str] = Counter()
        self.late: list[str] = []

    def _heard(self, request: web.BaseRequest) -> None:
        if request.method == "GET" or "/leases" in request.path:
            return
        agent, holder = request.headers["User-Agent"], self.holder()
        self.writes[agent] += 1
        if agent != holder:
            self.late.append(f"{request.method} {request.path} of {agent} while {holder} led")

    def holder(self) -> str:
        lease = self.server.store.get(LEASES, LEASE, SYSTEM_NAMESPACE)
        return (lease.spec.holder_identity or "") if lease is not None else ""

    def waiting(self) -> int:
        """Claims that are not allocated."""
        return sum(c.status.allocation is None for c in self.server.store.list(RESOURCE_CLAIMS))


async def until(there: Callable[[], Any]) -> None:
    async with asyncio.timeout(SECONDS):
        while not there():
            await asyncio.sleep(0.005)


def machine(i: int) -> list[dict[str, Any]]:
    """A node with its published devices."""
    taint = {"key": CONTROLLER_TAINT, "value": "allocates", "effect": "NoSchedule"}
    node = {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": f"n{i}"},
        "status": {"allocatable": {"cpu": "64", "memory": "64Gi", "pods": "110"}},
    }
    spec = {
        "driver": DEFAULT_DRIVER_NAME,
        "nodeName": f"n{i}",
        "pool": {"name": f"n{i}", "generation": 1, "resourceSliceCount": 1},
        "devices": [
            {"name": f"gpu-{k}", "attributes": {"type": {"string": "gpu"}}, "taints": [taint]}
            for k in range(8)
        ],
    }
    slice_ = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": {"name": f"n{i}"}}
    return [node, {**slice_, "spec": spec}]


def pod(name: str) -> list[dict[str, Any]]:
    """A gated pod with a claim for one device."""
    request = {"name": "gpu", "exactly": {"deviceClassName": DEFAULT_DRIVER_NAME}}
    claim = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name},
        "spec": {"devices": {"requests": [request]}},
    }
    spec = {
        "containers": [{"name": "c", "image": "busybox:1"}],
        "schedulingGates": [{"name": ALLOCATION_GATE}],
        "resourceClaims": [{"name": "gpu", "resourceClaimName": name}],
    }
    return [claim, {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}]


class Controllers:
    """Two controllers; one that ends is followed by another with a name of its own."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._all: dict[str, ManagedProcess] = {}

    async def keep(self) -> None:
        """Starts what is missing, until cancelled."""
        while True:
            if sum(p.running for p in self._all.values()) < 2:
                identity = f"controller-{len(self._all)}"
                script = str(Path(__file__).with_name("leader_under_test.py"))
                command = (sys.executable, script, str(self._folder / "kubeconfig"), identity)
                process = ManagedProcess(identity, command, self._folder / f"{identity}.log")
                await process.start()
                self._all[identity] = process
            await asyncio.sleep(0.05)

    def run(self, identity: str) -> bool:
        return identity in self._all and self._all[identity].running

    def signal(self, identity: str, number: int) -> None:
        pid = self._all[identity].pid
        assert pid is not None
        os.kill(pid, number)

    def last_words(self, identity: str) -> str:
        return self._all[identity].tail()

    async def stop(self) -> None:
        for identity, process in self._all.items():
            if process.running:
                self.signal(identity, signal.SIGCONT)
                await process.stop(grace=10)


@contextlib.asynccontextmanager
async def controllers(folder: Path) -> AsyncIterator[Controllers]:
    made = Controllers(folder)
    keeping = asyncio.create_task(made.keep())
    try:
        yield made
    finally:
        keeping.cancel()
        await asyncio.wait({keeping})
        await made.stop()


async def stop_the_leader(audit: Audit, made: Controllers, stop: int) -> None:
    """Stops the leader at work, lets it run again when the next one leads, and waits for its end."""
    await until(lambda: made.run(audit.holder()))
    waiting = audit.waiting()
    await audit.server.install(o for i in range(BATCH) for o in pod(f"p{stop}-{i}"))
    await until(lambda: audit.waiting() < waiting + BATCH - 20)
    stopped = audit.holder()
    made.signal(stopped, signal.SIGSTOP)
    assert audit.waiting() > 20, "nothing is left to do late"
    await until(lambda: audit.holder() not in ("", stopped))
    made.signal(stopped, signal.SIGCONT)
    await until(lambda: not made.run(stopped))
    assert "LeadershipLost" in made.last_words(stopped)


@pytest.mark.slow
@pytest.mark.sim
def test_a_stopped_leader_writes_nothing_after_the_next_one_leads(tmp_path: Path) -> None:
    async def main() -> None:
        audit = Audit()
        async with audit.server as server:
            namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": SYSTEM_NAMESPACE}}
            await server.install([namespace, *own_manifests()])
            await server.install(o for i in range(STOPS * BATCH // 8) for o in machine(i))
            server.write_kubeconfig(tmp_path / "kubeconfig")
            async with controllers(tmp_path) as made:
                for stop in range(STOPS):
                    await stop_the_leader(audit, made, stop)
                await until(lambda: audit.waiting() == 0)
        assert audit.late == []
        assert len(audit.writes) > STOPS  # every one of them has led and written

    asyncio.run(main())
