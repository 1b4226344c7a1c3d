"""What is kept of a pod, and which limit one exceeds that is not served."""

from __future__ import annotations

from typing import Any

import builders
import pytest

from dra_driver.api import codec
from dra_driver.api.core import Pod
from dra_driver.api.names import ALLOCATION_GATE, GROUP_BY_ANNOTATION, GROUP_LABEL, PREEMPTIBLE_LABEL
from dra_driver.nodefit import needs_of, neighbour_of
from dra_driver.nodefit.volumes import volumes_of
from dra_driver.resourceclaim import foreign_gates, is_gated
from dra_driver.trimming import MOST_GATES, pod_problem, pods, trimmed_pod, unservable

HOST = "kubernetes.io/hostname"


def pod(*claims: str, metadata: dict[str, Any] | None = None, **spec: Any) -> Pod:
    return codec.convert(Pod, builders.pod("p", *claims, uid="u", metadata=metadata, **spec))


def size(item: Pod) -> int:
    return len(codec.encode(item))


def keys(number: int) -> dict[str, str]:
    return {f"k{i}": "v" for i in range(number)}


def node_affinity(values: list[str]) -> dict[str, Any]:
    term = {"matchExpressions": [{"key": "k", "operator": "In", "values": values}]}
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}}


def beside(kind: str, *terms: dict[str, Any]) -> dict[str, Any]:
    return {
        kind: {"requiredDuringSchedulingIgnoredDuringExecution": [{"topologyKey": HOST, **t} for t in terms]}
    }


def spread(number: int, **more: Any) -> list[dict[str, Any]]:
    return [{"topologyKey": HOST, "maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule", **more}] * number


def containers(number: int, **requests: str) -> list[dict[str, Any]]:
    return [{"name": f"c{i}", "image": "i", "resources": {"requests": requests}} for i in range(number)]


# --- limits -------------------------------------------------------------------------------------------------

# Field, how a pod is made with a number of its entries, and the most that is served.
ENTRIES: dict[str, tuple[Any, int]] = {
    "metadata.labels": (lambda n: pod("c", metadata={"labels": keys(n)}), pods.MOST_LABELS),
    "spec.resourceClaims": (lambda n: pod(*(f"c{i}" for i in range(n))), pods.MOST_CLAIMS),
    "spec.nodeSelector": (lambda n: pod("c", nodeSelector=keys(n)), pods.MOST_NODE_SELECTORS),
    "spec.tolerations": (lambda n: pod("c", tolerations=[{"operator": "Exists"}] * n), pods.MOST_TOLERATIONS),
    "spec.affinity.nodeAffinity": (
        lambda n: pod("c", affinity=node_affinity(["v"] * (n - 2))),  # a term and a requirement count, too
        pods.MOST_NODE_CONDITIONS,
    ),
    "spec.affinity.podAffinity and podAntiAffinity": (
        lambda n: pod(
            "c", affinity=beside("podAffinity", *[{}] * (n - 9)) | beside("podAntiAffinity", *[{}] * 9)
        ),
        pods.MOST_TERMS,
    ),
    "spec.affinity.podAffinity and podAntiAffinity namespaces": (
        lambda n: pod("c", affinity=beside("podAffinity", {"namespaces": ["n"] * n})),
        pods.MOST_TERM_PARTS,
    ),
    "spec.affinity.podAffinity and podAntiAffinity selectors": (
        lambda n: pod("c", affinity=beside("podAntiAffinity", {"labelSelector": {"matchLabels": keys(n)}})),
        pods.MOST_TERM_PARTS,
    ),
    "spec.affinity.podAffinity and podAntiAffinity namespaceSelectors": (
        lambda n: pod(
            "c", affinity=beside("podAntiAffinity", {"namespaceSelector": {"matchLabels": keys(n)}})
        ),
        pods.MOST_TERM_PARTS,
    ),
    "spec.topologySpreadConstraints": (
        lambda n: pod("c", topologySpreadConstraints=spread(n)),
        pods.MOST_TERMS,
    ),
    "spec.topologySpreadConstraints selectors": (
        lambda n: pod("c", topologySpreadConstraints=spread(1, matchLabelKeys=["k"] * n)),
        pods.MOST_TERM_PARTS,
    ),
    "spec.containers and initContainers": (
        lambda n: pod("c", containers=containers(n, **{"example.com/a": "1"})),
        pods.MOST_CONTAINERS,
    ),
    "resources.requests of the containers": (
        lambda n: pod("c", containers=containers(1, **{f"example.com/a{i}": "1" for i in range(n)})),
        pods.MOST_RESOURCE_ENTRIES,
    ),
}


