"""Why nothing fits: the rule per device, and the sentence for people."""

from __future__ import annotations

from typing import Any

import pytest
from allocator_world import claim, device, exactly, node, partitioned_pool, pool, snapshot, takes

from dra_driver.api.meta import DriverName, ObjectMeta, PoolName
from dra_driver.api.quantity import Quantity
from dra_driver.api.resource import DeviceClass, ResourceClaim
from dra_driver.structured import (
    Allocated,
    AllocatedState,
    DeviceID,
    DoesNotFit,
    ExclusionReason,
    Failed,
    Snapshot,
    Strategy,
    allocate,
)
from dra_driver.structured.explain.asking import Asked
from dra_driver.structured.explain.summaries import largest, summary
from dra_driver.structured.model.budget import Budget

TAINT = {"key": "broken", "value": "yes", "effect": "NoSchedule"}


def refusal(cluster: Snapshot, *claims: ResourceClaim) -> DoesNotFit:
    outcome = allocate(cluster, claims)
    assert isinstance(outcome, DoesNotFit), outcome
    return outcome


def held(cluster: Snapshot, *devices: tuple[str, str, str]) -> Snapshot:
    ids = [(DeviceID(DriverName("gpu.example.com"), PoolName(n), d), by) for n, d, by in devices]
    return cluster.with_allocated(AllocatedState().with_devices(ids))


def test_the_sentence_counts_nodes_and_names_what_is_there() -> None:
    cluster = held(
        snapshot(
            pool("n1", device("d0", "16Gi"), device("d1", "24Gi")),
            pool("n2", device("d0", "24Gi")),
            pool("n3", device("d0", "80Gi"), device("d1", "40Gi")),
        ),
        ("n3", "d0", "team-a/train"),
        ("n3", "d1", "team-b/serve"),
    )
    refused = refusal(cluster, claim("c", exactly(memory="32Gi")))
    assert refused.summary(holders=True) == (
        "needs 1 gpu with memory 32Gi: n3 has none free (2 held by claims team-a/train, team-b/serve) · "
        "2 nodes have 3 devices with memory of at most 24Gi"
    )
    # A tenant is not told whose they are.
    assert refused.summary() == (
        "needs 1 gpu with memory 32Gi: n3 has none free (2 held by 2 claims) · "
        "2 nodes have 3 devices with memory of at most 24Gi"
    )


def test_a_long_list_of_claims_is_cut() -> None:
    cluster = snapshot(pool("n1", *(device(f"d{i}") for i in range(6))))
    cluster = held(cluster, *(("n1", f"d{i}", f"x/c{i}") for i in range(6)))
    assert "6 held by claims x/c0, x/c1, x/c2 and 3 more" in refusal(cluster, claim("c", exactly())).summary(
        holders=True
    )


class Account(Budget):
    """Keeps the budgets that are made of it for the reasons."""

    def __init__(self) -> None:
        super().__init__()
        self.others: list[Budget] = []

    def for_reasons(self) -> Budget:
        self.others.append(super().for_reasons())
        return self.others[-1]


def test_reasons_asked_for_late_are_bounded_too() -> None:
    cluster = snapshot(*(pool(f"small-{i:03}", device("d", "24Gi")) for i in range(400)))
    budget = Account()
    refused = allocate(cluster, [claim("c", exactly(memory="32Gi"))], budget=budget)
    assert isinstance(refused, DoesNotFit)
    # The index follows another snapshot by now.
    other = held(cluster, ("small-000", "d", "x/c"))
    assert isinstance(allocate(other, [claim("c", exactly())]), Allocated)
    assert "nodes not examined" in refused.summary()
    assert 0 < sum(b.spent for b in budget.others) < 400


