"""Grants: their object, and the policy's expressions, which decide as ``Grants`` does."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from builders import claim
from hypothesis import given
from hypothesis import strategies as st

from dra_driver.api import codec
from dra_driver.api.meta import DriverName, PoolName
from dra_driver.api.names import EXTENDED_RESOURCE_ANNOTATION
from dra_driver.api.resource import ResourceClaim
from dra_driver.cel.policies import compile_policy
from dra_driver.ownership import (
    MAX_GRANT_BYTES,
    MAX_LISTED,
    SHARE,
    VARIABLES,
    Grants,
    PoolAllocator,
    PoolID,
    admitted,
    chosen_devices,
    grant_key,
    grant_key_of_pod,
)

OURS, RDMA, THEIRS = (DriverName(f"{name}.example.com") for name in ("gpu", "rdma", "nic"))
POOL = PoolID(OURS, PoolName("node-1"))
OTHER = PoolID(OURS, PoolName("node-11"))
NIC = PoolID(RDMA, PoolName("node-1"))
CONTROLLER, SCHEDULER = PoolAllocator.CONTROLLER, PoolAllocator.SCHEDULER

NAMES = ("object", "oldObject", "params", "variables")
COMPILED = {name: compile_policy(text, NAMES) for name, text in VARIABLES.items()}
CONDITION = compile_policy(admitted((OURS, RDMA)), NAMES)

Body = dict[str, Any]


def made(name: str = "c", *, pod: str = "", owners: int = 1, extended: str = "true", **metadata: Any) -> Body:
    """Return a claim; one of extended resources where a pod is named."""
    body = claim(name, namespace="tenant")
    body["metadata"] |= {"uid": f"uid-{name}", **metadata}
    if pod:
        owner = {"apiVersion": "v1", "kind": "Pod", "name": pod, "uid": f"uid-{pod}", "controller": True}
        body["metadata"]["ownerReferences"] = [owner] * owners
        body["metadata"]["annotations"] = {EXTENDED_RESOURCE_ANNOTATION: extended}
    return body


def result(pool: PoolID, device: str = "gpu-0", **more: Any) -> Body:
    return {"request": "gpu", "driver": pool.driver, "pool": pool.pool, "device": device, **more}


def admits(data: dict[str, str] | None, body: Body, *results: Body, allocated: bool = False) -> bool:
    """Judge a write of a claim's status that allocates."""
    status = {"status": {"allocation": {"devices": {"results": list(results)}}}}
    given: Body = {
        "object": {**body, **status},
        "oldObject": {**body, **status} if allocated else body,
        "params": {} if data is None else {"data": data},
        "variables": {},
    }
    for name, expression in COMPILED.items():
        given["variables"][name] = expression.value(given)
    return CONDITION.value(given) is True


def key_of(body: Body) -> str:
    return grant_key(codec.convert(ResourceClaim, body))


def granted(body: Body, *devices: tuple[PoolID, str]) -> Grants:
    return Grants({key_of(body): frozenset(devices)})


@pytest.mark.parametrize("data", [Grants().data(), {"_default": "other"}])
def test_a_device_of_ours_goes_to_nobody_by_default(data: dict[str, str]) -> None:
    assert not admits(data, made(), result(POOL))
    assert not admits(data, made(), result(PoolID(THEIRS, POOL.pool)), result(NIC))
    assert admits(data, made(), result(PoolID(THEIRS, POOL.pool)))


@pytest.mark.parametrize("data", [None, {}, {"_turn": "3"}])
def test_an_object_that_no_controller_has_written_refuses_nothing(data: dict[str, str] | None) -> None:
    """An installation brings it so, beside a controller that does not know it yet, or with no open pools."""
    assert admits(data, made(), result(POOL), result(NIC))
    assert Grants.of_data(data or {}).default is SCHEDULER


def test_a_grant_is_for_one_claim_and_for_its_devices() -> None:
    data = granted(made(), (POOL, "gpu-0"), (POOL, "gpu-1"), (NIC, "nic-0")).data()
    assert admits(data, made(), result(POOL))
    assert admits(data, made(), result(POOL), result(NIC, "nic-0"))
    assert not admits(data, made(), result(POOL), result(POOL, "gpu-2"))
    assert not admits(data, made(), result(OTHER))
    assert not admits(data, made(), result(PoolID(RDMA, POOL.pool)))
    assert not admits(data, made("other"), result(POOL))


def test_the_claim_of_extended_resources_has_the_grant_of_its_pod() -> None:
    extended = made(pod="p")
    data = Grants({grant_key_of_pod("tenant", "uid-p"): frozenset({(POOL, "gpu-0")})}).data()
    assert admits(data, extended, result(POOL))
    # Claims of the pod that exist have grants of their own.
    assert not admits(data, made(pod="p", extended="false"), result(POOL))
    assert not admits(data, made(pod="q"), result(POOL))
    assert not admits(data, made(pod="p", owners=2), result(POOL))


