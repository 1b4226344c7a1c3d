"""Where pods come without the gate nothing is lent, and that is said."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import virtual_time
from controller_harness import Harness, controlling
from fake_client import FakeClient
from lending_cluster import FIRST_READ, bare, cluster_of, gate_everywhere, pod
from work_counter import calls

from controller.admission.config import OBJECT_NAME
from controller.admission.paths import GATE_WEBHOOK, NOT_GATED
from controller.config import LendingMode
from controller.publish.gated import GatedNamespaces
from dra_driver.api.core import CONFIG_MAPS, NAMESPACES
from dra_driver.api.names import ALLOCATOR_LABEL, GATE_POLICY, LENDING_STATUS, SYSTEM_NAMESPACE
from dra_driver.api.server.admission import (
    MUTATING_POLICIES,
    MUTATING_POLICY_BINDINGS,
    MUTATING_WEBHOOKS,
)
from dra_driver.errors import Forbidden
from dra_driver.fleet import LendingShown, shown_lending
from dra_driver.kube import Informer
from dra_driver.resourceclaim import NAMES_CLAIMS, NAMES_CLAIMS_OR_RESOURCES

NEVER = {"name": "never", "expression": "false"}
LABELLED: dict[str, Any] = {"namespaceSelector": {"matchLabels": {ALLOCATOR_LABEL: "controller"}}}


def run(
    cluster: FakeClient,
    scenario: Callable[[Harness], Awaitable[None]],
    mode: LendingMode = LendingMode.ON,
) -> None:
    async def main() -> None:
        async with asyncio.timeout(3_000), controlling(cluster, lending=mode) as harness:
            await asyncio.sleep(FIRST_READ)
            await scenario(harness)

    virtual_time.run(main())


def namespace(cluster: FakeClient, name: str, *, label: bool = True) -> None:
    labels = {ALLOCATOR_LABEL: "controller"} if label else {}
    cluster.put(NAMESPACES, {"metadata": {"name": name, "labels": labels}})


def shown(cluster: FakeClient) -> LendingShown:
    found = shown_lending(cluster.obj(CONFIG_MAPS, LENDING_STATUS, SYSTEM_NAMESPACE).data)
    assert found is not None
    return found


def test_nothing_is_lent_before_every_namespace_has_the_gate() -> None:
    cluster = cluster_of("n1")
    gate_everywhere(cluster, **LABELLED)
    namespace(cluster, "default")
    namespace(cluster, "team-a", label=False)

    async def scenario(h: Harness) -> None:
        pod(cluster, "p", amount=1)
        await asyncio.sleep(30.0)
        assert not bare(cluster)
        assert h.gates("p")
        assert h.reason("p").reason == "WaitingForLoan"
        (event,) = set(h.events("WaitingForLoan"))
        for text in (h.reason("p").message, event):
            assert "pods of 1 namespace are created without the gate" in text
            assert "team-a" not in text  # which namespaces there are is not for everybody
        assert shown(cluster).ungated == ("team-a",)
        assert "without the gate" in shown(cluster).obstacle
        namespace(cluster, "team-a")
        await asyncio.sleep(2.0)
        assert bare(cluster)
        await asyncio.sleep(2.0)
        (loan,) = shown(cluster).loans
        assert (loan.pod, loan.node, loan.state) == ("default/p", "n1", "lent")
        assert shown(cluster).obstacle == ""

    run(cluster, scenario)


def test_a_namespace_that_comes_without_the_gate_ends_lending() -> None:
    cluster = cluster_of("n1")
    gate_everywhere(cluster, **LABELLED)
    namespace(cluster, "default")

    async def scenario(h: Harness) -> None:
        namespace(cluster, "new", label=False)
        await asyncio.sleep(0.5)
        pod(cluster, "p", amount=1)
        await asyncio.sleep(5.0)
        assert not bare(cluster)
        cluster.remove(NAMESPACES, "new")
        await asyncio.sleep(2.0)
        assert bare(cluster)

    run(cluster, scenario)


def test_nothing_is_lent_where_the_policy_is_not_that_of_lending() -> None:
    async def looked(change: Callable[[FakeClient], None]) -> str:
        cluster = cluster_of("n1")
        namespace(cluster, "default")
        change(cluster)
        async with controlling(cluster, lending=LendingMode.ON) as h:
            pod(cluster, "p", amount=1)
            await asyncio.sleep(FIRST_READ)
            assert not bare(cluster)
            return h.reason("p").message

    def spec(**changes: Any) -> Callable[[FakeClient], None]:
        return lambda cluster: cluster.edit(MUTATING_POLICIES, GATE_POLICY, {"spec": changes})

    def claims_only(cluster: FakeClient) -> None:
        expression = "has(object.spec.resourceClaims) && object.spec.resourceClaims.size() > 0"
        spec(matchConditions=[{"name": "uses-claims", "expression": expression}])(cluster)

    unbound = {"spec": {"policyName": "another"}}
    cases: dict[str, Callable[[FakeClient], None]] = {
        "is not installed": lambda c: c.remove(MUTATING_POLICIES, GATE_POLICY),
        "sets the gate, is not installed": lambda c: c.remove(MUTATING_POLICY_BINDINGS, GATE_POLICY),
        "is not bound": lambda c: c.edit(MUTATING_POLICY_BINDINGS, GATE_POLICY, unbound),
        "leaves out pods with extended resources": claims_only,
        "leaves out pods by their labels": lambda c: gate_everywhere(
            c, objectSelector={"matchLabels": {"a": "b"}}
        ),
        "of what the condition": spec(matchConditions=[{"name": "x", "expression": "request.name == 'x'"}]),
        "does not set the gate": spec(mutations=[]),
    }

    async def main() -> None:
        for text, change in cases.items():
            assert text.removeprefix("of ") in await looked(change), text

    virtual_time.run(main())


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
    gate_everywhere(cluster)
    look()
    assert gated.problem() == ""


@pytest.mark.parametrize("lends", [False, True])
def test_where_there_are_no_policies_the_webhook_counts(lends: bool) -> None:
    cluster = cluster_of("n1")
    cluster.withdraw(MUTATING_POLICIES)
    namespace(cluster, "default")
    namespace(cluster, "other", label=False)
    webhook = {
        "name": GATE_WEBHOOK,
        "namespaceSelector": {"matchLabels": {ALLOCATOR_LABEL: "controller"}},
        "matchConditions": [
            {"name": "uses-claims", "expression": NAMES_CLAIMS_OR_RESOURCES if lends else NAMES_CLAIMS},
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
        if lends:
            assert "pods of 1 namespace are created without the gate" in gated.problem()
            assert gated.ungated() == ("other",)
            cluster.remove(NAMESPACES, "other")
            await asyncio.sleep(1.0)
            assert gated.problem() == ""
        else:
            assert "leaves out pods with extended resources" in gated.problem()
        task.cancel()

    virtual_time.run(main())


def test_what_is_shown_follows_the_mode() -> None:
    cluster = cluster_of("n1")

    async def scenario(h: Harness) -> None:
        assert shown(cluster).mode == "ending"
        assert shown(cluster).sentence.startswith("lending is ending")

    run(cluster, scenario, LendingMode.ENDING)


def test_what_pods_are_created_with_is_not_known_before_the_namespaces_are() -> None:
    cluster = cluster_of("n1")
    gate_everywhere(cluster, **LABELLED)
    namespace(cluster, "default")

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
    gate_everywhere(cluster, **LABELLED)
    namespace(cluster, "default")
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
            assert gated.ungated() == ("default",)
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
        assert "is not registered" in gated.problem()
        cluster.remove(MUTATING_WEBHOOKS, OBJECT_NAME)