def test_many_nodes_are_counted_without_a_look_at_each() -> None:
    cluster = snapshot(
        *(pool(f"big-{i:02}", device("d", "80Gi")) for i in range(40)),
        *(pool(f"small-{i:02}", device("d", "24Gi")) for i in range(20)),
    )
    cluster = held(cluster, *((f"big-{i:02}", "d", f"x/c{i:02}") for i in range(40)))
    budget = Account()
    refused = allocate(cluster, [claim("c", exactly(memory="32Gi"))], budget=budget)
    assert isinstance(refused, DoesNotFit)
    assert "40 nodes have none free (40 held by claims x/c00, x/c01, x/c02 and 37 more)" in (
        summary(refused.explain(), Asked(""), holders=True)
    )
    small = "20 nodes have 20 devices with memory of at most 24Gi"
    assert refused.summary() == (f"needs 1 gpu with memory 32Gi: 40 nodes have none free (40 held) · {small}")
    assert refused.summary(holders=True) == (
        "needs 1 gpu with memory 32Gi: 40 nodes have none free (40 held by claims x/c00, x/c01, x/c02 and "
        f"others) · {small}"
    )
    # A look at a node costs a step for its device, in each of the two sentences.
    assert 0 < sum(other.spent for other in budget.others) < 2 * 12


def test_a_pool_of_all_nodes_is_held_by_the_same_claims_everywhere() -> None:
    shared = pool("rack", device("d"), nodeName=None, allNodes=True)
    cluster = held(snapshot(shared, nodes=[node(f"n{i:02}") for i in range(30)]), ("rack", "d", "x/only"))
    assert refusal(cluster, claim("c", exactly())).summary(holders=True) == (
        "needs 1 gpu: 30 nodes have none free (30 held by claim x/only)"
    )


def test_kinds_of_nodes_beyond_many_are_counted_only() -> None:
    cluster = snapshot(*(pool(f"n{i:03}", device("d", f"{i + 1}Gi")) for i in range(150)))
    text = refusal(cluster, claim("c", exactly(memory="200Gi"))).summary()
    assert text == (
        "needs 1 gpu with memory 200Gi: 128 nodes have 128 devices with memory of at most 128Gi · "
        "22 more nodes not examined"
    )


def test_reasons_asked_for_later_are_those_of_their_snapshot() -> None:
    before = snapshot(pool("n1", device("d", "24Gi")))
    refused = refusal(before, claim("c", exactly(memory="32Gi")))
    refusal(before.with_slices([pool("n1", device("d", "8Gi"))]), claim("c", exactly(memory="32Gi")))
    assert refused.summary() == "needs 1 gpu with memory 32Gi: n1 has 1 device with memory of at most 24Gi"


@pytest.mark.parametrize("strategy", Strategy)
def test_what_the_caller_changes_afterwards_does_not_change_the_reasons(strategy: Strategy) -> None:
    cluster = snapshot(pool("n1", device("d", "24Gi")), pool("n2", device("d", "16Gi")))
    nodes, claims = {"n1"}, [claim("c", exactly(memory="32Gi"))]
    refused = allocate(cluster, claims, nodes=nodes, strategy=strategy)
    assert isinstance(refused, DoesNotFit)
    nodes.add("n2")
    claims[0] = claim("other", exactly(memory="64Gi"))
    sentence = "needs 1 gpu with memory 32Gi: n1 has 1 device with memory of at most 24Gi"
    assert (refused.summary(), refused.brief()) == (sentence, sentence)
    assert [(r.node, [e.claim for e in r.exclusions]) for r in refused.reasons] == [("n1", ["default/c"])]


def test_a_brief_reason_asked_for_later_is_one_of_its_snapshot() -> None:
    before = snapshot(pool("n1", device("d", "24Gi")))
    refused = refusal(before, claim("c", exactly(memory="32Gi")))
    after = before.with_slices([pool("n0", device("d", "8Gi"))])
    refusal(after.with_nodes([node("n0")], ["n1"]), claim("c", exactly(memory="32Gi")))
    assert refused.brief() == "needs 1 gpu with memory 32Gi: n1 has 1 device with memory of at most 24Gi"


def test_a_brief_reason_is_of_the_nodes_that_were_asked_about() -> None:
    cluster = snapshot(pool("n1", device("d", "24Gi")), pool("n2", device("d", "16Gi")))
    refused = allocate(cluster, [claim("c", exactly(memory="32Gi"))], nodes={"n2"})
    assert isinstance(refused, DoesNotFit)
    assert refused.brief() == "needs 1 gpu with memory 32Gi: n2 has 1 device with memory of at most 16Gi"


EXPRESSION = 'device.attributes["gpu.example.com"].model == "b"'


