"""Pods that kube-scheduler, which is played, would not look at although their claims are allocated.

Where every node lacked something else, its plugin for claims refused the pod only while it tried to evict
others, and an allocation is then no reason to look again: it is made to. The real one is in
``tests/scheduling/test_preemption.py``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from controller_harness import NS, Harness, claim, cluster_of, pod, run
from fake_client import FakeClient

from controller.allocate.decide import ignores_claims
from dra_driver.api import codec
from dra_driver.api.core import PODS, Pod
from dra_driver.api.resource import RESOURCE_CLAIMS

# As kube-scheduler 1.36 says it.
NO_ROOM = "0/1 nodes are available: 1 Insufficient cpu. "
BEHIND = "preemption: 0/1 nodes are available: 1 cannot allocate all claims."
IGNORED = f"{NO_ROOM}still not schedulable, {BEHIND}"
# A node has room: its plugin for claims has refused the pod, and looks again when one is allocated.
BESIDE = f"0/2 nodes are available: 1 Insufficient cpu, 1 cannot allocate all claims. {BEHIND}"
# While it evicts others.
EVICTS = NO_ROOM.strip()


@pytest.mark.parametrize(
    ("message", "ignored"),
    [
        (IGNORED, True),
        (NO_ROOM + BEHIND, True),
        (BESIDE, False),
        (
            f"0/2 nodes are available: 1 Too many pods, 1 resourceclaim not available on the node. {BEHIND}",
            False,
        ),
        (NO_ROOM, False),
        (
            f"{NO_ROOM}preemption: 0/1 nodes are available: 1 No preemption victims found for incoming pod.",
            False,
        ),
        (f"{NO_ROOM}preemption: not eligible due to preemptionPolicy=Never.", False),
        ("", False),
    ],
)
def test_which_pods_kube_scheduler_does_not_look_at_for_their_claims(message: str, ignored: bool) -> None:
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
    raw: dict[str, Any] = {"metadata": {"name": "p", "namespace": NS}, "status": {"conditions": [condition]}}
    assert ignores_claims(codec.convert(Pod, raw)) is ignored
    for spec in ({"nodeName": "n1"}, {"schedulingGates": [{"name": "any"}]}):
        assert not ignores_claims(codec.convert(Pod, {**raw, "spec": spec}))
    condition["reason"] = "SchedulerError"
    assert not ignores_claims(codec.convert(Pod, raw))


def nominations(cluster: FakeClient) -> Callable[[], list[str]]:
    """Return what gives each change of the nominated node of "p" from now on."""
    seen = [cluster.obj(PODS, "p", NS).status.nominated_node_name]
    before = cluster.after

    def after(verb: str, kind: str, name: str, subresource: str) -> None:
        before(verb, kind, name, subresource)
        if (kind, name) == ("Pod", "p"):
            node = cluster.obj(PODS, "p", NS).status.nominated_node_name
            if node != seen[-1]:
                seen.append(node)

    cluster.after = after
    return lambda: seen


def one_pod(**spec: Any) -> FakeClient:
    cluster = cluster_of(n1=(40,))
    claim(cluster, "c")
    pod(cluster, "p", "c", gated=False, **spec)
    return cluster


def test_the_nomination_of_a_pod_goes_once_so_that_it_is_looked_at() -> None:
    cluster = one_pod()

    async def scenario(h: Harness) -> None:
        seen = nominations(cluster)
        assert (h.devices("c"), seen()) == ([("n1", "gpu-0")], ["n1"])
        h.report("p", IGNORED, nominated="n1")
        await asyncio.sleep(0.3)
        assert seen() == ["n1"]  # its watch of claims may be behind that of pods
        await asyncio.sleep(1.2)
        assert seen() == ["n1", ""]
        # It has not helped: once is enough, others are looked at for it as well.
        h.report("p", IGNORED)
        await asyncio.sleep(8)
        assert (h.devices("c"), seen()) == ([("n1", "gpu-0")], ["n1", ""])
        # In time the devices go, and the next allocation is another attempt.
        await asyncio.sleep(5)
        assert h.devices("c") == []

    run(cluster, scenario, binding_seconds=10.0)


def test_a_report_from_before_the_allocation_counts() -> None:
    cluster = cluster_of(n1=(40,))
    for name in ("busy", "c"):
        claim(cluster, name)
    pod(cluster, "busy", "busy")

    async def scenario(h: Harness) -> None:
        h.bind("busy", "n1")
        pod(cluster, "p", "c", gated=False)
        await h.quiet()
        h.report("p", IGNORED)
        await h.quiet()
        seen = nominations(cluster)
        cluster.remove(PODS, "busy", NS)
        cluster.remove(RESOURCE_CLAIMS, "busy", NS)
        await asyncio.sleep(3)
        assert (h.devices("c"), seen()) == ([("n1", "gpu-0")], ["", "n1", ""])

    run(cluster, scenario)


def test_a_pod_that_is_not_nominated_is_nominated_first() -> None:
    """As after a restart of the controller, or a conflict: no nomination goes where there is none."""
    cluster = one_pod()

    async def scenario(h: Harness) -> None:
        h.report("p", IGNORED)
        seen = nominations(cluster)
        await asyncio.sleep(3)
        assert (h.devices("c"), seen()) == ([("n1", "gpu-0")], ["", "n1", ""])

    run(cluster, scenario)


@pytest.mark.parametrize("message", [BESIDE, EVICTS])
def test_nominations_stay_where_kube_scheduler_looks_by_itself(message: str) -> None:
    cluster = one_pod()

    async def scenario(h: Harness) -> None:
        seen = nominations(cluster)
        h.report("p", message, nominated="n1")
        await asyncio.sleep(1)
        assert seen() == ["n1"]

    run(cluster, scenario)


def test_nominations_stay_while_others_are_evicted() -> None:
    cluster = one_pod()

    async def scenario(h: Harness) -> None:
        seen = nominations(cluster)
        evicted = {"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler"}
        victim = {
            "metadata": {"name": "victim", "namespace": NS, "uid": "victim"},
            "spec": {"nodeName": "n1", "containers": [{"name": "main"}]},
            "status": {"phase": "Running", "conditions": [evicted]},
        }
        cluster.put(PODS, victim)
        h.report("p", IGNORED, nominated="n1")
        await asyncio.sleep(3)
        assert seen() == ["n1"]

    run(cluster, scenario)
