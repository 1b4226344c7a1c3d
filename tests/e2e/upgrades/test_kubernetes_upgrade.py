"""Kubernetes is upgraded, and taken back, under running pods: ``make upgrade-test BIN="DIR DIR…"``.

The cluster begins with the first release, and etcd stays. Each component is moved by itself, in the order of
Kubernetes' version skew policy, and after each of them all of the following holds: the pods' containers are
the same processes, claims have the same devices and stay prepared, no device is in two claims, the driver
publishes and allocates as the API server lets it, and other pods come and go. The driver is not touched on
the way: with ``E2E_PREVIOUS``, that version of it runs until the newest release of Kubernetes does.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import e2e_support
import pytest
from e2e_support import EXAMPLES, OBJECTS, SETUP, claim, eventually, every_node_published, leftovers
from local_actions import ask, processes

from dra_driver.api.core import NODES, PODS
from dra_driver.api.meta import DriverName
from dra_driver.api.names import ALLOCATION_GATE, DEFAULT_DRIVER_NAME
from dra_driver.api.own.inventory import DEVICE_INVENTORIES
from dra_driver.api.resource import RESOURCE_CLAIMS, RESOURCE_SLICES
from dra_driver.api.scheduling import POD_GROUP_VERSIONS, POD_GROUPS, SCHEDULING_GROUP, pod_groups
from dra_driver.kube.features import probe_features
from dra_driver.sim.demo import checks as example_checks
from dra_driver.sim.demo import examples

if TYPE_CHECKING:
    from e2e_support import Background, Cluster

    from dra_driver.resourceslice import ServerFeatures

RELEASES: Final = os.environ.get("E2E_RELEASES", "").split()
pytestmark = [
    pytest.mark.e2e,
    pytest.mark.timeout(600),
    pytest.mark.skipif(
        len(RELEASES) < 2, reason='needs several releases of Kubernetes: make upgrade-test BIN="DIR DIR"'
    ),
]

# The order of Kubernetes' version skew policy; back in the opposite one.
COMPONENTS: Final = ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet")
# Without several releases there is one of each, so that the reason for skipping it is told.
UP: Final = [(release, name) for release in RELEASES[1:] or [""] for name in COMPONENTS]
BACK: Final = [(release, name) for release in RELEASES[-2::-1] or [""] for name in reversed(COMPONENTS)]

NAMESPACE: Final = "dra-e2e-upgrade"
# Without the label: kube-scheduler looks at these pods whoever allocates their claims.
PLAIN: Final = "dra-e2e-upgrade-plain"
MODEL: Final = f'device.attributes["{DEFAULT_DRIVER_NAME}"].?model.orValue("")'
# A whole GPU of a kind that no policy of the examples changes.
WHOLE: Final = {
    "deviceClassName": DEFAULT_DRIVER_NAME,
    "selectors": [{"cel": {"expression": f'{MODEL}.startsWith("H100")'}}],
}
NIC: Final = {"name": "nic", "exactly": {"deviceClassName": "rdma.dra-driver.dev"}}
DRIVER: Final = DriverName(DEFAULT_DRIVER_NAME)
GATING: Final = ("admissionregistration.k8s.io", "v1")
# Until the driver has found out what another API server keeps, and has carried it out.
TAKEN_UP_SECONDS: Final = 180.0


@dataclass(frozen=True)
class Kept:
    """What has to stay as it is: of pods, of claims, of the node."""

    pods: Mapping[str, tuple[object, ...]]
    processes: Mapping[str, frozenset[int]]
    claims: Mapping[str, tuple[object, ...]]
    prepared: frozenset[str]


@dataclass
class World:
    """The cluster, what was seen at the start, and the controllers and agents that run."""

    cluster: Cluster
    version: str = ""
    kept: Kept | None = None
    driver: Mapping[str, str] = field(default_factory=dict)
    number: int = 0

    def other(self) -> str:
        """A name that no pod had yet."""
        self.number += 1
        return f"other-{self.number}"


# Pod → what sleeps in it, which no other process of the node does; and its claim.
SLEEPS: Final = {"whole": "36001", "left": "36002", "right": "36003", "nic": "36004", "plain": "36005"}
CLAIMS: Final = {"whole": "whole", "left": "shared", "right": "shared", "nic": "nic", "plain": "plain"}


def namespace_of(name: str) -> str:
    return PLAIN if name == "plain" else NAMESPACE


@pytest.fixture(scope="module")
def world(background: Background) -> Iterator[World]:
    manager = e2e_support.open_cluster("local")
    cluster = background.run(manager.__aenter__())
    made = World(cluster)

    async def begin() -> None:
        assert cluster.actions is not None
        if os.environ.get("E2E_PREVIOUS"):
            made.version = await cluster.actions.previous()
            assert not made.version.startswith("- "), made.version
        await examples.apply(cluster.api, SETUP)
        await e2e_support.make_namespace(cluster, NAMESPACE)
        await examples.apply(
            cluster.api, [{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": PLAIN}}]
        )
        bodies = [claim(NAMESPACE, "whole", WHOLE), claim(NAMESPACE, "shared", WHOLE)]
        bodies += [claim(NAMESPACE, "nic", NIC), claim(PLAIN, "plain", WHOLE)]
        for name, seconds in SLEEPS.items():
            command = f"exec sleep {seconds}"
            bodies.append(e2e_support.pod(namespace_of(name), name, CLAIMS[name], command=command))
        await examples.apply(cluster.api, bodies)
        for name in SLEEPS:
            await e2e_support.running(cluster, namespace_of(name), name)
        made.kept = await look(cluster)
        made.driver = await driver_containers(cluster)

    try:
        background.run(begin())
        yield made
    finally:
        background.run(manager.__aexit__(None, None, None))


async def look(cluster: Cluster) -> Kept:
    """Return what is kept as it is now."""
    pods: dict[str, tuple[object, ...]] = {}
    claims: dict[str, tuple[object, ...]] = {}
    for name, used in CLAIMS.items():
        namespace = namespace_of(name)
        raw = await raw_pod(cluster, namespace, name)
        containers = [
            (c["containerID"], c["restartCount"], "running" in c["state"])
            for c in raw["status"]["containerStatuses"]
        ]
        pods[name] = (raw["metadata"]["uid"], raw["status"]["phase"], *containers)
        found = await cluster.api.get(RESOURCE_CLAIMS, used, namespace)
        allocation = found.status.allocation
        assert allocation is not None, f"claim {used} has lost its devices"
        devices = [(r.driver, r.pool, r.device) for r in allocation.devices.results]
        users = sorted(r.name for r in found.status.reserved_for)
        claims[used] = (found.metadata.uid, *devices, *users)
    (node,) = (await cluster.api.list(NODES)).items
    left = [t for t in leftovers(cluster, node.metadata.name) if t.endswith(tuple(claims))]
    running = {name: frozenset(processes("sleep", seconds)) for name, seconds in SLEEPS.items()}
    return Kept(pods, running, claims, frozenset(t for t in left if "checkpoint entry" in t))


async def raw_pod(cluster: Cluster, namespace: str, name: str) -> dict[str, Any]:
    body = await cluster.api._call("GET", f"/api/v1/namespaces/{namespace}/pods/{name}")
    found: dict[str, Any] = json.loads(body)
    return found


async def driver_containers(cluster: Cluster) -> dict[str, str]:
    """Return the driver's pods with the IDs and restarts of their containers."""
    body = json.loads(await cluster.api._call("GET", "/api/v1/namespaces/dra-driver/pods"))
    return {
        p["metadata"]["name"]: " ".join(
            f"{c['containerID']} {c['restartCount']}" for c in p["status"].get("containerStatuses", ())
        )
        for p in body["items"]
    }