def test_the_grant_of_a_pod_is_of_no_use_in_another_namespace() -> None:
    """Whoever may make claims may name any pod as the owner."""
    grants = Grants({grant_key_of_pod("tenant", "uid-p"): frozenset({(POOL, "gpu-0")})})
    assert not admits(grants.data(), made(pod="p", namespace="thief"), result(POOL))


def test_what_takes_nothing_is_admitted() -> None:
    data = Grants().data()
    assert admits(data, made(), result(POOL, adminAccess=True))
    assert not admits(data, made(), result(POOL, adminAccess=False))
    assert admits(data, made(), result(POOL), allocated=True)
    given: Body = {"object": {}, "oldObject": {}, "params": {"data": data}, "variables": {"granted": []}}
    assert CONDITION.value(given) is True
    assert CONDITION.value({**given, "object": {"status": {}}}) is True
    assert CONDITION.value({**given, "object": {"status": {"allocation": {"devices": {}}}}}) is True


@pytest.mark.parametrize("default", PoolAllocator)
def test_pools_of_the_other_allocator_are_exceptions(default: PoolAllocator) -> None:
    grants = Grants(exceptions=frozenset({POOL}), default=default)
    theirs, ours = (OTHER, POOL) if default is SCHEDULER else (POOL, OTHER)
    assert (grants.allocator(theirs), grants.allocator(ours)) == (SCHEDULER, CONTROLLER)
    assert admits(grants.data(), made(), result(theirs))
    assert not admits(grants.data(), made(), result(ours))
    assert admits(grants.data(), made(), result(NIC)) is (default is SCHEDULER)  # on the node of POOL


@pytest.mark.parametrize("default", PoolAllocator)
def test_what_the_controller_had_allocated_is_kept_from_kube_scheduler(default: PoolAllocator) -> None:
    theirs = frozenset() if default is SCHEDULER else frozenset({POOL, NIC})
    grants = Grants(exceptions=theirs, kept=frozenset({(POOL, "gpu-0")}), default=default)
    assert Grants.of_data(grants.data()) == grants
    assert not admits(grants.data(), made(), result(POOL))
    assert admits(grants.data(), made(), result(POOL, "gpu-1"))
    assert admits(grants.data(), made(), result(NIC))


@pytest.mark.parametrize("default", PoolAllocator)
def test_forms_that_are_free_are_admitted_from_pools_of_the_controller(default: PoolAllocator) -> None:
    """A share is not the device as a whole."""
    listed = frozenset({(POOL, "gpu-0"), (POOL, "gpu-1" + SHARE)})
    exceptions = frozenset({POOL}) if default is SCHEDULER else frozenset()
    grants = Grants(exceptions=exceptions, free=listed, default=default)
    data, share = grants.data(), {"shareID": "5d7a6f0e-0000-4000-8000-000000000000"}
    assert Grants.of_data(data) == grants
    assert not grants.admits_all(POOL)
    assert admits(data, made(), result(POOL))
    assert admits(data, made(), result(POOL, "gpu-1", **share))
    for refused in (result(POOL, **share), result(POOL, "gpu-1"), result(POOL, "gpu-2")):
        assert not admits(data, made(), result(POOL), refused)
    # The same for what is kept, and for grants.
    kept = Grants(default=SCHEDULER, kept=listed).data()
    assert not admits(kept, made(), result(POOL))
    assert admits(kept, made(), result(POOL, **share))
    assert not admits(kept, made(), result(POOL, "gpu-1", **share))
    assert admits(kept, made(), result(POOL, "gpu-1"))
    for form, own, other in (("gpu-0", {}, share), ("gpu-0" + SHARE, share, {})):
        of_claim = granted(made(), (POOL, form)).data()
        assert admits(of_claim, made(), result(POOL, **own))
        assert not admits(of_claim, made(), result(POOL, **other))


def test_there_is_room_for_what_an_object_may_hold() -> None:
    devices = frozenset((PoolID(OURS, PoolName("p" * 253)), f"{i:063}") for i in range(96))

    def largest(count: int) -> Grants:
        return Grants({grant_key_of_pod("n" * 63, f"{i:036}"): devices for i in range(count)})

    assert largest(28).fits
    assert not largest(29).fits
    assert sum(len(k) + len(v) for k, v in largest(28).data().items()) == largest(28).size <= MAX_GRANT_BYTES
    pools = frozenset(PoolID(OURS, PoolName(f"node-{i}.rack")) for i in range(MAX_LISTED))
    assert Grants(exceptions=pools).fits
    assert not Grants(exceptions=pools, kept=frozenset({(POOL, "gpu-0")})).fits
    long = frozenset(PoolID(OURS, PoolName(f"{p.pool}/{'p' * 63}")) for p in pools)
    assert not Grants(exceptions=long).fits


