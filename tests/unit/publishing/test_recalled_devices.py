"""Devices that are recalled: their object, and the policy's expression, which decides as ``Recalls`` does."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dra_driver.api.meta import DriverName, PoolName
from dra_driver.cel.policies import compile_policy
from dra_driver.ownership import ADMITTED, MAX_RECALLED, MAX_RECALLED_OF_POOL, RECALLED, PoolID, Recalls

POOL = PoolID(DriverName("gpu.example.com"), PoolName("node-1"))
OTHER = PoolID(DriverName("gpu.example.com"), PoolName("node-11"))
NAMES = ("object", "oldObject", "params", "variables")
VARIABLE, CONDITION = compile_policy(RECALLED, NAMES), compile_policy(ADMITTED, NAMES)


def admits(data: dict[str, str] | None, *results: dict[str, Any], allocated: bool = False) -> bool:
    """Judge a write of a claim's status that allocates."""
    allocation = {"allocation": {"devices": {"results": list(results)}}}
    given: dict[str, Any] = {
        "object": {"status": allocation},
        "oldObject": {"status": allocation} if allocated else {"metadata": {}},
        "params": {} if data is None else {"data": data},
        "variables": {},
    }
    given["variables"] = {"recalled": VARIABLE.value(given)}
    return CONDITION.value(given) is True


def result(pool: PoolID, device: str, **more: Any) -> dict[str, Any]:
    return {"request": "gpu", "driver": pool.driver, "pool": pool.pool, "device": device, **more}


def recalls(*devices: str) -> Recalls:
    made = Recalls().recall(POOL, devices)
    assert made is not None
    return made


def test_an_allocation_of_a_recalled_device_is_refused() -> None:
    data = recalls("gpu-0").data()
    assert not admits(data, result(POOL, "gpu-0"))
    assert not admits(data, result(POOL, "gpu-1"), result(POOL, "gpu-0"))
    assert admits(data, result(POOL, "gpu-1"))
    assert admits(data, result(OTHER, "gpu-0"))


def test_admin_access_takes_nothing_and_is_not_refused() -> None:
    data = recalls("gpu-0").data()
    assert admits(data, result(POOL, "gpu-0", adminAccess=True))
    assert not admits(data, result(POOL, "gpu-0", adminAccess=False))


def test_what_is_allocated_already_may_be_reserved() -> None:
    assert admits(recalls("gpu-0").data(), result(POOL, "gpu-0"), allocated=True)


def test_without_anything_recalled_nobody_is_refused() -> None:
    for data in (None, {}, Recalls().data()):
        assert admits(data, result(POOL, "gpu-0"))


def test_a_claim_that_is_not_allocated_is_not_refused() -> None:
    given: dict[str, Any] = {
        "object": {"status": {}},
        "oldObject": {},
        "params": {"data": recalls("gpu-0").data()},
        "variables": {"recalled": ["gpu.example.com/node-1/gpu-0"]},
    }
    assert CONDITION.value(given) is True
    assert CONDITION.value({**given, "object": {}}) is True


def test_a_recall_changes_the_object_even_where_the_devices_are_in_it() -> None:
    first = recalls("gpu-0")
    again = first.recall(POOL, ["gpu-0"])
    assert again is not None
    assert again.devices == first.devices
    assert again.data() != first.data()


def test_there_is_room_for_a_number_of_devices_only() -> None:
    others = [PoolID(POOL.driver, PoolName(f"n{i}")) for i in range(MAX_RECALLED)]
    full = Recalls(frozenset((pool, "gpu-0") for pool in others))
    assert full.recall(POOL, ["one-more"]) is None
    assert full.recall(others[0], ["gpu-0"]) is not None
    longest = PoolID(DriverName("d" * 63), PoolName("p" * 253))
    made = Recalls(frozenset((longest, f"{i:063}") for i in range(MAX_RECALLED)))
    assert len("".join(made.data().values())) < 256 * 1024


def test_one_pool_leaves_room_for_others() -> None:
    full = Recalls().recall(POOL, [f"gpu-{i}" for i in range(MAX_RECALLED_OF_POOL)])
    assert full is not None
    assert full.recall(POOL, ["one-more"]) is None
    assert full.recall(PoolID(POOL.driver, PoolName("other")), ["gpu-0"]) is not None


@pytest.mark.parametrize("text", ["", "\n\n", "gpu-0", "a/b", "//", "a//c", "/b/c", "a/b/"])
def test_lines_that_are_no_device_are_left_out(text: str) -> None:
    assert Recalls.of_data({"devices": text, "turn": "x"}) == Recalls()


@pytest.mark.parametrize(
    ("turn", "expected"),
    [("7", 7), ("9" * 18, 10**18 - 1), ("9" * 19, 0), ("9" * 5000, 0), ("²", 0), ("-1", 0), ("", 0)],
)
def test_a_turn_that_is_no_number_begins_anew(turn: str, expected: int) -> None:
    assert Recalls.of_data({"turn": turn}).turn == expected


NAME = st.from_regex(r"[a-z0-9]([-a-z0-9]{0,5}[a-z0-9])?", fullmatch=True)
POOLS = st.builds(
    lambda driver, pool: PoolID(DriverName(driver), PoolName("/".join(pool))),
    NAME,
    st.lists(NAME, min_size=1, max_size=3),
)


@given(st.dictionaries(POOLS, st.sets(NAME, min_size=1, max_size=3), max_size=4), POOLS, NAME)
def test_the_policy_decides_as_the_controller_expects(
    recalled: dict[PoolID, set[str]], pool: PoolID, device: str
) -> None:
    made = Recalls()
    for of_pool, devices in recalled.items():
        made = made.recall(of_pool, devices) or made
    assert Recalls.of_data(made.data()) == made
    assert admits(made.data(), result(pool, device)) == ((pool, device) not in made.devices)
    for of_pool, devices in recalled.items():
        for one in devices:
            assert not admits(made.data(), result(of_pool, one))
            assert admits(made.admit(of_pool, devices).data(), result(of_pool, one))