async def twice(cluster: Cluster) -> list[str]:
    """Return devices that several claims have, unshared."""
    held: Counter[str] = Counter()
    for item in (await cluster.api.list(RESOURCE_CLAIMS)).items:
        allocation = item.status.allocation
        for result in allocation.devices.results if allocation is not None else ():
            if result.share_id is None and not result.admin_access:
                held[f"{result.driver} {result.pool} {result.device}"] += 1
    return [device for device, number in held.items() if number > 1]


async def allocates_as_the_server_lets_it(cluster: Cluster) -> ServerFeatures:
    """Wait until the pools are published for what the API server keeps; return that."""
    features = await probe_features(cluster.api, DRIVER)
    wanted = "controller" if features.taints else "scheduler"

    async def published() -> bool:
        if not await every_node_published(cluster):
            return False
        # Where what sets the gate is installed, pools are open.
        opened: set[str] = set()
        for inventory in (await cluster.api.list(DEVICE_INVENTORIES)).items:
            (condition,) = (c for c in inventory.status.conditions if c.type == "Published")
            gates_named = all(f"{gate}" in condition.message for gate in features.missing_gates())
            off = condition.reason == "FeatureGateDisabled"
            allocator = inventory.status.publication.allocator
            if allocator not in (wanted, "open"):
                return False
            if allocator == "open":
                # Nothing need be missing: it does without taints.
                opened.add(inventory.spec.node_name)
            elif off is not bool(features.missing_gates()):
                return False
            if off and not gates_named:
                return False
        slices = (await cluster.api.list(RESOURCE_SLICES)).items
        protected = [s for s in slices if s.spec.node_name not in opened]
        return bool(slices) and all(
            bool(d.taints) >= features.taints for s in protected for d in s.spec.devices
        )

    await eventually(f"the {wanted} to allocate, as the API server lets it", published, TAKEN_UP_SECONDS)
    return features


