"""Where pods come without the gate no pool is open, and that is said."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import virtual_time
from controller_harness import Harness, controlling
from granting_cluster import IN_FORCE, cluster_of, pod
from open_cluster import PolicedCluster
from work_counter import calls

from controller.admission.config import OBJECT_NAME
from controller.admission.paths import GATE_WEBHOOK, NOT_GATED
from controller.publish.gated import GatedNamespaces
from dra_driver.api.core import CONFIG_MAPS, NAMESPACES
from dra_driver.api.names import ALLOCATOR_LABEL, GATE_POLICY, GRANT_STATUS, SYSTEM_NAMESPACE
from dra_driver.api.server.admission import (
    MUTATING_POLICIES,
    MUTATING_POLICY_BINDINGS,
    MUTATING_WEBHOOKS,
)
from dra_driver.errors import Forbidden
from dra_driver.fleet import GrantsShown, shown_grants
from dra_driver.kube import Informer
from dra_driver.resourceclaim import NAMES_CLAIMS, NAMES_CLAIMS_OR_RESOURCES

NEVER = {"name": "never", "expression": "false"}
LABELLED: dict[str, Any] = {
    "namespaceSelector": {"matchLabels": {ALLOCATOR_LABEL: "controller"}, "matchExpressions": None}
}


def run(cluster: PolicedCluster, scenario: Callable[[Harness], Awaitable[None]]) -> None:
    async def main() -> None:
        async with asyncio.timeout(3_000), controlling(cluster, open_pools=True) as harness:
            await asyncio.sleep(IN_FORCE)
            await scenario(harness)

    virtual_time.run(main())


def labelled(cluster: PolicedCluster) -> None:
    """Have what sets the gate leave namespaces without the label out, and label all that there are."""
    cluster.edit(MUTATING_POLICIES, GATE_POLICY, {"spec": {"matchConstraints": LABELLED}})
    for name in ("default", SYSTEM_NAMESPACE):
        namespace(cluster, name)


def namespace(cluster: PolicedCluster, name: str, *, label: bool = True) -> None:
    labels = {ALLOCATOR_LABEL: "controller"} if label else {}
    cluster.put(NAMESPACES, {"metadata": {"name": name, "labels": labels}})


def shown(cluster: PolicedCluster) -> GrantsShown:
    found = shown_grants(cluster.obj(CONFIG_MAPS, GRANT_STATUS, SYSTEM_NAMESPACE).data)
    assert found is not None
    return found


def test_no_pool_is_open_before_every_namespace_has_the_gate() -> None:
    cluster = cluster_of("n1")
    labelled(cluster)
    namespace(cluster, "team-a", label=False)

    async def scenario(h: Harness) -> None:
        pod(cluster, "p", amount=1)
        await asyncio.sleep(30.0)
        assert cluster.record() == "controller"
        assert not cluster.bare()
        assert h.gates("p")
        assert shown(cluster).ungated == ("team-a",)
        assert "pods of 1 namespace are created without the gate" in shown(cluster).obstacle
        namespace(cluster, "team-a")
        await asyncio.sleep(IN_FORCE)
        assert cluster.record() == "open"
        (one,) = shown(cluster).pods
        assert (one.pod, one.node, one.state) == ("default/p", "n1", "granted")
        assert shown(cluster).obstacle == ""

    run(cluster, scenario)


def test_a_namespace_that_comes_without_the_gate_ends_open_pools() -> None:
    cluster = cluster_of("n1")
    labelled(cluster)

    async def scenario(h: Harness) -> None:
        assert cluster.record() == "open"
        namespace(cluster, "new", label=False)
        await asyncio.sleep(60.0)
        assert cluster.record() == "controller"
        cluster.remove(NAMESPACES, "new")
        await asyncio.sleep(30.0)
        assert cluster.record() == "open"

    run(cluster, scenario)


def spec(**changes: Any) -> Callable[[PolicedCluster], None]:
    return lambda cluster: cluster.edit(MUTATING_POLICIES, GATE_POLICY, {"spec": changes})


UNBOUND = {"spec": {"policyName": "another"}}
LEFT_OUT = {"objectSelector": {"matchLabels": {"a": "b"}}}


@pytest.mark.parametrize(
    ("text", "change"),
    [
        ("is not installed", lambda c: c.remove(MUTATING_POLICIES, GATE_POLICY)),
        ("what sets the gate is not installed", lambda c: c.remove(MUTATING_POLICY_BINDINGS, GATE_POLICY)),
        ("is not bound", lambda c: c.edit(MUTATING_POLICY_BINDINGS, GATE_POLICY, UNBOUND)),
        (
            "leaves out pods with extended resources",
            spec(matchConditions=[{"name": "uses-claims", "expression": NAMES_CLAIMS}]),
        ),
        ("leaves out pods by their labels", spec(matchConstraints=LEFT_OUT)),
        (
            "what the condition",
            spec(matchConditions=[{"name": "x", "expression": "request.name == 'x'"}]),
        ),
        ("does not set the gate", spec(mutations=[])),
    ],
)
def test_what_does_not_gate_all_pods_is_said(text: str, change: Callable[[PolicedCluster], None]) -> None:
    cluster = cluster_of("n1")
    change(cluster)
    gated = GatedNamespaces(cluster, Informer(cluster, NAMESPACES))
    virtual_time.run(gated.once())
    assert text in gated.problem()
    assert gated.everywhere() is False


def test_conditions_are_compiled_when_they_have_changed() -> None:
    cluster = cluster_of("n1")
    gated = GatedNamespaces(cluster, Informer(cluster, NAMESPACES))

    def look() -> int:
        return calls(lambda: virtual_time.run(gated.once()))

    first = look()
    assert gated.problem() == ""
    assert look() < first / 2
    assert gated.problem() == ""
    cluster.edit(MUTATING_POLICIES, GATE_POLICY, {"spec": {"matchConditions": [NEVER]}})
    look()
    assert "leaves out pods that name claims" in gated.problem()
    cluster.gate_everywhere()
    look()
    assert gated.problem() == ""


@pytest.mark.parametrize("resources", [False, True])
def test_where_there_are_no_policies_the_webhook_counts(resources: bool) -> None:
    cluster = cluster_of("n1")
    labelled(cluster)
    cluster.withdraw(MUTATING_POLICIES)
    namespace(cluster, "other", label=False)
    webhook = {
        "name": GATE_WEBHOOK,
        "clientConfig": {"caBundle": "Y2E="},
        "namespaceSelector": {"matchLabels": {ALLOCATOR_LABEL: "controller"}},
        "matchConditions": [
            {"name": "uses-claims", "expression": NAMES_CLAIMS_OR_RESOURCES if resources else NAMES_CLAIMS},
            {"name": "not-bound", "expression": "!has(object.spec.nodeName) || object.spec.nodeName == ''"},
            {"name": NOT_GATED, "expression": "!has(object.spec.schedulingGates)"},
        ],
    }

    async def main() -> None:
        namespaces = Informer(cluster, NAMESPACES)
        gated = GatedNamespaces(cluster, namespaces)
        task = asyncio.create_task(namespaces.run())
        await namespaces.synced.wait()
        assert gated.problem()
        assert not gated.refusal()
        await gated.once()
        assert "is not installed" in gated.problem()
        cluster.put(MUTATING_WEBHOOKS, {"metadata": {"name": OBJECT_NAME}, "webhooks": [webhook]})
        await gated.once()
        if resources:
            assert "pods of 1 namespace are created without the gate" in gated.problem()
            assert gated.ungated() == ("other",)
            cluster.remove(NAMESPACES, "other")
            await asyncio.sleep(1.0)
            assert gated.problem() == ""
        else:
            assert "leaves out pods with extended resources" in gated.problem()
        task.cancel()

    virtual_time.run(main())


def test_what_pods_are_created_with_is_not_known_before_the_namespaces_are() -> None:
    cluster = cluster_of("n1")
    labelled(cluster)

    async def main() -> None:
        namespaces = Informer(cluster, NAMESPACES)
        gated = GatedNamespaces(cluster, namespaces)
        async with asyncio.TaskGroup() as tasks:
            reading = tasks.create_task(gated.run())
            await asyncio.sleep(30.0)
            assert "has not been read yet" in gated.problem()
            following = tasks.create_task(namespaces.run())
            await asyncio.sleep(1.0)
            assert gated.problem() == ""
            reading.cancel()
            following.cancel()

    virtual_time.run(main())


def test_what_sets_the_gate_is_read_again_after_an_error_and_nothing_is_assumed_without_the_right_to() -> (
    None
):
    cluster = cluster_of("n1")
    labelled(cluster)
    sent: list[str] = []

    def forbidden(verb: str, kind: str, *_: str) -> None:
        if (verb, kind) == ("get", MUTATING_POLICIES.kind):
            raise Forbidden("no", code=403, reason="Forbidden")

    async def main() -> None:
        namespaces = Informer(cluster, NAMESPACES)
        gated = GatedNamespaces(cluster, namespaces)
        gated.changed.listen(lambda: sent.append(gated.problem()))
        async with asyncio.TaskGroup() as tasks:
            running = [tasks.create_task(gated.run()), tasks.create_task(namespaces.run())]
            await asyncio.sleep(1.0)
            cluster.down = True
            await asyncio.sleep(30.0)
            cluster.down = False
            assert sent == [""], "what was read before counts"
            cluster.before = forbidden
            await asyncio.sleep(30.0)
            assert "cannot be read" in gated.problem()
            assert gated.ungated() == ("default", SYSTEM_NAMESPACE)
            cluster.before = lambda *_: None
            await asyncio.sleep(30.0)
            assert sent == ["", sent[1], ""], "each change is sent once"
            for task in running:
                task.cancel()

    virtual_time.run(main())


def test_the_webhook_of_the_gate_is_known_by_its_name() -> None:
    cluster = cluster_of("n1")
    cluster.withdraw(MUTATING_POLICIES)
    gated = GatedNamespaces(cluster, Informer(cluster, NAMESPACES))
    another = {
        "name": "another.dra-driver.dev",
        "admissionReviewVersions": ["v1"],
        "sideEffects": "None",
        "clientConfig": {"url": "https://another"},
    }
    for webhooks in ([], [another]):
        cluster.put(MUTATING_WEBHOOKS, {"metadata": {"name": OBJECT_NAME}, "webhooks": webhooks})
        virtual_time.run(gated.once())
        assert "is not installed" in gated.problem()
        cluster.remove(MUTATING_WEBHOOKS, OBJECT_NAME)
