"""Which of several possible allocations best fit takes."""

from __future__ import annotations

from typing import Any

import pytest
from allocator_world import (
    allocated,
    claim,
    device,
    exactly,
    gpu_class,
    names,
    partitioned_pool,
    pool,
    snapshot,
    takes,
)
from builders import DRIVER

from dra_driver.api.meta import PoolName
from dra_driver.api.resource import ResourceClaim
from dra_driver.structured import (
    Allocated,
    AllocatedState,
    DeviceID,
    Failed,
    Snapshot,
    Strategy,
    allocate,
)

HAS_32GI = 'device.capacity["gpu.example.com"].memory.compareTo(quantity("32Gi")) >= 0'


def selector(expression: str) -> list[dict[str, Any]]:
    return [{"cel": {"expression": expression}}]


def fit(cluster: Snapshot, *claims: ResourceClaim) -> list[str]:
    outcome = allocate(cluster, claims)
    assert isinstance(outcome, Allocated), outcome
    return [name for result in outcome.results for name in names(result)]


def busy(cluster: Snapshot, *where: str) -> Snapshot:
    """The cluster with these ``node/device`` in use."""
    ids = [DeviceID(DRIVER, PoolName(n), d) for n, _, d in (w.partition("/") for w in where)]
    return cluster.with_allocated(AllocatedState().with_devices((i, "default/holder") for i in ids))


@pytest.mark.parametrize(
    "request_", [exactly(memory="32Gi"), exactly(selectors=selector(HAS_32GI))], ids=["capacity", "selector"]
)
def test_a_claim_for_32gi_takes_the_40gi_gpu_while_an_80gi_one_is_free(request_: dict[str, Any]) -> None:
    on_one_node = snapshot(pool("n1", device("big", "80Gi"), device("small", "40Gi")))
    assert fit(on_one_node, claim("c", request_)) == ["n1/small"]
    on_two_nodes = snapshot(pool("n1", device("big", "80Gi")), pool("n2", device("small", "40Gi")))
    assert fit(on_two_nodes, claim("c", request_)) == ["n2/small"]


def test_first_fit_takes_the_first() -> None:
    cluster = snapshot(pool("n1", device("big", "80Gi"), device("small", "40Gi")))
    outcome = allocate(cluster, [claim("c", exactly(memory="32Gi"))], strategy=Strategy.FIRST_FIT)
    assert isinstance(outcome, Allocated)
    assert names(outcome.results[0]) == ["n1/big"]


def test_the_larger_gpu_is_taken_when_the_smaller_is_in_use() -> None:
    cluster = snapshot(pool("n1", device("big", "80Gi"), device("small", "40Gi")))
    assert fit(busy(cluster, "n1/small"), claim("c", exactly(memory="32Gi"))) == ["n1/big"]


def test_two_requests_of_one_claim_leave_the_large_gpu_to_the_one_that_needs_it() -> None:
    cluster = snapshot(pool("n1", device("a", "80Gi"), device("b", "40Gi"), device("c", "24Gi")))
    wanted = claim("c", exactly(), exactly(memory="64Gi"), exactly(memory="32Gi"))
    assert fit(cluster, wanted) == ["n1/c", "n1/a", "n1/b"]


def test_several_devices_come_from_one_nvlink_group() -> None:
    groups = ["x", "y", "x", "y"]
    gpus = [device(f"d{i}", "80Gi", attributes={"nvlinkGroup": g}) for i, g in enumerate(groups)]
    assert fit(busy(snapshot(pool("n1", *gpus)), "n1/d0"), claim("c", exactly(2))) == ["n1/d1", "n1/d3"]


@pytest.mark.parametrize("name", ["resource.kubernetes.io/pcieRoot", "resource.kubernetes.io/numaNode"])
def test_several_devices_are_close_to_each_other(name: str) -> None:
    gpus = [device(f"d{i}", "80Gi", attributes={name: value}) for i, value in enumerate("abcb")]
    assert fit(snapshot(pool("n1", *gpus)), claim("c", exactly(2))) == ["n1/d1", "n1/d3"]


def test_nvlink_outweighs_numa() -> None:
    facts = [("x", 0), ("y", 0), ("x", 1), ("z", 1)]
    gpus = [
        device(f"d{i}", "80Gi", attributes={"nvlinkGroup": g, "numaNode": n})
        for i, (g, n) in enumerate(facts)
    ]
    assert fit(snapshot(pool("n1", *gpus)), claim("c", exactly(2))) == ["n1/d0", "n1/d2"]


