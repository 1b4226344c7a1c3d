"""Pools without our taint: the controller allocates from them while the API server refuses others."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from typing import Any

import controller_harness as harness
import pytest
import virtual_time
from builders import DRIVER, request
from controller_harness import Harness, Scenario, pod
from open_cluster import PolicedCluster, cluster_of, without_taints

from dra_driver.api.core import CONFIG_MAPS
from dra_driver.api.meta import PoolName
from dra_driver.api.names import GRANTS, SYSTEM_NAMESPACE, TRIAL_CLAIM
from dra_driver.api.own.inventory import DEVICE_INVENTORIES
from dra_driver.api.own.policy import DEVICE_POLICIES
from dra_driver.api.resource import RESOURCE_CLAIMS, RESOURCE_SLICES
from dra_driver.api.server.admission import VALIDATING_POLICIES, VALIDATING_POLICY_BINDINGS
from dra_driver.errors import Forbidden
from dra_driver.ownership import PoolAllocator, PoolID

POOL = PoolID(DRIVER, PoolName("n1"))


def run(cluster: PolicedCluster, scenario: Scenario, **config: Any) -> None:
    async def main() -> None:
        given = {"open_pools": True, **config}
        async with asyncio.timeout(2_000), harness.controlling(cluster, **given) as made:
            await scenario(made)

    virtual_time.run(main())


async def until(condition: Callable[[], object], seconds: float = 120.0) -> float:
    """Wait; return the seconds that it took."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    while not condition():
        assert loop.time() < began + seconds
        await asyncio.sleep(0.05)
    return loop.time() - began


async def opened(h: Harness, cluster: PolicedCluster, node: str = "n1") -> float:
    return await until(lambda: cluster.record(node) == "open" and cluster.bare())


def ask(cluster: PolicedCluster, *names: str) -> None:
    for name in names:
        harness.claim(cluster, name, request())
        pod(cluster, f"p-{name}", name)


def in_force(h: Harness) -> bool:
    name, labels = "dra_driver_controller_grant_policy_in_force", {"policy": GRANTS}
    return h.controller.metrics.registry.get_sample_value(name, labels) == 1.0


def condition(cluster: PolicedCluster) -> tuple[str, str]:
    found = cluster.obj(DEVICE_INVENTORIES, f"n1.{DRIVER}").status.conditions
    return next((c.reason, c.message) for c in found if c.type == "Published")


def test_a_pool_opens_when_the_policy_is_proved_and_time_and_read_are_over() -> None:
    cluster = cluster_of("n1")

    async def scenario(h: Harness) -> None:
        ask(cluster, "early")
        took = await opened(h, cluster)
        assert 4.5 < took < 7.0
        assert h.devices("early")  # until then it had its taint
        assert cluster.bare() == {"gpu-0", "gpu-1"}
        grants = cluster.grants()
        assert (grants.default, grants.exceptions) == (PoolAllocator.CONTROLLER, frozenset())
        ask(cluster, "c")
        await until(lambda: h.devices("c"))
        harness.claim(cluster, "theirs", request())
        assert not cluster.take("theirs", "n1", "gpu-1")

    run(cluster, scenario)


@pytest.mark.parametrize("missing", ["policy", "binding", "object", "claim", "gate", "all"])
def test_a_pool_keeps_its_taint_where_something_is_missing(missing: str) -> None:
    cluster = cluster_of("n1")
    if missing in ("policy", "all"):
        cluster.uninstall()
    if missing in ("binding", "all"):
        cluster.remove(VALIDATING_POLICY_BINDINGS, GRANTS)
    if missing in ("object", "all"):
        cluster.remove(CONFIG_MAPS, GRANTS, SYSTEM_NAMESPACE)
    if missing in ("claim", "all"):
        cluster.remove(RESOURCE_CLAIMS, TRIAL_CLAIM, SYSTEM_NAMESPACE)
    if missing == "gate":
        cluster.gate_labelled()

    async def scenario(h: Harness) -> None:
        await asyncio.sleep(60)
        assert cluster.record() == "controller"
        assert not cluster.bare()
        reason, message = condition(cluster)
        assert reason == "PolicyNotInForce"
        # It is said once, however often it is looked at.
        cluster.writes.clear()
        await asyncio.sleep(60)
        assert not cluster.writes
        assert ("gate" if missing == "gate" else "dra-driver-") in message
        ask(cluster, "c")
        await until(lambda: h.devices("c"))
        cluster.install()
        cluster.gate_everywhere()
        await opened(h, cluster)
        assert condition(cluster)[0] == "Published"

    run(cluster, scenario)


