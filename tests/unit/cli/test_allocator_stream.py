"""The allocator as a service, and a cluster that is told object by object."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest
from allocator_world import claim, device, exactly, gpu_class, node, pool

from dra_driver.api import codec
from dra_driver.api.resource import RESOURCE_CLAIMS, ResourceClaim
from dra_driver.cli.allocator.stream import Service, serve
from dra_driver.structured import Allocated, Cluster, DoesNotFit, Strategy, allocate

SLICES = [pool("n1", device("big", "80Gi"), device("small", "40Gi")), pool("n2", device("d", "24Gi"))]


def plain(value: Any) -> Any:
    return json.loads(codec.encode(value))


def load(**more: Any) -> dict[str, Any]:
    nodes = [plain(node(n)) for n in ("n1", "n2")]
    return {"op": "load", "nodes": nodes, "slices": plain(SLICES), "classes": [plain(gpu_class())], **more}


def wanted(name: str, memory: str = "32Gi", commit: bool = True) -> dict[str, Any]:
    one = codec.to_raw(RESOURCE_CLAIMS, claim(name, exactly(memory=memory)))
    return {"op": "allocate", "claim": one, "commit": commit}


def converse(*operations: dict[str, Any]) -> list[dict[str, Any]]:
    source = io.BytesIO(b"\n".join(json.dumps(o).encode() for o in operations) + b"\n")
    sink = io.BytesIO()
    serve(source, sink, Strategy.BEST_FIT)
    return [json.loads(line) for line in sink.getvalue().splitlines()]


def devices(answer: dict[str, Any]) -> list[str]:
    return [f"{r['pool']}/{r['device']}" for r in answer["results"]]


def test_claims_are_allocated_kept_and_freed() -> None:
    loaded, a, b, c, freed, unknown, again = converse(
        load(),
        wanted("a"),
        wanted("b"),
        wanted("c"),
        {"op": "free", "uid": "uid-a"},
        {"op": "free", "uid": "?"},
        wanted("c"),
    )
    assert loaded == freed == unknown == {"ok": True}
    assert [devices(a), devices(b), devices(again)] == [["n1/small"], ["n1/big"], ["n1/small"]]
    assert a["node"] == "n1"
    assert a["results"][0]["request"] == "req-0"
    assert (c["node"], c["results"]) == (None, None)
    assert c["reason"].startswith("needs 1 ")


def test_without_commit_nothing_is_kept() -> None:
    _, a, b = converse(load(), wanted("a", commit=False), wanted("b", commit=False))
    assert devices(a) == devices(b)


def test_what_is_allocated_at_first_and_slices_that_change_count() -> None:
    busy = [{"driver": "gpu.example.com", "pool": "n1", "device": "small"}]
    changed = plain(pool("n2", device("d", "36Gi")))
    _, a, ok, b = converse(
        load(allocated=busy), wanted("a", commit=False), {"op": "slice", "slice": changed}, wanted("b")
    )
    assert ok == {"ok": True}
    assert [devices(a), devices(b)] == [["n1/big"], ["n2/d"]]


def test_the_strategy_is_chosen_when_loading() -> None:
    assert devices(converse(load(strategy="first-fit"), wanted("a"))[1]) == ["n1/big"]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b"{", "truncated"),
        (b'{"op": "sing"}', "unknown op 'sing'; there are load, allocate, free, slice"),
        (b'{"op": "allocate"}', "op allocate: its object is missing"),
        (b'{"op": "load", "strategy": "worst-fit"}', "worst-fit"),
        (b'{"op": "load", "nodes": 7}', "$.nodes"),
    ],
)
def test_bad_lines_are_answered_with_an_error_and_change_nothing(line: bytes, message: str) -> None:
    service = Service(Strategy.BEST_FIT)
    service.answer(json.dumps(load()).encode())
    assert message in json.loads(service.answer(line))["error"]
    assert devices(json.loads(service.answer(json.dumps(wanted("a")).encode()))) == ["n1/small"]


def cluster() -> Cluster:
    return Cluster(slices=SLICES, classes=[gpu_class()], nodes=[node("n1"), node("n2")])


def take(of: Cluster, one: ResourceClaim) -> Allocated:
    outcome = allocate(of.snapshot, [one])
    assert isinstance(outcome, Allocated)
    of.commit([one], outcome)
    return outcome


def test_freeing_restores_the_state() -> None:
    of = cluster()
    before = of.snapshot.allocated
    take(of, claim("a", exactly(2)))
    assert of.snapshot.allocated != before
    assert of.free("uid-a").allocated == before


def test_a_snapshot_stays_as_it_was() -> None:
    of = cluster()
    old = of.snapshot
    first = take(of, claim("a", exactly(memory="32Gi")))
    assert allocate(old, [claim("b", exactly(memory="32Gi"))]) == first
    of.apply_slice(pool("n1"))
    assert isinstance(allocate(of.snapshot, [claim("b", exactly(memory="32Gi"))]), DoesNotFit)
    assert allocate(old, [claim("b", exactly(memory="32Gi"))]) == first


def test_two_claims_that_hold_the_same_device_are_both_remembered() -> None:
    of = cluster()
    one, other = claim("a", exactly()), claim("b", exactly())
    outcome = allocate(of.snapshot, [one])
    assert isinstance(outcome, Allocated)
    for c in (one, other):
        of.hold(c.metadata.uid, str(c.key), outcome.results[0])
    held = of.snapshot.allocated
    of.free("uid-b")
    assert [set(p.devices) for p in of.snapshot.allocated.pools.values()] == [
        set(p.devices) for p in held.pools.values()
    ]
    assert not of.free("uid-a").allocated.pools
