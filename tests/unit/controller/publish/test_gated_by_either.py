"""The gate may come from the policy, from the webhook, or from both; who needs none is left out."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import virtual_time
from open_cluster import PolicedCluster

from controller.admission.config import OBJECT_NAME
from controller.admission.paths import GATE_WEBHOOK
from controller.publish.gated import GatedNamespaces
from dra_driver.api.core import NAMESPACES
from dra_driver.api.names import GATE_POLICY, KUBE_SYSTEM, SYSTEM_NAMESPACE
from dra_driver.api.server.admission import MUTATING_POLICIES, MUTATING_WEBHOOKS
from dra_driver.errors import Forbidden
from dra_driver.kube import Informer
from dra_driver.resourceclaim import NAMES_CLAIMS_OR_RESOURCES

NAME = "kubernetes.io/metadata.name"
EVERYWHERE: dict[str, Any] = {}
_NAMES = [KUBE_SYSTEM, SYSTEM_NAMESPACE]
LEFT_OUT = {"matchExpressions": [{"key": NAME, "operator": "NotIn", "values": _NAMES}]}


def cluster_of(*namespaces: str) -> PolicedCluster:
    cluster = PolicedCluster()
    for name in namespaces:
        cluster.put(NAMESPACES, {"metadata": {"name": name, "labels": {NAME: name}}})
    return cluster


def webhook(cluster: PolicedCluster, selector: dict[str, Any], bundle: str = "Y2E=") -> None:
    body = {
        "name": GATE_WEBHOOK,
        "clientConfig": {"caBundle": bundle},
        "namespaceSelector": selector,
        "matchConditions": [{"name": "uses-claims", "expression": NAMES_CLAIMS_OR_RESOURCES}],
    }
    if cluster.find(MUTATING_WEBHOOKS, OBJECT_NAME) is not None:
        cluster.remove(MUTATING_WEBHOOKS, OBJECT_NAME)
    cluster.put(MUTATING_WEBHOOKS, {"metadata": {"name": OBJECT_NAME}, "webhooks": [body]})


def run(cluster: PolicedCluster, scenario: Callable[[GatedNamespaces], Awaitable[None]]) -> None:
    async def main() -> None:
        namespaces = Informer(cluster, NAMESPACES)
        gated = GatedNamespaces(cluster, namespaces, (KUBE_SYSTEM, SYSTEM_NAMESPACE))
        following = asyncio.create_task(namespaces.run())
        await namespaces.synced.wait()
        await gated.once()
        await scenario(gated)
        following.cancel()

    virtual_time.run(main())


def test_the_control_plane_and_the_driver_need_no_gate() -> None:
    cluster = cluster_of("team", KUBE_SYSTEM, SYSTEM_NAMESPACE)
    webhook(cluster, LEFT_OUT)

    async def scenario(gated: GatedNamespaces) -> None:
        assert gated.everywhere()
        assert gated.ungated() == ()
        labels = {NAME: "team", "gate": "no"}
        cluster.put(NAMESPACES, {"metadata": {"name": "other", "labels": labels}})
        webhook(cluster, {"matchExpressions": [{"key": "gate", "operator": "DoesNotExist"}]})
        await gated.once()
        assert gated.ungated() == ("other",)
        assert "kube-scheduler would try them with devices" in gated.problem()

    run(cluster, scenario)


def test_a_policy_for_some_namespaces_and_a_webhook_for_all_gate_all() -> None:
    """As during an upgrade from the one to the other, in either direction."""
    cluster = cluster_of("team", "labelled")
    cluster.edit(NAMESPACES, "labelled", {"metadata": {"labels": {"gate": "yes"}}})
    cluster.gate_everywhere()
    cluster.gate_labelled()

    async def scenario(gated: GatedNamespaces) -> None:
        assert gated.ungated() == ("team",)
        webhook(cluster, {"matchExpressions": [{"key": "gate", "operator": "DoesNotExist"}]})
        await gated.once()
        assert gated.everywhere()
        cluster.remove(MUTATING_POLICIES, GATE_POLICY)
        await gated.once()
        assert gated.ungated() == ("labelled",)
        webhook(cluster, EVERYWHERE)
        await gated.once()
        assert gated.everywhere()

    run(cluster, scenario)


def test_one_of_them_that_leaves_pods_out_does_no_harm_beside_the_other() -> None:
    cluster = cluster_of("team")
    cluster.gate_everywhere()
    never = [{"name": "never", "expression": "false"}]
    cluster.edit(MUTATING_POLICIES, GATE_POLICY, {"spec": {"matchConditions": never}})

    async def scenario(gated: GatedNamespaces) -> None:
        assert "leaves out pods that name claims" in gated.problem()
        webhook(cluster, EVERYWHERE)
        await gated.once()
        assert gated.everywhere()

    run(cluster, scenario)


def test_a_webhook_that_the_api_server_cannot_call_sets_no_gate() -> None:
    cluster = cluster_of("team")
    webhook(cluster, EVERYWHERE, bundle="")

    async def scenario(gated: GatedNamespaces) -> None:
        assert "has no authority yet" in gated.problem()
        webhook(cluster, EVERYWHERE)
        await gated.once()
        assert gated.everywhere()

    run(cluster, scenario)


def test_what_may_not_be_read_does_not_hide_what_may() -> None:
    cluster = cluster_of("team")
    cluster.gate_everywhere()
    kinds = {MUTATING_WEBHOOKS.kind}

    def forbidden(verb: str, kind: str, *_: str) -> None:
        if verb == "get" and kind in kinds:
            raise Forbidden("no", code=403, reason="Forbidden")

    cluster.before = forbidden

    async def scenario(gated: GatedNamespaces) -> None:
        assert gated.everywhere()
        kinds.add(MUTATING_POLICIES.kind)
        await gated.once()
        assert "cannot be read" in gated.problem()
        assert gated.ungated() == ("team",)

    run(cluster, scenario)
