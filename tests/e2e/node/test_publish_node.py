"""Without a controller: the node agent publishes, kube-scheduler allocates, and restarts change nothing."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import e2e_support
import pytest
from e2e_support import allocated, clear, eventually, every_node_published, published, running

from dra_driver.api.core import PODS
from dra_driver.api.meta import Resource
from dra_driver.api.names import (
    CONTROLLER_TAINT,
    DEFAULT_DRIVER_NAME,
    GATE_POLICY,
    GRANTS,
    SYSTEM_NAMESPACE,
)
from dra_driver.api.own.inventory import DEVICE_INVENTORIES
from dra_driver.api.resource import RESOURCE_SLICES, ResourceSlice
from dra_driver.api.server.admission import MUTATING_POLICY_BINDINGS, VALIDATING_POLICY_BINDINGS
from dra_driver.errors import NotFound
from dra_driver.sim.demo import examples

if TYPE_CHECKING:
    from e2e_support import Actions, Background, Cluster

pytestmark = pytest.mark.e2e

NAMESPACE = "dra-e2e-publish-node"
# There may be other nodes whose devices kube-scheduler allocates.
HOST = "kubernetes.io/hostname"
GPU = {"deviceClassName": DEFAULT_DRIVER_NAME}
claim = partial(e2e_support.claim, NAMESPACE)
pod = partial(e2e_support.pod, NAMESPACE)


async def slices_of(cluster: Cluster, node: str) -> list[ResourceSlice]:
    found = (await cluster.api.list(RESOURCE_SLICES, field_selector=f"spec.nodeName={node}")).items
    return [s for s in found if s.spec.driver == DEFAULT_DRIVER_NAME]


async def handed_over(cluster: Cluster, node: str, *, by_node: bool) -> None:
    protected = not by_node and cluster.served["allocation by the controller"]

    async def done() -> bool:
        inventory = await cluster.api.get(DEVICE_INVENTORIES, f"{node}.{DEFAULT_DRIVER_NAME}")
        slices = await slices_of(cluster, node)
        tainted = {t.key == CONTROLLER_TAINT for s in slices for d in s.spec.devices for t in d.taints}
        allocator = inventory.status.publication.allocator
        return (
            inventory.spec.publisher == ("node" if by_node else "")
            and allocator in (("controller", "open") if protected else ("scheduler",))
            and {s.metadata.name for s in slices} == set(inventory.status.publication.slices)
            and bool(slices)
            and (True in tainted) is (allocator == "controller")
        )

    await eventually(f"the pool of {node} to change hands", done)


def _bindings() -> list[tuple[Resource[Any], dict[str, Any]]]:
    """What an installation without a controller has not: nobody takes the gate off, or grants anything."""
    parameter = {"name": GRANTS, "namespace": SYSTEM_NAMESPACE, "parameterNotFoundAction": "Allow"}
    guard = {"policyName": GRANTS, "paramRef": parameter, "validationActions": ["Deny"]}
    return [
        (MUTATING_POLICY_BINDINGS, {"metadata": {"name": GATE_POLICY}, "spec": {"policyName": GATE_POLICY}}),
        (VALIDATING_POLICY_BINDINGS, {"metadata": {"name": GRANTS}, "spec": guard}),
    ]


@contextlib.asynccontextmanager
async def without_policies(cluster: Cluster) -> AsyncIterator[None]:
    """Have no policy set the gate, nor one keep devices for a controller that is not there."""
    removed: list[tuple[Resource[Any], dict[str, Any]]] = []
    for resource, body in _bindings():
        with contextlib.suppress(NotFound):
            await cluster.api.delete(resource, body["metadata"]["name"])
            kind = {"apiVersion": resource.api_version, "kind": resource.kind}
            removed.append((resource, {**kind, **body}))

    async def is_off() -> bool:
        made = await cluster.api.create(PODS, pod("probe", "none"), NAMESPACE, dry_run=True)
        return not made.spec.scheduling_gates

    try:
        await eventually("pods without the gate", is_off)
        yield
    finally:
        for resource, body in removed:
            await cluster.api.create(resource, body)


@pytest.fixture
def node(background: Background, cluster: Cluster) -> Iterator[str]:
    """One that publishes by itself, in a cluster without a controller, for this test."""
    actions = cluster.actions
    if actions is None:
        pytest.skip("only a cluster of its own does the suite set up anew")
    background.run(eventually("all devices to be published", partial(every_node_published, cluster)))
    name = min(background.run(published(cluster)))
    body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}
    background.run(examples.apply(cluster.api, [body]))
    background.run(actions.publish(name, by_node=True))
    try:
        background.run(handed_over(cluster, name, by_node=True))
        background.run(actions.controllers(run=False))
        gone = without_policies(cluster)
        background.run(gone.__aenter__())
        try:
            yield name
        finally:
            background.run(gone.__aexit__(None, None, None))
            background.run(actions.controllers(run=True))
    finally:
        background.run(clear(cluster, NAMESPACE))
        background.run(actions.publish(name, by_node=False))
        background.run(handed_over(cluster, name, by_node=False))


def test_pods_get_devices_without_a_controller_over_restarts(
    background: Background, cluster: Cluster, node: str
) -> None:
    async def runs(name: str) -> None:
        await examples.apply(cluster.api, [claim(name, GPU), pod(name, name, nodeSelector={HOST: node})])
        (found,) = await running(cluster, NAMESPACE, name)
        ((_, device),) = await allocated(cluster, NAMESPACE, name)
        views = await cluster.containers(found)
        assert views is not None
        assert device in views["main"].env.values()

    async def restarted(actions: Actions, part: str, *, wiped: bool) -> None:
        epoch = (await published(cluster))[node]
        before = {s.metadata.uid for s in await slices_of(cluster, node)}
        await actions.kill(part, node)

        async def back() -> bool:
            now = {s.metadata.uid for s in await slices_of(cluster, node)}
            new = (await published(cluster)).get(node, 0) > epoch
            return new and bool(now) and (not wiped or now.isdisjoint(before))

        await eventually(f"slices after the restart of the {part}", back)

    async def scenario() -> None:
        actions = cluster.actions
        assert actions is not None
        await runs("first")
        (before,) = await running(cluster, NAMESPACE, "first")
        # A kubelet deletes the slices of its node at its start, an agent that is back in time keeps its own.
        await restarted(actions, "kubelet", wiped=True)
        await runs("after-the-kubelet")
        await restarted(actions, "plugin", wiped=False)
        await runs("after-the-plugin")
        (after,) = await running(cluster, NAMESPACE, "first")
        assert after.metadata.uid == before.metadata.uid
        await cluster.api.delete(PODS, "first", NAMESPACE)

        async def free() -> bool:
            return f"checkpoint entry of {NAMESPACE}/first" not in str(e2e_support.leftovers(cluster, node))

        await eventually("the device to be given back", free)

    background.run(scenario())