@pytest.mark.parametrize("field", ENTRIES)
def test_a_pod_with_as_many_entries_as_are_served_is_kept_as_a_whole(field: str) -> None:
    make, most = ENTRIES[field]
    given = make(most)
    found = trimmed_pod(given)
    assert (found.left_out, unservable(found)) == ("", "")
    spec, kept = given.spec, found.spec
    assert found.metadata.labels == given.metadata.labels
    assert (kept.resource_claims, kept.node_selector) == (spec.resource_claims, spec.node_selector)
    assert (kept.tolerations, kept.affinity) == (spec.tolerations, spec.affinity)
    assert kept.topology_spread_constraints == spec.topology_spread_constraints


@pytest.mark.parametrize("field", ENTRIES)
def test_a_pod_with_one_entry_more_is_refused_and_kept_without_them(field: str) -> None:
    make, most = ENTRIES[field]
    found = trimmed_pod(make(most + 1))
    name = " ".join(
        word for word in field.split() if word not in ("namespaces", "selectors", "namespaceSelectors")
    )
    text = f"{name} of the pod has {most + 1} entries, and the controller serves at most {most}"
    assert found.left_out == text
    assert unservable(found) == pod_problem(make(most + 1)) == text
    assert found.spec.resource_claims  # else it would pass for one without
    assert trimmed_pod(found) == found
    assert size(found) < 40_000


def of_size(make: Any, most: int) -> Pod:
    """Return a pod in which the field has so many bytes as JSON."""
    lacks = most - make("")[1]
    return make("x" * lacks)[0]  # type: ignore[no-any-return]


def _labels(text: str) -> tuple[Pod, int]:
    labels = {"k": text}
    return pod("c", metadata={"labels": labels}), len(codec.encode(labels))


def _selector(text: str) -> tuple[Pod, int]:
    selector = {"k": text}
    return pod("c", nodeSelector=selector), len(codec.encode(selector))


def _tolerations(text: str) -> tuple[Pod, int]:
    made = pod("c", tolerations=[{"key": f"k{text}"}])
    return made, len(codec.encode(made.spec.tolerations))


def _nodes(text: str) -> tuple[Pod, int]:
    made = pod("c", affinity=node_affinity([f"v{text}"]))
    assert made.spec.affinity is not None
    return made, len(codec.encode(made.spec.affinity.node_affinity))


def _apart(text: str) -> tuple[Pod, int]:
    made = pod("c", affinity=beside("podAntiAffinity", {"namespaces": [f"n{text}"]}))
    affinity = made.spec.affinity
    assert affinity is not None
    assert affinity.pod_anti_affinity is not None
    terms = affinity.pod_anti_affinity.required_during_scheduling_ignored_during_execution
    return made, len(codec.encode(((), terms)))


def _spread(text: str) -> tuple[Pod, int]:
    made = pod("c", topologySpreadConstraints=spread(1, matchLabelKeys=[f"k{text}"]))
    return made, len(codec.encode(made.spec.topology_spread_constraints))


BYTES: dict[str, tuple[Any, int]] = {
    "metadata.labels": (_labels, pods.MOST_LABEL_BYTES),
    "spec.nodeSelector": (_selector, pods.MOST_SELECTOR_BYTES),
    "spec.tolerations": (_tolerations, pods.MOST_TOLERATION_BYTES),
    "spec.affinity.nodeAffinity": (_nodes, pods.MOST_AFFINITY_BYTES),
    "spec.affinity.podAffinity and podAntiAffinity": (_apart, pods.MOST_AFFINITY_BYTES),
    "spec.topologySpreadConstraints": (_spread, pods.MOST_AFFINITY_BYTES),
}


