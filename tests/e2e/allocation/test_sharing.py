"""Shares, partitions and groups beyond what the examples show, on whichever cluster has the hardware."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import e2e_support
import pytest
import yaml
from e2e_support import allocated, clear, eventually, gpu_settings, make_namespace, running
from paths import PROJECT

from dra_driver.api.core import EVENTS, PODS, Pod
from dra_driver.api.names import ALLOCATION_GATE, DEFAULT_DRIVER_NAME, GROUP_LABEL, GROUP_SIZE_LABEL
from dra_driver.api.resource import RESOURCE_CLAIMS
from dra_driver.sim.demo import examples

if TYPE_CHECKING:
    from e2e_support import Background, Cluster

pytestmark = [pytest.mark.e2e, pytest.mark.needs("allocation by the controller")]

NAMESPACE = "dra-e2e-sharing"
GPU = {"deviceClassName": DEFAULT_DRIVER_NAME}
claim = partial(e2e_support.claim, NAMESPACE)
pod = partial(e2e_support.pod, NAMESPACE)


@pytest.fixture(autouse=True)
def namespace(background: Background, cluster: Cluster) -> Iterator[None]:
    background.run(make_namespace(cluster, NAMESPACE))
    yield
    background.run(clear(cluster, NAMESPACE))


def share(memory: str) -> dict[str, Any]:
    return {
        **GPU,
        "capacity": {"requests": {"memory": memory}},
        "selectors": [{"cel": {"expression": "device.allowMultipleAllocations"}}],
        "tolerations": [{"key": "example.com/shared", "operator": "Exists"}],
    }


def mig(profile: str) -> dict[str, Any]:
    attributes = f'device.attributes["{DEFAULT_DRIVER_NAME}"]'
    expression = f'{attributes}.?profile.orValue("") == "{profile}"'
    return {
        "deviceClassName": f"mig.{DEFAULT_DRIVER_NAME}",
        "selectors": [{"cel": {"expression": expression}}],
    }


async def waits(cluster: Cluster, name: str) -> str:
    """Why the pod waits, once there is a reason for people; it must still be gated."""
    reasons: list[str] = []

    async def explained() -> bool:
        found: Pod = await cluster.api.get(PODS, name, NAMESPACE)
        assert found.status.phase == "Pending"
        assert [g.name for g in found.spec.scheduling_gates] == [ALLOCATION_GATE]
        events = (await cluster.api.list(EVENTS, NAMESPACE)).items
        reasons[:] = [
            e.message for e in events if e.involved_object.uid == found.metadata.uid and e.type == "Warning"
        ]
        return bool(reasons)

    await eventually(f"a reason why {name} waits", explained)
    return reasons[-1]


@pytest.mark.needs("consumable capacity")
def test_shares_add_up_to_no_more_than_the_gpu(background: Background, cluster: Cluster) -> None:
    async def scenario() -> None:
        for name in ("one", "two"):
            await examples.apply(cluster.api, [claim(name, share("20Gi")), pod(name, name)])
        first, second = await running(cluster, NAMESPACE, "one", "two")
        assert first.spec.node_name == second.spec.node_name
        assert await allocated(cluster, NAMESPACE, "one") == await allocated(cluster, NAMESPACE, "two")
        # 45Gi less 40Gi: there is place for 4Gi, not for 10Gi.
        await examples.apply(cluster.api, [claim("large", share("10Gi")), pod("large", "large")])
        await waits(cluster, "large")
        await examples.apply(cluster.api, [claim("small", share("4Gi")), pod("small", "small")])
        await running(cluster, NAMESPACE, "small")
        await cluster.api.delete(PODS, "one", NAMESPACE)
        await running(cluster, NAMESPACE, "large")

    background.run(scenario())


@pytest.mark.needs("partitionable devices")
def test_partitions_are_made_for_their_claims_and_unmade_after_them(
    background: Background, cluster: Cluster
) -> None:
    async def scenario() -> None:
        for i in range(2):
            await examples.apply(
                cluster.api, [claim(f"half-{i}", mig("3g.40gb")), pod(f"half-{i}", f"half-{i}")]
            )
        first, _ = await running(cluster, NAMESPACE, "half-0", "half-1")
        devices = {(await allocated(cluster, NAMESPACE, f"half-{i}"))[0][1] for i in range(2)}
        assert len(devices) == 2
        await examples.apply(cluster.api, [claim("more", mig("3g.40gb")), pod("more", "more")])
        await waits(cluster, "more")
        node = first.spec.node_name
        if cluster.actions is not None:
            assert [len(g["instances"]) for g in gpu_settings(cluster, node).values() if g.get("mig")] == [2]
        await cluster.api.delete(PODS, "half-0", NAMESPACE)
        await running(cluster, NAMESPACE, "more")
        await clear(cluster, NAMESPACE)

        async def whole() -> bool:
            return not any(g.get("instances") or g.get("mig") for g in gpu_settings(cluster, node).values())

        if cluster.actions is not None:
            await eventually("the GPU to be whole again", whole)

    background.run(scenario())


def test_a_group_gets_nothing_before_it_is_complete(background: Background, cluster: Cluster) -> None:
    labels = {GROUP_LABEL: "training", GROUP_SIZE_LABEL: "4"}

    async def scenario() -> None:
        for i in range(3):
            await examples.apply(cluster.api, [claim(f"g-{i}", GPU), pod(f"g-{i}", f"g-{i}", labels=labels)])
        await asyncio.sleep(2)
        for i in range(3):
            found: Pod = await cluster.api.get(PODS, f"g-{i}", NAMESPACE)
            assert [g.name for g in found.spec.scheduling_gates] == [ALLOCATION_GATE]
            held = await cluster.api.get(RESOURCE_CLAIMS, f"g-{i}", NAMESPACE)
            assert held.status.allocation is None
        await examples.apply(cluster.api, [claim("g-3", GPU), pod("g-3", "g-3", labels=labels)])
        await running(cluster, NAMESPACE, *(f"g-{i}" for i in range(4)))

    background.run(scenario())


@pytest.mark.needs("consumable capacity")
def test_a_group_that_does_not_fit_as_a_whole_gets_nothing(background: Background, cluster: Cluster) -> None:
    labels = {GROUP_LABEL: "too-much", GROUP_SIZE_LABEL: "2"}

    async def scenario() -> None:
        impossible = {**GPU, "capacity": {"requests": {"memory": "1000Gi"}}}
        for name, request in (("fits", GPU), ("never", impossible)):
            await examples.apply(cluster.api, [claim(name, request), pod(name, name, labels=labels)])
        assert await waits(cluster, "never")
        await asyncio.sleep(1)
        held = await cluster.api.get(RESOURCE_CLAIMS, "fits", NAMESPACE)
        assert held.status.allocation is None

    background.run(scenario())


def test_the_elastic_group_of_the_documentation(background: Background, cluster: Cluster) -> None:
    """It starts with three of its four pods, which are more than the two that suffice."""
    page = (PROJECT / "docs" / "device-policy.md").read_text(encoding="utf-8")
    _, _, section = page.partition("## Elastic groups")
    template, worker = yaml.safe_load_all(section.partition("```yaml\n")[2].partition("```")[0])

    async def scenario() -> None:
        template["metadata"]["namespace"] = NAMESPACE
        pods = []
        for i in range(3):
            made = pod(f"worker-{i}", "", labels=worker["metadata"]["labels"])
            made["spec"]["resourceClaims"] = worker["spec"]["resourceClaims"]
            made["spec"]["containers"][0]["resources"] = worker["spec"]["containers"][0]["resources"]
            pods.append(made)
        await examples.apply(cluster.api, [template, pods[0]])
        await asyncio.sleep(1.5)
        held: Pod = await cluster.api.get(PODS, "worker-0", NAMESPACE)
        assert [g.name for g in held.spec.scheduling_gates] == [ALLOCATION_GATE]
        await examples.apply(cluster.api, pods[1:])
        await running(cluster, NAMESPACE, *(f"worker-{i}" for i in range(3)))

    background.run(scenario())