def test_a_policy_that_is_not_evaluated_opens_nothing() -> None:
    cluster = cluster_of("n1")
    cluster.evaluates = False

    async def scenario(h: Harness) -> None:
        await asyncio.sleep(90)
        cluster.writes.clear()
        await asyncio.sleep(60)
        assert not cluster.writes
        assert not cluster.bare()
        assert "admits" in condition(cluster)[1]
        cluster.evaluates = True
        await opened(h, cluster)

    run(cluster, scenario)


def test_a_policy_that_says_no_turn_proves_nothing_and_that_is_said() -> None:
    """Its message is no part of what is compared."""
    cluster = cluster_of("n1")
    (validation,) = cluster.raw(VALIDATING_POLICIES, GRANTS)["spec"]["validations"]
    plain = {"expression": validation["expression"]}
    cluster.edit(VALIDATING_POLICIES, GRANTS, {"spec": {"validations": [plain]}})

    async def scenario(h: Harness) -> None:
        await asyncio.sleep(20)
        assert not cluster.bare()
        reason, message = condition(cluster)
        assert (reason, "cannot be tried" in message) == ("PolicyNotInForce", True)
        cluster.uninstall()
        cluster.install()
        await opened(h, cluster)

    run(cluster, scenario)


def test_an_api_server_that_lags_behind_proves_nothing() -> None:
    """It refuses the trial, by what an earlier process has written."""
    cluster = cluster_of("n1")

    async def first(h: Harness) -> None:
        await opened(h, cluster)

    policies = cluster.registry.policies
    look = policies.parameters

    async def second(h: Harness) -> None:
        ask(cluster, "c")
        await asyncio.sleep(20)
        assert not in_force(h)
        assert not h.devices("c")
        policies.parameters = look
        await until(lambda: h.devices("c"))

    run(cluster, first)
    old = cluster.raw(CONFIG_MAPS, GRANTS, SYSTEM_NAMESPACE)
    policies.parameters = lambda kind, key: old if key.name == GRANTS else look(kind, key)
    run(cluster, second)


def test_where_the_policy_goes_the_controller_stops_and_the_pool_gets_its_taint() -> None:
    cluster = cluster_of("n1", gpus=4)

    async def scenario(h: Harness) -> None:
        await opened(h, cluster)
        cluster.uninstall()
        await asyncio.sleep(11)
        ask(cluster, "late")
        await asyncio.sleep(1)
        assert not h.devices("late")
        assert condition(cluster)[0] == "PolicyNotInForce"
        # Nobody refuses kube-scheduler now.
        harness.claim(cluster, "theirs", request())
        assert cluster.take("theirs", "n1", "gpu-0")
        await until(lambda: not cluster.bare())
        await until(lambda: h.devices("late"))
        assert cluster.record() == "controller"
        assert h.devices("late") != [("n1", "gpu-0")]
        cluster.install()
        await opened(h, cluster)
        ask(cluster, "next")
        await until(lambda: h.devices("next"))
        assert not cluster.doubles()

    run(cluster, scenario)


@pytest.mark.parametrize("why", ["immutable", "no right", "somebody else"])
def test_where_the_object_cannot_be_written_the_pool_gets_its_taint_and_that_is_said(why: str) -> None:
    cluster = cluster_of("n1")

    def refuse(verb: str, kind: str, name: str, _: str) -> None:
        if (verb, kind, name) == ("patch", CONFIG_MAPS.kind, GRANTS):
            raise Forbidden("no such right", code=403)

    async def spoil() -> None:
        labels = (str(number) for number in itertools.count())
        while True:
            cluster.edit(CONFIG_MAPS, GRANTS, {"metadata": {"labels": {"n": next(labels)}}}, SYSTEM_NAMESPACE)
            await asyncio.sleep(0.2)

    async def scenario(h: Harness) -> None:
        await opened(h, cluster)
        task = None
        if why == "immutable":
            cluster.edit(CONFIG_MAPS, GRANTS, {"immutable": True}, SYSTEM_NAMESPACE)
        elif why == "no right":
            cluster.edit(CONFIG_MAPS, GRANTS, {"metadata": {"labels": {"n": "1"}}}, SYSTEM_NAMESPACE)
            cluster.before = refuse
        else:
            task = asyncio.create_task(spoil())
        await until(lambda: not in_force(h), 11)
        ask(cluster, "c")
        await until(lambda: condition(cluster)[0] == "PolicyNotInForce", 75)
        assert GRANTS in condition(cluster)[1]
        await until(lambda: h.devices("c"))
        assert cluster.record() == "controller"
        if task is not None:
            task.cancel()
        if why != "immutable":
            cluster.before = lambda *_: None
            await opened(h, cluster)

    run(cluster, scenario)


