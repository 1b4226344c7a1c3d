"""What decisions keep of nodes, pools and classes is what a look at everything would find."""

import random
from typing import Any

from controller.allocate.decide.nodes.node_usage import NodeUsage
from controller.allocate.decide.nodes.placement import Placements
from controller.allocate.decide.state.cluster_state import ClusterState
from controller.allocate.decide.state.objects import Objects
from dra_driver.api import codec
from dra_driver.api.core import Node, Pod
from dra_driver.api.meta import DriverName, ObjectKey
from dra_driver.api.names import CONTROLLER_TAINT
from dra_driver.api.resource import DeviceClass, ResourceClaim, ResourceSlice
from dra_driver.ownership import protected_pools

OURS = DriverName("gpu.example.com")
NIC = DriverName("nic.example.com")
DRIVERS = (OURS, NIC, "other.example.com")

Kept = Node | DeviceClass | ResourceSlice


def node_body(rng: random.Random, name: str) -> dict[str, Any]:
    taints = [{"key": "gpu", "value": "only", "effect": "NoSchedule"}] if rng.random() < 0.3 else []
    return {
        "metadata": {"name": name, "labels": {"zone": rng.choice("ab")}},
        "spec": {"taints": taints, "unschedulable": rng.random() < 0.2},
        "status": {
            "allocatable": {"cpu": str(rng.randrange(2, 8)), "memory": "8Gi", "pods": "4"},
            "conditions": [{"type": "Ready", "status": "True", "lastHeartbeatTime": str(rng.random())}],
        },
    }


def pod_of(number: int, node: str = "", **spec: object) -> Pod:
    body = {
        "metadata": {"name": f"pod-{number}", "namespace": "default", "uid": f"uid-{number}"},
        "spec": {
            "containers": [{"name": "c", "resources": {"requests": {"cpu": str(1 + number % 3)}}}],
            "nodeName": node,
            **spec,
        },
    }
    return codec.convert(Pod, body)


WANTED: tuple[dict[str, Any], ...] = (
    {},
    {"nodeSelector": {"zone": "a"}},
    {"tolerations": [{"key": "gpu", "operator": "Exists"}]},
)


def test_candidates_follow_nodes_and_pods() -> None:
    rng = random.Random(2)
    nodes: Objects[Node] = Objects()
    usage = NodeUsage()
    placements = Placements(nodes, usage)
    placed: dict[str, tuple[Pod, str]] = {}
    rejected = 0
    for _ in range(200):
        name = f"node-{rng.randrange(6)}"
        if rng.random() < 0.2:
            nodes.remove(ObjectKey("", name))
            placements.changed(name)
        elif rng.random() < 0.5:
            nodes.put(codec.convert(Node, node_body(rng, name)))
            placements.changed(name)
        running = pod_of(rng.randrange(12))
        placed.pop(running.metadata.uid, None)
        if rng.random() < 0.4:
            usage.gone(running)
        else:
            usage.place(running, name)
            placed[running.metadata.uid] = (running, name)
        pod = pod_of(rng.randrange(12, 15), **rng.choice(WANTED))
        avoid = {"node-1"} if rng.random() < 0.2 else set()
        found = placements.candidates(pod, avoid)
        other_usage = NodeUsage()
        for entry in placed.values():
            other_usage.place(*entry)
        anew = Placements(nodes, other_usage).candidates(pod, avoid)
        assert set(found.nodes) == set(anew.nodes)
        assert dict(found.rejected) == dict(anew.rejected)
        assert len(found.nodes) + sum(found.rejected.values()) == len(nodes)
        rejected += len(found.rejected)
    assert rejected > 100


def test_a_pods_own_place_does_not_count_against_it() -> None:
    nodes: Objects[Node] = Objects()
    usage = NodeUsage()
    body = {"metadata": {"name": "n"}, "status": {"allocatable": {"cpu": "3", "memory": "1Gi", "pods": "9"}}}
    nodes.put(codec.convert(Node, body))
    placements = Placements(nodes, usage)
    mine, other = pod_of(2), pod_of(5)  # three cores each
    assert set(placements.candidates(mine).nodes) == {"n"}
    usage.place(mine, "n")
    assert set(placements.candidates(mine).nodes) == {"n"}
    assert placements.candidates(other).summary() == "0/1 nodes can take the pod: 1 with too little cpu"
    usage.gone(mine)
    assert set(placements.candidates(other).nodes) == {"n"}


def slice_body(rng: random.Random, number: int) -> dict[str, Any]:
    taint = {"key": CONTROLLER_TAINT, "value": "allocates", "effect": "NoSchedule"}
    node = f"node-{number % 4}"
    taints = [taint] if rng.random() < 0.7 else []
    sizes = [rng.choice([24, 80]) for _ in range(rng.randrange(3))]
    return {
        "metadata": {"name": f"slice-{number}"},
        "spec": {
            "driver": rng.choice(DRIVERS),
            "nodeName": node,
            "pool": {"name": node, "generation": 1, "resourceSliceCount": 1},
            "devices": [
                {"name": f"gpu-{i}", "capacity": {"memory": {"value": f"{s}Gi"}}, "taints": taints}
                for i, s in enumerate(sizes)
            ],
        },
    }


def class_body(rng: random.Random, name: str) -> dict[str, Any]:
    driver = rng.choice(DRIVERS)
    expression = rng.choice(
        [
            f'device.driver == "{driver}"',
            f'device.capacity["{driver}"].memory.compareTo(quantity("40Gi")) > 0',
            "true",
        ]
    )
    return {"metadata": {"name": name}, "spec": {"selectors": [{"cel": {"expression": expression}}]}}


def claim_of(*classes: str) -> ResourceClaim:
    requests = [{"name": c, "exactly": {"deviceClassName": c}} for c in classes]
    body = {"metadata": {"name": "claim"}, "spec": {"devices": {"requests": requests}}}
    return codec.convert(ResourceClaim, body)


def test_pools_and_classes_are_followed() -> None:
    rng = random.Random(3)
    state = ClusterState((OURS, NIC))
    there: dict[tuple[type[Kept], str], Kept] = {}
    answers = set()
    for _ in range(250):
        choices: list[tuple[type[Kept], str, dict[str, Any]]] = [
            (ResourceSlice, f"slice-{(n := rng.randrange(8))}", slice_body(rng, n)),
            (ResourceSlice, f"slice-{(n := rng.randrange(8))}", slice_body(rng, n)),
            (DeviceClass, c := f"class-{rng.randrange(2)}", class_body(rng, c)),
            (Node, f"node-{(n := rng.randrange(4))}", node_body(rng, f"node-{n}")),
        ]
        kind, name, body = rng.choice(choices)
        if rng.random() < 0.25:
            there.pop((kind, name), None)
            state.remove(kind, name)
        else:
            metadata = {**body["metadata"], "name": name}
            item = there[kind, name] = codec.convert(kind, {**body, "metadata": metadata})
            state.put(item)
        if rng.random() < 0.3:
            continue  # several changes in one step
        state.refresh()
        anew = ClusterState((OURS, NIC))
        for item in there.values():
            anew.put(item)
        anew.refresh()
        assert state.own == anew.own
        slices = [item for item in there.values() if isinstance(item, ResourceSlice)]
        assert state.own == {p for p in protected_pools(slices) if p.driver != "other.example.com"}
        for claim in (claim_of("class-0"), claim_of("class-0", "class-1")):
            assert state.ownership.claim(claim) == anew.ownership.claim(claim)
            answers.add(state.ownership.claim(claim).ownership)
    assert len(answers) >= 4
