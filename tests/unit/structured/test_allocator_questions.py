"""What callers of the allocator can ask, and what they cannot."""

from __future__ import annotations

from typing import Any

import pytest
from allocator_world import allocated, claim, device, exactly, names, node, pool, snapshot

from dra_driver.api.meta import DriverName, PoolName
from dra_driver.api.quantity import Quantity
from dra_driver.errors import InvalidInput
from dra_driver.ownership import PoolID
from dra_driver.structured import (
    Allocated,
    AllocatedState,
    DeviceID,
    DoesNotFit,
    ExclusionReason,
    Failed,
    Features,
    PersistentMap,
    PoolPolicy,
    Snapshot,
    Strategy,
    allocate,
)
from dra_driver.structured.index.fleet import Fleet
from dra_driver.structured.model.budget import Budget

TAINT = {"key": "dra-driver.dev/controller", "value": "allocates", "effect": "NoSchedule"}
OTHER = {"key": "example.com/broken", "effect": "NoExecute"}


def two_nodes() -> Snapshot:
    return snapshot(pool("n1", device("d", "80Gi")), pool("n2", device("d", "40Gi")))


@pytest.mark.parametrize("strategy", Strategy)
def test_only_the_given_nodes_are_looked_at(strategy: Strategy) -> None:
    outcome = allocate(two_nodes(), [claim("c", exactly())], nodes=["n1", "unknown"], strategy=strategy)
    assert isinstance(outcome, Allocated)
    assert outcome.node == "n1"
    nowhere = allocate(two_nodes(), [claim("c", exactly())], nodes=[], strategy=strategy)
    assert isinstance(nowhere, DoesNotFit)
    assert nowhere.summary() == f"{nowhere.headline}: there are no candidate nodes"


def test_when_a_taint_was_added_tells_no_nodes_apart() -> None:
    # The API server notes the time in every taint, so that each node has another one.
    cluster = snapshot(
        *(
            pool(f"n{i}", device("d", taints=[{**TAINT, "timeAdded": f"2026-01-01T00:00:0{i}Z"}]))
            for i in range(5)
        )
    )
    outcome = allocate(cluster, [claim("c", exactly())], ignore_taint=lambda t: t.key == TAINT["key"])
    assert isinstance(outcome, Allocated)
    fleet = cluster.memory.of(Fleet)
    assert (
        len({id(n) for _, known in fleet._request_classes.items() for n in known.request_class.index.classes})
        == 1
    )


def test_nothing_is_kept_of_nodes_that_are_gone() -> None:
    now = two_nodes()
    for i in range(5):
        now = now.with_nodes([node(f"short-lived-{i}")])
        assert isinstance(allocate(now, [claim("c", exactly())]), Allocated)
        now = now.with_nodes([], [f"short-lived-{i}"])
        assert isinstance(allocate(now, [claim("c", exactly())]), Allocated)
    assert now.index._caches.views.keys() == {"n1", "n2"}
    assert now.memory.of(Fleet)._columns._facts.keys() == {"n1", "n2"}


def test_two_sets_of_pools_in_turns_cost_no_look_at_the_nodes() -> None:
    nics = [pool(f"n{i}", device("nic"), driver="nic.example.com") for i in range(3)]
    cluster = snapshot(*(pool(f"n{i}", device("gpu", "80Gi")) for i in range(3)), *nics)
    pools = [
        PoolID(DriverName(d), PoolName(f"n{i}"))
        for d in ("gpu.example.com", "nic.example.com")
        for i in range(3)
    ]
    every: Any = PersistentMap((p, PoolPolicy()) for p in pools)
    ours: Any = PersistentMap((p, PoolPolicy()) for p in pools[:3])
    fleet = cluster.memory.of(Fleet)

    def looks() -> int:
        return sum(index.looks for index in fleet._indexes.values())

    for turn in range(3):
        for rules in (ours, every):
            assert isinstance(allocate(cluster, [claim("c", exactly(memory="40Gi"))], pools=rules), Allocated)
        assert looks() == 6, f"turn {turn}"
    # A change of one pool costs a look at its node, by whoever asks.
    every = every.updated({}, [pools[-1]])
    assert isinstance(allocate(cluster, [claim("c", exactly())], pools=every), Allocated)
    assert looks() == 7


@pytest.mark.parametrize("strategy", Strategy)
def test_the_caller_can_ignore_its_own_taint_only(strategy: Strategy) -> None:
    cluster = snapshot(pool("n1", device("d", taints=[TAINT]), device("e", taints=[TAINT, OTHER])))
    one, two = [claim("c", exactly(1))], [claim("c", exactly(2))]
    assert isinstance(allocate(cluster, one, strategy=strategy), DoesNotFit)

    def ours(taint: Any) -> bool:
        return bool(taint.key == TAINT["key"])

    outcome = allocate(cluster, one, strategy=strategy, ignore_taint=ours)
    assert isinstance(outcome, Allocated)
    assert names(outcome.results[0]) == ["n1/d"]
    assert isinstance(allocate(cluster, two, strategy=strategy, ignore_taint=ours), DoesNotFit)


