"""Where a pod may go beside others: our answer, and that of the real kube-scheduler, without any claims.

Affinity, anti-affinity and topology spread. The real one needs no root and no kubelet, only a folder with
etcd, kube-apiserver and kube-scheduler that the variable ``DRA_K8S_BIN`` names.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable
from typing import Any

import msgspec
import pytest
from neighbour_cases import WORLDS, NeighbourCase, random_worlds
from node_room_cases import CLASSES
from scheduling_world import SchedulingWorld, scheduling_world

from controller.allocate.decide.nodes.node_usage import NodeUsage
from controller.allocate.decide.nodes.placement import Placement, Placements
from controller.allocate.decide.state.objects import Objects
from dra_driver.api import codec
from dra_driver.api.core import NAMESPACES, NODES, PODS, Node, Pod, PodStatus
from dra_driver.api.meta import Resource
from dra_driver.sim.objects import MetaObject

PRIORITY_CLASSES = Resource(
    "scheduling.k8s.io", "v1", "priorityclasses", "PriorityClass", MetaObject, namespaced=False
)
SECONDS = 240.0
RANDOM = [world for seed in range(2) for world in random_worlds(seed, 60)]


def placement_of(nodes: Iterable[Node], pods: Iterable[Pod], pod: Pod) -> Placement:
    known: Objects[Node] = Objects()
    for node in nodes:
        known.put(node)
    usage = NodeUsage()
    placements = Placements(known, usage)
    for other in pods:
        usage.seen(other)
    return placements.candidates(pod)


def as_seen(body: dict[str, Any], uid: str, *, ending: bool = False) -> Pod:
    """Return a pod as admission leaves it."""
    spec = body["spec"]
    value, policy = CLASSES.get(spec.get("priorityClassName", ""), (0, "PreemptLowerPriority"))
    meta = {
        **body["metadata"],
        "uid": uid,
        **({"deletionTimestamp": "2026-01-01T00:00:00Z"} if ending else {}),
    }
    return codec.convert(
        Pod, {**body, "metadata": meta, "spec": {**spec, "priority": value, "preemptionPolicy": policy}}
    )


# The API server puts these into the selectors.
MERGED = ("anti-match-label-keys", "anti-mismatch-label-keys")


@pytest.mark.parametrize("world", [w for w in WORLDS if w.name not in MERGED], ids=lambda w: w.name)
def test_a_pod_may_go_where_its_neighbours_let_it(world: NeighbourCase) -> None:
    nodes = [codec.convert(Node, body) for body in world.nodes()]
    pods = [as_seen(body, f"{i}", ending=ending) for i, (body, ending) in enumerate(world.pods())]
    found = placement_of(nodes, pods, as_seen(world.pod(), "new"))
    assert found.nodes == {world.node_name(i) for i in world.fits}
    if not world.fits:
        assert found.evicting == {world.node_name(i) for i in world.evicts}


# --- the real one -------------------------------------------------------------------------------------------


async def set_up(world: SchedulingWorld, worlds: Iterable[NeighbourCase]) -> None:
    for name, (value, policy) in CLASSES.items():
        await world.api.create(
            PRIORITY_CLASSES,
            {
                "apiVersion": "scheduling.k8s.io/v1",
                "kind": "PriorityClass",
                "metadata": {"name": name},
                "value": value,
                "preemptionPolicy": policy,
            },
        )
    for one in worlds:
        await set_up_one(world, one)


async def set_up_one(world: SchedulingWorld, one: NeighbourCase) -> None:
    for namespace in (one.name, one.other):
        meta = {"metadata": {"name": namespace}}
        await world.api.create(NAMESPACES, {"apiVersion": "v1", "kind": "Namespace", **meta})
    for body in one.nodes():
        name, status = body["metadata"]["name"], body.pop("status")
        await world.api.create(NODES, {"apiVersion": "v1", "kind": "Node", **body})
        await world.api.merge_patch(NODES, name, {"status": status}, subresource="status")
        # Admission taints nodes that no kubelet has reported as ready.
        await world.api.merge_patch(NODES, name, {"spec": {"taints": body["spec"]["taints"] or None}})
    for body, ending in one.pods():
        key = (body["metadata"]["name"], body["metadata"]["namespace"])
        await world.api.create(PODS, body)
        await world.api.merge_patch(
            PODS, key[0], {"status": {"phase": "Running"}}, key[1], subresource="status"
        )
        if ending:
            await world.api.delete(PODS, *key)


def is_answered(pod: Pod) -> bool:
    return bool(pod.spec.node_name) or any(
        c.get("type") == "PodScheduled" and c.get("reason") == "Unschedulable" for c in pod.status.conditions
    )


def compare(world: NeighbourCase, ours: Placement, pod: Pod) -> None:
    """Compare nodes, victims and the reasons with their numbers."""
    node, nominated = pod.spec.node_name, pod.status.nominated_node_name
    told = f"{world}\nours: {ours}\ntheirs: {node!r}, {nominated!r}, {pod.status.conditions}"
    if node:
        assert node in ours.nodes, told
        return
    assert not ours.nodes, told
    assert nominated in ours.evicting if nominated else not ours.evicting, told
    message = next(str(c["message"]) for c in pod.status.conditions if c.get("type") == "PodScheduled")
    first = message.partition(". ")[0]
    theirs = {reason: int(n) for n, reason in re.findall(r"(\d+) (node\(s\) didn't [^,]+)", first)}
    theirs = {reason: n for reason, n in theirs.items() if "node affinity" not in reason}
    assert {r: n for r, n in ours.rejected.items() if r.startswith("node(s)")} == theirs, told


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.timeout(900)
def test_kube_scheduler_gives_the_same_answers() -> None:
    worlds = [*WORLDS, *RANDOM]

    async def main() -> None:
        async with asyncio.timeout(SECONDS * 3), scheduling_world("real") as real:
            await set_up(real, worlds)
            before = (await real.api.list(PODS)).items
            for one in worlds:
                await real.api.create(PODS, one.pod())
            nodes = (await real.api.list(NODES)).items
            asked: dict[str, Pod] = {}
            async with asyncio.timeout(SECONDS):
                while len(asked) < len(worlds):
                    await asyncio.sleep(0.5)
                    for pod in (await real.api.list(PODS)).items:
                        if pod.metadata.name == "new" and is_answered(pod):
                            asked.setdefault(pod.metadata.namespace, pod)
        for one in worlds:
            pod = asked[one.name]
            unbound = msgspec.structs.replace(pod.spec, node_name="")
            fresh = msgspec.structs.replace(pod, spec=unbound, status=PodStatus())
            ours = placement_of(nodes, before, fresh)
            compare(one, ours, pod)
            if one in WORLDS:
                assert ours.nodes == {one.node_name(i) for i in one.fits}, one.name
        bound = sum(bool(p.spec.node_name) for p in asked.values())
        evicts = sum(bool(p.status.nominated_node_name) for p in asked.values())
        print(f"kube-scheduler and we agree on {len(worlds)} pods: {bound} bound, {evicts} evict others")

    asyncio.run(main())
