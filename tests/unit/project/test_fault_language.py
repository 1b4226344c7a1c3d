"""The language of faults: what it means, what it refuses, and that plans survive being written down."""

from __future__ import annotations

import itertools

import pytest

from dra_driver.errors import ConfigurationError
from dra_driver.sim.faults import Kill, Latency, Target, Timing, Traffic, random_plan
from dra_driver.sim.faults import parse as parse_faults

EVERYTHING = """\
seed 7
latency 50ms..2s 25% on list,watch resourceslices from dra-driver-controller at 1s for 5s
error 429 10% on patch
error 500 on create pods/binding times 2
reset for 1s every 3s until 9s
lose on update,patch resourceclaims/status times 1
drop watches every 3s
stall watches on pods,resourceclaims at 2s for 1.5s
expire watches at 3s every 2s until 9s
clock -3600s at 3s
kill apiserver at 2s for 1s
kill plugin node2 at 4s for 500ms
fulldisk node1 at 1s for 2s"""


def test_a_plan_is_its_text() -> None:
    plan = parse_faults(EVERYTHING)
    assert str(plan) == EVERYTHING
    assert plan.seed == 7
    assert plan.faults[0] == Latency(
        0.05,
        2.0,
        Traffic(("list", "watch"), ("resourceslices",), ("dra-driver-controller",), 25.0),
        Timing(at=1, duration=5),
    )


def test_statements_are_separated_by_lines_or_semicolons_and_comments_are_ignored() -> None:
    plan = parse_faults("drop watches at 1s; kill controller at 2s for 1m # soon\n\n# nothing\n", seed=3)
    assert plan.faults[1] == Kill(Target("controller"), Timing(at=2, duration=60))
    assert plan.seed == 3


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("explode at 1s", "there are latency, error"),
        ("error 418", "allowed: 400, 401"),
        ("error 429 10 on patch", "error needs a code"),
        ("error 500 0% on patch", "between 0% and 100%"),
        ("error 500 on pach", "no such verb 'pach'"),
        ("error 500 on patch Pods", "'Pods' is no resource"),
        ("error 500 on", "'on' needs verbs"),
        ("error 500 at 1s at 2s", "'at' is there twice"),
        ("error 500 at soon", "'soon' is no duration"),
        ("error 500 at 8000h", "more than a week"),
        ("error 500 for 0s", "more than nothing"),
        ("error 500 for 3s every 2s", "shorter than 'every'"),
        ("error 500 every 2s", "needs 'for'"),
        ("error 500 until 2s", "'until' needs 'every'"),
        ("error 500 times 0", "whole number from 1"),
        ("error 500 pods", "error needs a code"),
        ("latency", "latency needs a duration"),
        ("latency 2s..1s", "runs backwards"),
        ("lose on watch", "use drop or stall"),
        ("drop pods", "what is meant is 'watches'"),
        ("drop watches for 3s", "drop knows no 'for'"),
        ("drop watches times 2", "needs 'every'"),
        ("expire watches from me", "expire knows no 'from'"),
        ("clock 5s", "with its sign"),
        ("kill scheduler", "one of: apiserver"),
        ("kill plugin", "the name of one node"),
        ("kill controller now", "nothing more"),
        ("kill plugin ../x", "no name of a node"),
        ("fulldisk", "the name of one node"),
        ("seed many", "one whole number"),
    ],
)
def test_what_is_not_understood_is_refused_with_its_place(text: str, says: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        parse_faults(f"drop watches\n{text}", source="--faults")
    assert "--faults, line 2, in " in str(caught.value)
    assert says in str(caught.value)


def test_repeated_faults_come_and_go() -> None:
    timing = Timing(at=1, duration=0.5, every=2, until=4)
    there = [t / 4 for t in range(24) if timing.active(t / 4)]
    assert there == [1.0, 1.25, 3.0, 3.25]
    assert list(itertools.islice(Timing(every=3).moments(), 3)) == [3, 6, 9]
    assert list(Timing(at=1, every=2, until=5.5).moments()) == [1, 3, 5]
    assert list(Timing(every=1, times=2).moments()) == [1, 2]
    assert list(Timing(at=4).moments()) == [4]


def test_what_needs_a_cluster_is_told_apart() -> None:
    plan = parse_faults(EVERYTHING)
    assert [str(f).split()[0] for f in plan.for_cluster()] == ["kill", "fulldisk"]
    assert len(plan.for_server().faults) == len(plan.faults) - 2


def test_random_plans_repeat_end_and_can_be_written_down() -> None:
    for seed in range(200):
        plan = random_plan(seed, seconds=4, nodes=("node1",), processes=True, agents=("dra-driver",))
        assert plan == random_plan(seed, seconds=4, nodes=("node1",), processes=True, agents=("dra-driver",))
        assert parse_faults(str(plan)) == plan
        for fault in plan.faults:
            assert not fault.timing.active(4.5) or fault.timing.duration is None
            assert list(itertools.islice(fault.timing.moments(), 100))[-1] <= 4.2
