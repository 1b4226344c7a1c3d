"""Another DRA driver that publishes the same devices: they are withheld with the reason, and come back."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import builders
import pytest
import virtual_time
from builders import DRIVER
from builders import NAMESPACE as NS
from fake_client import FakeClient
from running_controller import running

from dra_driver.api.core import EVENTS, NODES, PODS
from dra_driver.api.meta import DriverName
from dra_driver.api.own.inventory import DEVICE_INVENTORIES, DeviceInventory, inventory_name
from dra_driver.api.own.policy import DEVICE_POLICIES
from dra_driver.api.resource import DEVICE_CLASSES, RESOURCE_CLAIMS, RESOURCE_SLICES
from dra_driver.ownership import PoolAllocator
from dra_driver.publishing import LEAVING_SECONDS, conditions

OTHER = "gpu.other.example"
BUS_ID = "resource.kubernetes.io/pciBusID"
ADDRESSES = ("0000:3b:00.0", "0000:5e:00.0")


def put_node(made: FakeClient, name: str, *, driver: str = DRIVER, **labels: str) -> None:
    made.put(NODES, {**builders.node(name, uid=f"uid-{name}", labels=labels)})
    devices = [
        builders.device(f"gpu-{i}", attributes={"type": "gpu", BUS_ID: a, "uuid": f"GPU-{name}-{i}"})
        for i, a in enumerate(ADDRESSES)
    ]
    made.put(DEVICE_INVENTORIES, builders.inventory(name, *devices, driver=driver))


def cluster() -> FakeClient:
    """Two nodes with devices at the same addresses."""
    made = FakeClient()
    put_node(made, "n1")
    put_node(made, "n2", zone="b")
    made.put(DEVICE_CLASSES, builders.device_class("gpu", f'device.driver == "{DRIVER}"'))
    return made


def other_slice(
    *addresses: str, node: str = "n1", name: str = "other", driver: str = OTHER, **more: Any
) -> dict[str, Any]:
    """A slice of another driver; ``more`` of its spec."""
    devices = [builders.device(f"dev-{i}", attributes={BUS_ID: a}) for i, a in enumerate(addresses)]
    made = builders.resource_slice(node, *devices, driver=driver, name=name, **more)
    if not node:
        del made["spec"]["nodeName"]
        made["spec"]["pool"]["name"] = "several"
    return made


def inventory_of(made: FakeClient, node: str = "n1", driver: str = DRIVER) -> DeviceInventory:
    found: DeviceInventory = made.obj(DEVICE_INVENTORIES, inventory_name(node, driver))
    return found


def published(made: FakeClient, node: str = "n1", driver: str = DRIVER) -> tuple[str, set[str]]:
    """Reason of the condition, and names of the devices in slices."""
    slices = [s for s in made.all(RESOURCE_SLICES) if (s.spec.node_name, s.spec.driver) == (node, driver)]
    present = inventory_of(made, node, driver).status.conditions
    reason = next((c.reason for c in present if c.type == conditions.PUBLISHED), "")
    return reason, {d.name for s in slices for d in s.spec.devices}


def message(made: FakeClient, node: str = "n1") -> str:
    (condition,) = (c for c in inventory_of(made, node).status.conditions if c.type == conditions.PUBLISHED)
    return str(condition.message)


ALL = ("Published", {"gpu-0", "gpu-1"})
FIRST_WITHHELD = ("OtherDriverPresent", {"gpu-1"})
NONE_LEFT: tuple[str, set[str]] = ("OtherDriverPresent", set())


async def becomes(
    made: FakeClient, expected: tuple[str, set[str]], node: str = "n1", driver: str = DRIVER
) -> None:
    while published(made, node, driver) != expected:
        await asyncio.sleep(0.01)


async def stays(made: FakeClient, expected: tuple[str, set[str]], seconds: float, node: str = "n1") -> None:
    for _ in range(int(seconds * 2)):
        assert published(made, node) == expected
        await asyncio.sleep(0.5)


def run(
    made: FakeClient,
    scenario: Callable[[], Awaitable[None]],
    allocator: PoolAllocator = PoolAllocator.SCHEDULER,
    drivers: tuple[DriverName, ...] = (DriverName(DRIVER),),
) -> None:
    async def main() -> None:
        async with running(made, 2000, drivers=drivers, allocator=allocator):
            await scenario()

    virtual_time.run(main())


# --- by default ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("allocator", list(PoolAllocator))
def test_a_device_that_another_driver_publishes_is_withheld_and_people_are_told(
    allocator: PoolAllocator,
) -> None:
    made = cluster()
    made.put(RESOURCE_SLICES, other_slice(ADDRESSES[0].upper()))

    async def scenario() -> None:
        await becomes(made, FIRST_WITHHELD)
        for word in (
            OTHER,
            "n1",
            "1 device (gpu-0)",
            "1 device in 1 ResourceSlice",
            "besideOtherDriver",
            "delete",
        ):
            assert word in message(made)
        (note,) = inventory_of(made).status.publication.other_drivers
        assert (note.driver, note.pools, note.devices) == (OTHER, ("n1",), ("gpu-0",))
        while not any(e.reason == "OtherDriverPresent" and e.type == "Warning" for e in made.all(EVENTS)):
            await asyncio.sleep(0.01)
        await becomes(made, ALL, node="n2")

    run(made, scenario, allocator)


def test_a_pool_that_is_published_gives_up_what_another_driver_begins_to_publish() -> None:
    made = cluster()

    async def scenario() -> None:
        await becomes(made, ALL)
        made.put(RESOURCE_SLICES, other_slice(*ADDRESSES))
        await becomes(made, NONE_LEFT)
        assert "2 devices (gpu-0, gpu-1)" in message(made)
        await stays(made, ALL, 5, node="n2")

    run(made, scenario)


@pytest.mark.parametrize(
    "harmless",
    [
        # A network device at the same root complex, and one that has no address at all.
        {"resource.kubernetes.io/pcieRoot": "pci0000:3b"},
        {"type": "channel", "id": 0},
        {BUS_ID: "0000:3b:00.1"},
        {BUS_ID: "none"},
    ],
)
def test_devices_beside_ours_do_not_matter(harmless: dict[str, Any]) -> None:
    made = cluster()
    beside = builders.device("near", attributes=harmless)
    made.put(RESOURCE_SLICES, builders.resource_slice("n1", beside, driver=OTHER, name="other"))

    async def scenario() -> None:
        await becomes(made, ALL)
        await stays(made, ALL, 5)

    run(made, scenario)


def test_an_admin_publishes_them_all_the_same() -> None:
    made = cluster()
    made.put(RESOURCE_SLICES, other_slice(*ADDRESSES))

    async def scenario() -> None:
        await becomes(made, NONE_LEFT)
        first = [{"cel": {"expression": f'device.attributes["{DRIVER}"].uuid == "GPU-n1-0"'}}]
        spec = {"besideOtherDriver": "publish", "deviceSelectors": first}
        made.put(DEVICE_POLICIES, {"metadata": {"name": "only-network", "generation": 1}, "spec": spec})
        await becomes(made, ("OtherDriverPresent", {"gpu-0"}))
        (note,) = inventory_of(made).status.publication.other_drivers
        assert note.devices == ("gpu-1",)
        made.remove(DEVICE_POLICIES, "only-network")
        await becomes(made, NONE_LEFT)

    run(made, scenario)


def test_what_nvidias_driver_publishes_is_recognised() -> None:
    """Slices as its plugin made them on its simulated NVML in November 2026, with other names and numbers.

    With partitions on demand it has a slice for the counters of all GPUs and one for each GPU. By its source
    a GPU for virtual machines is a further device at the same address.
    """
    made = cluster()

    def part(number: int, *devices: dict[str, Any], **more: Any) -> dict[str, Any]:
        name = f"0000{number}-{OTHER}-n1-abcde"
        return builders.resource_slice("n1", *devices, driver=OTHER, name=name, generation=2, count=3, **more)

    facts = {
        "type": "gpu",
        "architecture": "Hopper",
        "productName": "H100",
        "uuid": "GPU-01000100-0000-0000-0000-01",
    }
    gpu = builders.device("gpu-0", "80Gi", attributes={**facts, BUS_ID: ADDRESSES[0]})
    virtual = builders.device("gpu-vfio-1", attributes={"type": "vfio", "numa": 0, BUS_ID: ADDRESSES[1]})
    counters = [{"name": "gpu-0-counter-set", "counters": {"memory": {"value": "80Gi"}}}]
    channel = builders.device("channel-0", attributes={"type": "channel", "id": 0})
    domains = builders.resource_slice("n1", channel, driver="compute-domain.other.example", name="domains")

    async def scenario() -> None:
        await becomes(made, ALL)
        made.put(RESOURCE_SLICES, domains)
        made.put(RESOURCE_SLICES, part(0, sharedCounters=counters))
        await stays(made, ALL, 5)
        made.put(RESOURCE_SLICES, part(1, gpu))
        await becomes(made, FIRST_WITHHELD)
        made.put(RESOURCE_SLICES, part(2, virtual))
        await becomes(made, NONE_LEFT)
        (note,) = inventory_of(made).status.publication.other_drivers
        assert (note.driver, note.devices) == (OTHER, ("gpu-0", "gpu-1"))

    run(made, scenario)


# --- which node ---------------------------------------------------------------------------------------------


def test_a_slice_counts_for_the_nodes_that_it_is_for_and_no_others() -> None:
    """Addresses are the same on all nodes of a kind."""
    made = cluster()
    zone = {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["b"]}]}
    selector = {"nodeSelectorTerms": [zone]}

    async def scenario() -> None:
        await becomes(made, ALL)
        await becomes(made, ALL, node="n2")
        made.put(RESOURCE_SLICES, other_slice(ADDRESSES[0], node="", nodeSelector=selector))
        await becomes(made, FIRST_WITHHELD, node="n2")
        await stays(made, ALL, 20)
        # The node's labels change: the slice is for the other one as well.
        made.edit(NODES, "n1", {"metadata": {"labels": {"zone": "b"}}})
        await becomes(made, FIRST_WITHHELD)

    run(made, scenario)


def test_of_slices_for_all_nodes_uuids_count_and_addresses_do_not() -> None:
    made = cluster()

    async def scenario() -> None:
        await becomes(made, ALL)
        body = other_slice(*ADDRESSES, node="", allNodes=True)
        body["spec"]["devices"] += [builders.device("far", attributes={"x.example/uuid": "gpu-N2-1"})]
        made.put(RESOURCE_SLICES, body)
        await becomes(made, ("OtherDriverPresent", {"gpu-0"}), node="n2")
        await stays(made, ALL, 20)

    run(made, scenario)


def test_devices_that_select_their_nodes_themselves_count_for_these() -> None:
    made = cluster()
    devices = [
        builders.device("a", attributes={BUS_ID: ADDRESSES[0]}, nodeName="n2"),
        builders.device("b", attributes={BUS_ID: ADDRESSES[1]}, allNodes=True),
    ]
    body = builders.resource_slice(
        "several", *devices, driver=OTHER, name="other", perDeviceNodeSelection=True
    )
    del body["spec"]["nodeName"]
    made.put(RESOURCE_SLICES, body)

    async def scenario() -> None:
        await becomes(made, FIRST_WITHHELD, node="n2")
        await becomes(made, ALL)
        await stays(made, ALL, 5)

    run(made, scenario)


# --- other drivers that come and go -------------------------------------------------------------------------


def test_a_driver_that_has_gone_is_waited_for_and_a_restart_of_the_controller_forgets_nothing() -> None:
    """A kubelet deletes the slices of a plugin that it has not heard of for half a minute."""
    made = cluster()
    made.put(RESOURCE_SLICES, other_slice(ADDRESSES[0]))

    async def gone() -> None:
        await becomes(made, FIRST_WITHHELD)
        made.remove(RESOURCE_SLICES, "other")
        await stays(made, FIRST_WITHHELD, LEAVING_SECONDS - 5)
        assert "until a moment ago" in message(made)
        made.put(RESOURCE_SLICES, other_slice(ADDRESSES[0]))
        await stays(made, FIRST_WITHHELD, LEAVING_SECONDS + 5)
        assert "publishes 1 device" in message(made)
        made.remove(RESOURCE_SLICES, "other")

    async def restarted() -> None:
        await stays(made, FIRST_WITHHELD, LEAVING_SECONDS - 5)
        await becomes(made, ALL)
        assert inventory_of(made).status.publication.other_drivers == ()

    run(made, gone)
    run(made, restarted)


def test_a_plugin_that_starts_again_and_again_costs_few_writes() -> None:
    made = cluster()
    made.put(RESOURCE_SLICES, other_slice(ADDRESSES[0]))

    async def scenario() -> None:
        await becomes(made, FIRST_WITHHELD)
        writes = len(made.writes)
        for _ in range(60):
            made.remove(RESOURCE_SLICES, "other")
            await asyncio.sleep(0.2)
            made.put(RESOURCE_SLICES, other_slice(ADDRESSES[0]))
            await asyncio.sleep(0.3)
        assert len(made.writes) - writes < 20
        assert published(made) == FIRST_WITHHELD

    run(made, scenario)


def put_claim(made: FakeClient, name: str, device: str, driver: str, **more: Any) -> None:
    found = builders.allocation(builders.result("n1", device, request="gpu", driver=driver, **more))
    status = {**found, **builders.reserved(name)}
    made.put(RESOURCE_CLAIMS, builders.claim(name, builders.request("gpu", "gpu"), status=status))


def test_devices_that_claims_have_of_a_driver_that_is_gone_stay_withheld() -> None:
    """Its pods run on: nothing tells them that the slices have gone."""
    made = cluster()
    made.put(RESOURCE_SLICES, other_slice(ADDRESSES[0], "0000:99:00.0"))
    put_claim(made, "runs", "dev-0", OTHER)

    async def scenario() -> None:
        await becomes(made, FIRST_WITHHELD)
        made.remove(RESOURCE_SLICES, "other")
        await stays(made, FIRST_WITHHELD, 4 * LEAVING_SECONDS)
        assert "claims still have" in message(made)
        assert "Drain the node" in message(made)
        # It is back without the device that the claim has, and it is not known which one that is.
        made.put(RESOURCE_SLICES, other_slice("0000:98:00.0", name="other"))
        made.edit(RESOURCE_SLICES, "other", {"spec": {"devices": [builders.device("dev-1")]}})
        await stays(made, FIRST_WITHHELD, 2 * LEAVING_SECONDS)
        made.remove(RESOURCE_CLAIMS, "runs", NS)
        async with asyncio.timeout(5):
            await becomes(made, ALL)

    run(made, scenario)


def test_claims_on_devices_that_are_described_as_others_do_not_count() -> None:
    made = cluster()
    made.put(RESOURCE_SLICES, other_slice("0000:98:00.0", ADDRESSES[0]))
    put_claim(made, "runs", "dev-0", OTHER)
    put_claim(made, "looks-on", "dev-1", OTHER, adminAccess=True)

    async def scenario() -> None:
        await becomes(made, FIRST_WITHHELD)
        made.put(RESOURCE_SLICES, other_slice("0000:98:00.0"))
        await stays(made, FIRST_WITHHELD, LEAVING_SECONDS - 5)
        await becomes(made, ALL)

    run(made, scenario)


# --- claims of ours -----------------------------------------------------------------------------------------


def test_claims_in_use_keep_their_devices_and_nothing_new_is_allocated() -> None:
    made = cluster()
    made.remove(NODES, "n2")
    put_claim(made, "holds", "gpu-0", DRIVER)

    async def scenario() -> None:
        await becomes(made, ALL)
        before = made.raw(RESOURCE_CLAIMS, "holds", NS)
        made.put(RESOURCE_SLICES, other_slice(*ADDRESSES))
        await becomes(made, NONE_LEFT)
        made.put(RESOURCE_CLAIMS, builders.claim("waits", builders.request("gpu", "gpu")))
        made.put(PODS, builders.pod("waits", "waits", uid="uid-waits", gated=True))
        await asyncio.sleep(30)
        assert made.obj(RESOURCE_CLAIMS, "waits", NS).status.allocation is None
        assert made.raw(RESOURCE_CLAIMS, "holds", NS) == before

    run(made, scenario, PoolAllocator.CONTROLLER)


# --- two of ours --------------------------------------------------------------------------------------------


def test_of_two_drivers_of_one_controller_one_publishes_a_device() -> None:
    second = DriverName("a.dra-driver.dev")
    made = cluster()
    put_node(made, "n1", driver=second)

    async def scenario() -> None:
        while True:
            found = [published(made, "n1", d)[1] for d in (DRIVER, second)]
            if sorted(map(len, found)) == [0, 2]:
                break
            await asyncio.sleep(0.5)
        winner = (DRIVER, second)[found.index({"gpu-0", "gpu-1"})]
        for _ in range(60):
            await asyncio.sleep(LEAVING_SECONDS / 10)
            assert [published(made, "n1", d)[1] for d in (DRIVER, second)] == found
        # The other one takes over when the winner has gone.
        loser = (DRIVER, second)[found.index(set())]
        made.remove(DEVICE_INVENTORIES, inventory_name("n1", winner))
        for slice_ in made.all(RESOURCE_SLICES):
            if slice_.spec.driver == winner:
                made.remove(RESOURCE_SLICES, slice_.metadata.name)
        await becomes(made, ALL, driver=loser)

    run(made, scenario, drivers=(DriverName(DRIVER), second))
