"""What a change costs where thousands of pods share a claim, or a pod names thousands: calls, not seconds."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import builders
import pytest
import virtual_time
from controller_harness import NS, Harness, claim, cluster_of, controlling, node, pod, pool, request
from fake_client import FakeClient
from work_counter import calls_elsewhere

from controller.allocate.walks import STEP
from dra_driver.api.core import PODS
from dra_driver.api.resource import RESOURCE_CLAIMS

Put = Callable[[FakeClient, int], None]
Act = Callable[[Harness], None]

FEW, MANY = 10, 70
SECONDS = 3.0


def waiting_users(cluster: FakeClient, number: int) -> None:
    """Put pods of one claim that no node can serve."""
    claim(cluster, "shared", request(count=9))
    for i in range(number):
        pod(cluster, f"p{i:04}", "shared")


def users_without_a_gate(cluster: FakeClient, number: int) -> None:
    """Put such pods that kube-scheduler looks at."""
    claim(cluster, "shared", request(count=9))
    for i in range(number):
        pod(cluster, f"p{i:04}", "shared", gated=False)


def served_users(cluster: FakeClient, number: int) -> None:
    """Put pods of one claim that is allocated."""
    claim(cluster, "shared", request())
    for i in range(number):
        pod(cluster, f"p{i:04}", "shared")


def users_of_all(cluster: FakeClient, number: int) -> None:
    """Put pods that name the same claims, all of which would have to fit."""
    names = [f"c{i}" for i in range(number // 4)]
    for name in names:
        claim(cluster, name, request())
    for i in range(number // 4):
        pod(cluster, f"p{i:04}", *names)


def label_of_a_claim(h: Harness) -> None:
    for name in ("shared", "c0"):
        if h.cluster.find(RESOURCE_CLAIMS, name, NS) is not None:
            h.cluster.edit(RESOURCE_CLAIMS, name, {"metadata": {"labels": {"example.com/x": "1"}}}, NS)


def label_of_a_user(h: Harness) -> None:
    h.cluster.edit(PODS, "p0003", {"metadata": {"labels": {"example.com/x": "1"}}}, NS)


def report_about_a_user(h: Harness) -> None:
    h.report("p0003", "0/1 nodes are available: something")


def end_of_a_user(h: Harness) -> None:
    h.cluster.remove(PODS, "p0003", NS)


def another_user(h: Harness) -> None:
    pod(h.cluster, "q", "shared")


def more_devices(h: Harness) -> None:
    node(h.cluster, "n2")
    pool(h.cluster, "n2", 40)


def cost(put: Put, act: Act, number: int) -> int:
    """Return how many functions of the controller a change calls beyond what it calls anyway."""
    cluster = cluster_of(n1=(40, 40))
    put(cluster, number)

    async def scenario() -> int:
        async with controlling(cluster) as h:
            await asyncio.sleep(40)
            await h.quiet()

            async def count(do: Act) -> int:
                # The event loop compares its timers, of which there are more at some times than at others.
                with calls_elsewhere("/tests/", "/asyncio/") as found:
                    do(h)
                    await asyncio.sleep(SECONDS)
                return found()

            idle = await count(lambda _: None)
            return await count(act) - idle

    return virtual_time.run(scenario())


@pytest.mark.parametrize(
    ("put", "act"),
    [
        (waiting_users, label_of_a_claim),
        (users_without_a_gate, report_about_a_user),
        *(
            pytest.param(put, act, marks=pytest.mark.long)
            for put, act in (
                (waiting_users, label_of_a_user),
                (waiting_users, report_about_a_user),
                (waiting_users, end_of_a_user),
                (waiting_users, another_user),
                (users_without_a_gate, label_of_a_claim),
                (served_users, label_of_a_claim),
                (served_users, label_of_a_user),
                (served_users, end_of_a_user),
                (users_of_all, label_of_a_claim),
            )
        ),
    ],
)
def test_a_change_costs_the_same_however_many_pods_share_a_claim(put: Put, act: Act) -> None:
    few, many = cost(put, act, FEW), cost(put, act, MANY)
    assert many - few < MANY - FEW, (few, many)
    assert many < 5_000


@pytest.mark.long
@pytest.mark.parametrize("put", [waiting_users, users_without_a_gate])
def test_more_devices_cost_one_decision_for_all_users_of_a_claim(put: Put) -> None:
    few, many = cost(put, more_devices, FEW), cost(put, more_devices, MANY)
    # All are told why they wait, as that has changed.
    assert many - few < 60 * (MANY - FEW), (few, many)


# --- pods that name thousands of claims -----------------------------------------------------------------


def names_many(cluster: FakeClient, number: int) -> None:
    """Put a pod that names claims that do not exist."""
    pod(cluster, "p0003", *(f"none-{i}" for i in range(number)))


def names_many_generated(cluster: FakeClient, number: int) -> None:
    """Put a pod whose claims are generated, by what the controller-manager wrote."""
    body = builders.pod("p0003", gated=True)
    body["spec"]["resourceClaims"] = [
        {"name": f"c{i}", "resourceClaimTemplateName": "t"} for i in range(number)
    ]
    made = [{"name": f"c{i}", "resourceClaimName": f"made-{i}"} for i in range(number)]
    cluster.put(PODS, {**body, "status": {"resourceClaimStatuses": made}})


@pytest.mark.parametrize("put", [names_many, names_many_generated])
@pytest.mark.parametrize("act", [label_of_a_user, end_of_a_user])
def test_a_change_of_a_pod_costs_a_few_steps_for_each_claim_that_it_names(put: Put, act: Act) -> None:
    few, many = cost(put, act, 50), cost(put, act, 500)
    # In the controller and in what decides together.
    assert many - few < 45 * 450, (few, many)


# --- changes that matter --------------------------------------------------------------------------------


def test_every_user_of_a_claim_that_comes_is_looked_at_and_served_however_many_there_are() -> None:
    cluster = cluster_of(n1=(40, 40))
    number = 3 * STEP
    for i in range(number):
        pod(cluster, f"p{i:04}", "shared")

    async def scenario() -> None:
        async with controlling(cluster) as h:
            await asyncio.sleep(5)
            claim(cluster, "shared", request())
            await asyncio.sleep(30)
            assert h.devices("shared")
            assert not [i for i in range(number) if h.gates(f"p{i:04}")]

    virtual_time.run(scenario())


def test_the_next_pod_is_served_where_the_first_of_those_that_share_all_claims_goes() -> None:
    cluster = cluster_of(n1=(40,))
    claim(cluster, "shared", request(memory="80Gi"))
    for name in "abc":
        pod(cluster, name, "shared")

    async def scenario() -> None:
        async with controlling(cluster) as h:
            await asyncio.sleep(5)
            assert {h.reason(name).reason for name in "abc"} == {"FailedAllocation"}
            cluster.remove(PODS, "a", NS)
            node(cluster, "n2")
            pool(cluster, "n2", 80)
            await asyncio.sleep(30)
            assert [pool for pool, _ in h.devices("shared")] == ["n2"]
            assert not h.gates("b") + h.gates("c")

    virtual_time.run(scenario())
