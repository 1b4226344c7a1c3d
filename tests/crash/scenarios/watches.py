"""Watches that expire: the API server has forgotten the history (410), again and again."""

from __future__ import annotations

import random
import uuid
from typing import Any

import grpc.aio
from crash_script import Life, populate, script_of
from crash_world import NODE, CrashedNode

from dra_driver.api.own.inventory import DEVICE_INVENTORIES, inventory_name
from dra_driver.api.resource import RESOURCE_SLICES
from dra_driver.sim.apiserver.storage.store import Key
from dra_driver.sim.faults import parse
from dra_driver.wire import pluginregistration_pb2, pluginregistration_pb2_grpc
from scenarios.kills import plans

_STORM = "expire watches every 100ms; drop watches every 700ms"


async def expire(world: CrashedNode, chance: random.Random) -> None:
    """Expire all watches while claims come and go; an agent has to see what changes all the same.

    What it has to see: that the slices which were published for its present epoch are gone.
    """
    populate(world)
    life = Life(world, plans(chance, 3))
    await life.begin()
    script = script_of(world, chance)
    for number, step in enumerate(script):
        if number % 4 == 0:
            world.figures.faults += 1
            world.server.set_faults(parse(_STORM, seed=number))
        await life.do(step)
        if chance.random() < 0.2:
            await life.restart()
    await life.restart()
    await _see_slices_go(world)
    world.server.set_faults(None)
    await life.finish()


async def _see_slices_go(world: CrashedNode) -> None:
    await _register(world)
    await world.eventually("the registration is not written", lambda: _registration(world).get("registered"))
    epoch = _registration(world)["epoch"]
    name = f"{NODE}-slice"
    slices = world.server.store.collection(RESOURCE_SLICES.group, RESOURCE_SLICES.plural)
    spec = {
        "driver": world.driver,
        "nodeName": NODE,
        "pool": {"name": NODE, "resourceSliceCount": 1},
        "devices": [],
    }
    metadata = {"name": name, "uid": str(uuid.uuid4())}
    body = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": metadata, "spec": spec}
    slices.put(Key("", name), body)
    _publish(world, epoch, name)
    slices.remove(Key("", name))
    await world.eventually(
        "nobody sees that the slices are gone", lambda: _registration(world)["epoch"] > epoch
    )


async def _register(world: CrashedNode) -> None:
    """Do what the kubelet does when it finds the registrar."""
    async with grpc.aio.insecure_channel(f"unix:{world.registrar()}") as channel:
        stub = pluginregistration_pb2_grpc.RegistrationStub(channel)
        await stub.GetInfo(pluginregistration_pb2.InfoRequest())
        await stub.NotifyRegistrationStatus(pluginregistration_pb2.RegistrationStatus(plugin_registered=True))


def _registration(world: CrashedNode) -> dict[str, Any]:
    found: dict[str, Any] = world.inventory().get("status", {}).get("registration", {})
    return found


def _publish(world: CrashedNode, epoch: int, name: str) -> None:
    """Note what a controller notes that has published one slice."""
    collection = world.server.store.collection(DEVICE_INVENTORIES.group, DEVICE_INVENTORIES.plural)
    body = world.inventory()
    body["status"]["publication"] = {"epoch": epoch, "attempted": epoch, "generation": 1, "slices": [name]}
    collection.put(Key("", inventory_name(NODE, world.driver)), body)
