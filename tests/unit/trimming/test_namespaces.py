"""What the objects of each namespace take together, and what becomes of those that there is no room for."""

from __future__ import annotations

import asyncio
from typing import Any

import builders
import pytest
from fake_client import FakeClient

from dra_driver.api import codec
from dra_driver.api.core import PODS, Pod
from dra_driver.api.meta import WireObject
from dra_driver.api.names import CONTROLLER_TAINT
from dra_driver.api.policy import PodDisruptionBudget
from dra_driver.api.resource import ResourceClaim, ResourceClaimTemplate
from dra_driver.api.storage import PersistentVolumeClaim
from dra_driver.kube import Handler, Informer
from dra_driver.nodefit import needs_of
from dra_driver.resourceclaim import LAST_APPLIED
from dra_driver.trimming import MOST_GATES, NamespaceAllowance, namespaces, trimmed_pod, unservable

FREE, MOST = 2_000, 30_000


def pod(name: str, *claims: str, namespace: str = "a", size: int = 0, **more: Any) -> Pod:
    tolerations = [{"key": "x" * size, "operator": "Exists"}] if size else []
    body = builders.pod(
        name, *claims, namespace=namespace, uid=f"{namespace}-{name}", tolerations=tolerations, **more
    )
    return codec.convert(Pod, body)


def weigh(item: Pod) -> int:
    return namespaces.weight_of(trimmed_pod(item))


def test_small_objects_are_free_however_many_they_are() -> None:
    allowance = NamespaceAllowance(FREE, MOST)
    pods = allowance.of_pods()
    for i in range(1_000):
        assert pods.keep(pod(f"p{i}", "c", size=500)).left_out == ""
    assert not allowance.totals


def test_objects_are_kept_up_to_the_limit_of_the_namespace_and_no_further() -> None:
    first = pod("p", "c", size=20_000)
    allowance = NamespaceAllowance(FREE, 2 * (weigh(first) - FREE))
    pods = allowance.of_pods()
    assert [pods.keep(pod(n, "c", size=20_000)).left_out for n in ("p", "q")] == ["", ""]
    found = pods.keep(pod("r", "c", size=20_000))
    assert unservable(found) == found.left_out
    assert f"objects of namespace a take {3 * (weigh(first) - FREE)} bytes" in found.left_out
    assert f"keeps at most {2 * (weigh(first) - FREE)} of a namespace" in found.left_out
    assert found.spec.resource_claims
    assert namespaces.weight_of(found) < FREE
    # Another namespace, and what is small, are not affected.
    assert pods.keep(pod("p", "c", namespace="b", size=20_000)).left_out == ""
    assert pods.keep(pod("s", "c", size=10)).left_out == ""


def test_an_object_is_counted_once_and_no_more_when_it_is_gone() -> None:
    allowance = NamespaceAllowance(FREE, MOST)
    pods = allowance.of_pods()
    for _ in range(100):
        assert pods.keep(pod("p", "c", size=20_000)).left_out == ""
    assert pods.keep(pod("q", "c", size=20_000)).left_out
    assert not pods.outdated()
    pods.forget(pod("p", "c"))
    assert pods.outdated()
    assert pods.keep(pod("q", "c", size=20_000)).left_out == ""
    assert not pods.outdated()
    pods.listed([])
    assert not allowance.totals
    assert not pods.outdated()


