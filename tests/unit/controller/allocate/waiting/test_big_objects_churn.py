"""What changes of objects cost that say nothing new to the controller, however big these are."""

from __future__ import annotations

import asyncio
from typing import Any

import builders
import virtual_time
from builders import NAMESPACE as NS
from controller_harness import Clock, claim, cluster_of, controlling, pod
from fake_client import FakeClient
from work_counter import calls

from controller.allocate.decide import same_but_reason
from controller.allocate.preempting import TermsSource
from controller.config import PreemptionSettings
from controller.publish.dropped import DroppedCapacity
from dra_driver.api import codec
from dra_driver.api.core import NAMESPACES, PODS, Pod
from dra_driver.api.policy import POD_DISRUPTION_BUDGETS
from dra_driver.api.resource import RESOURCE_CLAIM_TEMPLATES, RESOURCE_CLAIMS
from dra_driver.kube import EventRecorder, Informer
from dra_driver.resourceclaim import LAST_APPLIED


def test_a_pod_whose_new_status_says_nothing_that_is_kept_is_not_looked_at() -> None:
    cluster = cluster_of(n1=(40,))
    claim(cluster, "c")
    pod(cluster, "p", "c")

    async def scenario() -> None:
        async with controlling(cluster) as h:
            await h.quiet()
            h.bind("p", "n1")
            await h.quiet()
            before = h.decisions(), len(cluster.writes)
            for i in range(5):
                cluster.edit(PODS, "p", {"status": {"podIP": f"10.0.0.{i}", "hostIP": "10.1.0.1"}}, NS)
                await asyncio.sleep(1)
            assert (h.decisions(), len(cluster.writes)) == before

    virtual_time.run(scenario())


def test_versions_of_a_pod_are_the_same_but_for_what_is_kept() -> None:
    def made(version: str, **status: Any) -> Pod:
        body = builders.pod("p", "c", uid="1", metadata={"resourceVersion": version})
        return codec.convert(Pod, {**body, "status": {"phase": "Running", **status}})

    assert same_but_reason(made("1"), made("2", podIP="10.0.0.1"))
    assert not same_but_reason(made("1"), made("2", nominatedNodeName="n1"))
    assert not same_but_reason(made("1"), made("2", phase="Failed"))
    other = {"type": "PodScheduled", "status": "False"}
    assert not same_but_reason(made("1"), made("2", conditions=[other]))


def test_labels_of_budgets_and_of_namespaces_ask_nothing_anew_about_preemption() -> None:
    cluster = FakeClient()
    meta = {"name": "b", "namespace": NS}
    cluster.put(POD_DISRUPTION_BUDGETS, {"metadata": meta, "spec": {"selector": {"matchLabels": {"a": "b"}}}})
    cluster.put(NAMESPACES, {"metadata": {"name": "kept"}})

    async def scenario() -> None:
        budgets, kept = Informer(cluster, POD_DISRUPTION_BUDGETS), Informer(cluster, NAMESPACES)
        terms = TermsSource(PreemptionSettings(), Clock(), budgets, kept)
        async with asyncio.TaskGroup() as tasks:
            running = [tasks.create_task(informer.run()) for informer in (budgets, kept)]
            await asyncio.sleep(1)
            known = terms.changes
            assert known == 2
            for i in range(5):
                label = {"metadata": {"labels": {"x": f"{i}"}}}
                cluster.edit(POD_DISRUPTION_BUDGETS, "b", label, NS)
                cluster.edit(NAMESPACES, "kept", label)
            await asyncio.sleep(1)
            assert terms.changes == known
            cluster.edit(POD_DISRUPTION_BUDGETS, "b", {"status": {"disruptionsAllowed": 3}}, NS)
            cluster.remove(NAMESPACES, "kept")
            await asyncio.sleep(1)
            assert terms.changes == known + 2
            for task in running:
                task.cancel()

    virtual_time.run(scenario())


def test_what_kubectl_applied_is_read_once_whatever_labels_change() -> None:
    cluster = FakeClient()
    asked = {"exactly": {"deviceClassName": "gpu", "capacity": {"requests": {"memory": "1Gi"}}}}
    applied = codec.encode(
        {"spec": {"devices": {"requests": [{"name": f"r{i}", **asked} for i in range(32)]}}}
    ).decode()
    body = builders.claim("c", *(builders.request(f"r{i}") for i in range(32)), uid="1")
    body["metadata"]["annotations"] = {LAST_APPLIED: applied}
    cluster.put(RESOURCE_CLAIMS, body)

    async def scenario() -> None:
        claims = Informer(cluster, RESOURCE_CLAIMS)
        templates = Informer(cluster, RESOURCE_CLAIM_TEMPLATES)
        found = DroppedCapacity(claims, templates, EventRecorder(cluster, "test", Clock()))
        task = asyncio.create_task(claims.run())
        await asyncio.sleep(1)
        assert found.count() == 1
        old = claims.items()[0]
        new = codec.convert(type(old), {**body, "metadata": {**body["metadata"], "labels": {"x": "y"}}})
        (handler,) = claims._handlers
        assert calls(lambda: handler.updated(old, new)) < 30
        task.cancel()

    virtual_time.run(scenario())
