"""What the stand-in scheduler keeps up to date is what it would find by reading everything anew."""

import asyncio
import contextlib
import random
from typing import Any

from fake_client import FakeClient

from dra_driver.api.core import NODES, Node
from dra_driver.api.meta import Resource
from dra_driver.api.resource import (
    DEVICE_CLASSES,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    DeviceClass,
    DeviceTaintRule,
    ResourceClaim,
    ResourceSlice,
    device_taint_rules,
)
from dra_driver.kube import Informer
from dra_driver.sim.controlplane.followed import FollowedCluster
from dra_driver.structured import AllocatedState, Snapshot, with_rules

DRIVER = "gpu.example.com"
RULES = device_taint_rules("v1beta2")


def slice_of(node: str, devices: int, generation: int) -> dict[str, Any]:
    return {
        "metadata": {"name": f"slice-{node}"},
        "spec": {
            "driver": DRIVER,
            "nodeName": node,
            "pool": {"name": node, "generation": generation, "resourceSliceCount": 1},
            "devices": [{"name": f"gpu-{i}"} for i in range(devices)],
        },
    }


def claim_of(name: str, node: str, devices: list[int]) -> dict[str, Any]:
    results = [{"request": "r", "driver": DRIVER, "pool": node, "device": f"gpu-{i}"} for i in devices]
    status = {"allocation": {"devices": {"results": results}}} if devices else {}
    return {"metadata": {"name": name, "namespace": "default"}, "spec": {}, "status": status}


def facts(snapshot: Snapshot) -> object:
    return (
        {
            name: [
                (p.id, p.incomplete, [(d.id.device, d.device.taints) for d in p.devices])
                for p in snapshot.view(name).pools
            ]
            for name in snapshot.nodes
        },
        {name: node.metadata.labels for name, node in snapshot.nodes.items()},
        sorted(snapshot.classes),
        # Of two claims that hold one device, either may be named.
        {pool: set(s.devices) for pool, s in snapshot.allocated.pools.items()},
    )


def change(cluster: FakeClient, rng: random.Random) -> None:
    node = f"node-{rng.randrange(4)}"
    kinds: list[Resource[Any]] = [NODES, RESOURCE_SLICES, RESOURCE_CLAIMS, DEVICE_CLASSES, RULES]
    kind = rng.choice(kinds)
    claim = f"claim-{rng.randrange(5)}"
    names: dict[Resource[Any], str] = {
        NODES: node,
        RESOURCE_SLICES: f"slice-{node}",
        RESOURCE_CLAIMS: claim,
        DEVICE_CLASSES: "gpu",
        RULES: node,
    }
    namespace = "default" if kind is RESOURCE_CLAIMS else ""
    if rng.random() < 0.3:
        with contextlib.suppress(KeyError):
            cluster.remove(kind, names[kind], namespace)
        return
    labels = {"zone": rng.choice("ab")}
    bodies: dict[Resource[Any], dict[str, Any]] = {
        NODES: {"metadata": {"name": node, "labels": labels}, "status": {"phase": str(rng.random())}},
        RESOURCE_SLICES: slice_of(node, rng.randrange(1, 4), rng.randrange(1, 3)),
        # Two claims with one device, too: what is left when one of them goes must be right.
        RESOURCE_CLAIMS: claim_of(claim, node, rng.sample(range(3), rng.randrange(3))),
        DEVICE_CLASSES: {"metadata": {"name": "gpu"}, "spec": {}},
        RULES: {
            "metadata": {"name": node},
            "spec": {
                "deviceSelector": {"pool": node, "device": f"gpu-{rng.randrange(3)}"},
                "taint": {"key": "sick", "effect": "NoSchedule", "timeAdded": "2026-01-01T00:00:00Z"},
            },
        },
    }
    cluster.put(kind, bodies[kind])


