"""Where pods may go beside others, on random worlds: as if counted anew for each, whatever came before."""

from __future__ import annotations

import random
from collections import defaultdict
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from neighbour_cases import NeighbourCase, random_worlds
from node_room_cases import CLASSES

from controller.allocate.decide.nodes.node_usage import NodeUsage
from controller.allocate.decide.nodes.placement import Placements
from controller.allocate.decide.state.objects import Objects
from dra_driver.api import codec
from dra_driver.api.core import Node, Pod
from dra_driver.sim.controlplane.neighbour_filters import NeighbourFilters


def pod_of(body: dict[str, Any], uid: str, *, ending: bool = False) -> Pod:
    priority, _ = CLASSES.get(body["spec"].get("priorityClassName", ""), (0, ""))
    meta = {**body["metadata"], "uid": uid, "name": uid}
    if ending:
        meta["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    return codec.convert(Pod, {**body, "metadata": meta, "spec": {**body["spec"], "priority": priority}})


class Cluster:
    """Some nodes with pods that come and go, and what we say of them."""

    def __init__(self, world: NeighbourCase) -> None:
        self.nodes: Objects[Node] = Objects()
        self.usage = NodeUsage()
        self.placements = Placements(self.nodes, self.usage)
        self.pods: dict[str, Pod] = {}
        self.bodies = world.nodes()
        for body in self.bodies:
            self.put(body)

    def put(self, body: dict[str, Any]) -> None:
        self.nodes.put(codec.convert(Node, body))
        self.placements.changed(body["metadata"]["name"])

    def see(self, pod: Pod) -> None:
        self.pods[pod.metadata.uid] = pod
        self.usage.seen(pod)

    def remove(self, uid: str) -> None:
        self.usage.gone(self.pods.pop(uid))

    def closed(self, pod: Pod) -> dict[str, str]:
        by_node: dict[str, list[Pod]] = defaultdict(list)
        for other in self.pods.values():
            by_node[other.spec.node_name].append(other)
        filters = NeighbourFilters(pod, list(self.nodes), by_node)
        return {n.metadata.name: r for n in self.nodes if (r := filters.rejection(n))}


@given(st.integers(0, 2**32))
def test_what_is_kept_is_what_would_be_counted_anew(seed: int) -> None:
    rng = random.Random(seed)
    worlds = random_worlds(seed, 3)
    cluster = Cluster(worlds[0])
    # All of them on the nodes of the first world, and by its names.
    supply = [(body, ending) for w in worlds for body, ending in _renamed(w, worlds[0]).pods()]
    asking = [pod_of(_renamed(w, worlds[0]).pod(), f"new-{i}") for i, w in enumerate(worlds)]
    for step in range(12):
        match rng.choice(["come", "come", "go", "node"]):
            case "come" if supply:
                body, ending = supply[rng.randrange(len(supply))]
                spec = {**body["spec"], "nodeName": rng.choice(cluster.bodies)["metadata"]["name"]}
                cluster.see(pod_of({**body, "spec": spec}, f"p{rng.randrange(6)}", ending=ending))
            case "go" if cluster.pods:
                cluster.remove(rng.choice(sorted(cluster.pods)))
            case "node":
                body = rng.choice(cluster.bodies)
                labels = {**body["metadata"]["labels"], f"zone.{worlds[0].name}": rng.choice("abc")}
                cluster.put({**body, "metadata": {**body["metadata"], "labels": labels}})
            case _:
                pass
        pod = rng.choice(asking)
        closed = cluster.closed(pod)
        found = cluster.placements.candidates(pod)
        tainted = {n.metadata.name for n in cluster.nodes if n.spec.taints}
        names = {n.metadata.name for n in cluster.nodes}
        assert found.nodes == names - closed.keys() - tainted, (step, pod, closed)
        for reason in set(closed.values()):
            assert found.rejected[reason] == sum(r == reason for n, r in closed.items() if n not in tainted)


def _renamed(world: NeighbourCase, first: NeighbourCase) -> NeighbourCase:
    return NeighbourCase(first.name, first.zones, world.residents, world.labels, world.spec)