@pytest.mark.parametrize("strategy", Strategy)
def test_the_caller_can_restrict_the_pools(strategy: Strategy) -> None:
    rule = PoolPolicy(strategy)
    only: PersistentMap[PoolID, PoolPolicy] = PersistentMap(
        {PoolID(DriverName("gpu.example.com"), PoolName("n1")): rule}
    )
    outcome = allocate(two_nodes(), [claim("c", exactly())], pools=only)
    assert isinstance(outcome, Allocated)
    assert outcome.node == "n1"
    refused = allocate(two_nodes(), [claim("c", exactly())], strategy=strategy, pools=PersistentMap())
    assert isinstance(refused, DoesNotFit)
    assert refused.summary() == (
        f"{refused.headline}: n1, n2 skipped: their pools are not among those that may be used"
    )


def refused_pools(nodes: int, withheld: dict[PoolID, str]) -> str:
    cluster = snapshot(*(pool(f"n{i:02}", device("d")) for i in range(nodes)))
    refused = allocate(cluster, [claim("c", exactly())], pools=PersistentMap(), withheld=withheld)
    assert isinstance(refused, DoesNotFit)
    return refused.summary()


def gpu_pool(name: str) -> PoolID:
    return PoolID(DriverName("gpu.example.com"), PoolName(name))


def test_a_node_whose_pool_may_not_be_used_is_named_with_the_reason() -> None:
    why = {
        gpu_pool("n00"): "allocated by another controller",
        gpu_pool("n01"): "allocated by kube-scheduler",
        gpu_pool("n02"): "allocated by kube-scheduler",
    }
    assert refused_pools(1, why) == "needs 1 gpu: n00 skipped: its pool is allocated by another controller"
    assert refused_pools(3, why) == (
        "needs 1 gpu: n01, n02 skipped: their pools are allocated by kube-scheduler · "
        "n00 skipped: its pool is allocated by another controller"
    )


def test_many_nodes_whose_pools_may_not_be_used_are_counted() -> None:
    why = {gpu_pool(f"n{i:02}"): "allocated by kube-scheduler" for i in range(40)}
    assert refused_pools(40, why) == (
        "needs 1 gpu: n00, n01, n02 and 37 more skipped: their pools are allocated by kube-scheduler"
    )
    why[gpu_pool("n01")] = "changing hands"
    assert refused_pools(40, why) == (
        "needs 1 gpu: n00, n01, n02 and 37 more skipped: "
        "their pools are allocated by kube-scheduler or changing hands"
    )


def test_an_allocated_claim_keeps_its_devices_and_decides_the_node() -> None:
    cluster = two_nodes()
    first = claim("first", exactly(memory="64Gi"))
    outcome = allocate(cluster, [first])
    assert isinstance(outcome, Allocated)
    held = allocated(first, outcome.results[0])
    cluster = cluster.with_allocated(AllocatedState.from_claims([held]))
    second = allocate(cluster, [held, claim("second", exactly())])
    assert isinstance(second, DoesNotFit)
    assert {r.node: r.exclusions[0].reason for r in second.reasons} == {
        "n1": ExclusionReason.IN_USE,
        "n2": ExclusionReason.NODE_SELECTOR,
    }
    alone = allocate(cluster, [held])
    assert alone == Allocated("n1", outcome.results)


def test_claims_without_requests_fit_everywhere() -> None:
    outcome = allocate(two_nodes(), [claim("c")])
    assert isinstance(outcome, Allocated)
    assert outcome.results[0].devices.results == ()
    assert outcome.results[0].node_selector is None


def test_the_state_is_never_changed_in_place() -> None:
    cluster, wanted = two_nodes(), claim("c", exactly())
    outcome = allocate(cluster, [wanted])
    assert isinstance(outcome, Allocated)
    later = cluster.with_allocated(cluster.allocated.with_allocations([("default/c", outcome.results[0])]))
    assert allocate(cluster, [wanted]) == outcome
    assert allocate(later, [wanted]) != outcome
    assert cluster.allocated == AllocatedState()


def test_admin_access_takes_nothing_and_sees_everything() -> None:
    cluster = snapshot(pool("n1", device("d")))
    user, admin = claim("user", exactly()), claim("admin", exactly(adminAccess=True))
    outcome = allocate(cluster, [user])
    assert isinstance(outcome, Allocated)
    busy = cluster.with_allocated(AllocatedState.from_claims([allocated(user, outcome.results[0])]))
    looking = allocate(busy, [admin])
    assert isinstance(looking, Allocated)
    assert looking.results[0].devices.results[0].admin_access is True
    assert AllocatedState.from_claims([allocated(admin, looking.results[0])]) == AllocatedState()


