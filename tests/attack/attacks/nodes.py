"""Nodes that lie about their devices: inventories as an agent of the attacker's writes them."""

from __future__ import annotations

import fleet_objects as fleet
from attack_api import Manifest, path_of
from attack_objects import DRIVER, inventory
from attack_world import AttackedCluster, attack

from dra_driver.ownership import slice_name


def _device(number: int, **facts: str) -> Manifest:
    """Return a device that looks like an honest one."""
    given = {"type": "gpu", "vendor": "nvidia", "uuid": f"GPU-liar-{number}", **facts}
    return {
        "name": f"gpu-{number}",
        "attributes": {name: {"string": value} for name, value in given.items()},
        "capacity": {"memory": {"value": "80Gi"}},
    }


@attack
async def absurd_capacities(world: AttackedCluster) -> None:
    """Claim to have devices of 8Ei and more, of none, and of amounts that are no quantities."""
    amounts = ("8Ei", "9223372036854775807", "9" * 60, "1e999", "1e1000000", "-1", "0", "x", "1n", "0.1m")
    for i, amount in enumerate(amounts):
        found = [{**_device(k), "capacity": {"memory": {"value": amount}}} for k in range(8)]
        await world.node(f"liar-{i}", found)
    world.strike()


@attack
async def most_attributes(world: AttackedCluster) -> None:
    """Describe 128 devices with as many attributes, and as long ones, as a device can have; on 8 nodes."""
    for n in range(8):
        found = []
        for k in range(128):
            facts = {f"attribute{i:02}": f"{n}-{k}-{i}".ljust(64, "x") for i in range(28)}
            amounts = {f"capacity{i:02}": {"value": f"{k + 1}Gi"} for i in range(4)}
            found.append({**_device(k, **facts), "capacity": amounts})
        await world.node(f"liar-{n}", found)
    world.strike()


@attack
async def most_partitions(world: AttackedCluster) -> None:
    """Describe devices with 64 kinds of partition in 64 places each."""
    places = [{"start": i, "size": 1 + i % 8} for i in range(64)]
    kinds = [{"name": f"{i}g.10gb", "profileId": i, "placements": places} for i in range(64)]
    for n in range(2):
        await world.node(f"liar-{n}", [{**_device(k), "partitions": kinds} for k in range(4)])
    world.strike()


@attack
async def flapping_inventories(world: AttackedCluster) -> None:
    """Change the health of devices 100 times a second."""
    paths = [await world.node(f"liar-{n}", [_device(k) for k in range(8)]) for n in range(5)]
    world.strike()
    sick = [{"reason": "XidError", "severity": "failed", "message": "Xid 79"}]
    async for i in world.ticks(100):
        found = [{**_device(k), "health": sick if (i + k) % 2 else []} for k in range(8)]
        await world.api.patch(paths[i % len(paths)], {"spec": {"devices": found}})


@attack
async def devices_come_and_go(world: AttackedCluster) -> None:
    """Describe another number of devices 50 times a second, from none to 128."""
    paths = [await world.node(f"liar-{n}", [_device(0)]) for n in range(3)]
    world.strike()
    async for i in world.ticks(50):
        found = [_device(k) for k in range(i * 37 % 129)]
        await world.api.patch(paths[i % len(paths)], {"spec": {"devices": found}})


@attack
async def epochs_that_jump(world: AttackedCluster) -> None:
    """Register anew 50 times a second, with epochs that jump up to the largest number and down again."""
    paths = [await world.node(f"liar-{n}", [_device(k) for k in range(8)]) for n in range(5)]
    world.strike()
    async for i in world.ticks(50):
        epoch = (2**63 - 1, 0, i, 2**62 + i)[i % 4]
        await world.register(paths[i % len(paths)], epoch, registered=i % 3 != 0)


