"""Tainted pools become open, and open ones tainted, with pods running.

Beside the stand-in for kube-scheduler, and beside the real one of each Kubernetes (``DRA_K8S_BIN``). What is
installed changes as with the chart: ``admissionPolicies.gateNamespaces`` from ``labelled`` to ``all`` and
back. The API servers of 1.34 and 1.35 keep no taints by default: pools that are not open are
kube-scheduler's there.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import builders
import pytest
from granting_beside import NAMESPACE, OURS, ROOTS, Beside, gating, gpu, granting_beside
from manifest_files import documents

from dra_driver.api.core import CONFIG_MAPS, NAMESPACES
from dra_driver.api.meta import Resource
from dra_driver.api.names import ALLOCATOR_LABEL
from dra_driver.api.own.inventory import DEVICE_INVENTORIES
from dra_driver.api.resource import RESOURCE_CLAIMS
from dra_driver.api.server.admission import (
    MUTATING_POLICIES,
    MUTATING_WEBHOOKS,
    VALIDATING_POLICIES,
    VALIDATING_POLICY_BINDINGS,
)
from dra_driver.errors import Conflict, NotFound
from dra_driver.kube.features import probe_features
from dra_driver.sim.assets import deploy_directory

pytestmark = [pytest.mark.slow, pytest.mark.long]

KINDS = ["embedded", "real"]
NODES = ("n0", "n1")
LABELLED = {"matchLabels": {ALLOCATOR_LABEL: "controller"}}
_RESOURCES: Mapping[str, Resource[Any]] = {
    r.kind: r for r in (CONFIG_MAPS, RESOURCE_CLAIMS, VALIDATING_POLICIES, VALIDATING_POLICY_BINDINGS)
}

Scenario = Callable[[Beside], Awaitable[None]]


def run(kind: str, scenario: Scenario, *, extended: bool = False) -> None:
    async def main() -> None:
        async with asyncio.timeout(280), granting_beside(kind, 20.0, extended=extended) as beside:
            await scenario(beside)

    asyncio.run(main())


def guard() -> list[dict[str, Any]]:
    """What the chart installs for open pools alone, but for rights."""
    return documents(deploy_directory("manifests") / "60-grants.yaml")


async def gate(beside: Beside, selector: Mapping[str, Any]) -> None:
    """Have the pods of the namespaces that are selected get the gate."""
    api = beside.world.api
    for body in await gating(api):
        name = body["metadata"]["name"]
        if body["kind"] == MUTATING_POLICIES.kind:
            patch: dict[str, Any] = {"spec": {"matchConstraints": {"namespaceSelector": None}}}
            await api.merge_patch(MUTATING_POLICIES, name, patch)
            patch = {"spec": {"matchConstraints": {"namespaceSelector": dict(selector)}}}
            await api.merge_patch(MUTATING_POLICIES, name, patch)
        elif body["kind"] == MUTATING_WEBHOOKS.kind:
            webhooks = [{**w, "namespaceSelector": dict(selector)} for w in body["webhooks"]]
            await api.merge_patch(MUTATING_WEBHOOKS, name, {"webhooks": webhooks})


async def to_all(beside: Beside) -> None:
    """Install what the chart adds with ``all``."""
    for body in guard():
        with contextlib.suppress(Conflict):
            namespace = body["metadata"].get("namespace", "")
            await beside.world.api.create(_RESOURCES[body["kind"]], body, namespace)
    await gate(beside, {})


async def to_labelled(beside: Beside) -> None:
    """Remove it."""
    await gate(beside, LABELLED)
    for body in reversed(guard()):
        with contextlib.suppress(NotFound):
            meta = body["metadata"]
            await beside.world.api.delete(_RESOURCES[body["kind"]], meta["name"], meta.get("namespace", ""))


def records(beside: Beside) -> set[str]:
    return {i.status.publication.allocator for i in beside.seen.inventories.items()}


async def become(beside: Beside, record: str) -> None:
    """Wait until all pools are noted as somebody's, and published so."""
    bare = 0 if record == "controller" else 1

    def so() -> bool:
        ours = [s for s in beside.seen.slices.items() if s.spec.driver == OURS]
        free = [d for s in ours for d in s.spec.devices if not d.taints]
        return len(ours) == len(NODES) and records(beside) == {record} and bool(free) == bool(bare)

    await beside.seen.until(so)


async def stray(beside: Beside, name: str) -> None:
    """Make a pod that kube-scheduler looks at from the beginning."""
    body = builders.claim(name, builders.request("gpu", "whole"), namespace=NAMESPACE)
    await beside.world.api.create(RESOURCE_CLAIMS, body)
    await beside.pod(name, name, gated=False)