@pytest.mark.parametrize("field", BYTES)
def test_a_few_long_texts_count_as_many_short_ones(field: str) -> None:
    make, most = BYTES[field]
    assert unservable(trimmed_pod(of_size(make, most))) == ""
    found = trimmed_pod(of_size(make, most + 1))
    text = f"{field} of the pod has {most + 1} bytes of JSON, and the controller serves at most {most}"
    assert unservable(found) == found.left_out == text
    assert size(found) < 2_000


# --- what is not for decisions ------------------------------------------------------------------------------

_REF = {"apiVersion": "v1", "kind": "ConfigMap", "name": "o" * 50, "uid": "u" * 50}
BIG: dict[str, dict[str, Any]] = {
    "finalizers": {"metadata": {"finalizers": [f"example.com/{i}" for i in range(50_000)]}},
    "owners": {"metadata": {"ownerReferences": [_REF] * 8_000}},
    "one owner": {"metadata": {"ownerReferences": [{**_REF, "name": "x" * 1_000_000, "controller": True}]}},
    "annotations": {"metadata": {"annotations": {f"example.com/{i}": "x" * 50 for i in range(16_000)}}},
    "our annotation": {"metadata": {"annotations": {GROUP_BY_ANNOTATION: "x" * 1_000_000}}},
    "labels": {"metadata": {"labels": keys(100_000)}},
    "tolerations": {"tolerations": [{"operator": "Exists"}] * 45_000},
    "nodeSelector": {"nodeSelector": keys(80_000)},
    "node affinity": {"affinity": node_affinity(["v"] * 200_000)},
    "affinity": {"affinity": beside("podAffinity", *[{}] * 20_000)},
    "anti-affinity": {"affinity": beside("podAntiAffinity", *[{}] * 20_000)},
    "one anti-affinity": {"affinity": beside("podAntiAffinity", {"namespaces": ["x" * 1_000_000]})},
    "spread": {"topologySpreadConstraints": spread(12_000)},
    "requests": {"containers": containers(1, **{f"example.com/a{i}": "1" for i in range(40_000)})},
    "containers": {"containers": containers(20_000, cpu="1")},
    "init containers": {"initContainers": containers(20_000, cpu="1")},
    "ports": {"containers": [{"name": "c", "ports": [{"containerPort": 1}] * 20_000}]},
    "env": {"containers": [{"name": "c", "env": [{"name": "a", "value": "b"}] * 20_000}]},
    "gates": {"schedulingGates": [{"name": f"example.com/{i}"} for i in range(30_000)]},
    "scheduler": {"schedulerName": "x" * 1_000_000},
    "volumes": {
        "volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "x" * 4_000}} for _ in range(250)]
    },
}


@pytest.mark.parametrize("field", BIG)
def test_a_megabyte_of_a_pod_without_claims_costs_next_to_nothing(field: str) -> None:
    given = pod(**BIG[field])
    found = trimmed_pod(given)
    # 256 volumes with names of 254 characters are what takes most.
    assert size(found) < (100_000 if field == "volumes" else 25_000 if field == "requests" else 9_000)
    assert found.key == given.key
    assert found.metadata.uid == "u"
    assert trimmed_pod(found) == found


def test_a_pod_without_claims_is_never_refused() -> None:
    for field, spec in BIG.items():
        if field != "requests":  # extended resources may be served by devices
            assert trimmed_pod(pod(**spec)).left_out == ""


def test_of_pods_that_take_the_same_one_sum_is_kept() -> None:
    first, second = (trimmed_pod(pod(containers=containers(n, cpu=f"{12 // n}"))) for n in (2, 3))
    assert first.spec.containers is second.spec.containers
    assert dict(needs_of(first).amounts)["cpu"] == 12_000


