"""The controller beside kube-scheduler and kubelet: many pods, groups, restarts of every part.

Runs with ``CLUSTER=existing`` (or ``local``) and, as far as it means something, on the embedded cluster.
What can only be done on the node's own machine needs to be told: ``E2E_RESTART_KUBELET``, a command such as
``systemctl restart kubelet``; ``E2E_CHECKPOINT``, the path of the plugin's checkpoint; ``E2E_ON_NODE=1``:
pods run on this machine, so their processes can be killed with SIGKILL (else pods are deleted without grace).
"""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import controller_scenarios as scenarios
import pytest
from controller_watch import Follower, following, pod_body, template_body
from e2e_support import IMAGE, eventually

from dra_driver.api.core import EVENTS, NAMESPACES, PODS
from dra_driver.api.names import ALLOCATION_GATE, CONTROLLER_FIELD_MANAGER, SYSTEM_NAMESPACE
from dra_driver.api.resource import RESOURCE_CLAIM_TEMPLATES, RESOURCE_CLAIMS, RESOURCE_SLICES
from dra_driver.kube.leader import LEASES

if TYPE_CHECKING:
    from e2e_support import Background, Cluster

pytestmark = pytest.mark.e2e

NAMESPACE, PLAIN = "dra-e2e-controller", "dra-e2e-plain"
EXISTING = (os.environ.get("CLUSTER") or "embedded") != "embedded"
needs_existing = pytest.mark.skipif(not EXISTING, reason="needs pods that can be killed: CLUSTER=existing")


@pytest.fixture(autouse=True)
def namespaces(background: Background, cluster: Cluster) -> Iterator[None]:
    async def prepare() -> None:
        await scenarios.make_namespace(cluster.api, NAMESPACE)
        await scenarios.make_namespace(cluster.api, PLAIN, ours=False)

    async def clean() -> None:
        for name in (NAMESPACE, PLAIN):
            await scenarios.clean(cluster.api, name)
            await cluster.api.delete(NAMESPACES, name)

        async def gone() -> bool:
            found = {n.metadata.name for n in (await cluster.api.list(NAMESPACES)).items}
            return not found & {NAMESPACE, PLAIN}

        await scenarios.until("the namespaces to go", gone)
        no_claim_is_left_in_the_checkpoint()

    background.run(prepare())
    yield
    background.run(clean(), 400)


def no_claim_is_left_in_the_checkpoint() -> None:
    path = os.environ.get("E2E_CHECKPOINT")
    if path:
        claims = json.loads(Path(path).read_text())["payload"]["claims"]
        assert claims == {}, claims


async def a_node(cluster: Cluster) -> str:
    found = (await cluster.api.list(RESOURCE_SLICES)).items
    return min(s.spec.node_name for s in found if s.spec.node_name)


def test_a_hundred_pods_take_turns_on_few_devices(background: Background, cluster: Cluster) -> None:
    async def scenario() -> None:
        async with following(cluster.api, NAMESPACE) as f:
            await scenarios.waves(f)
            assert f.allocations == scenarios.WAVES

    background.run(scenario(), 500)


@pytest.mark.needs("allocation by the controller")
def test_pods_without_room_for_them_hold_up_nobody(background: Background, cluster: Cluster) -> None:
    async def scenario() -> None:
        async with following(cluster.api, NAMESPACE) as f:
            await scenarios.mixed_cpu(f)
        events = (await cluster.api.list(EVENTS, NAMESPACE)).items
        # Of a pod that was created without the gate, kube-scheduler says it.
        words = ("too little cpu", "Insufficient cpu")
        told = {e.involved_object.name for e in events if any(word in e.message for word in words)}
        assert {name for name in f.pods if name.startswith("large")} <= told

    background.run(scenario(), 400)


@pytest.mark.needs("allocation by the controller")
def test_pods_with_a_node_from_the_start_are_allocated(background: Background, cluster: Cluster) -> None:
    async def scenario() -> None:
        node = await a_node(cluster)
        async with following(cluster.api, NAMESPACE) as f:
            await scenarios.bound_in_advance(f, node)

    background.run(scenario(), 400)


@pytest.mark.needs("allocation by the controller")
def test_a_group_of_eight_starts_together(background: Background, cluster: Cluster) -> None:
    async def scenario() -> None:
        async with following(cluster.api, NAMESPACE) as f:
            await scenarios.group(f)

    background.run(scenario(), 300)


def test_pods_of_namespaces_without_our_label_run_too(background: Background, cluster: Cluster) -> None:
    async def scenario() -> None:
        async with following(cluster.api, PLAIN) as f:
            for i in range(4):
                await f.create(pod_body(f"plain-{i}", PLAIN, IMAGE))
            await f.create(pod_body("without", PLAIN, IMAGE, claims={}))
            await f.until("ended", seconds=200)

    background.run(scenario(), 300)