def test_an_api_server_that_does_not_answer_for_minutes_costs_no_slices() -> None:
    cluster = cluster_of("n1")

    async def scenario(h: Harness) -> None:
        await opened(h, cluster)
        cluster.writes.clear()
        cluster.down = True
        await asyncio.sleep(200)
        cluster.down = False
        ask(cluster, "c")
        await until(lambda: h.devices("c"), 60)
        assert not [w for w in cluster.writes if w.kind == "ResourceSlice"]

    run(cluster, scenario)


def test_a_policy_that_is_back_soon_costs_no_slices() -> None:
    cluster = cluster_of("n1")

    async def scenario(h: Harness) -> None:
        await opened(h, cluster)
        cluster.writes.clear()
        cluster.uninstall()
        await asyncio.sleep(11)
        cluster.install()
        ask(cluster, "c")
        await until(lambda: h.devices("c"), 20)
        assert not [w for w in cluster.writes if w.kind == "ResourceSlice"]

    run(cluster, scenario)


@pytest.mark.parametrize("change", ["policy", "object", "evaluates"])
def test_any_change_of_what_is_installed_stops_the_controller_until_it_is_proved_anew(change: str) -> None:
    cluster = cluster_of("n1")

    async def scenario(h: Harness) -> None:
        await opened(h, cluster)
        turn = cluster.grants().turn
        match change:
            case "policy":
                cluster.edit(VALIDATING_POLICIES, GRANTS, {"spec": {"auditAnnotations": []}})
                raw = cluster.raw(VALIDATING_POLICIES, GRANTS)
                cluster.remove(VALIDATING_POLICIES, GRANTS)
                raw["metadata"] = {"name": GRANTS}
                cluster.put(VALIDATING_POLICIES, raw)
            case "object":
                cluster.edit(CONFIG_MAPS, GRANTS, {"data": {"_pools": str(POOL)}}, SYSTEM_NAMESPACE)
            case _:
                cluster.evaluates = False
        await until(lambda: not in_force(h), 10.5)
        cluster.evaluates = True
        ask(cluster, "c")
        await asyncio.sleep(4.5)
        assert not h.devices("c")
        await until(lambda: h.devices("c"), 12)
        assert cluster.grants().turn > turn
        assert not cluster.grants().exceptions
        assert cluster.bare() == {"gpu-0", "gpu-1"}

    run(cluster, scenario)


def test_a_process_that_starts_leaves_open_pools_alone_until_the_policy_is_proved() -> None:
    cluster = cluster_of("n1")

    async def first(h: Harness) -> None:
        await opened(h, cluster)

    async def second(h: Harness) -> None:
        cluster.writes.clear()
        ask(cluster, "c")
        await asyncio.sleep(4)
        assert not h.devices("c")
        assert h.gates("p-c")
        took = await until(lambda: h.devices("c"))
        assert took < 4
        assert not [w for w in cluster.writes if w.kind == "ResourceSlice"]

    run(cluster, first)
    run(cluster, second)


def test_a_process_that_is_not_to_open_pools_gives_them_their_taint() -> None:
    cluster = cluster_of("n1")

    async def first(h: Harness) -> None:
        await opened(h, cluster)

    async def second(h: Harness) -> None:
        ask(cluster, "c")
        await until(lambda: not cluster.bare())
        assert not h.devices("c")
        took = await until(lambda: h.devices("c"))
        assert took > 14
        assert cluster.record() == "controller"

    run(cluster, first)
    run(cluster, second, open_pools=False)


