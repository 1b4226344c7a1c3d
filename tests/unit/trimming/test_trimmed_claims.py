"""What is kept of claims, templates and budgets, and which limit a claim exceeds that is not allocated."""

from __future__ import annotations

import itertools
from typing import Any

import builders
import pytest

from dra_driver.api import codec
from dra_driver.api.names import CONTROLLER_TAINT, GROUP_LABEL, POD_CLAIM_ANNOTATION, TOPOLOGY_ANNOTATION
from dra_driver.api.policy import PodDisruptionBudget
from dra_driver.api.resource import RESOURCE_CLAIM_TEMPLATES, ResourceClaim, ResourceClaimTemplate
from dra_driver.resourceclaim import LAST_APPLIED, dropped_from
from dra_driver.structured import READ_ANNOTATIONS, READ_LABELS, GroupLabels, group_name
from dra_driver.trimming import (
    allocation_only,
    budgets,
    claim_problem,
    claims,
    trimmed_budget,
    trimmed_claim,
    trimmed_template,
)

DEVICES = {"requests": [{"name": "r", "exactly": {"deviceClassName": "gpu"}}]}


def claim(metadata: dict[str, Any] | None = None, **devices: Any) -> ResourceClaim:
    body = {"metadata": {"name": "c", "namespace": "ns", "uid": "u", **(metadata or {})}}
    return codec.convert(ResourceClaim, {**body, "spec": {"devices": {**DEVICES, **devices}}})


def with_parameters(size: int) -> ResourceClaim:
    """Return a claim whose spec has so many bytes."""

    def made(text: str) -> ResourceClaim:
        return claim(config=[{"opaque": {"driver": "d", "parameters": {"a": text}}}])

    return made("x" * (size - len(codec.encode(made("").spec))))


def test_the_spec_of_a_claim_may_have_half_a_megabyte() -> None:
    given = with_parameters(claims.MOST_SPEC_BYTES)
    assert trimmed_claim(given) == given
    found = trimmed_claim(with_parameters(claims.MOST_SPEC_BYTES + 1))
    assert (
        found.left_out
        == "spec of the claim has 524289 bytes of JSON, and the controller serves at most 524288"
    )
    # Whose devices it asks for is known all the same.
    (request,) = found.spec.devices.requests or ()
    assert request.exactly is not None
    assert request.exactly.device_class_name == "gpu"
    assert len(codec.encode(found)) < 500
    assert trimmed_claim(found) == found


def test_a_claim_with_the_largest_parameters_of_the_api_is_served() -> None:
    config = [{"opaque": {"driver": "d", "parameters": {"a": "x" * 10_000}}}] * 32
    assert claim_problem(claim(config=config)) == ""


@pytest.mark.parametrize(
    ("finalizers", "text"),
    [
        (["f"] * claims.MOST_FINALIZERS, ""),
        (["f"] * (claims.MOST_FINALIZERS + 1), "metadata.finalizers of the claim has 65 entries"),
        (["f" * (claims.MOST_FINALIZER_BYTES - 4)], ""),
        (["f" * (claims.MOST_FINALIZER_BYTES - 3)], "metadata.finalizers of the claim has 16385 bytes"),
    ],
)
def test_finalizers_are_kept_as_a_whole_or_not_at_all(finalizers: list[str], text: str) -> None:
    found = trimmed_claim(claim({"finalizers": finalizers}))
    assert found.left_out.startswith(text) and bool(text) == bool(found.left_out)  # noqa: PT018
    assert found.metadata.finalizers == (None if text else tuple(finalizers))


def test_the_topology_of_a_claim_may_have_four_kilobytes() -> None:
    most = claims.MOST_TOPOLOGY_BYTES - 2
    assert claim_problem(claim({"annotations": {TOPOLOGY_ANNOTATION: "x" * most}})) == ""
    text = claim_problem(claim({"annotations": {TOPOLOGY_ANNOTATION: "x" * (most + 1)}}))
    assert text == (
        "metadata.annotations[dra-driver.dev/topology] of the claim has 4097 bytes of JSON, and the "
        "controller serves at most 4096"
    )