@pytest.mark.needs("allocation by the controller")
def test_claims_of_another_driver_are_left_to_kube_scheduler(
    background: Background, cluster: Cluster
) -> None:
    async def pods(f: Follower) -> None:
        theirs = {"fpga": {"resourceClaimTemplateName": "fpga"}}
        # One claim by name: where its cache lags, the controller-manager of 1.34 to 1.36 removes the entries
        # of templates from a pod's status in turn, and a pod with two of them waits (kubernetes#138407).
        both = {"gpu": {"resourceClaimTemplateName": "gpu"}, "fpga": {"resourceClaimName": "fpga"}}
        spec = template_body("fpga", f.namespace, scenarios.OTHER_DRIVER)["spec"]["spec"]
        spec["devices"]["requests"][0]["name"] = "fpga"
        meta = {"name": "fpga", "namespace": f.namespace}
        kind = {"apiVersion": RESOURCE_CLAIMS.api_version, "kind": RESOURCE_CLAIMS.kind}
        await scenarios.create(cluster.api, RESOURCE_CLAIMS, {**kind, "metadata": meta, "spec": spec})
        for name, claims in (("theirs", theirs), ("both", both)):
            await f.create(pod_body(f"{name}-{f.namespace}", f.namespace, IMAGE, claims=claims))
        await f.until("bound", seconds=120)
        for claim in (await cluster.api.list(RESOURCE_CLAIMS, f.namespace)).items:
            managers = {m.get("manager") for m in await managed(claim.metadata.name, f.namespace)}
            ours = any(r.exactly is not None and r.name == "gpu" for r in claim.spec.devices.requests or ())
            assert (CONTROLLER_FIELD_MANAGER in managers) is ours, (claim.key, managers)
        for pod in (await cluster.api.list(PODS, f.namespace)).items:
            assert not any(g.name == ALLOCATION_GATE for g in pod.spec.scheduling_gates)

    async def managed(name: str, namespace: str) -> list[dict[str, str]]:
        path = f"/apis/resource.k8s.io/v1/namespaces/{namespace}/resourceclaims/{name}"
        raw = json.loads(await cluster.api._call("GET", path))
        found: list[dict[str, str]] = raw["metadata"].get("managedFields", [])
        return found

    async def scenario() -> None:
        node = await a_node(cluster)
        await scenarios.other_driver(cluster.api, node)
        try:
            for namespace in (NAMESPACE, PLAIN):
                body = template_body("fpga", namespace, scenarios.OTHER_DRIVER)
                body["spec"]["spec"]["devices"]["requests"][0]["name"] = "fpga"
                await scenarios.create(cluster.api, RESOURCE_CLAIM_TEMPLATES, body)
                async with following(cluster.api, namespace) as f:
                    await pods(f)
                await scenarios.clean(cluster.api, namespace)
        finally:
            await scenarios.no_other_driver(cluster.api, node)

    background.run(scenario(), 300)


async def kill(cluster: Cluster, name: str) -> None:
    pod = await cluster.api.get(PODS, name, SYSTEM_NAMESPACE)
    if not os.environ.get("E2E_ON_NODE"):
        await cluster.api.delete(PODS, name, SYSTEM_NAMESPACE, grace_period_seconds=0)
        return
    killed = 0
    for process in Path("/proc").glob("[0-9]*"):
        try:
            mine = pod.metadata.uid in (process / "cgroup").read_text().replace("_", "-")
            if mine and b"dra_driver" in (process / "cmdline").read_bytes().replace(b"-", b"_"):
                os.kill(int(process.name), signal.SIGKILL)
                killed += 1
        except (OSError, ProcessLookupError):
            continue  # ended meanwhile
    assert killed, f"no process of pod {name} was found"


async def kill_leader(cluster: Cluster) -> None:
    leader = ""

    async def leads() -> bool:
        # The lease names the one that was killed last until another one has it.
        nonlocal leader
        lease = await cluster.api.get(LEASES, "dra-driver-controller", SYSTEM_NAMESPACE)
        leader = (lease.spec.holder_identity or "").rpartition("_")[0]
        pods = (await cluster.api.list(PODS, SYSTEM_NAMESPACE)).items
        return leader in {p.metadata.name for p in pods if not p.metadata.deletion_timestamp}

    await eventually("a controller to lead", leads)
    await kill(cluster, leader)


async def kill_plugins(cluster: Cluster) -> None:
    for pod in (await cluster.api.list(PODS, SYSTEM_NAMESPACE)).items:
        if (pod.metadata.labels or {}).get("app.kubernetes.io/component") == "kubelet-plugin":
            await kill(cluster, pod.metadata.name)


async def restart_kubelet() -> None:
    command = os.environ.get("E2E_RESTART_KUBELET")
    if command:
        process = await asyncio.create_subprocess_exec(
            *shlex.split(command), stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL
        )
        assert await process.wait() == 0, command


@needs_existing
@pytest.mark.parametrize("part", ["controller", "plugin", "kubelet"])
def test_a_part_that_is_killed_loses_and_doubles_nothing(
    background: Background, cluster: Cluster, part: str
) -> None:
    if part == "kubelet" and not os.environ.get("E2E_RESTART_KUBELET"):
        pytest.skip("E2E_RESTART_KUBELET does not say how a kubelet is restarted")

    async def disturb() -> None:
        match part:
            case "controller":
                await kill_leader(cluster)
            case "plugin":
                await kill_plugins(cluster)
            case _:
                await restart_kubelet()

    async def scenario() -> None:
        async with following(cluster.api, NAMESPACE) as f:
            await scenarios.chaos(f, [disturb, disturb])

    background.run(scenario(), 600)