def test_a_pod_takes_as_much_of_a_node_as_before() -> None:
    body = builders.pod(
        "p",
        uid="u",
        nodeName="n1",
        containers=[
            {"name": "a", "resources": {"requests": {"cpu": "1500m", "memory": "1Gi", "example.com/x": "2"}}},
            {"name": "b", "ports": [{"hostPort": 80, "hostIP": "10.0.0.1"}]},
            {"name": "d", "ports": [{"hostPort": 53, "protocol": "UDP"}]},
        ],
        initContainers=[
            {"name": "i", "resources": {"requests": {"memory": "3Gi"}}},
            {"name": "s", "restartPolicy": "Always", "resources": {"requests": {"cpu": "1u"}}},
        ],
        overhead={"cpu": "250m"},
        priority=7,
        preemptionPolicy="Never",
        resources={"requests": {"memory": "2Gi"}},
    )
    body["status"]["containerStatuses"] = [
        {"name": "a", "allocatedResources": {"cpu": "3"}, "resources": {"requests": {"cpu": "2"}}}
    ]
    given = codec.convert(Pod, body)
    found = trimmed_pod(given)
    assert needs_of(found) == needs_of(given)
    assert needs_of(trimmed_pod(found)) == needs_of(given)
    assert codec.decode(Pod, codec.encode(found)) == found


def test_of_a_pod_without_claims_is_kept_what_others_go_by() -> None:
    labels = {"app": "a", PREEMPTIBLE_LABEL: "false"}
    volumes = [
        {"name": "v", "persistentVolumeClaim": {"claimName": "data"}},
        {"name": "d", "gcePersistentDisk": {"pdName": "disk", "readOnly": True}},
        {"name": "r", "rbd": {"monitors": ["m1", "m2"], "image": "i"}},
    ]
    affinity = beside("podAntiAffinity", {"labelSelector": {"matchLabels": {"app": "a"}}})
    affinity |= beside("podAffinity", {"labelSelector": {"matchLabels": {"app": "b"}}})
    given = pod(
        metadata={"labels": labels, "creationTimestamp": "2026-01-01T00:00:00Z"},
        nodeName="n1",
        priority=3,
        affinity=affinity,
        volumes=volumes,
    )
    found = trimmed_pod(given)
    assert neighbour_of(found) == neighbour_of(given)
    assert neighbour_of(given).anti
    assert volumes_of(found) == volumes_of(given)
    assert found.metadata == given.metadata
    assert found.spec.affinity is not None
    assert found.spec.affinity.pod_affinity is None


def test_anti_affinity_that_is_not_looked_at_is_not_kept() -> None:
    terms = [{"labelSelector": {"matchLabels": {"app": f"a{i}"}}} for i in range(33)]
    given = pod(nodeName="n1", affinity=beside("podAntiAffinity", *terms))
    assert neighbour_of(given).anti == ()
    assert trimmed_pod(given).spec.affinity is None


def test_of_too_many_labels_those_that_we_name_are_kept() -> None:
    known = {GROUP_LABEL: "g", PREEMPTIBLE_LABEL: "false"}
    found = trimmed_pod(pod(metadata={"labels": {**keys(300), **known}}))
    assert found.metadata.labels == known


def test_a_pod_that_has_ended_is_kept_like_one_without_claims() -> None:
    body = builders.pod("p", "c", uid="u", nodeSelector=keys(3), tolerations=[{"operator": "Exists"}] * 5_000)
    body["status"]["phase"] = "Succeeded"
    found = trimmed_pod(codec.convert(Pod, body))
    assert [c.resource_claim_name for c in found.spec.resource_claims] == ["c"]
    assert (found.spec.node_selector, found.left_out) == ({}, "")


def test_the_owner_that_is_a_controller_is_kept() -> None:
    owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "r", "uid": "ru", "controller": True}
    found = trimmed_pod(pod(metadata={"ownerReferences": [_REF, owner]}))
    assert [o.uid for o in found.metadata.owner_references or ()] == ["ru"]


def test_gates_are_kept_as_far_as_they_matter() -> None:
    for number in (MOST_GATES, MOST_GATES + 1):
        gates = [{"name": f"example.com/{i}"} for i in range(number - 1)] + [{"name": ALLOCATION_GATE}]
        given = pod(schedulingGates=gates)
        assert trimmed_pod(given).spec.scheduling_gates.__len__() == number
        assert is_gated(trimmed_pod(given))
    many = [{"name": f"example.com/{i}"} for i in range(100)] + [{"name": ALLOCATION_GATE}]
    found = trimmed_pod(pod(schedulingGates=many))
    assert is_gated(found)
    assert len(foreign_gates(found)) == MOST_GATES
    # More than are kept, so that the list is never taken for a whole one.
    assert len(found.spec.scheduling_gates) > MOST_GATES