@pytest.mark.parametrize(
    ("devices", "request_", "rule", "text"),
    [
        (
            [device("d", attributes={"model": "a"})],
            exactly(selectors=[{"cel": {"expression": EXPRESSION}}]),
            ExclusionReason.SELECTOR,
            f"n1 has 1 device of the class, none selected by {EXPRESSION}",
        ),
        (
            [device("d", "8Gi")],
            exactly(capacity={"requests": {"cores": "4"}}),
            ExclusionReason.CAPACITY,
            "n1 has 1 device without capacity cores",
        ),
        (
            [device("d", taints=[TAINT])],
            exactly(),
            ExclusionReason.TAINT,
            "n1 has 1 that fits, tainted broken=yes:NoSchedule",
        ),
        (
            [device("d"), device("e")],
            exactly(3),
            ExclusionReason.CONSTRAINT,
            "n1 has 2 free",
        ),
    ],
)
def test_each_rule_has_its_words(
    devices: list[dict[str, Any]], request_: dict[str, Any], rule: ExclusionReason, text: str
) -> None:
    refused = refusal(snapshot(pool("n1", *devices)), claim("c", request_))
    assert {e.reason for e in refused.reasons[0].exclusions} == {rule}
    assert refused.summary() == f"{refused.headline}: {text}"


def test_constraints_are_named() -> None:
    gpus = [device(f"d{i}", attributes={"model": m}) for i, m in enumerate("ab")]
    wanted = claim("c", exactly(2), constraints=[{"matchAttribute": "gpu.example.com/model"}])
    assert refusal(snapshot(pool("n1", *gpus)), wanted).summary() == (
        "needs 2 gpu together, the same model: "
        "n1 has 2 free, but not together: 2 devices, the same gpu.example.com/model"
    )


@pytest.mark.parametrize("all_alike", [True, False])
@pytest.mark.parametrize("kind", ["matchAttribute", "distinctAttribute"])
def test_an_attribute_that_no_device_has_is_named_whatever_is_free(kind: str, all_alike: bool) -> None:
    """A typo, as a rule. Devices that are allocated, and shares that are gone, are not the reason.

    What was meant is said whether all devices have it or only some.
    """
    model: dict[str, Any] = {"attributes": {"model": "a"}}
    shared = device("s", memory="8Gi", allowMultipleAllocations=True, **(model if all_alike else {}))
    gpus = [device("d0", attributes={"model": "a"}), device("d1", attributes={"model": "a"}), shared]
    cluster = held(snapshot(pool("n1", *gpus)), ("n1", "d0", "x/y"))
    share = DeviceID(DriverName("gpu.example.com"), PoolName("n1"), "s")
    allocated = cluster.allocated.with_devices([], [(share, "x/z")])
    cluster = cluster.with_allocated(allocated.with_capacity({share: {"memory": Quantity.parse("8Gi")}}))
    wanted = claim("c", exactly(2), constraints=[{kind: "gpu.example.com/modle"}])
    refused = refusal(cluster, wanted)
    assert {e.reason for e in refused.reasons[0].exclusions} == {ExclusionReason.ATTRIBUTE}
    assert refused.summary().endswith(
        ": n1 has 3 devices without the attribute gpu.example.com/modle, which a constraint requires"
        "; did you mean `gpu.example.com/model`?"
    )


def test_a_share_of_a_request_that_names_no_amount_is_said_to_be_the_default() -> None:
    policy = {"default": "10Gi", "validRange": {"min": "1Gi", "step": "1Gi"}}
    shared = device("s", allowMultipleAllocations=True)
    shared["capacity"] = {"memory": {"value": "16Gi", "requestPolicy": policy}}
    share = DeviceID(DriverName("gpu.example.com"), PoolName("n1"), "s")
    allocated = AllocatedState().with_devices([], [(share, "x/y")])
    used = allocated.with_capacity({share: {"memory": Quantity.parse("8Gi")}})
    cluster = snapshot(pool("n1", shared)).with_allocated(used)
    assert refusal(cluster, claim("c", exactly())).summary() == (
        "needs 1 gpu: n1 has 1 that fits, shared by other claims: "
        "a request without memory takes 10Gi of it, at most 8Gi is left"
    )
    assert refusal(cluster, claim("c", exactly(memory="9Gi"))).summary() == (
        "needs 1 gpu with memory 9Gi: n1 has 1 that fits, with at most 8Gi of memory left"
    )


