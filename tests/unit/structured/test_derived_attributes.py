"""Derived attributes (KEP-6080) over a fleet: nodes are told apart by what expressions give."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from allocator_oracle import allocate_by_scan

from dra_driver import cel
from dra_driver.api import codec
from dra_driver.api.core import Node
from dra_driver.api.meta import ObjectMeta
from dra_driver.api.resource import Device, DeviceClass, ResourceClaim, ResourceSlice
from dra_driver.cel.selector import Environment
from dra_driver.structured import Allocated, AllocatedState, DoesNotFit, Failed, Outcome, Snapshot, allocate

A = "device.attributes['gpu.example.com'].a"
B = "device.attributes['gpu.example.com'].b"
DERIVED = Environment(derived=True)


def fleet(*nodes: list[dict[str, Any]]) -> Snapshot:
    slices = []
    for n, devices in enumerate(nodes):
        pool = {"name": f"n{n}", "generation": 1, "resourceSliceCount": 1}
        listed = [
            {"name": f"d{i}", "attributes": {k: {"int": v} for k, v in of.items()}}
            for i, of in enumerate(devices)
        ]
        spec = {"driver": "gpu.example.com", "nodeName": f"n{n}", "pool": pool, "devices": listed}
        slices.append(codec.convert(ResourceSlice, {"metadata": {"name": f"n{n}"}, "spec": spec}))
    return Snapshot.build(
        nodes=[Node(metadata=ObjectMeta(name=f"n{n}")) for n in range(len(nodes))],
        slices=slices,
        classes=[DeviceClass(metadata=ObjectMeta(name="gpu"))],
        allocated=AllocatedState(),
    )


def claim(
    *expressions: str, kind: str = "matchAttribute", name: str = "derived/x", count: int = 1, uid: str = "c"
) -> ResourceClaim:
    """Return a claim whose requests derive an attribute, by these expressions; an empty one derives none."""
    requests = [
        {
            "name": f"r{i}",
            "exactly": {
                "deviceClassName": "gpu",
                "count": count,
                **({"derivedAttributes": [{"name": name, "expression": e}]} if e else {}),
            },
        }
        for i, e in enumerate(expressions)
    ]
    spec = {"devices": {"requests": requests, "constraints": [{kind: name}]}}
    return codec.convert(ResourceClaim, {"metadata": {"name": uid, "namespace": "d"}, "spec": spec})


def shown(outcome: Outcome) -> tuple[str, list[str]] | str:
    if isinstance(outcome, Allocated):
        return outcome.node, [r.device for a in outcome.results for r in a.devices.results]
    return "refused" if isinstance(outcome, DoesNotFit) else outcome.message


def test_nodes_are_told_apart_by_derived_values() -> None:
    now = fleet([{"a": 1, "b": 2}, {"a": 3, "b": 4}], [{"a": 1, "b": 2}, {"a": 2, "b": 4}])
    assert shown(allocate(now, [claim(A, B)])) == ("n1", ["d1", "d0"])


def test_a_derived_value_is_compared_with_an_attribute_of_its_name_on_other_requests() -> None:
    now = fleet([{"a": 1, "b": 2}, {"a": 3, "b": 4}], [{"a": 1, "b": 9}, {"a": 8, "b": 1}])
    mixed = claim(A, "", name="gpu.example.com/b")
    assert shown(allocate(now, [mixed])) == ("n1", ["d0", "d1"])
    assert shown(allocate_by_scan(now, [mixed])) == ("n1", ["d0", "d1"])


def test_an_expression_that_fails_on_a_free_device_ends_it_though_another_node_would_do() -> None:
    now = fleet([{"a": 1}, {"a": 1}], [{"b": 1}, {"a": 1}])
    outcome = allocate(now, [claim(A, count=2)])
    assert isinstance(outcome, Failed)
    assert (
        "request r0: derivedAttributes fail on device gpu.example.com/n1/d0: no such key: a"
        in outcome.message
    )
    single = allocate(now, [claim(A)])
    assert isinstance(single, Failed)
    assert single.message == outcome.message
    assert shown(allocate(now, [claim(f"has({A}) ? {A} : -1", count=2)])) == ("n0", ["d0", "d1"])


def test_it_ends_also_where_devices_are_shared() -> None:
    now = fleet([{"a": 1}, {"a": 1}], [{"b": 1}, {"a": 1}])
    shared = [
        codec.convert(ResourceSlice, {"metadata": {"name": f"n{n}"}, "spec": shared_spec(now, f"n{n}")})
        for n in range(2)
    ]
    outcome = allocate(now.with_slices(shared), [claim(A, count=2)])
    assert isinstance(outcome, Failed)
    assert "no such key: a" in outcome.message


def shared_spec(now: Snapshot, node: str) -> dict[str, Any]:
    (pool,) = now.view(node).pools
    devices = [{**codec.plain(e.device), "allowMultipleAllocations": True} for e in pool.devices]
    named = {"name": node, "generation": 1, "resourceSliceCount": 1}
    return {"driver": "gpu.example.com", "nodeName": node, "pool": named, "devices": devices}


def test_a_refusal_has_reasons_where_the_expression_fails_on_an_allocated_device() -> None:
    now = fleet([{"a": 1}, {"b": 1}])
    first = allocate(now, [claim("1", uid="held")])
    assert shown(first) == ("n0", ["d0"])
    assert isinstance(first, Allocated)
    now = now.with_allocated(now.allocated.with_allocations([("d/held", first.results[0])]))
    outcome = allocate(now, [claim(B, count=2)])
    assert isinstance(outcome, DoesNotFit)
    errors = [e.found for node in outcome.reasons for e in node.exclusions if "no such key: b" in e.found]
    assert len(errors) == 1
    assert outcome.summary()


@pytest.mark.parametrize("seed", range(40))
def test_the_index_answers_as_a_look_at_every_node(seed: int) -> None:
    random = Random(seed)
    now = fleet(
        *(
            [{k: random.randint(0, 2) for k in "ab"} for _ in range(random.randint(1, 4))]
            for _ in range(random.randint(1, 4))
        )
    )
    texts = (A, B, f"{A} + {B}", f"{A} > 0", f"[{A}, {B}]", f"string({A})", "")
    for step in range(8):
        name = random.choice(("derived/x", "gpu.example.com/a"))
        chosen = [random.choice(texts) for _ in range(random.choice((1, 2, 2)))]
        kind = random.choice(("matchAttribute", "distinctAttribute"))
        asked = claim(*chosen, kind=kind, name=name, count=random.choice((1, 1, 2)), uid=f"c{step}")
        outcome = allocate(now, [asked])
        assert shown(outcome) == shown(allocate_by_scan(now, [asked]))
        if isinstance(outcome, Allocated) and random.random() < 0.4:
            given = [(str(asked.key), outcome.results[0])]
            now = now.with_allocated(now.allocated.with_allocations(given))


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("'a'", {("string", "a")}),
        ("1", {("int", 1)}),
        ("true", {("bool", True)}),
        ("semver('1.2.3')", {("version", "1.2.3")}),
        ("['a', 'b', 'a']", {("string", "a"), ("string", "b")}),
        ("[]", set()),
        ("1.5", "double is no attribute"),
        ("1u", "uint is no attribute"),
        ("{'a': 1}", "map is no attribute"),
        ("null", "null"),
        ("quantity('1Gi')", "is no attribute"),
        ("[[1]]", "list is no attribute"),
        ("[dyn(1), dyn('a')]", "of several types is no attribute"),
    ],
)
def test_what_an_expression_may_give(expression: str, expected: object) -> None:
    view = cel.DeviceView("gpu.example.com", codec.convert(Device, {"name": "d"}))
    found = cel.compile_selector(expression, environment=DERIVED).derive(view)
    if isinstance(expected, str):
        assert isinstance(found.value, str)
        assert expected in found.value
    else:
        assert found.value == expected
    assert found.cost >= 1


def test_an_expression_costs_at_most_what_a_selector_may() -> None:
    view = cel.DeviceView("gpu.example.com", codec.convert(Device, {"name": "d"}))
    dear = "[1,2,3,4,5,6,7,8,9,10]"
    for _ in range(6):
        dear = f"[1,2,3,4,5,6,7,8,9,10].map(x, {dear}.size())"
    found = cel.compile_selector(f"{dear}.size()", environment=DERIVED).derive(view)
    assert isinstance(found.value, str)
    assert "cost" in found.value