def test_follows_every_change() -> None:
    async def scenario() -> None:
        rng = random.Random(1)
        cluster = FakeClient()
        for _ in range(10):
            change(cluster, rng)
        slices, classes = Informer(cluster, RESOURCE_SLICES), Informer(cluster, DEVICE_CLASSES)
        nodes, claims = Informer(cluster, NODES), Informer(cluster, RESOURCE_CLAIMS)
        rules = Informer(cluster, RULES)
        followed = FollowedCluster(slices=slices, rules=rules, classes=classes, nodes=nodes, claims=claims)
        informers: tuple[Informer[Any], ...] = (slices, rules, classes, nodes, claims)
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(i.run()) for i in informers]
            for informer in informers:
                await informer.synced.wait()
            await compare(rng, cluster, followed, slices, rules, classes, nodes, claims)
            for task in tasks:
                task.cancel()

    async def compare(
        rng: random.Random,
        cluster: FakeClient,
        followed: FollowedCluster,
        slices: Informer[ResourceSlice],
        rules: Informer[DeviceTaintRule],
        classes: Informer[DeviceClass],
        nodes: Informer[Node],
        claims: Informer[ResourceClaim],
    ) -> None:
        checked = 0
        every: tuple[Informer[Any], ...] = (slices, rules, classes, nodes, claims)
        for _ in range(150):
            for _ in range(rng.randrange(1, 5)):
                change(cluster, rng)
            for _ in range(20):
                await asyncio.sleep(0)
            if any(
                {i.metadata.name: i.metadata.resource_version for i in informer.items()}
                != {o.metadata.name: o.metadata.resource_version for o in cluster.all(informer.resource)}
                for informer in every
            ):
                continue
            anew = Snapshot.build(
                slices=[with_rules(s, rules.items()) for s in slices.items()],
                classes=classes.items(),
                nodes=nodes.items(),
                allocated=AllocatedState.from_claims(sorted(claims.items(), key=lambda c: c.key)),
            )
            assert facts(followed.snapshot()) == facts(anew)
            checked += 1
        assert checked > 100

    asyncio.run(scenario())


def test_an_assumed_claim_counts_until_the_watch_shows_it() -> None:
    async def scenario() -> None:
        cluster = FakeClient()
        cluster.put(RESOURCE_CLAIMS, claim_of("claim", "node-0", []))
        claims = Informer(cluster, RESOURCE_CLAIMS)
        followed = FollowedCluster(
            slices=Informer(cluster, RESOURCE_SLICES),
            rules=Informer(cluster, RULES),
            classes=Informer(cluster, DEVICE_CLASSES),
            nodes=Informer(cluster, NODES),
            claims=claims,
        )
        async with asyncio.TaskGroup() as group:
            task = group.create_task(claims.run())
            await claims.synced.wait()
            await play(cluster, claims, followed)
            task.cancel()

    async def play(cluster: FakeClient, claims: Informer[ResourceClaim], followed: FollowedCluster) -> None:
        cluster.quiet.add("ResourceClaim")
        cluster.put(RESOURCE_CLAIMS, claim_of("claim", "node-0", [1]))
        written = cluster.obj(RESOURCE_CLAIMS, "claim", "default")
        assert not followed.snapshot().allocated.pools
        followed.assume(written)
        assert [dict(s.devices) for s in followed.snapshot().allocated.pools.values()] == [
            {"gpu-1": "default/claim"}
        ]
        assert followed.claim(written.key) is written
        # One that kube-scheduler has just made, for extended resources, is unknown to the watch.
        cluster.put(RESOURCE_CLAIMS, claim_of("made", "node-0", [2]))
        followed.assume(made := cluster.obj(RESOURCE_CLAIMS, "made", "default"))
        followed.forget_what_is_seen()
        assert followed.claim(made.key) is made
        assert set(next(iter(followed.snapshot().allocated.pools.values())).devices) == {"gpu-1", "gpu-2"}
        cluster.remove(RESOURCE_CLAIMS, "made", "default")
        cluster.remove(RESOURCE_CLAIMS, "claim", "default")
        cluster.quiet.clear()
        cluster.wake()
        for _ in range(100):
            if claims.get(written.key) is None:
                break
            await asyncio.sleep(0.01)
        followed.forget_what_is_seen()
        assert not followed.snapshot().allocated.pools
        assert followed.claim(written.key) is None

    asyncio.run(scenario())
