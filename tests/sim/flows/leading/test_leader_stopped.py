"""Two controllers, of which the leader is stopped again and again in the middle of its work.

With a real clock nothing of the stopped one arrives any more: its own fence holds. With a clock that stands
still together with the process its fence holds nothing, and what arrives is refused by the admission policy,
which knows the Lease a moment late. ``make stop-test`` stops more often.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import forked
import pytest
import yaml
from aiohttp import web
from policy_cases import pod as controller_pod
from policy_world import CONTROLLER_ACCOUNT, manifests
from real_apiserver import bound_token

from dra_driver.api.core import PODS
from dra_driver.api.names import (
    ALLOCATION_GATE,
    CONTROLLER_LEASE,
    CONTROLLER_TAINT,
    DEFAULT_DRIVER_NAME,
    SYSTEM_NAMESPACE,
)
from dra_driver.api.resource import RESOURCE_CLAIMS
from dra_driver.kube import KubeApi
from dra_driver.kube.leader import LEASES
from dra_driver.sim.apiserver import ApiServer
from dra_driver.sim.apiserver.objects.kinds import Kind
from dra_driver.sim.apiserver.objects.status import Raw
from dra_driver.sim.apiserver.storage.store import Key
from dra_driver.sim.processes import ManagedProcess

ROUNDS = int(os.environ.get("ROUNDS", "1"))
SPARE = 9  # rounds in which a stopped leader had by chance sent nothing
# Pods that come in each round, with one device each: as many as may wait for kube-scheduler at once.
BATCH = 128
DEVICES = 8
SECONDS = 90.0  # on a machine that others use too
LAG_SECONDS = 0.3  # by which the policy's view of the Lease is behind
# What the policy is about: claims, slices, inventories. Pods, nodes and Events lose nothing by a late write.
GUARDED = ("/resourceclaims/", "/resourceslices", "/deviceinventories/")


class Lagging:
    """The API server's cache of parameters: the Lease as it was a moment ago."""

    def __init__(self) -> None:
        self._known: list[tuple[float, Raw]] = []

    def written(self, raw: Raw) -> None:
        """Note the Lease as it is stored now."""
        self._known = [*self._known[-50:], (time.monotonic(), raw)]

    def look(self, _kind: Kind, _key: Key) -> Raw | None:
        """Look it up."""
        old = [raw for at, raw in self._known if at <= time.monotonic() - LAG_SECONDS]
        return old[-1] if old else None


class Audit:
    """What a real API server's audit log shows: who wrote while whose the lease was.

    Attributes:
        writes: accepted writes by who sent them, those of the lease left out.
        arrived_late: requests that did not come from the holder of the lease when they arrived.
        refused_late: how many of them were refused.
        too_late: accepted writes of claims and slices by one after whom another has written such already.
        twice: claims that were given a device that another claim had.
    """

    def __init__(self) -> None:
        self._cache = Lagging()
        self.server = ApiServer(audit=self._heard, answered=self._answered)
        self.server.registry.policies.parameters = self._cache.look
        self.writes: Counter[str] = Counter()
        self.arrived_late: list[str] = []
        self.refused_late = 0
        self.too_late: list[str] = []
        self.twice: list[str] = []
        self._terms: list[str] = []  # who has written claims and slices, in order

    def _heard(self, request: web.BaseRequest) -> None:
        agent, holder = request.headers["User-Agent"], self.holder()
        if is_write(request) and agent.startswith("controller-") and agent != holder:
            self.arrived_late.append(f"{request.method} {request.path} of {agent} while {holder} led")

    def _answered(self, request: web.BaseRequest, status: int) -> None:
        if "/leases" in request.path and request.method != "GET" and status < 300:
            leases = self.server.store.collection("coordination.k8s.io", "leases")
            self._cache.written(leases.objects[Key(SYSTEM_NAMESPACE, CONTROLLER_LEASE)].raw)
        agent = request.headers["User-Agent"]
        if not is_write(request) or not agent.startswith("controller-"):
            return
        if status == 403:
            self.refused_late += agent != self.holder()
        if status >= 300:
            return
        self.writes[agent] += 1
        if not any(part in request.path for part in GUARDED) or "dryRun" in request.query_string:
            return
        if agent not in self._terms:
            self._terms.append(agent)
        if agent != self._terms[-1]:
            self.too_late.append(f"{request.method} {request.path} of {agent} after {self._terms[-1]}")
        self._watch_devices()

    def _watch_devices(self) -> None:
        """Look whether the last write has given a device to two claims."""
        claims = self.server.store.collection("resource.k8s.io", "resourceclaims").objects
        holders: dict[tuple[str, str], str] = {}
        for key, stored in claims.items():
            allocation = (stored.raw.get("status") or {}).get("allocation") or {}
            for result in (allocation.get("devices") or {}).get("results") or ():
                other = holders.setdefault((result["pool"], result["device"]), key.name)
                if other != key.name:
                    self.twice.append(f"{result['pool']}/{result['device']}: {other} and {key.name}")

    def holder(self) -> str:
        lease = self.server.store.get(LEASES, CONTROLLER_LEASE, SYSTEM_NAMESPACE)
        return (lease.spec.holder_identity or "") if lease is not None else ""

    def waiting(self) -> int:
        """Claims that are not allocated."""
        claims = self.server.store.collection("resource.k8s.io", "resourceclaims").objects.values()
        return sum(not (claim.raw.get("status") or {}).get("allocation") for claim in claims)


def is_write(request: web.BaseRequest) -> bool:
    """Whether a request changes something other than a lease."""
    return request.method != "GET" and "/leases" not in request.path


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
            for k in range(DEVICES)
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