async def another_comes_and_goes(world: World, namespace: str) -> None:
    cluster, name = world.cluster, world.other()
    await examples.apply(
        cluster.api,
        [claim(namespace, name, WHOLE), e2e_support.pod(namespace, name, name, command="exec sleep 60")],
    )
    (found,) = await e2e_support.running(cluster, namespace, name)
    assert await twice(cluster) == []
    await cluster.api.delete(PODS, name, namespace)

    async def free() -> bool:
        used = await cluster.api.get(RESOURCE_CLAIMS, name, namespace)
        entry = f"checkpoint entry of {namespace}/{name}"
        return used.status.allocation is None and entry not in str(leftovers(cluster, found.spec.node_name))

    await eventually(f"the device of {name} to be given back", free)
    await cluster.api.delete(RESOURCE_CLAIMS, name, namespace)


async def check(world: World) -> None:
    """Check that nothing was lost, and that the cluster works."""
    cluster = world.cluster
    assert world.kept is not None
    if not world.version:
        await allocates_as_the_server_lets_it(cluster)
    else:
        await eventually("all devices to be published", lambda: every_node_published(cluster))
    async with asyncio.TaskGroup() as group:
        for namespace in (NAMESPACE, PLAIN):
            group.create_task(another_comes_and_goes(world, namespace))
    assert await look(cluster) == world.kept
    assert await twice(cluster) == []


async def move(world: World, release: str, name: str, *, beside: bool) -> None:
    if name == "kube-apiserver" and beside:
        await ask("replace_server", release=release)
    else:
        await ask("move", name=name, release=release)
    await check(world)


def test_pods_run_on_the_first_release(background: Background, world: World) -> None:
    background.run(check(world))


@pytest.mark.parametrize(("release", "name"), UP)
def test_pods_outlive_the_upgrade_of(background: Background, world: World, release: str, name: str) -> None:
    # The last time as with several API servers: the driver is never without one, and never starts anew.
    last = release == RELEASES[-1]
    if last and name == COMPONENTS[0]:
        world.driver = background.run(driver_containers(world.cluster))
    background.run(move(world, release, name, beside=last))
    if last:
        assert background.run(driver_containers(world.cluster)) == world.driver


