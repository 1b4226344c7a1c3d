"""What is kept of the slices of other drivers, what is found in it, and which nodes are looked at again."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

import builders
import virtual_time
from builders import DRIVER, device
from fake_client import FakeClient

from controller.publish.other_drivers import OtherDrivers
from controller.publish.publisher import POOL_INDEX, pool_of
from dra_driver.api import codec
from dra_driver.api.core import Node
from dra_driver.api.meta import DriverName, PoolName
from dra_driver.api.own.inventory import DeviceInventory
from dra_driver.api.resource import RESOURCE_SLICES
from dra_driver.kube import Informer
from dra_driver.ownership import PoolID

OTHER, SECOND = DriverName("gpu.other.example"), DriverName("nic.dra-driver.dev")
BUS_ID = "resource.kubernetes.io/pciBusID"
A, B, C = "0000:3b:00.0", "0000:5e:00.0", "0000:86:00.0"
EVERYWHERE = "everywhere"


class World:
    """Follows slices, and notes what is to be looked at."""

    def __init__(self) -> None:
        self.cluster = FakeClient()
        self.slices = Informer(self.cluster, RESOURCE_SLICES, indices={POOL_INDEX: pool_of})
        self.told: list[tuple[str, str]] = []
        self.held: dict[PoolID, list[str]] = {}
        self.found = OtherDrivers(
            self.slices,
            [DriverName(DRIVER), SECOND],
            appeared=lambda node: self.told.append(("appeared", node)),
            vanished=lambda node: self.told.append(("vanished", node)),
            everywhere=lambda: self.told.append((EVERYWHERE, "")),
            held=lambda pool: self.held.get(pool, ()),
            slices_of=lambda pool: self.slices.by_index(POOL_INDEX, pool),
        )

    async def put(self, name: str, *devices: dict[str, Any], **more: Any) -> list[tuple[str, str]]:
        """Have a slice as it is to be; return what is looked at again because of it."""
        more = {"node": "n1", "driver": OTHER, **more}
        body = builders.resource_slice(more.pop("node"), *devices, name=name, **more)
        if not body["spec"]["nodeName"]:
            del body["spec"]["nodeName"]
            body["spec"]["pool"]["name"] = "several"
        self.cluster.put(RESOURCE_SLICES, body)
        return await self.heard()

    async def remove(self, name: str) -> list[tuple[str, str]]:
        self.cluster.remove(RESOURCE_SLICES, name)
        return await self.heard()

    async def heard(self) -> list[tuple[str, str]]:
        await asyncio.sleep(1)
        told, self.told[:] = sorted(self.told), []
        return told

    def offers(
        self, *addresses: str, node: Node | None = None, uuid: str = "", driver: str = DRIVER
    ) -> dict[str, list[str]]:
        """Return the pools that have devices of ours on ``n1``, as ``driver/pool``."""
        more = {"uuid": uuid} if uuid else {}
        devices = [device(f"gpu-{i}", attributes={BUS_ID: a, **more}) for i, a in enumerate(addresses)]
        inventory = codec.convert(DeviceInventory, builders.inventory("n1", *devices, driver=driver))
        found = self.found.elsewhere(inventory, node)
        return {name: [str(pool) for pool in pools] for name, pools in found.offers.items()}

    def keeps_nothing(self) -> bool:
        return not (self.found._slices or self.found._pools or self.found._wide)


@contextlib.asynccontextmanager
async def following() -> AsyncIterator[World]:
    world = World()
    task = asyncio.create_task(world.slices.run())
    await world.slices.synced.wait()
    try:
        yield world
    finally:
        task.cancel()
        await asyncio.wait({task})


def run(scenario: Callable[[World], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        async with following() as world:
            await scenario(world)

    virtual_time.run(main())


def at(*addresses: str, **more: Any) -> list[dict[str, Any]]:
    return [device(f"dev-{i}", attributes={BUS_ID: a}, **more) for i, a in enumerate(addresses)]


def labelled(zone: str) -> Node:
    node: Node = codec.convert(Node, builders.node("n1", labels={"zone": zone}))
    return node


def zone(name: str) -> dict[str, Any]:
    expressions = [{"key": "zone", "operator": "In", "values": [name]}]
    return {"nodeSelectorTerms": [{"matchExpressions": expressions}]}


def test_a_device_is_described_for_as_long_as_any_slice_does() -> None:
    async def scenario(world: World) -> None:
        assert await world.put("one", *at(A)) == [("appeared", "n1")]
        assert world.offers(A, B) == {"gpu-0": [f"{OTHER}/n1"]}
        # The next generation of the pool, beside this one.
        assert await world.put("two", *at(A, B), generation=2) == [("appeared", "n1")]
        assert await world.remove("one") == [("vanished", "n1")]
        assert world.offers(A, B) == {"gpu-0": [f"{OTHER}/n1"], "gpu-1": [f"{OTHER}/n1"]}
        assert await world.remove("two") == [("vanished", "n1")]
        assert world.offers(A, B) == {}
        assert world.keeps_nothing()

    run(scenario)


def test_only_what_changes_has_a_node_looked_at() -> None:
    async def scenario(world: World) -> None:
        await world.put("one", *at(A, B))
        # Another attribute, and a device that nothing identifies.
        taken = {"effect": "NoSchedule", "key": "x"}
        assert await world.put("one", *at(A, B, taints=[taken]), device("dev-9")) == []
        assert await world.put("one", *at(A, C)) == [("appeared", "n1"), ("vanished", "n1")]
        assert await world.put("one", *at(A)) == [("vanished", "n1")]
        assert await world.put("one", *at(A), node="n2") == [("appeared", "n2"), ("vanished", "n1")]
        assert await world.put("one", device("dev-9"), node="n2") == [("vanished", "n2")]
        assert world.keeps_nothing()

    run(scenario)


def test_slices_for_several_nodes_count_where_they_select_the_node() -> None:
    async def scenario(world: World) -> None:
        assert not world.found.looks_at_labels
        selected = await world.put("wide", *at(A, B), node="", nodeSelector=zone("a"))
        assert selected == [(EVERYWHERE, "")]
        assert world.found.looks_at_labels
        assert set(world.offers(A, node=labelled("a"))) == {"gpu-0"}
        assert world.offers(A, node=labelled("b")) == {}
        assert world.offers(A) == {}
        assert await world.put("more", *at(A), node="", nodeSelector=zone("b")) == [(EVERYWHERE, "")]
        for name in ("a", "b"):
            assert set(world.offers(A, node=labelled(name))) == {"gpu-0"}
        assert await world.remove("wide") == [(EVERYWHERE, "")]
        assert world.offers(A, node=labelled("a")) == {}
        assert set(world.offers(A, node=labelled("b"))) == {"gpu-0"}
        assert await world.remove("more") == [(EVERYWHERE, "")]
        assert not world.found.looks_at_labels
        assert world.keeps_nothing()

    run(scenario)


def test_of_a_slice_for_all_nodes_uuids_count_and_no_label_matters() -> None:
    async def scenario(world: World) -> None:
        both = device("dev-0", attributes={BUS_ID: A, "uuid": "GPU-7"})
        await world.put("all", both, node="", allNodes=True)
        assert not world.found.looks_at_labels
        assert world.offers(A) == {}
        assert set(world.offers(B, uuid="GPU-7")) == {"gpu-0"}
        await world.put("wide", *at(A), node="", nodeSelector=zone("a"))
        assert world.found.looks_at_labels

    run(scenario)


def test_devices_that_select_their_nodes_themselves_are_described_there() -> None:
    async def scenario(world: World) -> None:
        devices = [*at(A, nodeName="n1"), device("dev-1", attributes={BUS_ID: B}, nodeName="n2")]
        told = await world.put("own", *devices, node="", perDeviceNodeSelection=True)
        assert told == [("appeared", "n1"), ("appeared", "n2")]
        assert set(world.offers(A, B)) == {"gpu-0"}

    run(scenario)


def test_what_our_other_drivers_publish_for_the_node_counts_too() -> None:
    async def scenario(world: World) -> None:
        assert await world.put("ours", *at(A), driver=DRIVER) == []
        assert await world.put("nics", *at(B), driver=SECOND) == []
        assert world.offers(A, B, C) == {"gpu-1": [f"{SECOND}/n1"]}
        assert world.offers(A, B, C, driver=SECOND) == {"gpu-0": [f"{DRIVER}/n1"]}
        # Its pool has the name of the node; a slice of another node in it counts for nothing.
        other = builders.resource_slice("n2", *at(C), name="stray", driver=SECOND)
        other["spec"]["pool"]["name"] = "n1"
        world.cluster.put(RESOURCE_SLICES, other)
        await world.heard()
        assert world.offers(C) == {}
        assert world.keeps_nothing()

    run(scenario)


def test_a_slice_that_has_become_ours_is_not_kept() -> None:
    """It was deleted and made anew while the watch was away."""

    async def scenario(world: World) -> None:
        await world.put("one", *at(A))
        assert await world.put("one", *at(A), driver=DRIVER) == [("vanished", "n1")]
        assert world.keeps_nothing()

    run(scenario)


def test_of_the_pools_that_describe_one_device_some_are_enough() -> None:
    async def scenario(world: World) -> None:
        for i in range(20):
            await world.put(f"s{i}", *at(A), driver=f"gpu{i}.example")
        assert len(world.offers(A)["gpu-0"]) == 16

    run(scenario)


def test_pools_count_of_which_claims_have_devices_that_no_slice_describes() -> None:
    pool, plain = PoolID(OTHER, PoolName("n1")), PoolID(OTHER, PoolName("n2"))
    body = builders.inventory("n1")
    notes = [{"driver": OTHER, "pools": ["n1", "n2"], "devices": ["gpu-0"]}]
    body["status"]["publication"] = {"otherDrivers": notes}
    inventory = codec.convert(DeviceInventory, body)

    async def scenario(world: World) -> None:
        def held(**devices: list[str]) -> frozenset[PoolID]:
            world.held = {PoolID(OTHER, PoolName(name)): found for name, found in devices.items()}
            return world.found.elsewhere(inventory, None).held

        assert held() == frozenset()
        assert held(n1=["dev-0"]) == {pool}
        assert held(n1=["dev-0"], n2=["dev-0"], n3=["dev-0"]) == {pool, plain}
        await world.put("one", *at(A))
        assert held(n1=["dev-0"], n2=["dev-0"]) == {plain}
        assert held(n1=["dev-0", "dev-1"]) == {pool}

    run(scenario)
