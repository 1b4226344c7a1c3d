"""Requests for capacity that an API server without the feature gate has dropped, and what is said of them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any

import builders
import pytest
from controller_harness import Harness, cluster_of, run
from fake_client import FakeClient

from dra_driver.api import codec
from dra_driver.api.core import EVENTS
from dra_driver.api.resource import (
    RESOURCE_CLAIM_TEMPLATES,
    ResourceClaim,
    ResourceClaimTemplate,
)
from dra_driver.cli.capacity import object_notes, server_notes
from dra_driver.kube.features import keeps_capacity
from dra_driver.resourceclaim import LAST_APPLIED, capacity_advice, dropped_from

Body = dict[str, Any]
BIG = builders.request(memory="32Gi")
ANY = builders.request("any")
EITHER: Body = {
    "name": "either",
    "firstAvailable": [
        {"name": "big", "deviceClassName": "gpu", "capacity": {"requests": {"memory": "80Gi"}}},
        {"name": "small", "deviceClassName": "gpu"},
    ],
}


def gate_off(body: Mapping[str, Any]) -> None:
    """Do as an API server without the gate."""
    spec = body.get("spec", {})
    devices = spec.get("devices") or spec.get("spec", {}).get("devices") or {}
    for request in devices.get("requests", ()) if isinstance(devices, dict) else ():
        for part in (request.get("exactly"), *request.get("firstAvailable", ())):
            (part or {}).pop("capacity", None)


def applied(body: Body) -> Body:
    """Do as ``kubectl apply``."""
    body["metadata"]["annotations"] = {LAST_APPLIED: json.dumps(body)}
    return json.loads(json.dumps(body))  # type: ignore[no-any-return]


def claim(*requests: Body, kept: bool = False, note: str | None = None) -> ResourceClaim:
    body = applied(builders.claim("c", *requests))
    if note is not None:
        body["metadata"]["annotations"] = {LAST_APPLIED: note}
    if not kept:
        gate_off(body)
    return codec.convert(ResourceClaim, body)


def template(*requests: Body, name: str = "t") -> Body:
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"spec": {"devices": {"requests": list(requests)}}},
    }


def test_what_was_dropped_is_named() -> None:
    assert dropped_from(claim(BIG, ANY, EITHER)) == ("gpu", "either/big")


def test_what_was_kept_or_never_asked_for_is_not() -> None:
    assert dropped_from(claim(BIG, EITHER, kept=True)) == ()
    assert dropped_from(claim(ANY)) == ()
    assert dropped_from(codec.convert(ResourceClaim, builders.claim("c", ANY))) == ()


def test_a_template_is_looked_at_as_well_and_older_versions_are_read() -> None:
    body = applied(template(BIG))
    gate_off(body)
    assert dropped_from(codec.convert(ResourceClaimTemplate, body)) == ("gpu",)
    old = {"name": "gpu", "deviceClassName": "gpu", "capacity": {"requests": {"memory": "32Gi"}}}
    note = json.dumps({"spec": {"devices": {"requests": [old]}}})
    assert dropped_from(claim(BIG, note=note)) == ("gpu",)


@pytest.mark.parametrize(
    "note",
    [
        "capacity",
        '{"spec": {"devices": {"requests": "capacity"}}}',
        '{"spec": null, "capacity": 1}',
        '{"capacity": ' + "[" * 5000 + "]" * 5000 + "}",
        json.dumps({"spec": {"devices": {"requests": [{**BIG, "name": "other"}]}}}),
    ],
    ids=["no JSON", "wrong type", "nothing", "deep", "another request"],
)
def test_an_annotation_of_a_stranger_does_no_harm(note: str) -> None:
    assert dropped_from(claim(BIG, note=note)) == ()


def test_the_text_is_bounded() -> None:
    dropped = dropped_from(claim(*(builders.request("x" * 63 + str(i), memory="1Gi") for i in range(2000))))
    assert len(dropped) <= 65
    assert len(capacity_advice(dropped)) < 512
    assert f"and {len(dropped) - 3} more" in capacity_advice(dropped)


def test_the_server_is_asked_by_a_dry_run() -> None:
    cluster = FakeClient()

    async def main() -> None:
        assert await keeps_capacity(cluster, "default") is True
        assert await server_notes(cluster) == []
        cluster.strip = gate_off
        assert await keeps_capacity(cluster, "default") is False
        claims = (claim(BIG),)
        assert await server_notes(cluster) == [capacity_advice()]
        (found,) = object_notes((), claims)
        assert found.startswith("ResourceClaim default/c: capacity of request gpu was dropped")
        assert object_notes((), claims, "elsewhere") == []
        assert cluster.writes == []

    asyncio.run(main())


def test_the_controller_reports_each_object_once_and_counts_them() -> None:
    cluster = cluster_of(n1=(40,))
    cluster.strip = gate_off

    def metric(h: Harness, name: str) -> float | None:
        return h.controller.metrics.registry.get_sample_value(f"dra_driver_controller_{name}")

    async def scenario(h: Harness) -> None:
        body = applied(template(BIG))
        gate_off(body)
        cluster.put(RESOURCE_CLAIM_TEMPLATES, body)
        cluster.put(RESOURCE_CLAIM_TEMPLATES, template(ANY, name="u"))
        await h.quiet()
        (event,) = [e for e in cluster.all(EVENTS) if e.reason == "CapacityDropped"]
        assert (event.involved_object.kind, event.involved_object.name) == ("ResourceClaimTemplate", "t")
        # The administrator can have them refused; the controller may register no webhook.
        assert (
            "webhooks.refuseDroppedCapacity (deploy/optional/refuse-dropped-capacity.yaml)" in event.message
        )
        assert metric(h, "dropped_capacity") == 1.0
        cluster.remove(RESOURCE_CLAIM_TEMPLATES, "t", "default")
        await h.quiet()
        assert metric(h, "dropped_capacity") == 0.0

    run(cluster, scenario)