async def clear(api: KubeApi, number: int) -> None:
    """Delete the pods and claims of a round, so that the next one gives the same devices away."""
    for i in range(BATCH):
        name = f"p{number}-{i}"
        await api.delete(PODS, name, "default", grace_period_seconds=0)
        await api.delete(RESOURCE_CLAIMS, name, "default")
        freed = {"status": {"allocation": None, "reservedFor": None}}
        await api.merge_patch(RESOURCE_CLAIMS, name, freed, "default", subresource="status")
        await api.merge_patch(RESOURCE_CLAIMS, name, {"metadata": {"finalizers": None}}, "default")


class Controllers:
    """Two controllers, each with the token of a pod of its own; one that ends is followed by another."""

    def __init__(self, audit: Audit, admin: KubeApi, folder: Path, clock: str) -> None:
        self._audit = audit
        self._admin = admin
        self._folder = folder
        self._clock = clock
        self._all: dict[str, ManagedProcess] = {}

    async def keep(self) -> None:
        """Start what is missing, until cancelled."""
        while True:
            if sum(p.running for p in self._all.values()) < 2:
                await self._start(f"controller-{len(self._all)}")
            await asyncio.sleep(0.05)

    async def _start(self, name: str) -> None:
        identity = f"{name}_1"
        await self._audit.server.install([controller_pod(name, SYSTEM_NAMESPACE, CONTROLLER_ACCOUNT)])
        reference = {"kind": "Pod", "apiVersion": "v1", "name": name}
        token = await bound_token(self._admin, SYSTEM_NAMESPACE, CONTROLLER_ACCOUNT, reference)
        config = self._audit.server.kubeconfig()
        config["users"][0]["user"] = {"token": token}
        kubeconfig = self._folder / f"{name}.kubeconfig"
        kubeconfig.write_text(yaml.safe_dump(config))
        script = str(Path(__file__).with_name("leader_under_test.py"))
        command = (sys.executable, script, str(kubeconfig), identity, self._clock)
        process = ManagedProcess(identity, command, self._folder / f"{name}.log", spawn=forked.spawn)
        await process.start()
        self._all[identity] = process

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
async def controllers(audit: Audit, admin: KubeApi, folder: Path, clock: str) -> AsyncIterator[Controllers]:
    made = Controllers(audit, admin, folder, clock)
    keeping = asyncio.create_task(made.keep())
    try:
        yield made
    finally:
        keeping.cancel()
        await asyncio.wait({keeping})
        await made.stop()


async def stop_the_leader(audit: Audit, made: Controllers, number: int) -> None:
    """Stop the leader at work, let it run again when the next one leads, and wait for its end."""
    await until(lambda: made.run(audit.holder()))
    await audit.server.install(o for i in range(BATCH) for o in pod(f"p{number}-{i}"))
    await until(lambda: audit.waiting() < BATCH - 20)
    stopped = audit.holder()
    made.signal(stopped, signal.SIGSTOP)
    assert audit.waiting() > 20, "nothing is left to do late"
    # What the stopped one had sent before is answered meanwhile, so only writes of the next one count.
    await until(lambda: audit.holder() not in ("", stopped) and audit.writes[audit.holder()] > number % 40)
    made.signal(stopped, signal.SIGCONT)
    await until(lambda: not made.run(stopped))
    assert "LeadershipLost" in made.last_words(stopped)
    await until(lambda: audit.waiting() == 0)


async def rounds(folder: Path, clock: str, *, policies: bool = True) -> Audit:
    """Stop leaders again and again; return what was written."""
    audit = Audit()
    async with audit.server as server:
        namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": SYSTEM_NAMESPACE}}
        without = [] if policies else ["ValidatingAdmissionPolicyBinding"]
        await server.install([namespace, *manifests(without=without)])
        await server.install(o for i in range(BATCH // DEVICES) for o in machine(i))
        server.write_kubeconfig(folder / "kubeconfig")
        async with (
            await KubeApi.connect(folder / "kubeconfig", user_agent="admin") as admin,
            controllers(audit, admin, folder, clock) as made,
        ):
            number = 0
            most = ROUNDS + (SPARE if clock == "virtual" else 0)
            while number < ROUNDS or (number < most and not audit.refused_late):
                await stop_the_leader(audit, made, number)
                await clear(admin, number)
                number += 1
    print(
        f"{number} rounds, clock {clock}: "
        f"{audit.writes.total()} writes of {len(audit.writes)} leaders accepted, "
        f"{len(audit.arrived_late)} arrived late, {audit.refused_late} of them refused, "
        f"{len(audit.too_late)} accepted too late, {len(audit.twice)} devices given twice"
    )
    return audit


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.sim
@pytest.mark.timeout(60 + 30 * (ROUNDS + SPARE))
def test_a_stopped_leader_writes_nothing_after_the_next_one_leads(tmp_path: Path) -> None:
    audit = asyncio.run(rounds(tmp_path, "real"))
    assert audit.arrived_late == []
    assert (audit.too_late, audit.twice) == ([], [])
    assert len(audit.writes) > ROUNDS  # every one of them has led and written


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.sim
@pytest.mark.timeout(60 + 30 * (ROUNDS + SPARE))
def test_a_leader_whose_clock_was_stopped_with_it_is_refused_by_the_api_server(tmp_path: Path) -> None:
    audit = asyncio.run(rounds(tmp_path, "virtual"))
    assert (audit.too_late, audit.twice) == ([], [])
    assert audit.refused_late > 0  # its own fence did not hold it
    assert len(audit.writes) > ROUNDS