async def begin(beside: Beside) -> str:
    """Make nodes where pools are not open; return who allocates there."""
    api = beside.world.api
    label = {"metadata": {"labels": {ALLOCATOR_LABEL: "controller"}}}
    await api.merge_patch(NAMESPACES, NAMESPACE, label)
    await to_labelled(beside)
    for node in NODES:
        await beside.node(node, *map(gpu, range(4)), nics=ROOTS)
    return "controller" if (await probe_features(api, OURS)).taints else "scheduler"


@pytest.mark.parametrize("objects_first", [True, False], ids=["objects first", "controller first"])
@pytest.mark.parametrize("kind", KINDS)
def test_pools_are_opened_and_tainted_again_with_pods_running(kind: str, objects_first: bool) -> None:
    """Devices of running pods stay, new pods are bound after each switch; every allocation is looked at."""

    async def scenario(beside: Beside) -> None:
        before = await begin(beside)
        async with beside.controller(open_pools=False):
            await become(beside, before)
            await beside.own("first")
            await beside.bound("first")
            if objects_first:
                await to_all(beside)
        held = {"first": beside.seen.has("first")}
        async with beside.controller():
            await beside.own("meanwhile")
            if not objects_first:
                await to_all(beside)
            await become(beside, "open")
            await beside.mixed("granted", builders.request("gpu", "whole"))
            await beside.own("opened")
            await beside.bound("meanwhile", "granted", "opened")
            held |= {name: beside.seen.has(name) for name in ("meanwhile", "granted", "opened")}
            assert len(set().union(*held.values())) == 4
            if objects_first:
                await to_labelled(beside)
        async with beside.controller(open_pools=False):
            await beside.own("back")
            if not objects_first:
                await to_labelled(beside)
            await become(beside, before)
            await beside.own("last")
            await beside.bound("back", "last")
        held |= {name: beside.seen.has(name) for name in ("back", "last")}
        assert len(set().union(*held.values())) == 6
        assert held == {name: beside.seen.has(name) for name in held}, "running pods keep their devices"

    run(kind, scenario)


@pytest.mark.parametrize("kind", KINDS)
def test_with_the_controller_stopped_pods_without_the_gate_may_come_at_any_time(kind: str) -> None:
    """The documented way back: nobody refuses kube-scheduler between the policy and the taints."""

    async def scenario(beside: Beside) -> None:
        before = await begin(beside)
        await to_all(beside)
        async with beside.controller():
            await become(beside, "open")
            await beside.own("own")
            await stray(beside, "stray")
            await beside.bound("own", "stray")
        await stray(beside, "alone")
        await to_labelled(beside)
        await beside.bound("alone")
        async with beside.controller(open_pools=False):
            await stray(beside, "early")
            await beside.own("back")
            await become(beside, before)
            await stray(beside, "late")
            await beside.bound("early", "back", "late")
        names = ("own", "stray", "alone", "early", "back", "late")
        assert len(set().union(*map(beside.seen.has, names))) == len(names)
        inventories = (await beside.world.api.list(DEVICE_INVENTORIES)).items
        assert {i.status.publication.allocator for i in inventories} == {before}

    run(kind, scenario)


@pytest.mark.parametrize("kind", KINDS)
def test_pods_that_slip_through_while_no_controller_runs_are_served_when_it_is_back(kind: str) -> None:
    """The webhook that sets the gate fails open; what kube-scheduler tries meanwhile is refused."""

    async def scenario(beside: Beside) -> None:
        for node in NODES:
            await beside.node(node, *map(gpu, range(4)), nics=ROOTS)
        async with beside.controller():
            await become(beside, "open")
        await stray(beside, "claim")
        await beside.pod("extended", amount=1, gated=False)
        nic = builders.request("nic", "nic")
        mixed = builders.claim("mixed", builders.request("gpu", "whole"), nic, namespace=NAMESPACE)
        await beside.world.api.create(RESOURCE_CLAIMS, mixed)
        await beside.pod("mixed", "mixed", gated=False)
        other = builders.claim("other", nic, namespace=NAMESPACE)
        await beside.world.api.create(RESOURCE_CLAIMS, other)
        await beside.pod("other", "other", gated=False)
        await beside.bound("other")  # devices of other drivers are no concern of ours
        await asyncio.sleep(3)
        names = ("claim", "extended", "mixed")
        assert not any(map(beside.seen.has, names))
        async with beside.controller():
            await beside.bound(*names)
        assert len(set().union(*map(beside.seen.has, names))) == len(names)

    run(kind, scenario, extended=True)
