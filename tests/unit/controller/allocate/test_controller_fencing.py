"""The controller as a leader that is stopped in the middle of its work: no write on an old lease."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import virtual_time
from controller_harness import OURS, Clock, claim, classes, inline, node, pod, pool
from fake_client import FakeClient

from controller.app import Controller
from controller.config import ControllerConfig
from dra_driver.api.meta import Resource
from dra_driver.api.names import CONTROLLER_LEASE, SYSTEM_NAMESPACE
from dra_driver.api.resource import RESOURCE_CLAIMS
from dra_driver.kube import LeaderConfig
from dra_driver.kube.leader import LEASES, LeadershipLost

PODS = 40


class Cluster(FakeClient):
    """Knows which writes were sent, and lets the process be stopped at one of them.

    Attributes:
        sent: writes but those of the Lease, as they leave the controller, with the time of the last renewal.
        stop: called when the ``stop_at``-th write of ``stop_kind`` has left.
    """

    def __init__(self) -> None:
        super().__init__()
        self.sent: list[tuple[str, str, str]] = []
        self.stop_kind, self.stop_at = "", 0
        self.stop: Callable[[], None] = lambda: None

    async def _enter(self, verb: str, resource: Resource[Any], name: str, subresource: str) -> None:
        if resource.kind != "Lease" and verb not in ("get", "list", "watch"):
            self.sent.append((verb, resource.kind, self.renewed()))
            if resource.kind == self.stop_kind:
                self.stop_at -= 1
                if self.stop_at == 0:
                    self.sent.clear()
                    self.stop()
        await super()._enter(verb, resource, name, subresource)

    def renewed(self) -> str:
        return self.obj(LEASES, CONTROLLER_LEASE, SYSTEM_NAMESPACE).spec.renew_time or ""

    def allocated(self) -> int:
        return sum(c.status.allocation is not None for c in self.all(RESOURCE_CLAIMS))


def with_backlog(nodes: int) -> Cluster:
    """A cluster in which pods wait; each node has room for eight."""
    cluster = Cluster()
    classes(cluster)
    for i in range(nodes):
        node(cluster, f"n{i}")
        pool(cluster, f"n{i}", *(16,) * 8)
    for i in range(PODS):
        claim(cluster, f"c{i}")
        pod(cluster, f"p{i}", f"c{i}")
    return cluster


@contextlib.asynccontextmanager
async def leading(cluster: FakeClient, clock: Clock) -> AsyncIterator[asyncio.Task[None]]:
    config = ControllerConfig(drivers=(OURS,), identity="a")
    election = LeaderConfig(SYSTEM_NAMESPACE, CONTROLLER_LEASE, "a", retry_seconds=0.2)
    async with asyncio.timeout(20):
        running = asyncio.create_task(
            Controller(cluster, config, clock, election=election, answers_of=inline).run()
        )
        try:
            yield running
        finally:
            running.cancel()
            await asyncio.wait({running})


@pytest.mark.parametrize(
    ("kind", "nodes"), [("ResourceClaim", 6), ("Pod", 6), ("Event", 3), ("Event", 0)], ids=str
)
def test_a_leader_that_was_stopped_at_work_writes_nothing_after_the_next_one_leads(
    kind: str, nodes: int, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster, clock = with_backlog(nodes), Clock()

    def stop() -> None:
        clock.time += 20
        spec = {"holderIdentity": "b", "leaseDurationSeconds": 15, "leaseTransitions": 1}
        cluster.edit(LEASES, CONTROLLER_LEASE, {"spec": spec}, SYSTEM_NAMESPACE)

    async def main() -> None:
        cluster.stop_kind, cluster.stop_at, cluster.stop = kind, 10, stop
        async with leading(cluster, clock) as running:
            with pytest.raises(LeadershipLost):
                await running
            assert cluster.sent == []
            assert cluster.obj(LEASES, CONTROLLER_LEASE, SYSTEM_NAMESPACE).spec.holder_identity == "b"

    virtual_time.run(main())
    log = capsys.readouterr().out
    assert "not written" not in log
    assert "will be tried again" not in log


def test_a_leader_that_was_stopped_and_not_replaced_goes_on_after_its_renewal() -> None:
    cluster, clock = with_backlog(6), Clock()
    before: list[str] = []

    def stop() -> None:
        clock.time += 20
        before.append(cluster.renewed())

    async def main() -> None:
        cluster.stop_kind, cluster.stop_at, cluster.stop = "ResourceClaim", 10, stop
        async with leading(cluster, clock) as running:
            while cluster.allocated() < PODS:
                await asyncio.sleep(0.02)
            assert not running.done()

    virtual_time.run(main())
    assert cluster.sent[0][2] > before[0]