def test_partitions_in_use_are_named() -> None:
    parts = [
        device("whole", "80Gi", consumesCounters=takes("gpu-0", memory="80Gi")),
        device("part", "10Gi", consumesCounters=takes("gpu-0", memory="10Gi")),
    ]
    cluster = held(
        snapshot(partitioned_pool("n1", {"gpu-0": {"memory": "80Gi"}}, *parts)), ("n1", "part", "x/y")
    )
    assert refusal(cluster, claim("c", exactly(memory="40Gi"))).summary() == (
        "needs 1 gpu with memory 40Gi: n1 has 1 that fits, excluded by partitions in use "
        "(counter memory of gpu-0 used up)"
    )


def test_an_incomplete_pool_is_told() -> None:
    cluster = snapshot(pool("n1", device("d"), pool={"name": "n1", "generation": 2, "resourceSliceCount": 2}))
    refused = refusal(cluster, claim("c", exactly()))
    assert refused.reasons[0].exclusions[0].reason is ExclusionReason.POOL_INCOMPLETE
    assert "n1 has 1 device in a pool that is being updated (gpu.example.com/n1)" in refused.summary(
        holders=True
    )


def test_the_request_that_is_farthest_from_being_served_speaks() -> None:
    cluster = snapshot(pool("n1", device("d", "24Gi")))
    refused = refusal(cluster, claim("c", exactly(), exactly(memory="32Gi")))
    assert refused.summary() == (
        "needs 1 gpu and 1 gpu with memory 32Gi together: n1 has 1 device with memory of at most 24Gi"
    )
    assert [e.request for e in refused.reasons[0].exclusions] == ["req-0", "req-1"]


@pytest.mark.parametrize(
    ("amounts", "shown"),
    [
        (["22Gi", "196592Mi", "81559Mi"], "191.9Gi"),  # never 192Gi, which it is not
        (["1536Mi"], "1.5Gi"),
        (["512Mi", "511Mi"], "512Mi"),
        (["16Gi", "15Gi"], "16Gi"),
        (["4k", "3500"], "4k"),
        (["132", "what is this"], "132"),
        (["1Ti", "1025Gi"], "1025Gi"),
    ],
)
def test_the_largest_amount_reads_well_and_is_never_too_large(amounts: list[str], shown: str) -> None:
    assert largest(amounts) == shown


def test_however_many_nodes_differ_the_sentence_is_short() -> None:
    name = "n" * 100
    pools = [pool(f"{name}{n:02}", *(device(f"d{i}") for i in range(n))) for n in range(1, 32)]
    text = refusal(snapshot(*pools), claim("c", exactly(32)))
    assert len(text.summary().encode()) < 1024
    assert text.summary().endswith(" · 25 more nodes with other reasons"), text.summary()


def test_nodes_that_come_nearest_are_named_first() -> None:
    cluster = held(
        snapshot(
            pool("n1", *(device(f"d{i}") for i in range(4))),
            pool("n2", *(device(f"d{i}") for i in range(3))),
            pool("n3", device("d0")),
            nodes=[node(f"n{i}") for i in range(1, 5)],
        ),
        ("n1", "d0", "x/a"),
        ("n1", "d1", "x/a"),
        ("n1", "d2", "x/b"),
        ("n3", "d0", "x/b"),
    )
    assert refusal(cluster, claim("c", exactly(4))).summary() == (
        "needs 4 gpu together: n2 has 3 free · n1 has 1 free (3 held by 2 claims) · "
        "n3 has none free (1 held by 1 claim) · n4 has no devices"
    )


THREE = "1 gpu with memory 1Gi and 1 gpu with memory 2Gi and 1 gpu with memory 3Gi"
GPU = 'device.attributes["gpu.example.com"]'
MODELS = [device(f"d{i}", "24Gi", attributes={"model": "A100"}) for i in range(2)]