def test_all_kinds_count_together() -> None:
    allowance = NamespaceAllowance(FREE, MOST)
    pods, claims, budgets = allowance.of_pods(), allowance.of_claims(), allowance.of_budgets()
    config = [{"opaque": {"driver": "d", "parameters": {"a": "x" * 25_000}}}]
    body = builders.claim("c", namespace="a", uid="c")
    body["spec"]["devices"]["config"] = config
    claim = codec.convert(ResourceClaim, body)
    assert claims.keep(claim).left_out == ""
    found = pods.keep(pod("p", "c", size=20_000))
    assert "objects of namespace a" in found.left_out
    selector = {"matchLabels": {"k": "x" * 14_000}}
    budget = {"metadata": {"name": "b", "namespace": "a", "uid": "b"}, "spec": {"selector": selector}}
    kept = budgets.keep(codec.convert(PodDisruptionBudget, budget))
    assert kept.spec.selector is not None
    assert not kept.spec.selector.match_labels
    claims.forget(claim)
    assert pods.outdated()
    assert pods.keep(pod("p", "c", size=20_000)).left_out == ""
    again = claims.keep(claim)
    assert "objects of namespace a" in again.left_out
    assert again.spec.devices.config == ()
    assert [r.name for r in again.spec.devices.requests or ()] == ["gpu"]


NAME = "n" * 253
SHORT = "s" * 60


def _crowded_pod(i: int) -> dict[str, Any]:
    entries = [{"name": f"{j:03}{SHORT}", "resourceClaimTemplateName": NAME} for j in range(5_000)]
    asked = {f"{NAME}/{j:03}{SHORT}": "1" for j in range(1_000)}
    ports = [{"hostPort": j, "hostIP": f"10.0.{j >> 8}.{j & 255}"} for j in range(1, 5_000)]
    return {
        "metadata": {"name": f"{i:03}{NAME[3:]}", "namespace": "a", "uid": f"u{i}"},
        "spec": {
            "nodeName": NAME if i % 2 else "",
            "resourceClaims": entries,
            "containers": [{"name": "c", "resources": {"requests": asked}, "ports": ports}],
            "schedulingGates": [{"name": f"{j:03}{NAME}/{SHORT}"} for j in range(1_000)],
            "volumes": [{"name": NAME, "persistentVolumeClaim": {"claimName": NAME}}] * 1_000,
        },
        "status": {
            "resourceClaimStatuses": [{"name": e["name"], "resourceClaimName": NAME} for e in entries]
        },
    }


def _crowded_claim(i: int) -> dict[str, Any]:
    subs: list[dict[str, Any]] = [
        {"name": f"{j}{SHORT}", "deviceClassName": NAME, "capacity": None} for j in range(8)
    ]
    requests: list[dict[str, Any]] = [{"name": f"{k:02}{SHORT}", "firstAvailable": subs} for k in range(32)]
    asked = [{"name": r["name"], "exactly": {"capacity": {"requests": {"memory": "1"}}}} for r in requests]
    applied = codec.encode({"spec": {"devices": {"requests": asked}}}).decode()
    subs[0] = {**subs[0], "tolerations": [{"key": "k" * 300, "operator": "Exists"}] * 16}
    requests.append({"name": "last", "exactly": {"deviceClassName": "gpu", "tolerations": [TOLERATED]}})
    return {
        "metadata": {
            "name": f"{i:03}{NAME[3:]}",
            "namespace": "a",
            "uid": f"u{i}",
            "annotations": {LAST_APPLIED: applied},
        },
        "spec": {"devices": {"requests": requests}},
    }


TOLERATED = {"key": CONTROLLER_TAINT, "operator": "Exists"}


def test_of_objects_that_there_is_no_room_for_little_is_kept_whatever_they_name() -> None:
    allowance = NamespaceAllowance(FREE, 0)
    pods, claims, templates = allowance.of_pods(), allowance.of_claims(), allowance.of_templates()
    for i in range(4):
        kept_pod = pods.keep(codec.convert(Pod, _crowded_pod(i)))
        claim = codec.convert(ResourceClaim, _crowded_claim(i))
        kept_claim = claims.keep(claim)
        spec = {"metadata": _crowded_claim(i)["metadata"], "spec": {"spec": _crowded_claim(i)["spec"]}}
        kept_template = templates.keep(codec.convert(ResourceClaimTemplate, spec))
        kept: tuple[WireObject, ...] = (kept_pod, kept_claim, kept_template)
        assert [namespaces.weight_of(k) <= 2 * namespaces.FREE_WEIGHT for k in kept] == [True] * 3
        assert len(kept_pod.spec.scheduling_gates) == MOST_GATES + 1, "gates are written as they are kept"
        for spec_kept in (kept_claim.spec, kept_template.spec.spec):
            first = (spec_kept.devices.requests or ())[0].exactly
            assert first is not None
            assert first.tolerations, "what kube-scheduler could give our devices is not overlooked"
    assert allowance.totals == {}