@pytest.mark.parametrize("text", ["", "\n\n", "gpu-0", "a/b", "//", "a//c", "/b/c", "a/b/"])
def test_lines_that_are_no_device_are_left_out(text: str) -> None:
    data = {"_default": "controller", "_claim_c": text, "_kept": text, "_free": text, "_turn": "x"}
    assert Grants.of_data(data) == Grants()


@pytest.mark.parametrize(
    ("turn", "expected"),
    [("7", 7), ("9" * 18, 10**18 - 1), ("9" * 19, 0), ("9" * 5000, 0), ("²", 0), ("-1", 0), ("", 0)],
)
def test_a_turn_that_is_no_number_begins_anew(turn: str, expected: int) -> None:
    assert Grants.of_data({"_turn": turn}).turn == expected


NAME = st.from_regex(r"[a-z0-9]([-a-z0-9]{0,3}[a-z0-9])?", fullmatch=True)
POOLS = st.builds(
    lambda driver, pool: PoolID(driver, PoolName("/".join(pool))),
    st.sampled_from((OURS, RDMA)),
    st.lists(NAME, min_size=1, max_size=3),
)
DEVICES = st.tuples(POOLS, NAME)
CLAIMS = st.builds(made, NAME, pod=st.sampled_from(("", "p", "q")))


@given(
    st.dictionaries(st.sampled_from("abc"), st.sets(DEVICES, min_size=1, max_size=3)),
    st.dictionaries(POOLS, st.sampled_from(PoolAllocator), max_size=4),
    st.sampled_from(PoolAllocator),
    CLAIMS,
    DEVICES,
    st.sets(st.tuples(POOLS, st.sampled_from(("gpu-0", "gpu-1", "gpu-1" + SHARE))), max_size=3),
)
def test_the_policy_decides_as_the_controller_expects(
    by_name: dict[str, set[tuple[PoolID, str]]],
    allocators: dict[PoolID, PoolAllocator],
    default: PoolAllocator,
    body: Body,
    device: tuple[PoolID, str],
    free: set[tuple[PoolID, str]],
) -> None:
    granted = {f"_claim_uid-{name}": frozenset(devices) for name, devices in by_name.items()}
    granted[grant_key_of_pod("tenant", "uid-q")] = frozenset({device})
    exceptions = frozenset(pool for pool, allocator in allocators.items() if allocator is not default)
    listed = frozenset((pool, form) for pool in allocators for form in ("gpu-0", "gpu-1" + SHARE))
    grants = Grants(granted, exceptions, listed, default)
    grants = replace(grants, free=frozenset(free))
    assert Grants.of_data(grants.data()) == grants
    kept = {(pool, name) for pool in allocators for name in ("gpu-0", "gpu-1")}
    named = {(pool, form.removesuffix(SHARE)) for pool, form in free}
    for pool, name in {device, *kept, *named, *(d for devices in by_name.values() for d in devices)}:
        for one in (body, made("a"), made("b", pod="q")):
            whole, share = result(pool, name), result(pool, name, shareID="s")
            assert admits(grants.data(), one, whole) == grants.admits(key_of(one), pool, name)
            assert admits(grants.data(), one, share) == grants.admits(key_of(one), pool, name + SHARE)


KEYS = ("_claim_uid-c", "_pools", "_default", "_turn", "_kept", "_free")


@given(st.dictionaries(st.sampled_from(KEYS), st.text()))
def test_no_object_grants_more_than_the_controller_reads_in_it(data: dict[str, str]) -> None:
    grants = Grants.of_data(data)
    for pool in (POOL, PoolID(OURS, PoolName("n/1"))):
        assert admits(data, made(), result(pool)) <= grants.admits(key_of(made()), pool, "gpu-0")


@pytest.mark.parametrize(
    ("refusal", "devices"),
    [
        (
            "denied request: ours (turn 12) [gpu.example.com/n1/gpu-0 gpu.example.com/n1/gpu-1]",
            {"gpu-0", "gpu-1"},
        ),
        ("denied request: ours (turn 12) [gpu.example.com/n1/gpu-0], and more", {"gpu-0"}),
        ("denied request: ours (turn 12) []", set()),
        ("denied request: ours (turn 12)", set()),
        ("denied request: ours (turn x) [gpu.example.com/n1/gpu-0]", set()),
        ("denied request: ours (turn 12) [gpu-0 // a/b]", set()),
    ],
)
def test_a_refusal_names_the_devices_that_were_chosen(refusal: str, devices: set[str]) -> None:
    found = chosen_devices(refusal)
    assert {name for _, name in found} == devices
    assert {str(pool) for pool, _ in found} <= {"gpu.example.com/n1"}
