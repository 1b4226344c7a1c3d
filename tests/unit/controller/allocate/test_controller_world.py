"""What the controller keeps of nodes, pools and classes is what a look at everything would find."""

import asyncio
import contextlib
import random

from support.fake_cluster import FakeCluster

from controller.allocate.cluster_state import ClusterState
from controller.allocate.placement import NodeUsage, Placements
from dra_driver.api import codec
from dra_driver.api.core import NODES, Pod
from dra_driver.api.names import CONTROLLER_TAINT
from dra_driver.api.resource import DEVICE_CLASSES, RESOURCE_SLICES, ResourceClaim
from dra_driver.kube import Informer
from dra_driver.ownership import protected_pools

OURS = "gpu.example.com"
DRIVERS = (OURS, "nic.example.com", "other.example.com")


async def settled(cluster: FakeCluster, *informers: Informer) -> None:
    """Until the informers have what the server has."""
    async with asyncio.timeout(30):
        while any(
            {i.metadata.name: i.metadata.resource_version for i in informer.items()}
            != {o.metadata.name: o.metadata.resource_version for o in cluster.all(informer.resource)}
            for informer in informers
        ):
            await asyncio.sleep(0)


def node_body(rng: random.Random, name: str) -> dict:
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


WANTED = (
    {},
    {"nodeSelector": {"zone": "a"}},
    {"tolerations": [{"key": "gpu", "operator": "Exists"}]},
)


def test_candidates_follow_nodes_and_pods() -> None:
    async def compare(cluster: FakeCluster, nodes: Informer, rng: random.Random) -> None:
        usage = NodeUsage()
        placements = Placements(nodes, usage)
        placed: dict[str, tuple[Pod, str]] = {}
        rejected = 0
        for _ in range(200):
            name = f"node-{rng.randrange(6)}"
            if rng.random() < 0.2:
                with contextlib.suppress(KeyError):
                    cluster.remove(NODES, name)
            elif rng.random() < 0.5:
                cluster.put(NODES, node_body(rng, name))
            running = pod_of(rng.randrange(12))
            placed.pop(running.metadata.uid, None)
            if rng.random() < 0.4:
                usage.gone(running)
            else:
                usage.place(running, name)
                placed[running.metadata.uid] = (running, name)
            await settled(cluster, nodes)
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

    async def scenario() -> None:
        cluster = FakeCluster()
        nodes = Informer(cluster, NODES)
        async with asyncio.TaskGroup() as group:
            task = group.create_task(nodes.run())
            await nodes.synced.wait()
            await compare(cluster, nodes, random.Random(2))
            task.cancel()

    asyncio.run(scenario())


def test_a_pods_own_place_does_not_count_against_it() -> None:
    async def scenario() -> None:
        cluster = FakeCluster()
        cluster.put(
            NODES, {"metadata": {"name": "n"}, "status": {"allocatable": {"cpu": "3", "memory": "1Gi"}}}
        )
        nodes, usage = Informer(cluster, NODES), NodeUsage()
        placements = Placements(nodes, usage)
        async with asyncio.TaskGroup() as group:
            task = group.create_task(nodes.run())
            await nodes.synced.wait()
            mine, other = pod_of(2), pod_of(5)  # three cores each
            assert set(placements.candidates(mine).nodes) == {"n"}
            usage.place(mine, "n")
            assert set(placements.candidates(mine).nodes) == {"n"}
            assert placements.candidates(other).summary() == (
                "0/1 nodes can take the pod: 1 with too little cpu"
            )
            usage.gone(mine)
            assert set(placements.candidates(other).nodes) == {"n"}
            task.cancel()

    asyncio.run(scenario())


def slice_body(rng: random.Random, number: int) -> dict:
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


def class_body(rng: random.Random, name: str) -> dict:
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
    async def compare(cluster: FakeCluster, informers: dict[str, Informer], rng: random.Random) -> None:
        world = ClusterState((OURS, "nic.example.com"), **informers)
        answers = set()
        for _ in range(250):
            kind, name, body = rng.choice(
                [
                    (RESOURCE_SLICES, f"slice-{(n := rng.randrange(8))}", slice_body(rng, n)),
                    (RESOURCE_SLICES, f"slice-{(n := rng.randrange(8))}", slice_body(rng, n)),
                    (DEVICE_CLASSES, c := f"class-{rng.randrange(2)}", class_body(rng, c)),
                    (NODES, f"node-{(n := rng.randrange(4))}", node_body(rng, f"node-{n}")),
                ]
            )
            if rng.random() < 0.25:
                with contextlib.suppress(KeyError):
                    cluster.remove(kind, name)
            else:
                cluster.put(kind, {**body, "metadata": {**body["metadata"], "name": name}})
            await settled(cluster, *informers.values())
            world.refresh()
            anew = ClusterState((OURS, "nic.example.com"), **informers)
            anew.refresh()
            assert world.own == anew.own
            assert world.own == {
                p for p in protected_pools(informers["slices"].items()) if p.driver != "other.example.com"
            }
            for claim in (claim_of("class-0"), claim_of("class-0", "class-1")):
                assert world.ownership.claim(claim) == anew.ownership.claim(claim)
                answers.add(world.ownership.claim(claim).ownership)
        assert len(answers) >= 4

    async def scenario() -> None:
        cluster = FakeCluster()
        informers = {
            "slices": Informer(cluster, RESOURCE_SLICES),
            "classes": Informer(cluster, DEVICE_CLASSES),
            "nodes": Informer(cluster, NODES),
        }
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(i.run()) for i in informers.values()]
            for informer in informers.values():
                await informer.synced.wait()
            await compare(cluster, informers, random.Random(3))
            for task in tasks:
                task.cancel()

    asyncio.run(scenario())