def test_without_taints_pools_are_open_or_kube_schedulers() -> None:
    """Kubernetes 1.34 and 1.35 by default."""
    cluster = cluster_of("n1")
    cluster.strip = without_taints

    async def scenario(h: Harness) -> None:
        await asyncio.sleep(3)
        assert not cluster.all(RESOURCE_SLICES)  # whose it is is not known yet
        await opened(h, cluster)
        ask(cluster, "c")
        await until(lambda: h.devices("c"))
        ((node, device),) = h.devices("c")
        harness.claim(cluster, "theirs", request())
        assert not cluster.take("theirs", node, device)
        cluster.uninstall()
        await until(lambda: cluster.record() == "scheduler")
        cluster.install()
        await opened(h, cluster)
        assert not cluster.take("theirs", node, "gpu-1" if device == "gpu-0" else "gpu-0")
        ask(cluster, "d")
        await until(lambda: h.devices("d"))
        assert not cluster.doubles()

    run(cluster, scenario)


def test_a_pool_that_may_be_open_no_more_gets_its_taint() -> None:
    cluster = cluster_of("n1")

    async def scenario(h: Harness) -> None:
        await opened(h, cluster)
        cluster.gate_labelled()
        await until(lambda: not cluster.bare() and cluster.record() == "controller")
        ask(cluster, "c")
        await until(lambda: h.devices("c"))

    run(cluster, scenario)


def test_where_pools_are_kube_schedulers_by_default_one_of_the_controller_opens() -> None:
    cluster = cluster_of("n1", "n2")
    term = {"key": "kubernetes.io/hostname", "operator": "In", "values": ["n1"]}
    policy = {
        "apiVersion": "dra-driver.dev/v1alpha1",
        "kind": "DevicePolicy",
        "metadata": {"name": "ours"},
        "spec": {
            "nodeSelector": {"nodeSelectorTerms": [{"matchExpressions": [term]}]},
            "allocator": "controller",
        },
    }

    async def scenario(h: Harness) -> None:
        for name in ("mine", "theirs", "more"):
            harness.claim(cluster, name, request())
        await until(lambda: cluster.record("n2") == "scheduler")
        cluster.put(DEVICE_POLICIES, policy)
        await opened(h, cluster)
        assert cluster.grants().exceptions == {POOL}
        assert not cluster.take("theirs", "n1", "gpu-0")
        assert cluster.take("theirs", "n2", "gpu-0")
        pod(cluster, "p-mine", "mine", nodeSelector={"kubernetes.io/hostname": "n1"})
        await until(lambda: h.devices("mine"))

    run(cluster, scenario, allocator=PoolAllocator.SCHEDULER)


def test_a_pool_of_kube_scheduler_is_an_exception_of_the_object() -> None:
    cluster = cluster_of("n1", "n2")
    term = {"key": "kubernetes.io/hostname", "operator": "In", "values": ["n1"]}
    policy = {
        "apiVersion": "dra-driver.dev/v1alpha1",
        "kind": "DevicePolicy",
        "metadata": {"name": "theirs"},
        "spec": {
            "nodeSelector": {"nodeSelectorTerms": [{"matchExpressions": [term]}]},
            "allocator": "scheduler",
        },
    }

    async def scenario(h: Harness) -> None:
        await opened(h, cluster)
        harness.claim(cluster, "mine", request())
        pod(cluster, "p-mine", "mine", nodeSelector={"kubernetes.io/hostname": "n1"})
        await until(lambda: h.devices("mine"))
        (mine,) = h.devices("mine")
        h.bind("p-mine", "n1")
        other = "gpu-1" if mine[1] == "gpu-0" else "gpu-0"
        cluster.put(DEVICE_POLICIES, policy)
        await until(lambda: cluster.grants().admits("", POOL, other))
        # What the controller has allocated is kept: kube-scheduler may have decided on it before it knew.
        harness.claim(cluster, "theirs", request())
        harness.claim(cluster, "more", request())
        assert not cluster.take("more", *mine)
        assert cluster.take("theirs", "n1", other)
        assert not cluster.take("more", "n2", "gpu-0")
        cluster.remove(DEVICE_POLICIES, "theirs")
        await until(lambda: not cluster.grants().admits("", POOL, other))
        assert not cluster.take("more", "n1", "gpu-0")
        await opened(h, cluster)
        assert not cluster.doubles()

    run(cluster, scenario)