@attack
async def busy_and_idle(world: AttackedCluster) -> None:
    """Report devices as busy and idle in turn, 50 times a second, and ones that do not exist."""
    paths = [await world.node(f"liar-{n}", [_device(k) for k in range(8)]) for n in range(5)]
    world.strike()
    names = [f"gpu-{k}" for k in range(1000)]
    async for i in world.ticks(50):
        activity = {"busy": names[i % 2 :: 2], "idle": names[1 - i % 2 :: 2]}
        await world.api.patch(f"{paths[i % len(paths)]}/status", {"status": {"activity": activity}})


@attack
async def notes_of_publications(world: AttackedCluster) -> None:
    """Note honest nodes' slices as published, devices as lent, claims as gone and huge numbers, all the time.

    As the holder of an agent's token can where no policy forbids it, who says now that the node publishes,
    and now that it does not.
    """
    paths = [await world.node(f"liar-{n}", [_device(k) for k in range(8)]) for n in range(5)]
    honest = [s["metadata"]["name"] for s in await world.api.some("ResourceSlice", 100)]
    lent = [{"unit": f"u-{i}", "devices": [f"d-{i}-{k}" for k in range(16)]} for i in range(128)]
    world.strike()
    async for i in world.ticks(20):
        number = (2**63 - 1, 0, i)[i % 3]
        publication = {
            "epoch": number,
            "attempted": number,
            "generation": number,
            "slices": honest if i % 2 else [],
            "allocator": ("controller", "draining", "scheduler")[i % 3],
            "lent": lent[: i % 129],
        }
        gone = [{"uid": f"gone-{i}-{k}", "devices": [{"device": f"gpu-{k % 8}"}]} for k in range(i % 129)]
        registration = {"registered": True, "epoch": i + 1, "goneClaimsEpoch": i + 1}
        status = {"publication": publication, "registration": registration, "goneClaims": gone}
        path = paths[i % len(paths)]
        await world.api.patch(path, {"spec": {"publisher": ("node", "")[i // 5 % 2]}})
        await world.api.patch(f"{path}/status", {"status": status})


@attack
async def names_of_other_nodes(world: AttackedCluster) -> None:
    """Write inventories about honest nodes, nodes that do not exist, and drivers of others."""
    world.strike()
    world.foreign_inventories = True
    made = []
    for i in range(50):
        name = fleet.node_name(i)
        body = inventory(name, "0", [_device(k) for k in range(8)], f"other-{i}.example.com")
        wrong = inventory(name, "0", [_device(k) for k in range(8)])
        wrong["metadata"]["name"] = f"liar-{i}"
        nowhere = inventory(f"nowhere-{i}", "0", [_device(0)])
        made += [body, wrong, nowhere]
    await world.create(made)
    for manifest in made:
        await world.register(path_of(manifest), 1)


@attack
async def uuids_of_other_nodes(world: AttackedCluster) -> None:
    """Say the uuids of honest nodes' devices, and one uuid for all devices of a node."""
    honest = [o for o in await world.api.some("DeviceInventory", 20) if o["spec"]["driver"] == DRIVER][:10]
    for n, real in enumerate(honest):
        await world.node(f"liar-{n}", real["spec"]["devices"])
    for n in range(10, 14):
        await world.node(f"liar-{n}", [_device(k, uuid="GPU-one-for-all") for k in range(16)])
    world.strike()


@attack
async def slices_deleted(world: AttackedCluster) -> None:
    """Delete the slices of a node and ask for them again 20 times a second, as a kubelet in a loop would."""
    names = [f"liar-{n}" for n in range(4)]
    paths = [await world.node(name, [_device(k) for k in range(8)]) for name in names]
    world.strike()
    async for i in world.ticks(20):
        await world.api.delete("ResourceSlice", slice_name(names[i % len(names)], DRIVER, 0))
        await world.register(paths[i % len(paths)], 2 + i)


@attack
async def nodes_come_and_go(world: AttackedCluster) -> None:
    """Join and leave the cluster ten times a second."""
    world.strike()
    async for i in world.ticks(10):
        name = f"liar-{i % 20}"
        if i >= 20:
            await world.api.delete("Node", name)
            await world.api.delete("DeviceInventory", f"{name}.{DRIVER}")
        await world.node(name, [_device(k) for k in range(8)])