def test_a_gpu_and_a_network_card_share_a_pcie_root() -> None:
    root = "resource.kubernetes.io/pcieRoot"
    gpus = [device(f"g{i}", "80Gi", attributes={root: r}) for i, r in enumerate("ab")]
    cards = [device(f"nic{i}", attributes={root: r}) for i, r in enumerate("bc")]
    nic = gpu_class("nic", selectors=selector('device.driver == "nic.example.com"'))
    gpu = gpu_class("gpu", selectors=selector('device.driver == "gpu.example.com"'))
    cluster = snapshot(pool("n1", *gpus), pool("n1", *cards, driver="nic.example.com"), classes=[gpu, nic])
    wanted = claim("c", exactly(), exactly(deviceClassName="nic"))
    assert fit(cluster, wanted) == ["n1/g1", "n1/nic0"]


def test_matching_devices_are_the_cheapest_pair() -> None:
    gpus = [("a", "40Gi"), ("b", "48Gi"), ("a", "80Gi"), ("b", "48Gi")]
    cluster = snapshot(
        pool("n1", *(device(f"d{i}", m, attributes={"model": x}) for i, (x, m) in enumerate(gpus)))
    )
    wanted = claim("c", exactly(2), constraints=[{"matchAttribute": "gpu.example.com/model"}])
    assert fit(cluster, wanted) == ["n1/d1", "n1/d3"]


def test_a_small_claim_does_not_break_a_free_node() -> None:
    slices = [pool(n, *(device(f"d{i}", "80Gi") for i in range(4))) for n in ("n1", "n2", "n3")]
    cluster = busy(snapshot(*slices), "n2/d0", "n3/d0", "n3/d1")
    assert fit(cluster, claim("c", exactly())) == ["n3/d2"]


def test_a_node_that_is_used_up_is_better_than_one_that_is_broken() -> None:
    slices = [
        pool("n1", *(device(f"d{i}", "80Gi") for i in range(4))),
        pool("n2", *(device(f"d{i}", "80Gi") for i in range(2))),
    ]
    assert fit(snapshot(*slices), claim("c", exactly(2))) == ["n2/d0", "n2/d1"]


def test_a_share_goes_to_the_fullest_device_that_holds_it() -> None:
    gpus = [device(f"d{i}", "80Gi", allowMultipleAllocations=True) for i in range(2)]
    slices = pool("n1", *gpus)
    first = claim("first", exactly(memory="30Gi"))
    outcome = allocate(snapshot(slices), [first], strategy=Strategy.FIRST_FIT)
    assert isinstance(outcome, Allocated)
    cluster = snapshot(slices, taken=[allocated(first, outcome.results[0])])
    assert fit(cluster, claim("c", exactly(memory="40Gi"))) == ["n1/d0"]
    assert fit(cluster, claim("c", exactly(memory="60Gi"))) == ["n1/d1"]


def test_a_partition_destroys_as_few_placements_as_possible() -> None:
    def part(name: str, memory: str, *places: int) -> dict[str, Any]:
        return device(name, memory, consumesCounters=takes("gpu", **{f"s{p}": "1" for p in places}))

    parts = [
        part("whole", "40Gi", 0, 1, 2, 3),
        part("half-0", "20Gi", 0, 1),
        part("half-2", "20Gi", 2, 3),
        *(part(f"quarter-{i}", "10Gi", i) for i in range(4)),
    ]
    slices = partitioned_pool("n1", {"gpu": {f"s{i}": "1" for i in range(4)}}, *parts)
    cluster = busy(snapshot(slices), "n1/quarter-3")
    assert fit(cluster, claim("c", exactly(memory="8Gi"))) == ["n1/quarter-2"]
    assert fit(cluster, claim("c", exactly(memory="16Gi"))) == ["n1/half-0"]


def test_a_whole_gpu_is_not_given_where_a_partition_is_enough() -> None:
    parts = [
        device("whole", "80Gi", consumesCounters=takes("gpu", memory="80Gi")),
        device("part", "10Gi", consumesCounters=takes("gpu", memory="10Gi")),
    ]
    cluster = snapshot(partitioned_pool("n1", {"gpu": {"memory": "80Gi"}}, *parts))
    assert fit(cluster, claim("c", exactly(memory="8Gi"))) == ["n1/part"]


