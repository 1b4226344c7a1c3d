"""What pods that wait cost in writes while others come and go, and what a restart leaves of their reasons."""

from __future__ import annotations

import asyncio

import pytest
import virtual_time
from controller_harness import NS, Harness, claim, cluster_of, controlling, node, pod, pool, request
from examples import share
from fake_client import FakeClient

from controller.observe.reasons import shown_reason
from dra_driver.api.core import EVENTS, PODS
from dra_driver.api.resource import RESOURCE_CLAIMS

PODS_A_MINUTE = 35


def waiting(cluster: FakeClient, number: int) -> list[str]:
    """Put pods of as many shapes, which ask for more than a node has."""
    names = [f"waits-{i}" for i in range(number)]
    for i, name in enumerate(names):
        claim(cluster, name, request(count=5 + i // 40, memory=f"{i % 40 + 1}Gi"))
        pod(cluster, name, name)
    return names


class Churn:
    """Pods that come, are bound, end and go, so that the figures of all reasons change all the time."""

    def __init__(self, h: Harness) -> None:
        self._h = h
        self._number = 0
        self._running: list[str] = []

    async def go_on(self, minutes: float) -> None:
        h = self._h
        for _ in range(int(minutes * PODS_A_MINUTE)):
            self._number += 1
            name = f"runs-{self._number}"
            claim(h.cluster, name, request())
            pod(h.cluster, name, name)
            await asyncio.sleep(60 / PODS_A_MINUTE)
            if h.devices(name):
                h.bind(name, h.devices(name)[0][0])
                self._running.append(name)
            if len(self._running) > 5 + self._number % 4:
                gone = self._running.pop(0)
                h.cluster.remove(PODS, gone, NS)
                h.cluster.remove(RESOURCE_CLAIMS, gone, NS)


def writes(cluster: FakeClient, kind: str, *verbs: str) -> int:
    return len([w for w in cluster.writes if w.kind == kind and w.verb in verbs])


@pytest.mark.parametrize(
    ("number", "minutes"),
    [(6, 1), *(pytest.param(*larger, marks=pytest.mark.long) for larger in ((15, 1), (15, 3), (60, 3)))],
)
def test_pods_that_wait_cost_an_event_a_second_and_two_conditions(number: int, minutes: int) -> None:
    cluster = cluster_of(**{f"n{i}": (40,) * 4 for i in range(3)})
    names = waiting(cluster, number)

    async def scenario() -> None:
        async with controlling(cluster) as h:
            churn = Churn(h)
            await churn.go_on(1)
            before = writes(cluster, "Event", "create", "patch"), writes(cluster, "Pod", "apply")
            await churn.go_on(minutes)
            assert writes(cluster, "Event", "create", "patch") - before[0] <= minutes * 60
            assert writes(cluster, "Pod", "apply") - before[1] <= minutes * 60 * 2.5
            assert {h.reason(name).reason for name in names} == {"FailedAllocation"}
            about = [(e.involved_object.uid, e.reason) for e in cluster.all(EVENTS)]
            assert len(about) == len(set(about))

    virtual_time.run(scenario())


@pytest.mark.parametrize("number", share([50, 150], 1))
def test_every_pod_that_waits_has_its_reason_after_restarts_at_any_time(number: int) -> None:
    cluster = cluster_of(n1=(40,))
    names = waiting(cluster, number)

    async def part(seconds: float) -> None:
        async with controlling(cluster):
            await asyncio.sleep(seconds)

    for seconds in (0.0, 0.9, 60.0, 60.0):
        virtual_time.run(part(seconds))
    reasons = [shown_reason(cluster.obj(PODS, name, NS)) for name in names]
    assert [r.reason for r in reasons if r is not None] == ["FailedAllocation"] * len(names)
    assert writes(cluster, "Pod", "apply") == len(names)


def test_a_pod_that_is_served_after_all_loses_its_reason() -> None:
    cluster = cluster_of(n1=(40,))
    claim(cluster, "c", request(memory="80Gi"))
    pod(cluster, "p", "c")

    async def scenario() -> None:
        async with controlling(cluster) as h:
            await asyncio.sleep(10)
            assert "80Gi" in h.reason("p").message
            node(cluster, "n2")
            await asyncio.sleep(10)
            before = h.decisions()
            pool(cluster, "n2", 80)
            await asyncio.sleep(10)
            assert h.devices("c")
            assert shown_reason(cluster.obj(PODS, "p", NS)) is None
            # The controller's own writes of conditions are no reason to look at a pod again.
            assert h.decisions() - before <= 3

    virtual_time.run(scenario())
