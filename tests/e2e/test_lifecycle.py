"""Claims over their lives, on whichever cluster."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import e2e_support
import pytest
from e2e_support import clear, eventually, make_namespace

from dra_driver.api.core import EVENTS, PODS, Pod
from dra_driver.api.names import ALLOCATION_GATE, DEFAULT_DRIVER_NAME
from dra_driver.api.resource import RESOURCE_CLAIMS
from dra_driver.sim.demo import examples

if TYPE_CHECKING:
    from e2e_support import Background, Cluster

pytestmark = pytest.mark.e2e

NAMESPACE = "dra-e2e"
GPU = {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": DEFAULT_DRIVER_NAME}}]}}


def pod(name: str, command: str, **claim: str) -> dict[str, Any]:
    body = e2e_support.pod(NAMESPACE, name, "", command=command)
    body["spec"]["resourceClaims"] = [{"name": "gpu", **claim}]
    return body


def claim(kind: str, name: str) -> dict[str, Any]:
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": kind,
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": GPU if kind == "ResourceClaim" else {"spec": GPU},
    }


async def phase(cluster: Cluster, name: str) -> str:
    found: Pod = await cluster.api.get(PODS, name, NAMESPACE)
    return found.status.phase


@pytest.fixture(autouse=True)
def namespace(background: Background, cluster: Cluster) -> Iterator[None]:
    background.run(make_namespace(cluster, NAMESPACE))
    yield
    background.run(clear(cluster, NAMESPACE))


@pytest.mark.needs("allocation by the controller")
def test_the_gate_stays_until_devices_are_allocated(background: Background, cluster: Cluster) -> None:
    async def scenario() -> None:
        everything = {
            "name": "gpu",
            "exactly": {
                "deviceClassName": DEFAULT_DRIVER_NAME,
                "selectors": [{"cel": {"expression": "device.driver == 'nobody.example.com'"}}],
            },
        }
        impossible = {**claim("ResourceClaim", "impossible"), "spec": {"devices": {"requests": [everything]}}}
        waiting = pod("waits", "sleep 3600", resourceClaimName="impossible")
        runs = pod("runs", "sleep 3600", resourceClaimName="possible")
        await examples.apply(cluster.api, [impossible, claim("ResourceClaim", "possible"), waiting, runs])

        async def running() -> bool:
            return await phase(cluster, "runs") == "Running"

        await eventually("the pod to run", running)
        ungated: Pod = await cluster.api.get(PODS, "runs", NAMESPACE)
        assert [g.name for g in ungated.spec.scheduling_gates] == []
        gated: Pod = await cluster.api.get(PODS, "waits", NAMESPACE)
        assert [g.name for g in gated.spec.scheduling_gates] == [ALLOCATION_GATE]
        reasons = [c.get("reason") for c in gated.status.conditions if c.get("type") == "PodScheduled"]
        assert reasons == ["SchedulingGated"]

        async def explained() -> bool:
            events = (await cluster.api.list(EVENTS, NAMESPACE)).items
            return any(e.involved_object.uid == gated.metadata.uid and e.type == "Warning" for e in events)

        await eventually("an event that says why the pod waits", explained)

    background.run(scenario())


def test_a_pod_that_ends_gives_its_device_back(background: Background, cluster: Cluster) -> None:
    async def scenario() -> None:
        body = pod("ends", "sleep 1", resourceClaimTemplateName="gpu")
        await examples.apply(cluster.api, [claim("ResourceClaimTemplate", "gpu"), body])

        async def succeeded() -> bool:
            return await phase(cluster, "ends") == "Succeeded"

        async def claim_gone() -> bool:
            return not (await cluster.api.list(RESOURCE_CLAIMS, NAMESPACE)).items

        await eventually("the pod to end", succeeded)
        await eventually("its claim to be gone", claim_gone)

    background.run(scenario())


def test_a_named_claim_is_free_again_after_its_last_pod(background: Background, cluster: Cluster) -> None:
    async def scenario() -> None:
        pods = [pod(n, "sleep 3600", resourceClaimName="shared") for n in ("one", "two")]
        await examples.apply(cluster.api, [claim("ResourceClaim", "shared"), *pods])

        async def both_run() -> bool:
            return {await phase(cluster, n) for n in ("one", "two")} == {"Running"}

        await eventually("both pods to run", both_run)
        await cluster.api.delete(PODS, "one", NAMESPACE)

        async def one_user() -> bool:
            found = await cluster.api.get(RESOURCE_CLAIMS, "shared", NAMESPACE)
            return [r.name for r in found.status.reserved_for] == ["two"]

        await eventually("the first pod's reservation to go", one_user)
        assert await phase(cluster, "two") == "Running"
        await cluster.api.delete(PODS, "two", NAMESPACE)

        async def free() -> bool:
            found = await cluster.api.get(RESOURCE_CLAIMS, "shared", NAMESPACE)
            return found.status.allocation is None and not found.metadata.finalizers

        await eventually("the claim to be free", free)

    background.run(scenario())


def test_a_claim_in_use_outlives_its_deletion(background: Background, cluster: Cluster) -> None:
    async def scenario() -> None:
        body = pod("user", "sleep 3600", resourceClaimName="kept")
        await examples.apply(cluster.api, [claim("ResourceClaim", "kept"), body])

        async def runs() -> bool:
            return await phase(cluster, "user") == "Running"

        await eventually("the pod to run", runs)
        await cluster.api.delete(RESOURCE_CLAIMS, "kept", NAMESPACE)
        found = await cluster.api.get(RESOURCE_CLAIMS, "kept", NAMESPACE)
        assert found.metadata.deletion_timestamp is not None
        assert found.status.allocation is not None
        await cluster.api.delete(PODS, "user", NAMESPACE)

        async def gone() -> bool:
            return not (await cluster.api.list(RESOURCE_CLAIMS, NAMESPACE)).items

        await eventually("the claim to be gone", gone)

    background.run(scenario())
