"""DeviceTaintRules: which devices they taint, and that the controller respects them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import builders
import pytest
import virtual_time
from builders import DRIVER, PROTECTED
from builders import NAMESPACE as NS
from fake_client import FakeClient

from controller.allocate.answers.journal import Journal
from controller.allocate.decide import Decision, Decisions, PodID, PodQuestion, Refuse, Settings, Write
from controller.allocate.signal import Signal
from controller.allocate.state.assume_cache import AssumeCache
from controller.allocate.state.following import follow
from controller.allocate.state.served import informer_when_served
from controller.allocate.state.taint_rules import served_rules, until_rules_are_known
from dra_driver.api import codec
from dra_driver.api.core import NODES, PODS
from dra_driver.api.meta import ObjectKey, Resource
from dra_driver.api.resource import (
    DEVICE_CLASSES,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    DeviceTaintRule,
    ResourceSlice,
    device_taint_rules,
)
from dra_driver.errors import Forbidden
from dra_driver.kube import Handler, Informer
from dra_driver.ports import KubeClient
from dra_driver.structured import with_rules

RULES = device_taint_rules("v1beta2")


def slice_body(node: str = "n1", count: int = 2) -> dict[str, Any]:
    devices = [builders.device(f"gpu-{i}", taints=[PROTECTED]) for i in range(count)]
    return builders.resource_slice(node, *devices, name=node)


def rule_body(
    selector: dict[str, Any] | None,
    effect: str = "NoSchedule",
    key: str = "example.com/sick",
    name: str = "rule",
) -> dict[str, Any]:
    spec = {"taint": {"key": key, "value": "x", "effect": effect}}
    if selector is not None:
        spec["deviceSelector"] = selector
    return {"metadata": {"name": name}, "spec": spec}


def slice_() -> ResourceSlice:
    return codec.convert(ResourceSlice, slice_body())


def rule(*args: Any, **more: Any) -> DeviceTaintRule:
    return codec.convert(DeviceTaintRule, rule_body(*args, **more))


@pytest.mark.parametrize(
    ("selector", "tainted"),
    [
        (None, set()),
        ({}, {"gpu-0", "gpu-1"}),
        ({"driver": DRIVER}, {"gpu-0", "gpu-1"}),
        ({"driver": "other.example.com"}, set()),
        ({"pool": "n1", "device": "gpu-1"}, {"gpu-1"}),
        ({"pool": "n2"}, set()),
        ({"device": "gpu-7"}, set()),
    ],
)
def test_selectors(selector: dict[str, Any] | None, tainted: set[str]) -> None:
    result = with_rules(slice_(), [rule(selector)])
    assert {d.name for d in result.spec.devices if len(d.taints) > 1} == tainted


def test_a_slice_that_no_rule_concerns_stays_the_same_object() -> None:
    one = slice_()
    assert with_rules(one, ()) is one
    assert with_rules(one, [rule({"pool": "n2"}), rule({"device": "gpu-7"}), rule(None)]) is one


def test_several_rules_and_equal_taints() -> None:
    rules = [rule({}, name="b", key="example.com/b"), rule({}, name="a"), rule({}, name="c")]
    keys = [t.key for t in with_rules(slice_(), rules).spec.devices[0].taints]
    assert keys == ["dra-driver.dev/controller", "example.com/sick", "example.com/b"]


class Scenario:
    """Decisions on a fake API server."""

    def __init__(self, *rules: dict[str, Any]) -> None:
        self.cluster = FakeClient()
        for name in ("n1", "n2"):
            labels = {"kubernetes.io/hostname": name}
            self.cluster.put(NODES, {"metadata": {"name": name, "labels": labels}})
            self.cluster.put(RESOURCE_SLICES, slice_body(name, 1))
        selector = {"cel": {"expression": f'device.driver == "{DRIVER}"'}}
        self.cluster.put(DEVICE_CLASSES, {"metadata": {"name": "gpu"}, "spec": {"selectors": [selector]}})
        for body in rules:
            self.cluster.put(RULES, body)

    def claim(self, **exactly: Any) -> None:
        body = builders.claim("c", builders.request("r", **exactly), uid="uid-c")
        self.cluster.put(RESOURCE_CLAIMS, body)
        self.cluster.put(PODS, builders.pod("p", "c", uid="uid-p"))

    async def __aenter__(self) -> Scenario:
        slices, classes = Informer(self.cluster, RESOURCE_SLICES), Informer(self.cluster, DEVICE_CLASSES)
        nodes, claims = Informer(self.cluster, NODES), Informer(self.cluster, RESOURCE_CLAIMS)
        self.rules = Informer(self.cluster, RULES)
        self.pods = Informer(self.cluster, PODS)
        informers: tuple[Informer[Any], ...] = (slices, classes, nodes, claims, self.rules, self.pods)
        self.group = asyncio.TaskGroup()
        await self.group.__aenter__()
        self.decisions = Decisions(Settings(drivers=(DRIVER,)), lambda: 0.0)
        journal = Journal()
        journal.send_to(lambda _, change: self.decisions.apply(change))
        follow(
            journal.apply,
            pods=self.pods,
            nodes=nodes,
            slices=slices,
            classes=classes,
            taint_rules=self.rules,
        )
        AssumeCache(claims, journal, Signal())
        self.tasks = [self.group.create_task(i.run()) for i in informers]
        for informer in informers:
            await informer.synced.wait()
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self.tasks:
            task.cancel()
        await self.group.__aexit__(None, None, None)

    def decide(self) -> Decision:
        pod = self.pods.get(ObjectKey(NS, "p"))
        assert pod is not None
        return self.decisions.decide(PodQuestion(PodID(pod.key, pod.metadata.uid), 0.0)).decision


def test_rules_keep_devices_from_claims_and_are_named() -> None:
    async def scenario() -> None:
        world = Scenario(rule_body({"pool": "n1"}))
        world.claim()
        async with world:
            decision = world.decide()
            assert isinstance(decision, Write)
            assert decision.node == "n2"
            world.cluster.put(RULES, rule_body({"pool": "n2"}, "NoExecute", name="second"))
            await until(lambda: len(world.rules) == 2)
            refused = world.decide()
            assert isinstance(refused, Refuse)
            assert "example.com/sick=x:NoSchedule" in refused.message
            assert "example.com/sick=x:NoExecute" in refused.message
            world.cluster.remove(RULES, "rule")
            await until(lambda: len(world.rules) == 1)
            decision = world.decide()
            assert isinstance(decision, Write)
            assert decision.node == "n1"

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("effect", "toleration", "served"),
    [
        ("None", None, True),
        ("NoSchedule", {"key": "example.com/sick", "operator": "Exists"}, True),
        ("NoSchedule", {"key": "example.com/other", "operator": "Exists"}, False),
        ("NoExecute", {"key": "example.com/sick", "operator": "Equal", "value": "x"}, True),
        ("NoExecute", {"key": "example.com/sick", "operator": "Exists", "effect": "NoSchedule"}, False),
        ("NoExecute", None, False),
    ],
)
def test_effects_and_tolerations(effect: str, toleration: dict[str, Any] | None, served: bool) -> None:
    async def scenario() -> None:
        world = Scenario(rule_body({}, effect))
        world.claim(**({"tolerations": [toleration]} if toleration else {}))
        async with world:
            assert isinstance(world.decide(), Write if served else Refuse)

    asyncio.run(scenario())


def test_a_rule_with_our_own_taint_makes_no_pool_ours() -> None:
    async def scenario() -> None:
        body = rule_body({}, key="dra-driver.dev/controller")
        body["spec"]["taint"]["value"] = "allocates"
        world = Scenario(body)
        body = slice_body("n1", 1)
        body["spec"]["devices"] = [{"name": "gpu-0"}]  # kube-scheduler's
        world.cluster.put(RESOURCE_SLICES, body)
        world.claim()
        async with world:
            decision = world.decide()
            assert isinstance(decision, Write)
            assert decision.node == "n2"

    asyncio.run(scenario())


def test_the_version_is_found_and_absence_is_fine() -> None:
    async def scenario() -> None:
        cluster = FakeClient()
        cluster.withdraw(RULES)
        assert not (await informer_when_served(cluster, served_rules, RULES)).served
        cluster.serve(device_taint_rules("v1alpha3"))
        informer = await informer_when_served(cluster, served_rules, RULES)
        assert informer.served
        assert informer.resource.version == "v1alpha3"
        cluster.serve(device_taint_rules("v1beta2"))
        informer = await informer_when_served(cluster, served_rules, RULES)
        assert informer.served
        assert informer.resource.version == "v1beta2"

        def refuse(verb: str, kind: str, name: str, subresource: str) -> None:
            raise Forbidden("no right", code=403)

        cluster.before = refuse
        await asyncio.wait_for(until_rules_are_known(cluster, informer), 60)

    asyncio.run(scenario())


def test_rules_of_another_version_are_followed_and_those_of_no_version_are_none() -> None:
    cluster = FakeClient()
    cluster.withdraw(RULES)
    absent = 0

    async def found(client: KubeClient) -> Resource[DeviceTaintRule] | None:
        nonlocal absent
        if absent:  # as another server of a control plane answers that is just being upgraded
            absent -= 1
            return None
        return await served_rules(client)

    async def scenario() -> None:
        informer = await informer_when_served(cluster, found, RULES)
        gone: list[str] = []
        informer.add_handler(Handler(deleted=lambda rule: gone.append(rule.metadata.name)))
        task = asyncio.create_task(informer.run())
        await asyncio.sleep(60)
        assert (informer.served, len(informer)) == (False, 0)
        cluster.serve(device_taint_rules("v1alpha3"))
        cluster.put(device_taint_rules("v1alpha3"), rule_body({}, "NoSchedule"))
        await asyncio.sleep(60)
        assert (informer.resource.version, len(informer)) == ("v1alpha3", 1)

        nonlocal absent
        absent = 1
        kind = device_taint_rules("v1alpha3")
        cluster.registry.kinds.remove(kind.group, kind.plural)
        cluster.serve(device_taint_rules("v1beta2"))
        cluster.expire()
        await asyncio.sleep(90)
        assert (informer.resource.version, len(informer), gone) == ("v1beta2", 1, [])

        cluster.withdraw(RULES)
        cluster.expire()
        await asyncio.sleep(90)
        assert (informer.served, len(informer), len(gone)) == (False, 0, 1)
        task.cancel()

    virtual_time.run(scenario())


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.01)
