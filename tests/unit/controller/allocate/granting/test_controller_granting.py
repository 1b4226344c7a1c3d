"""The controller granting devices beside a kube-scheduler that is played by the test."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any

import builders
import pytest
import virtual_time
from builders import request
from controller_harness import NS, Harness, claim, controlling
from granting_cluster import (
    BACK,
    IN_FORCE,
    cluster_of,
    decide,
    doubles,
    granted,
    place,
    pod,
    schedule,
    write,
)
from open_cluster import PolicedCluster

from controller.allocate.granting import MOST_PODS
from dra_driver.api.core import CONFIG_MAPS, PODS
from dra_driver.api.names import (
    CANNOT_ALLOCATE,
    EXTENDED_RESOURCE_ANNOTATION,
    GRANT_STATUS,
    GRANTS,
    SYSTEM_NAMESPACE,
)
from dra_driver.api.resource import RESOURCE_CLAIMS
from dra_driver.fleet import GrantsShown, shown_grants


def run(
    cluster: PolicedCluster,
    scenario: Callable[[Harness], Awaitable[None]],
    *,
    scheduler: bool = True,
    **config: Any,
) -> None:
    async def main() -> None:
        config.setdefault("open_pools", True)
        async with asyncio.timeout(3_000), controlling(cluster, **config) as harness:
            await asyncio.sleep(IN_FORCE)
            task = asyncio.create_task(schedule(cluster)) if scheduler else None
            try:
                await scenario(harness)
            finally:
                if task is not None:
                    task.cancel()
                    with contextlib.suppress(asyncio.CancelledError):
                        await task

    virtual_time.run(main())


# --- what is seen -------------------------------------------------------------------------------------------


def devices(h: Harness, name: str) -> set[tuple[str, str]]:
    return set(h.devices(name))


def node_of(h: Harness, name: str) -> str:
    return h.cluster.obj(PODS, name, NS).spec.node_name


def metric(h: Harness, why: str) -> float:
    value = h.controller.metrics.registry.get_sample_value(
        "dra_driver_controller_ended_grants_total", {"reason": why}
    )
    return value or 0.0


# --- the ordinary way ---------------------------------------------------------------------------------------


def test_extended_resources_are_served_and_the_devices_come_back() -> None:
    cluster = cluster_of("n1", "n2")

    async def scenario(h: Harness) -> None:
        pod(cluster, "p", amount=2)
        await asyncio.sleep(6.0)
        assert node_of(h, "p") == "n1"
        assert devices(h, "p-extended") == {("n1", "gpu-0"), ("n1", "gpu-1")}
        assert metric(h, "allocated") == 1
        assert len(h.events("DevicesGranted")) == 1
        assert not h.events("ExtendedResourceConflict")
        await asyncio.sleep(BACK)
        assert not granted(cluster)
        # Ours allocates again what is left.
        claim(cluster, "c")
        pod(cluster, "q", "c")
        await asyncio.sleep(1.0)
        assert devices(h, "c") <= {("n2", "gpu-0"), ("n2", "gpu-1")}
        assert node_of(h, "q") == "n2"

    run(cluster, scenario)


def test_devices_are_granted_again_when_the_binding_failed_after_the_claim_was_written() -> None:
    cluster = cluster_of("n1")

    async def scenario(h: Harness) -> None:
        pod(cluster, "p", amount=2)
        await asyncio.sleep(3.0)
        decided = decide(cluster, cluster.obj(PODS, "p", NS))
        assert decided is not None
        assert write(cluster, decided, bind=False)
        await asyncio.sleep(0.5)
        # kube-scheduler deletes the claim then; the status of the pod names it still.
        cluster.remove(RESOURCE_CLAIMS, "p-extended", NS)
        assert cluster.obj(PODS, "p", NS).status.extended_resource_claim_status is not None
        await asyncio.sleep(BACK)
        assert place(cluster, "p")
        assert devices(h, "p-extended") == {("n1", "gpu-0"), ("n1", "gpu-1")}

    run(cluster, scenario, scheduler=False)


def test_a_claim_over_two_drivers_is_served() -> None:
    cluster = cluster_of("n1")
    claim(cluster, "both", request(), request("nic", "nic"))
    pod(cluster, "p", "both")

    async def scenario(h: Harness) -> None:
        await asyncio.sleep(6.0)
        assert node_of(h, "p") == "n1"
        assert {device for _, device in devices(h, "both")} == {"gpu-0", "nic-0"}
        assert metric(h, "allocated") == 1

    run(cluster, scenario)


def test_a_claim_with_a_made_up_owner_keeps_nobody_from_being_granted_devices() -> None:
    """Whoever makes a claim names its owner as he likes, and no ConfigMap has a key of such a text."""
    cluster = cluster_of("n1", "n2")
    owner = {"apiVersion": "v1", "kind": "Job", "name": "j", "uid": "no key: /", "controller": True}
    metadata = {"annotations": {EXTENDED_RESOURCE_ANNOTATION: "true"}, "ownerReferences": [owner]}

    async def scenario(h: Harness) -> None:
        both = (request(), request("nic", "nic"))
        cluster.put(RESOURCE_CLAIMS, builders.claim("marked", *both, metadata=metadata))
        pod(cluster, "hostile", "marked")
        await asyncio.sleep(3.0)
        pod(cluster, "p", amount=1)
        await asyncio.sleep(6.0)
        assert node_of(h, "p")
        assert not node_of(h, "hostile")
        assert EXTENDED_RESOURCE_ANNOTATION in h.reason("hostile").message

    run(cluster, scenario)


def test_reading_many_claims_holds_up_no_grant_and_is_done_now_and_then() -> None:
    """Each grant that ends asks for a read, and one read is for all that have ended."""
    cluster = cluster_of(*[f"n{i}" for i in range(20)], gpus=1)

    def reads() -> int:
        return sum(c.verb == "list" and c.kind == RESOURCE_CLAIMS.kind for c in cluster.calls)

    async def scenario(h: Harness) -> None:
        cluster.listing = 3.0
        before = reads()
        for i in range(15):
            pod(cluster, f"p{i}", amount=1)
            await asyncio.sleep(1.0)
            assert node_of(h, f"p{i}")
            await asyncio.sleep(1.0)
        assert 1 <= reads() - before <= 3
        await asyncio.sleep(30.0)
        claim(cluster, "c")  # what is back is allocated
        cluster.remove(RESOURCE_CLAIMS, "p0-extended", NS)
        pod(cluster, "q", "c")
        await asyncio.sleep(2.0)
        assert devices(h, "c")

    run(cluster, scenario)


# --- grants in vain -----------------------------------------------------------------------------


def test_people_see_what_is_granted_and_why_nothing_is() -> None:
    cluster = cluster_of("n1", gpus=1)

    def shown() -> GrantsShown:
        found = shown_grants(cluster.obj(CONFIG_MAPS, GRANT_STATUS, SYSTEM_NAMESPACE).data)
        assert found is not None
        return found

    async def scenario(h: Harness) -> None:
        assert not shown().obstacle
        pod(cluster, "p", amount=1)
        await asyncio.sleep(4.0)
        (one,) = shown().pods
        assert (one.pod, one.node, one.state, one.devices) == (f"{NS}/p", "n1", "granted", ("gpu-0",))
        cluster.uninstall()
        await asyncio.sleep(15.0)
        assert not shown().pods
        assert "dra-driver-grants" in shown().obstacle

    run(cluster, scenario, scheduler=False)


def test_a_grant_that_is_not_used_ends_and_another_node_is_tried() -> None:
    cluster = cluster_of("n1", "n2", gpus=1)

    async def scenario(h: Harness) -> None:
        pod(cluster, "p", amount=1)
        await asyncio.sleep(6.0)
        assert not h.gates("p")
        first = cluster.obj(PODS, "p", NS).status.nominated_node_name
        assert granted(cluster) == {(first, "gpu-0")}
        await asyncio.sleep(32.0)
        assert metric(h, "timeout") == 1
        assert len(h.events("GrantInVain")) == 1
        second = cluster.obj(PODS, "p", NS).status.nominated_node_name
        assert second != first
        assert granted(cluster) == {(second, "gpu-0")}
        assert place(cluster, "p")
        await asyncio.sleep(BACK)
        assert node_of(h, "p") == second
        assert metric(h, "allocated") == 1
        assert not granted(cluster)

    run(cluster, scenario, scheduler=False)


def test_a_grant_that_kube_scheduler_cannot_use_ends_soon() -> None:
    cluster = cluster_of("n1", gpus=1)

    async def scenario(h: Harness) -> None:
        pod(cluster, "p", amount=1)
        await asyncio.sleep(6.0)
        assert granted(cluster)
        h.report("p", "0/1 nodes are available: 1 node(s) had volume node affinity conflict.")
        await asyncio.sleep(7.0)
        assert metric(h, "refused") == 1
        assert not granted(cluster)

    run(cluster, scenario, scheduler=False)


def test_a_decision_of_before_that_is_refused_does_not_end_the_grant() -> None:
    """kube-scheduler reports the error and tries again, with what is granted by then."""
    cluster = cluster_of("n1", "n2", gpus=1)

    async def scenario(h: Harness) -> None:
        pod(cluster, "p", amount=1)
        await asyncio.sleep(6.0)
        late = decide(cluster, cluster.obj(PODS, "p", NS))
        assert late is not None
        await asyncio.sleep(35.0)
        ((node, device),) = granted(cluster)
        assert node != late.node
        assert not write(cluster, late)
        await asyncio.sleep(2.0)
        assert granted(cluster) == {(node, device)}
        assert cluster.obj(PODS, "p", NS).status.nominated_node_name == node
        assert place(cluster, "p")
        assert devices(h, "p-extended") == {(node, device)}

    run(cluster, scenario, scheduler=False)


def test_the_grant_of_a_pod_that_is_deleted_ends() -> None:
    cluster = cluster_of("n1", gpus=1)

    async def scenario(h: Harness) -> None:
        pod(cluster, "p", amount=1)
        await asyncio.sleep(6.0)
        assert granted(cluster)
        cluster.remove(PODS, "p", NS)
        await asyncio.sleep(1.0)
        assert metric(h, "gone") == 1
        assert not granted(cluster)
        await asyncio.sleep(BACK)
        claim(cluster, "c")
        pod(cluster, "q", "c")
        await asyncio.sleep(1.0)
        assert devices(h, "c") == {("n1", "gpu-0")}

    run(cluster, scenario, scheduler=False)


# --- how many -----------------------------------------------------------------------------------------------


def test_so_many_pods_have_grants_at_a_time_and_those_of_higher_priority_come_first() -> None:
    nodes = [f"n{i}" for i in range(MOST_PODS + 2)]
    cluster = cluster_of(*nodes, gpus=1)

    async def scenario(h: Harness) -> None:
        for i in range(MOST_PODS):
            pod(cluster, f"first-{i}", amount=1)
        await asyncio.sleep(6.0)
        assert len(granted(cluster)) == MOST_PODS
        pod(cluster, "low", amount=1, priority=1)
        pod(cluster, "high", amount=1, priority=2)
        await asyncio.sleep(6.0)
        assert len(granted(cluster)) == MOST_PODS
        assert h.gates("low")
        assert h.gates("high")
        assert place(cluster, "first-0")
        await asyncio.sleep(3.0)
        assert h.gates("low")
        assert not h.gates("high")
        cluster.remove(PODS, "first-1", NS)
        await asyncio.sleep(3.0)
        assert not h.gates("low")

    run(cluster, scenario, scheduler=False)


def test_a_pod_that_waits_for_other_things_does_not_hold_up_those_that_wait_for_a_grant(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = cluster_of(*[f"n{i}" for i in range(MOST_PODS + 2)], gpus=1)
    claim(cluster, "both", request(), request("nic", "nic"))

    async def scenario(h: Harness) -> None:
        for i in range(MOST_PODS):
            pod(cluster, f"first-{i}", amount=1)
        await asyncio.sleep(6.0)
        assert len(granted(cluster)) == MOST_PODS
        pod(cluster, "stuck", "both", priority=1)
        await asyncio.sleep(3.0)
        pod(cluster, "p", amount=1)
        await asyncio.sleep(3.0)
        # kube-scheduler has so many pods to bind that no claim is allocated.
        for name in ("LEAST", "LEAST_OF_NAMESPACE"):
            monkeypatch.setattr(f"controller.allocate.attempts.window.{name}", 0)
        monkeypatch.setattr("controller.allocate.attempts.attempts.LEAST_OF_NAMESPACE", 0)
        cluster.remove(PODS, "first-0", NS)
        await asyncio.sleep(6.0)
        assert h.gates("stuck")
        assert not h.gates("p")

    run(cluster, scenario, scheduler=False)


# --- what comes in between ----------------------------------------------------------------------------------


def test_a_controller_that_starts_during_a_grant_ends_it_and_grants_again() -> None:
    cluster = cluster_of("n1", gpus=1)
    claim(cluster, "both", request(), request("nic", "nic"))

    async def main() -> None:
        async with asyncio.timeout(3_000):
            async with controlling(cluster, open_pools=True) as h:
                await asyncio.sleep(IN_FORCE)
                pod(cluster, "p", amount=1)
                await asyncio.sleep(6.0)
                assert granted(cluster)
                assert not h.gates("p")
            async with controlling(cluster, open_pools=True) as h:
                await asyncio.sleep(1.0)
                assert not granted(cluster)
                # It waits without a gate, like any other pod that asks for what kube-scheduler allocates.
                await asyncio.sleep(34.0)
                assert granted(cluster) == {("n1", "gpu-0")}
                assert place(cluster, "p")
                await asyncio.sleep(BACK)
                assert node_of(h, "p") == "n1"
                assert not granted(cluster)

    virtual_time.run(main())


def test_an_api_server_that_does_not_follow_the_end_of_a_grant_is_noticed() -> None:
    """It admits what was granted, for longer than is waited for, and refuses the trial all the same."""
    cluster = cluster_of("n1", gpus=1)
    policies = cluster.registry.policies
    look = policies.parameters

    async def scenario(h: Harness) -> None:
        pod(cluster, "p", amount=1)
        await asyncio.sleep(6.0)
        assert granted(cluster)
        old = cluster.raw(CONFIG_MAPS, GRANTS, SYSTEM_NAMESPACE)
        policies.parameters = lambda kind, key: old if key.name == GRANTS else look(kind, key)
        cluster.remove(PODS, "p", NS)
        claim(cluster, "c")
        pod(cluster, "of-c", "c")
        for _ in range(40):
            await asyncio.sleep(1.0)
            assert not devices(h, "c")
        policies.parameters = look
        await asyncio.sleep(60.0)
        assert devices(h, "c")

    run(cluster, scenario, scheduler=False)


@pytest.mark.parametrize("what", ["object", "policy"])
def test_what_was_granted_is_allocated_again_when_object_or_policy_is_deleted(what: str) -> None:
    cluster = cluster_of("n1", gpus=2)

    async def scenario(h: Harness) -> None:
        pod(cluster, "p", amount=1)
        await asyncio.sleep(6.0)
        assert granted(cluster)
        if what == "object":
            cluster.remove(CONFIG_MAPS, GRANTS, SYSTEM_NAMESPACE)
        else:
            cluster.uninstall()
        cluster.remove(PODS, "p", NS)
        for name in ("c", "d"):
            claim(cluster, name)
            pod(cluster, f"of-{name}", name)
        await asyncio.sleep(90.0)
        # The pool has its taint, and was drained.
        assert devices(h, "c") | devices(h, "d") == {("n1", "gpu-0"), ("n1", "gpu-1")}

    run(cluster, scenario, scheduler=False)


def test_what_is_granted_to_a_pod_is_taken_by_no_other() -> None:
    cluster = cluster_of("n1", "n2", gpus=1)

    async def scenario(h: Harness) -> None:
        pod(cluster, "p", amount=1)
        await asyncio.sleep(6.0)
        ((node, _),) = granted(cluster)
        # A pod without the gate comes first.
        pod(cluster, "other", amount=1, gated=False)
        cluster.edit(PODS, "other", {"status": {"nominatedNodeName": node}}, NS)
        assert not place(cluster, "other")
        assert place(cluster, "p")
        await asyncio.sleep(12.0)
        assert place(cluster, "other")
        assert devices(h, "p-extended") == {(node, "gpu-0")}
        assert node_of(h, "other") != node

    run(cluster, scenario, scheduler=False)


def test_devices_that_are_granted_are_allocated_by_nobody_else_until_they_are_back() -> None:
    cluster = cluster_of("n1", gpus=2)

    async def scenario(h: Harness) -> None:
        pod(cluster, "p", amount=1)
        await asyncio.sleep(6.0)
        ((_, device),) = granted(cluster)
        for name in ("c", "d"):
            claim(cluster, name)
            pod(cluster, f"of-{name}", name)
        await asyncio.sleep(20.0)
        held = devices(h, "c") | devices(h, "d")
        assert len(held) == 1
        assert ("n1", device) not in held
        cluster.remove(PODS, "p", NS)
        await asyncio.sleep(2.0)
        assert len(devices(h, "c") | devices(h, "d")) == 1
        await asyncio.sleep(BACK)
        assert devices(h, "c") | devices(h, "d") == {("n1", "gpu-0"), ("n1", "gpu-1")}

    run(cluster, scenario, scheduler=False)


def test_a_decision_that_is_written_after_the_grant_is_refused() -> None:
    cluster = cluster_of("n1", gpus=1)

    async def scenario(h: Harness) -> None:
        pod(cluster, "p", amount=1)
        await asyncio.sleep(6.0)
        late = decide(cluster, cluster.obj(PODS, "p", NS))
        assert late is not None
        claim(cluster, "c")
        pod(cluster, "q", "c", priority=1)
        # Its time is over after 30 s; the device is ours some 20 s later.
        await asyncio.sleep(30.0 + BACK)
        assert devices(h, "c") == {("n1", "gpu-0")}
        assert not write(cluster, late)
        assert not doubles(cluster)

    run(cluster, scenario, scheduler=False)


def test_a_pod_without_the_gate_is_served_as_well() -> None:
    cluster = cluster_of("n1")

    async def scenario(h: Harness) -> None:
        pod(cluster, "p", amount=1, gated=False)
        h.report("p", f"0/1 nodes are available: 1 {CANNOT_ALLOCATE}.")
        await asyncio.sleep(6.0)
        assert node_of(h, "p") == "n1"

    run(cluster, scenario)