def test_of_a_pod_on_a_node_that_there_is_no_room_for_cpu_and_memory_are_counted() -> None:
    asked = {f"example.com/{NAME[:40]}{i}": "1" for i in range(60)}
    requests = {"cpu": "2", "memory": "1Gi", **asked}
    given = pod("p", nodeName="n1", containers=[{"name": "c", "resources": {"requests": requests}}])
    found = NamespaceAllowance(100, 0).of_pods().keep(given)
    assert {"cpu", "memory"} <= dict(needs_of(found).amounts).keys()
    assert len(needs_of(found).amounts) < 10


def test_sums_of_pods_that_are_large_are_not_remembered() -> None:
    ports = [{"hostPort": i} for i in range(1, 1_000)]

    def kept(**more: Any) -> object:
        return trimmed_pod(pod("p", containers=[{"name": "c", **more}])).spec.containers[0]

    small = {"resources": {"requests": {"cpu": "3"}}}
    assert kept(**small) is kept(**small)
    assert kept(ports=ports) is not kept(ports=ports)


def test_a_pod_without_claims_is_kept_without_what_is_large_and_takes_its_part_of_the_node() -> None:
    allowance = NamespaceAllowance(FREE, 0)
    labels = {f"k{i}": "v" * 60 for i in range(200)}
    given = pod("p", nodeName="n1", cpu="4", metadata={"labels": labels})
    found = allowance.of_pods().keep(given)
    assert (found.left_out, found.metadata.labels) == ("", None)
    assert needs_of(found) == needs_of(given)
    assert found.spec.node_name == "n1"


@pytest.mark.parametrize("number", [511, 512])
def test_the_selector_of_a_volume_claim_is_bounded_in_bytes_too(number: int) -> None:
    short = {"matchExpressions": [{"key": "k", "operator": "In", "values": ["v"] * number}]}
    long = {"matchExpressions": [{"key": "k", "operator": "In", "values": ["v" * 40] * (number - 100)}]}
    for selector, left_out in ((short, number > 511), (long, number > 508)):
        body = {"metadata": {"name": "c"}, "spec": {"selector": selector}}
        assert codec.convert(PersistentVolumeClaim, body).left_out is left_out


# --- in an informer -----------------------------------------------------------------------------------------


def test_an_informer_reads_again_what_there_is_room_for_by_now() -> None:
    client = FakeClient()
    for name in ("p", "q"):
        client.put(PODS, builders.pod(name, "c", tolerations=[{"key": "x" * 20_000, "operator": "Exists"}]))
    pods = NamespaceAllowance(FREE, MOST).of_pods()
    informer = Informer(client, PODS, keeper=pods, watch_seconds=1)
    seen: list[tuple[str, bool]] = []

    def note(item: Pod) -> None:
        seen.append((item.metadata.name, bool(item.left_out)))

    informer.add_handler(Handler(added=note, updated=lambda _, new: note(new)))

    async def main() -> None:
        task = asyncio.create_task(informer.run())
        await informer.synced.wait()
        assert seen == [("p", False), ("q", True)]
        client.remove(PODS, "p", builders.NAMESPACE)
        async with asyncio.timeout(20):
            while seen[-1] != ("q", False):
                client.now += 1
                client.wake()
                await asyncio.sleep(0.01)
        task.cancel()
        assert len(informer.items()[0].spec.tolerations[0].key) == 20_000

    asyncio.run(main())