def test_shares_have_ids_of_their_own_and_add_up() -> None:
    shareable = device("d", "80Gi", allowMultipleAllocations=True)
    cluster = snapshot(pool("n1", shareable))
    seen = set()
    for i in range(4):
        wanted = claim(f"c{i}", exactly(memory="20Gi"))
        outcome = allocate(cluster, [wanted])
        assert isinstance(outcome, Allocated)
        result = outcome.results[0].devices.results[0]
        assert result.consumed_capacity == {"memory": Quantity.parse("20Gi")}
        seen.add(result.share_id)
        made = [(str(wanted.key), outcome.results[0])]
        cluster = cluster.with_allocated(cluster.allocated.with_allocations(made))
    assert len(seen) == 4
    assert all(share is not None and len(share) == 36 for share in seen)
    full = allocate(cluster, [claim("c4", exactly(memory="1Gi"))])
    assert isinstance(full, DoesNotFit)
    assert "with at most 0 of memory left" in full.summary()


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        (claim("c", exactly(deviceClassName="x")), "DeviceClass 'x' does not exist (there are: gpu)"),
        (claim("c", exactly(deviceClassName="")), "no device class is named"),
        (claim("c", {**exactly(), "allocationMode": "Some"}), "unknown allocation mode 'Some'"),
        (claim("c", exactly(-2)), "asks for -2 devices; 1 or more are allowed"),
        (claim("c", exactly(33)), "asks for 33 devices; a claim can have 32 at most"),
        (claim("c", exactly(), constraints=[{}]), "neither matchAttribute nor distinctAttribute"),
        (claim("c", exactly(selectors=[{}])), "has no CEL expression"),
        (claim("c", exactly(selectors=[{"cel": {"expression": "1 +"}}])), "does not compile"),
    ],
)
@pytest.mark.parametrize("strategy", Strategy)
def test_a_question_without_an_answer_says_why(wanted: Any, message: str, strategy: Strategy) -> None:
    outcome = allocate(two_nodes(), [wanted], strategy=strategy)
    assert isinstance(outcome, Failed)
    assert message in outcome.message
    assert "default/c" in outcome.message


def test_a_mode_that_the_manifest_leaves_out_is_the_servers_default() -> None:
    outcome = allocate(two_nodes(), [claim("c", {"deviceClassName": "gpu"})])
    assert isinstance(outcome, Allocated)
    assert len(outcome.results[0].devices.results) == 1


@pytest.mark.parametrize("strategy", Strategy)
def test_a_search_without_end_is_given_up(strategy: Strategy) -> None:
    # Every device is different, and seven kinds are too few for ten devices: all sets would have to be tried.
    gpus = [device(f"d{i}", "80Gi", attributes={"x": i, "y": i % 7}) for i in range(40)]
    wanted = claim(
        "c",
        exactly(10),
        constraints=[{"distinctAttribute": "gpu.example.com/x"}, {"distinctAttribute": "gpu.example.com/y"}],
    )
    cluster = snapshot(*(pool(f"n{i}", *gpus) for i in range(8)))
    budget = Budget(20_000, 5_000)
    outcome = allocate(cluster, [wanted], strategy=strategy, budget=budget)
    assert isinstance(outcome, Failed)
    assert outcome.gave_up
    assert "gave up" in outcome.message
    assert budget.spent <= 20_000


def test_interchangeable_devices_are_not_tried_again() -> None:
    gpus = [device(f"d{i}", "80Gi", attributes={"model": "ab"[i % 2]}) for i in range(32)]
    wanted = claim("c", exactly(17), constraints=[{"matchAttribute": "gpu.example.com/model"}])
    for strategy in Strategy:
        assert isinstance(allocate(snapshot(pool("n1", *gpus)), [wanted], strategy=strategy), DoesNotFit)


def test_features_have_the_names_of_kubernetes() -> None:
    assert Features.from_names({"AdminAccess": False, "PrioritizedList": True}) == Features(
        admin_access=False
    )
    with pytest.raises(InvalidInput, match="unknown features Nonsense; there are AdminAccess, "):
        Features.from_names({"Nonsense": True})


def test_a_state_can_be_made_of_devices() -> None:
    one = DeviceID(DriverName("gpu.example.com"), PoolName("n1"), "d")
    cluster = two_nodes()
    state = AllocatedState().with_devices([(one, "default/holder")])
    outcome = allocate(cluster.with_allocated(state), [claim("c", exactly(memory="64Gi"))])
    assert isinstance(outcome, DoesNotFit)
    assert "n1 has none free (1 held by claim default/holder)" in outcome.summary(holders=True)


def test_nodes_without_slices_have_nothing_to_offer() -> None:
    cluster = snapshot(pool("n1", device("d", "10Gi")), nodes=[node("n0")])
    outcome = allocate(cluster, [claim("c", exactly(memory="32Gi"))])
    assert isinstance(outcome, DoesNotFit)
    assert [(r.node, r.exclusions[0].reason) for r in outcome.reasons] == [
        ("n0", ExclusionReason.NO_DEVICES),
        ("n1", ExclusionReason.CAPACITY),
    ]