@pytest.mark.parametrize("source", ["07-mig-profile", "08-half-a-gpu"])
def test_what_the_last_release_serves_is_there_without_a_restart(
    background: Background, world: World, source: str
) -> None:
    """Partitions and shares: the policies that ask for them are as old as the cluster."""
    if world.version:
        pytest.skip("the version before this one is installed")
    wanted = [e for e in EXAMPLES if e.source == source]
    names = {e.key.name for e in wanted}

    async def scenario() -> None:
        features = await probe_features(world.cluster.api, DRIVER)
        if not (features.counters and features.multi_allocation):
            pytest.skip(f"off in the last release: {', '.join(features.missing_gates())}")
        bodies = [o for o in OBJECTS if o["kind"] != "Pod" or o["metadata"]["name"] in names]
        await examples.apply(world.cluster.api, bodies)

        async def run() -> bool:
            return all(o.phase == "Running" for o in await examples.observe(world.cluster.api, wanted))

        await eventually(f"{source} to run", run)
        outcomes = await examples.observe(world.cluster.api, wanted)
        for outcome in outcomes:
            assert outcome.pod is not None
            outcome.containers = await world.cluster.containers(outcome.pod)
        assert [p for o in outcomes for p in example_checks.verify(o, outcomes)] == []
        assert example_checks.twice_allocated(outcomes) == []
        await examples.delete_pods(world.cluster.api, wanted)

    background.run(scenario())


def test_pod_groups_that_the_last_release_serves_are_known_without_a_restart(
    background: Background, world: World
) -> None:
    if world.version:
        pytest.skip("the version before this one is installed")

    async def scenario() -> None:
        api = world.cluster.api
        served = [v for v in POD_GROUP_VERSIONS if POD_GROUPS in await api.served(SCHEDULING_GROUP, v)]
        if not served:
            pytest.skip("the last release serves no PodGroups")
        resource = pod_groups(served[0])
        group = {
            "apiVersion": resource.api_version,
            "kind": "PodGroup",
            "metadata": {"name": "both", "namespace": NAMESPACE},
            "spec": {"schedulingPolicy": {"gang": {"minCount": 2}}},
        }
        await api.create(resource, group, NAMESPACE)
        members = ("first", "second")
        for name in members:
            await api.create(RESOURCE_CLAIMS, claim(NAMESPACE, name, WHOLE), NAMESPACE)
            body = e2e_support.pod(NAMESPACE, name, name, schedulingGroup={"podGroupName": "both"})
            await api.create(PODS, body, NAMESPACE)
        await e2e_support.running(world.cluster, NAMESPACE, *members)
        for name in members:
            await api.delete(PODS, name, NAMESPACE)
            await api.delete(RESOURCE_CLAIMS, name, NAMESPACE)
        await api.delete(resource, "both", NAMESPACE)

    background.run(scenario())


def test_the_driver_is_updated_on_the_last_release(background: Background, world: World) -> None:
    async def scenario() -> None:
        assert world.cluster.actions is not None
        if not world.version:
            world.version = await world.cluster.actions.previous()
            if world.version.startswith("- "):
                pytest.skip(world.version[2:])
            await check(world)
        await world.cluster.actions.current("")
        world.version = ""
        await check(world)

    background.run(scenario())


def test_the_gate_comes_with_the_next_installation(background: Background, world: World) -> None:
    """What this API server did not serve at the first installation; the test before was the second."""

    async def scenario() -> None:
        if "mutatingadmissionpolicies" not in await world.cluster.api.served(*GATING):
            pytest.skip("the API server serves no MutatingAdmissionPolicy v1")
        body = e2e_support.pod(NAMESPACE, "gated", "nowhere")

        async def gated() -> bool:
            made = await world.cluster.api.create(PODS, body, NAMESPACE, dry_run=True)
            return [g.name for g in made.spec.scheduling_gates] == [ALLOCATION_GATE]

        await eventually("pods with claims to get the gate", gated)

    background.run(scenario())


@pytest.mark.parametrize(("release", "name"), BACK)
def test_pods_outlive_the_way_back_of(background: Background, world: World, release: str, name: str) -> None:
    background.run(move(world, release, name, beside=False))