def test_of_the_metadata_of_a_claim_is_kept_what_is_read() -> None:
    owner = {"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "pu", "controller": True}
    read = {TOPOLOGY_ANNOTATION: "required:numaNode", POD_CLAIM_ANNOTATION: "c"}
    given = claim(
        {
            "labels": {GROUP_LABEL: "g", "app": "x"},
            "annotations": {**read, "example.com/a": "x" * 1_000, LAST_APPLIED: "{}"},
            "ownerReferences": [{**owner, "controller": False, "uid": "x"}, owner],
            "resourceVersion": "7",
        }
    )
    meta = trimmed_claim(given).metadata
    assert meta.labels == {GROUP_LABEL: "g"}
    assert meta.annotations == read
    assert [o.uid for o in meta.owner_references or ()] == ["pu"]
    assert (meta.uid, meta.resource_version) == ("u", "7")


def test_what_shows_that_capacity_was_dropped_is_kept() -> None:
    asked = '[{"name":"r","exactly":{"capacity":{"requests":{"memory":"1Gi"}}}}]'
    applied = f'{{"spec":{{"devices":{{"requests":{asked}}}}}}}'
    given = claim({"annotations": {LAST_APPLIED: applied}})
    assert dropped_from(trimmed_claim(given)) == dropped_from(given) == ("r",)
    kept = claim(
        {"annotations": {LAST_APPLIED: applied}},
        requests=[
            {"name": "r", "exactly": {"deviceClassName": "g", "capacity": {"requests": {"memory": "1Gi"}}}}
        ],
    )
    assert trimmed_claim(kept).metadata.annotations is None
    template = {
        "metadata": {"name": "t", "annotations": {LAST_APPLIED: applied}},
        "spec": {"spec": {"devices": DEVICES}},
    }
    found = codec.convert(ResourceClaimTemplate, template)
    assert dropped_from(trimmed_template(found)) == ("r",)
    assert trimmed_template(trimmed_template(found)) == trimmed_template(found)


def test_of_a_template_is_kept_what_it_asks_for_but_how() -> None:
    tolerations = [{"key": f"k{i}", "operator": "Exists"} for i in range(16)]
    ours = {"key": CONTROLLER_TAINT, "operator": "Exists"}
    sub = {"name": "s", "deviceClassName": "b", "tolerations": [*tolerations, ours, ours]}
    devices = {
        "requests": [
            {
                "name": "r",
                "exactly": {
                    "deviceClassName": "a",
                    "selectors": [{"cel": {"expression": "x" * 10_000}}] * 32,
                    "tolerations": tolerations,
                    "capacity": {"requests": {f"m{i}": "1" for i in range(1_000)}},
                },
            },
            {"name": "alternatives", "firstAvailable": [sub]},
        ],
        "config": [{"opaque": {"driver": "d", "parameters": {"a": "x" * 10_000}}}] * 32,
    }
    body = {"metadata": {"name": "t", "namespace": "ns", "uid": "u"}, "spec": {"spec": {"devices": devices}}}
    found = trimmed_template(codec.convert(ResourceClaimTemplate, body))
    assert len(codec.encode(found)) < 700
    first, second = found.spec.spec.devices.requests or ()
    assert first.exactly is not None
    assert first.exactly.capacity is not None
    assert (first.exactly.device_class_name, first.exactly.tolerations) == ("a", ())
    assert [t.key for t in second.first_available[0].tolerations] == [CONTROLLER_TAINT]


def test_only_the_devices_of_a_claim_are_kept_where_they_are_counted() -> None:
    body = {**builders.claim("c", uid="u"), "status": builders.allocation(builders.result("n1", "gpu-0"))}
    given = codec.convert(ResourceClaim, body)
    found = allocation_only(given)
    assert found.status.allocation == given.status.allocation
    assert found.key == given.key
    assert found.spec.devices.requests is None


def test_objects_are_made_smaller_as_they_are_decoded() -> None:
    data = b'{"metadata": {"name": "t", "annotations": {"a": "b"}}}'
    kind = RESOURCE_CLAIM_TEMPLATES.keeping(trimmed_template)
    assert codec.decode_kept(kind, data).metadata.annotations is None


def test_labels_and_annotations_about_groups_are_all_known() -> None:
    """Each that changes the name of a group is among those that are kept."""
    for labels, notes in itertools.product(_some(READ_LABELS), _some(READ_ANNOTATIONS)):
        name = group_name(labels, notes, tuple(GroupLabels))
        given = claim({"labels": {**labels, "x": "y"}, "annotations": {**notes, "x": "y"}})
        meta = trimmed_claim(given).metadata
        assert group_name(meta.labels or {}, meta.annotations or {}, tuple(GroupLabels)) == name


def _some(keys: frozenset[str]) -> list[dict[str, str]]:
    return [dict.fromkeys(found, "3") for n in (0, 1, 2) for found in itertools.combinations(sorted(keys), n)]


# --- budgets ------------------------------------------------------------------------------------------------


def budget(selector: dict[str, Any] | None, metadata: dict[str, Any] | None = None) -> PodDisruptionBudget:
    body = {
        "metadata": {"name": "b", "namespace": "ns", **(metadata or {})},
        "status": {"disruptionsAllowed": 3},
    }
    return codec.convert(PodDisruptionBudget, {**body, "spec": {"selector": selector}})


def test_a_budget_is_kept_up_to_the_limit_of_its_selector() -> None:
    labels = {f"k{i}": "v" for i in range(budgets.MOST_REQUIREMENTS - 2)}
    values = [{"key": "k", "operator": "In", "values": ["a"]}]
    given = budget({"matchLabels": labels, "matchExpressions": values}, {"finalizers": ["f"] * 1_000})
    found = trimmed_budget(given)
    assert (found.spec, found.status) == (given.spec, given.status)
    assert found.metadata.finalizers is None
    assert trimmed_budget(budget(None)).spec.selector is None


@pytest.mark.parametrize(
    "selector",
    [
        {"matchLabels": {f"k{i}": "v" for i in range(budgets.MOST_REQUIREMENTS + 1)}},
        {"matchExpressions": [{"key": "k", "operator": "In", "values": ["a"] * budgets.MOST_REQUIREMENTS}]},
        {"matchLabels": {"k": "x" * budgets.MOST_SELECTOR_BYTES}},
    ],
)
def test_a_budget_beyond_the_limit_keeps_all_pods_of_its_namespace(selector: dict[str, Any]) -> None:
    found = trimmed_budget(budget(selector))
    assert found.spec.selector is not None
    assert (found.spec.selector.match_labels, found.spec.selector.match_expressions) == ({}, ())
    assert found.status.disruptions_allowed == 0
    assert trimmed_budget(found) == found