@pytest.mark.parametrize(
    ("asked", "meant"),
    [
        ({"capacity": {"requests": {"memroy": "1Gi"}}}, "memory"),
        ({"selectors": [{"cel": {"expression": f'{GPU}.?modle.orValue("") == "x"'}}]}, "model"),
    ],
)  # fmt: skip
def test_a_name_that_no_device_has_is_said_with_the_one_that_was_meant(
    asked: dict[str, Any], meant: str
) -> None:
    refused = refusal(snapshot(pool("n1", *MODELS)), claim("c", exactly(**asked)))
    assert refused.summary().endswith(f"; did you mean `{meant}`?")


def test_an_expression_that_fails_on_a_mistyped_name_is_said_with_the_one_that_was_meant() -> None:
    wrong = {"cel": {"expression": 'device.attributes["gpu.example.com"].modle == "A100"'}}
    failed = allocate(snapshot(pool("n1", *MODELS)), [claim("c", exactly(selectors=[wrong]))])
    assert isinstance(failed, Failed)
    assert failed.message.endswith("no such key: modle; did you mean `model`?")


def test_a_class_that_does_not_exist_is_said_with_the_one_that_was_meant() -> None:
    failed = allocate(snapshot(pool("n1", *MODELS)), [claim("c", exactly(deviceClassName="gpus"))])
    assert isinstance(failed, Failed)
    assert failed.message.endswith("does not exist (there are: gpu); did you mean `gpu`?")


@pytest.mark.parametrize(
    ("requests", "more", "text"),
    [
        ([exactly(4)], {}, "4 gpu together"),
        ([exactly(), exactly()], {}, "2 gpu together"),
        ([exactly(), exactly(memory="1Gi")], {}, "1 gpu and 1 gpu with memory 1Gi together"),
        ([exactly(None)], {}, "all gpu together"),
        ([exactly(2)], {"constraints": [{"matchAttribute": "x.com/numa"}]}, "2 gpu together, the same numa"),
        (
            [{"firstAvailable": [{"name": "a", **exactly(2)}, {"name": "b", **exactly()}]}],
            {},
            "2 gpu or 1 gpu together",
        ),
        ([exactly(memory=f"{i}Gi") for i in (1, 2, 3, 4, 5)], {}, f"{THREE} and 2 more requests together"),
    ],
)  # fmt: skip
def test_what_is_asked_for_is_said_in_short(
    requests: list[dict[str, Any]], more: dict[str, Any], text: str
) -> None:
    refused = refusal(snapshot(pool("n1"), nodes=[node("n1")]), claim("c", *requests, **more))
    assert refused.headline == f"needs {text}"


def test_what_is_asked_for_is_one_short_line_whatever_names_there_are() -> None:
    name = "x" * 300 + "\nn1 fits"
    classes = [f"{i}\n{name}" for i in range(9)]
    requests = [
        exactly(deviceClassName=of, capacity={"requests": {f"{n}{name}": "1Gi" for n in range(9)}})
        for of in classes
    ]
    constraints = [{"matchAttribute": f"gpu.example.com/{i}{name}"} for i in range(9)]
    cluster = snapshot(
        pool("n1", device("d0")), classes=[DeviceClass(metadata=ObjectMeta(name=of)) for of in classes]
    )
    headline = refusal(cluster, claim("c", *requests, constraints=constraints)).headline
    assert len(headline) < 1500
    assert "\n" not in headline


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("gpu.example.com/modle", "gpu.example.com/model"),
        ("gpu.exmple.com/model", "gpu.example.com/model"),
        ("resource.kubernetes.io/numaNod", "resource.kubernetes.io/numaNode"),
        # Most of the characters are those of the domain.
        ("gpu.example.com/nvlinkGroup", ""),
    ],
)
def test_attributes_are_compared_without_their_domains(name: str, meant: str) -> None:
    attributes = {"model": "a", "vendor": "b", "resource.kubernetes.io/numaNode": "1"}
    gpus = [device(f"d{i}", attributes=attributes) for i in range(2)]
    text = refusal(
        snapshot(pool("n1", *gpus)), claim("c", exactly(2), constraints=[{"matchAttribute": name}])
    ).summary()
    assert text.endswith(f"; did you mean `{meant}`?" if meant else "which a constraint requires")