def test_an_absent_attribute_makes_only_that_device_unsuitable() -> None:
    ecc = exactly(selectors=selector('device.attributes["gpu.example.com"].ecc'))
    without, with_ = device("a", "40Gi"), device("b", "80Gi", attributes={"ecc": True})
    both = snapshot(pool("n1", without, with_))
    assert fit(both, claim("c", ecc)) == ["n1/b"]
    assert isinstance(allocate(both, [claim("c", ecc)], strategy=Strategy.FIRST_FIT), Failed)
    outcome = allocate(snapshot(pool("n1", without)), [claim("c", ecc)])
    assert isinstance(outcome, Failed)
    assert "no such key: ecc" in outcome.message
    assert "n1/a" in outcome.message


def test_the_preferred_alternative_wins_over_everything_else() -> None:
    wanted = claim(
        "c",
        {
            "firstAvailable": [
                {"name": "big", **exactly(memory="64Gi")},
                {"name": "small", **exactly(memory="8Gi")},
            ]
        },
    )
    cluster = snapshot(pool("n1", device("small", "10Gi")), pool("n2", device("big", "80Gi")))
    outcome = allocate(cluster, [wanted])
    assert isinstance(outcome, Allocated)
    assert [r.request for r in outcome.results[0].devices.results] == ["req-0/big"]
    assert outcome.node == "n2"


def test_an_earlier_alternative_is_worth_a_larger_device_for_another_request() -> None:
    """With the H100 for the 80Gi, which leaves less unused, the other request would get the L4."""
    models = {"L4": "24Gi", "H100": "80Gi", "H200": "141Gi"}
    gpus = [device(m.lower(), size, attributes={"model": m}) for m, size in models.items()]

    def of(model: str) -> dict[str, Any]:
        expression = f'device.attributes["gpu.example.com"].model == "{model}"'
        return {"name": model.lower(), **exactly(selectors=selector(expression))}

    wanted = claim("c", exactly(memory="80Gi"), {"firstAvailable": [of("H100"), of("L4")]})
    assert fit(snapshot(pool("n1", *gpus)), wanted) == ["n1/h200", "n1/h100"]


def test_an_earlier_request_is_not_given_a_later_alternative_for_a_later_request() -> None:
    """One large GPU for three requests that prefer it: the first of them gets it."""

    def prefers_large() -> dict[str, Any]:
        large, any_ = {"name": "large", **exactly(memory="64Gi")}, {"name": "any", **exactly()}
        return {"firstAvailable": [large, any_]}

    gpus = [device("a", "40Gi"), device("b", "80Gi"), device("c", "24Gi")]
    wanted = claim("c", prefers_large(), prefers_large(), prefers_large())
    outcome = allocate(snapshot(pool("n1", *gpus)), [wanted])
    assert isinstance(outcome, Allocated)
    served = [r.request for r in outcome.results[0].devices.results]
    assert served == ["req-0/large", "req-1/any", "req-2/any"]
    assert names(outcome.results[0])[0] == "n1/b"


def test_devices_with_binding_conditions_come_last() -> None:
    slow = device("slow", "40Gi", bindingConditions=["example.com/Attached"])
    cluster = snapshot(pool("n1", slow, device("ready", "80Gi")))
    assert fit(cluster, claim("c", exactly(memory="32Gi"))) == ["n1/ready"]


def test_ties_are_broken_by_names_and_positions() -> None:
    slices = [pool(n, device("b", "40Gi"), device("a", "40Gi")) for n in ("n2", "n1")]
    assert fit(snapshot(*slices), claim("c", exactly())) == ["n1/b"]


@pytest.mark.parametrize("amount", ["8Ei", "2Pi", "1Pi", "9223372036854775807"])
def test_a_device_that_cannot_be_changes_no_choice_among_others(amount: str) -> None:
    """By its measure all others would be equally small, and the first one would be taken."""
    honest = pool("n1", device("a-big", "81920Mi"), device("b-small", "81559Mi"))
    wanted = claim("c", exactly(memory="70Gi"))
    assert fit(snapshot(honest), wanted) == ["n1/b-small"]
    liar = pool("n2", device("liar", amount))
    assert fit(snapshot(honest, liar), wanted) == ["n1/b-small"]
    other = pool("n3", device("disk", amount), driver="disks.example.com")
    assert fit(snapshot(honest, other), wanted) == ["n1/b-small"]
