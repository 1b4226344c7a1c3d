"""Room on nodes for pods with claims: what is taken, who may be evicted, what has pods looked at again."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from builders import CONTAINER, container
from controller_harness import NS, Harness, claim, cluster_of, pod, run
from fake_client import FakeClient

from dra_driver.api.core import PODS
from dra_driver.api.names import ALLOCATION_GATE
from dra_driver.api.resource import RESOURCE_CLAIMS

EVICTED = {"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler"}
NOT_HERE = "0/2 nodes are available: 1 Insufficient cpu, 1 resourceclaim not available on the node."
SETTLED = 1.5


def running(cluster: FakeClient, name: str, node: str, cpu: str, **spec: Any) -> None:
    cluster.put(
        PODS,
        {
            "metadata": {"name": name, "namespace": NS, "uid": f"uid-{name}"},
            "spec": {"nodeName": node, "containers": [container(cpu)], **spec},
            "status": {"phase": "Running"},
        },
    )


def wanting(cluster: FakeClient, name: str, cpu: str, **spec: Any) -> None:
    claim(cluster, name)
    pod(cluster, name, name, containers=[container(cpu)], **spec)


def is_gated(h: Harness, name: str) -> bool:
    return any(g.name == ALLOCATION_GATE for g in h.cluster.obj(PODS, name, NS).spec.scheduling_gates)


def full() -> FakeClient:
    """A node with a device whose processors are taken by a pod of low priority."""
    cluster = cluster_of(n1=(40,))
    running(cluster, "low", "n1", "8", priority=-10)
    return cluster


def test_pods_of_lower_priority_are_no_obstacle() -> None:
    cluster = full()
    wanting(cluster, "p", "4", priority=1000)

    async def scenario(h: Harness) -> None:
        assert h.devices("p") == [("n1", "gpu-0")]
        assert h.cluster.obj(PODS, "p", NS).status.nominated_node_name == "n1"

    run(cluster, scenario)


@pytest.mark.parametrize(
    "spec",
    [
        {"priority": 1000, "preemptionPolicy": "Never"},
        {"priority": -10},
        {"priority": 1000, "initContainers": [{**container("9"), "restartPolicy": "Always"}]},
    ],
    ids=["never preempts", "equal priority", "too little on the empty node"],
)
def test_a_pod_that_kube_scheduler_would_evict_nobody_for_waits(spec: dict[str, Any]) -> None:
    cluster = full()
    wanting(cluster, "p", "4", **spec)

    async def scenario(h: Harness) -> None:
        assert (h.devices("p"), is_gated(h, "p")) == ([], True)
        assert "too little cpu" in h.events("FailedAllocation")[0]

    run(cluster, scenario)


def test_a_node_with_room_comes_before_one_that_would_have_to_be_cleared() -> None:
    cluster = cluster_of(n1=(40,), n2=(80,))
    running(cluster, "low", "n1", "8", priority=-10)
    wanting(cluster, "p", "4", priority=1000)
    wanting(cluster, "q", "4", priority=1000)

    async def scenario(h: Harness) -> None:
        assert sorted([h.devices("p"), h.devices("q")]) == [[("n1", "gpu-0")], [("n2", "gpu-0")]]
        # The first has the larger device on the free node, although the smaller one would fit better.
        assert h.devices("p") == [("n2", "gpu-0")]

    run(cluster, scenario)


def test_devices_stay_with_a_pod_that_others_are_evicted_for() -> None:
    """kube-scheduler deallocates a claim of the pod first, although it evicts pods for it next."""
    cluster = full()
    wanting(cluster, "p", "4", priority=1000)

    async def scenario(h: Harness) -> None:
        wanting(cluster, "small", "0", priority=0)
        h.cluster.edit(RESOURCE_CLAIMS, "p", {"status": {"allocation": None}}, NS)
        h.report("p", "0/2 nodes are available: 1 Insufficient cpu.", nominated="n1")
        h.cluster.edit(PODS, "low", {"status": {"conditions": [EVICTED]}}, NS)
        await h.quiet(SETTLED)
        assert (h.devices("p"), h.devices("small")) == ([("n1", "gpu-0")], [])
        h.cluster.remove(PODS, "low", NS)
        await h.quiet(SETTLED)
        h.bind("p", "n1")
        await asyncio.sleep(15)
        assert (h.devices("p"), h.devices("small")) == ([("n1", "gpu-0")], [])

    run(cluster, scenario)


def test_devices_go_to_others_where_nobody_is_evicted_after_all() -> None:
    cluster = full()
    wanting(cluster, "p", "4", priority=1000)

    async def scenario(h: Harness) -> None:
        wanting(cluster, "small", "0", priority=0)
        h.cluster.edit(RESOURCE_CLAIMS, "p", {"status": {"allocation": None}}, NS)
        h.report(
            "p", "0/2 nodes are available: 1 Insufficient cpu, 1 resourceclaim not available on the node."
        )
        await h.quiet(SETTLED)
        assert (h.devices("p"), h.devices("small")) == ([], [("n1", "gpu-0")])

    run(cluster, scenario)


def test_a_pod_that_kube_scheduler_clears_a_node_for_takes_its_room() -> None:
    """A pod without claims: ours must not take what others are evicted for."""
    cluster = cluster_of(n1=(40,))
    cluster.put(
        PODS,
        {
            "metadata": {"name": "theirs", "namespace": NS, "uid": "uid-theirs"},
            "spec": {"containers": [container("8")], "priority": 10},
            "status": {"phase": "Pending", "nominatedNodeName": "n1"},
        },
    )
    wanting(cluster, "p", "1", priority=0)

    async def scenario(h: Harness) -> None:
        assert h.devices("p") == []
        h.cluster.edit(PODS, "theirs", {"status": {"nominatedNodeName": None}}, NS)
        await h.quiet(SETTLED)
        assert h.devices("p") == [("n1", "gpu-0")]

    run(cluster, scenario)


def test_a_pod_is_served_when_another_one_is_resized() -> None:
    cluster = cluster_of(n1=(40,))
    running(cluster, "large", "n1", "8")
    wanting(cluster, "p", "4")

    def has(h: Harness, cpu: str) -> None:
        status = {"name": CONTAINER["name"], "resources": {"requests": {"cpu": cpu}}}
        h.cluster.edit(PODS, "large", {"status": {"containerStatuses": [status]}}, NS)

    async def scenario(h: Harness) -> None:
        has(h, "8")
        h.cluster.edit(PODS, "large", {"spec": {"containers": [container("4")]}}, NS, as_is=True)
        await h.quiet(SETTLED)
        assert h.devices("p") == []
        has(h, "4")
        await h.quiet(SETTLED)
        assert h.devices("p") == [("n1", "gpu-0")]

    run(cluster, scenario)


def test_host_ports_and_sidecars_are_counted() -> None:
    cluster = cluster_of(n1=(40,), n2=(80,))
    taken = {**container("1"), "ports": [{"containerPort": 80, "hostPort": 80, "protocol": "TCP"}]}
    running(cluster, "web", "n1", "1", containers=[taken])
    wanting(cluster, "p", "1", initContainers=[{**taken, "name": "s", "restartPolicy": "Always"}])

    async def scenario(h: Harness) -> None:
        assert h.devices("p") == [("n2", "gpu-0")]

    run(cluster, scenario)


def sharing(cluster: FakeClient, cpu: str, *names: str) -> None:
    claim(cluster, "shared")
    for name in names:
        pod(cluster, name, "shared", containers=[container(cpu)])


def test_pods_that_could_not_join_another_one_take_no_room_after_its_end() -> None:
    """Each of them would wait for the room of the other one for ever."""
    cluster = cluster_of(n1=(40,))
    sharing(cluster, "5", "first", "p", "q")

    async def scenario(h: Harness) -> None:
        assert h.devices("shared") == [("n1", "gpu-0")]
        h.bind("first", "n1")
        for name in ("p", "q"):
            h.report(name, "0/1 nodes are available: 1 Insufficient cpu.")
        await asyncio.sleep(5)
        # The controller-manager takes the reservation back, and deallocates with it.
        h.cluster.edit(PODS, "first", {"status": {"phase": "Succeeded"}}, NS)
        h.deallocate("shared")
        await asyncio.sleep(5)
        assert h.devices("shared") == [("n1", "gpu-0")]

    run(cluster, scenario)


@pytest.mark.parametrize("end", ["deallocated", "deleted"])
def test_pods_whose_shared_claim_is_gone_take_no_room(end: str) -> None:
    cluster = cluster_of(n1=(40, 80))
    sharing(cluster, "3", "p", "q")

    async def scenario(h: Harness) -> None:
        assert h.devices("shared") == [("n1", "gpu-0")]
        wanting(cluster, "other", "6")
        await h.quiet()
        assert h.devices("other") == []
        if end == "deallocated":
            for name in ("q", "p"):
                h.report(name, "0/1 nodes are available: 1 node(s) didn't match pod affinity rules.")
                await h.quiet()
        else:
            h.cluster.remove(RESOURCE_CLAIMS, "shared", NS)
            for name in ("q", "p"):
                h.report(name, '0/1 nodes are available: resourceclaim "shared" not found.')
        await h.quiet(SETTLED)
        assert h.devices("other") == [("n1", "gpu-0")]

    run(cluster, scenario)
