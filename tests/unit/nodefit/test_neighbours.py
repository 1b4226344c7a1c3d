"""Pods that others have terms about: counted, followed, and bounded."""

from __future__ import annotations

from typing import Any

from dra_driver.api import codec
from dra_driver.api.core import Pod
from dra_driver.api.meta import Uid
from dra_driver.nodefit import Neighbours, neighbour_of, terms_of
from dra_driver.nodefit.neighbours import Tally

REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
ZONES = {"n1": "a", "n2": "a", "n3": "b"}


def pod(name: str, namespace: str = "tenant", node: str = "n1", **anti: Any) -> Pod:
    spec: dict[str, Any] = {"nodeName": node}
    if anti:
        terms = [{"topologyKey": "zone", "labelSelector": {"matchLabels": {"of": name}}, **anti}]
        spec["affinity"] = {"podAntiAffinity": {REQUIRED: terms}}
    meta = {"name": name, "namespace": namespace, "uid": name, "labels": {"of": name}}
    return codec.convert(Pod, {"metadata": meta, "spec": spec})


def add(neighbours: Neighbours, one: Pod) -> None:
    neighbours.add(one.metadata.uid, one.spec.node_name, neighbour_of(one))


def test_what_was_asked_for_follows_pods_that_come_and_go() -> None:
    neighbours = Neighbours()
    add(neighbours, pod("web"))
    (term,) = terms_of(pod("web", namespaces=["tenant"])).anti
    there = neighbours.selected((term.pods,))
    assert there.tally("zone", ZONES) == {"a": Tally(1, 1)}
    for name, node in (("x", "n2"), ("y", "n3")):
        neighbours.add(Uid(name), node, neighbour_of(pod("web", node=node)))
    assert there.tally("zone", ZONES) == {"a": Tally(2, 2), "b": Tally(1, 1)}
    neighbours.remove(Uid("y"), "tenant")
    assert there.tally("zone", ZONES) == {"a": Tally(2, 2)}
    # Another object: labels of nodes have changed.
    assert there.tally("zone", {**ZONES, "n2": "c"}) == {"a": Tally(1, 1), "c": Tally(1, 1)}


def test_others_cannot_make_any_number_of_terms_be_looked_at() -> None:
    neighbours = Neighbours()
    hostile = [pod(f"h{i}", "hostile", namespaces=["tenant"]) for i in range(2_100)]
    for one in hostile:
        add(neighbours, one)

    def held(number: int) -> bool:
        return bool(neighbours.held_against("tenant", {"of": f"h{number}"}))

    assert [held(i) for i in (0, 2_047, 2_048, 2_099)] == [True, True, False, False]
    # Those that were left out never counted; the others go as they came.
    for one in reversed(hostile):
        neighbours.remove(one.metadata.uid, "hostile")
    assert not any(map(held, (0, 2_047, 2_099)))
    add(neighbours, hostile[-1])
    assert held(2_099)


def test_a_tenant_with_many_terms_takes_no_place_in_other_namespaces() -> None:
    neighbours = Neighbours()
    for i in range(2_100):
        add(neighbours, pod(f"h{i}", "hostile", namespaces=["hostile"]))
    add(neighbours, pod("web", "tenant", namespaces=["tenant"]))
    assert neighbours.held_against("tenant", {"of": "web"})
