"""Objects that come, change and go as fast as a tenant can write."""

from __future__ import annotations

import asyncio

import attack_objects as objects
import fleet_objects as fleet
from attack_api import Manifest, path_of
from attack_objects import RACK, UUID, claim, exactly, one, pod, requests
from attack_world import TENANT, AttackedCluster, attack


async def _come_and_go(world: AttackedCluster, per_second: float, made: list[list[Manifest]]) -> None:
    """Create the sets of objects in turn, and delete each one when half of the others have come."""
    world.strike()
    behind = len(made) // 2
    async for i in world.ticks(per_second):
        for manifest in made[i % len(made)]:
            await world.create([manifest])
        if i >= behind:
            for manifest in reversed(made[(i - behind) % len(made)]):
                if manifest["kind"] == "Pod":
                    await world.api.delete("Pod", manifest["metadata"]["name"], TENANT)
                else:
                    await world.api.free(manifest)


@attack
async def pods_come_and_go(world: AttackedCluster) -> None:
    """Create pods that take a device, and delete them right after: every freed device has all looked at."""
    await _come_and_go(world, 25, [one(f"churn-{i}", TENANT, objects.devices(1 + i % 4)) for i in range(40)])


@attack
async def hard_pods_come_and_go(world: AttackedCluster) -> None:
    """Create pods with claims that are new and hard each time, so that nothing that is known helps."""
    made = []
    for i in range(400):
        texts = [f'{UUID}.charAt({4 + k}) != "{i}"' for k in range(8)]
        made.append(one(f"hard-{i}", TENANT, objects.alternatives(8, texts)))
    await _come_and_go(world, 15, made)


@attack
async def claims_come_and_go(world: AttackedCluster) -> None:
    """Create and delete claims that no pod uses."""
    made = [[claim(f"idle-{i}", TENANT, objects.devices())] for i in range(80)]
    await _come_and_go(world, 40, made)


@attack
async def pods_without_claims(world: AttackedCluster) -> None:
    """Create pods that are none of our business, by the hundred."""
    made = [[pod(f"other-{i}", TENANT)] for i in range(400)]
    await _come_and_go(world, 60, made)


@attack
async def waiting_pods(world: AttackedCluster) -> None:
    """Let 1,000 pods wait for what does not exist, in 200 forms, while devices become free all the time."""
    made: list[Manifest] = []
    for i in range(1000):
        never = requests(exactly(f'{UUID} == "no-{i % 200}"'))
        made += one(f"waits-{i}", TENANT, never)
    await world.submit(*made)


@attack
async def own_claims_rewritten(world: AttackedCluster) -> None:
    """Write to claims and pods of one's own so often that every write of the controller conflicts."""
    made = [one(f"mine-{i}", TENANT, objects.devices(1 + i % 8)) for i in range(12)]
    await world.submit(*(m for pair in made for m in pair))
    paths = [path_of(m) for pair in made for m in pair]
    async for i in world.ticks(120):
        await world.api.patch(paths[i % len(paths)], {"metadata": {"annotations": {"example.com/n": str(i)}}})


@attack
async def every_claim_rewritten(world: AttackedCluster) -> None:
    """Write to every claim of the cluster right after each of the first two changes, honest ones included."""
    world.strike()
    _, page = await world.api.call("GET", "/apis/resource.k8s.io/v1/resourceclaims?limit=1")
    written: dict[str, int] = {}
    async with asyncio.TaskGroup() as tasks:
        async for event in world.api.watch("ResourceClaim", page["metadata"]["resourceVersion"]):
            meta = event["object"]["metadata"]
            if event["type"] == "DELETED" or written.setdefault(meta["uid"], 0) >= 2:
                continue
            written[meta["uid"]] += 1
            path = path_of({**event["object"], "kind": "ResourceClaim"})
            mark = {"metadata": {"annotations": {"example.com/seen": str(written[meta["uid"]])}}}
            tasks.create_task(world.api.patch(path, mark))


@attack
async def nodes_report(world: AttackedCluster) -> None:
    """Let the kubelets report, all at once: 100 changes of Nodes a second."""
    world.strike()
    nodes = [n["metadata"]["name"] for n in await world.api.some("Node", 500)]
    async for i in world.ticks(100):
        ready = {"type": "Ready", "status": "True", "reason": "KubeletReady", "message": f"report {i}"}
        await world.api.patch(
            f"/api/v1/nodes/{nodes[i % len(nodes)]}/status", {"status": {"conditions": [ready]}}
        )


@attack
async def labels_of_nodes_change(world: AttackedCluster) -> None:
    """Change the label that groups ask for, 20 times a second, while groups wait."""
    members = [m for i in range(33) for m in objects.member(f"rack-{i}", TENANT, "rack", 33, RACK)]
    nodes = [fleet.node_name(i) for i in range(min(objects.IN_RACKS, world.nodes))]
    await world.submit(*members)
    try:
        async for i in world.ticks(20):
            name = nodes[i % len(nodes)]
            await world.api.patch(f"/api/v1/nodes/{name}", {"metadata": {"labels": {RACK: f"r{i % 60}"}}})
    finally:
        for i, name in enumerate(nodes):
            await world.api.patch(f"/api/v1/nodes/{name}", {"metadata": {"labels": {RACK: f"r{i // 4}"}}})


@attack
async def pods_made_with_a_node(world: AttackedCluster) -> None:
    """Create pods with names of honest nodes, by the hundred: no scheduler and no gate holds them."""
    made = []
    for i in range(400):
        objects_of_pod = one(f"made-{i}", TENANT, objects.devices(1 + i % 8))
        spec = objects_of_pod[-1]["spec"]
        del spec["schedulingGates"]
        spec["nodeName"] = fleet.node_name(i % world.nodes)
        made.append(objects_of_pod)
    await _come_and_go(world, 40, made)
