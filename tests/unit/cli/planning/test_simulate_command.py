"""``dra-driver simulate``: generated and recorded weeks, under both strategies."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest

from dra_driver.cli.described_fleet import described_fleet
from dra_driver.cli.main import main
from dra_driver.cli.simulation.replay import play, sizes_of, weights_of
from dra_driver.cli.simulation.workload import Arrival, generated, parse_jobs, read_arrivals
from dra_driver.fleet import RequestShape, parse_shapes
from dra_driver.structured import Strategy

DRIVER = "gpu.dra-driver.dev"
HOUR = 3600.0
SMALL = ["simulate", "--fleet", "dgx-h100:2,l4x8:1", "--days", "1", "--load", "0.9"]


def shape(text: str) -> RequestShape:
    return parse_shapes([text], DRIVER)[0]


def simulate(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert main([*SMALL, "-o", "json", *arguments]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_the_same_seed_gives_the_same_numbers_and_another_one_others(
    capsys: pytest.CaptureFixture[str],
) -> None:
    first = simulate(capsys)
    assert simulate(capsys) == first
    assert simulate(capsys, "--seed", "2") != first
    assert first["devices"] == 24
    for found in first["strategies"].values():
        assert sum(w["claims"] for w in found["waitsByShape"].values()) == first["claims"]
        assert len(found["samples"]) == 25
        for sample in found["samples"]:
            assert all(fits <= most for fits, most in zip(sample["fits"], sample["suggested"], strict=True))


def test_what_was_written_replays_to_the_same(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "week.jsonl"
    first = simulate(capsys, "--write-arrivals", str(file))
    assert main([*SMALL[:-2], "-o", "json", "--arrivals", str(file)]) == 0
    assert json.loads(capsys.readouterr().out) == first


def test_the_plot_has_a_line_for_each_strategy_and_shape(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "plot.svg"
    simulate(capsys, "--shape", "eight=8 gpu same nvlinkGroup", "--plot", str(file))
    lines = ET.fromstring(file.read_text("utf-8")).findall("{http://www.w3.org/2000/svg}polyline")
    # Both strategies: what fits, what the sum suggests, and the claims that wait.
    assert len(lines) == 6
    assert all(len((line.get("points") or "").split()) == 25 for line in lines)


def test_claims_wait_for_devices_and_hold_up_no_others() -> None:
    fleet = described_fleet("dgx-h100:1")
    arrivals = [
        Arrival(0, 2 * HOUR, "a", shape("five=5 gpu")),
        Arrival(HOUR / 2, HOUR, "b", shape("eight=8 gpu")),
        Arrival(HOUR, HOUR, "c", shape("two=2 gpu")),
        Arrival(HOUR, HOUR, "d", shape("sixteen=16 gpu")),
        Arrival(3 * HOUR, 99 * HOUR, "e", shape("one=1 gpu")),
    ]
    played = play(fleet, arrivals, Strategy.FIRST_FIT, until=4 * HOUR, shapes=[shape("free=1 gpu")])
    assert played.waits == {"five": [0.0], "two": [0.0], "eight": [1.5 * HOUR], "one": [0.0]}
    assert played.refused == 1
    assert [s.counts[0].fits for s in played.samples] == [8, 3, 0, 8, 7]
    # 5 devices for two hours, 2 and 8 and 1 for an hour each, of 8 for four hours.
    assert played.in_use == pytest.approx((5 * 2 + 2 + 8 + 1) / 32)


def test_best_fit_leaves_the_large_devices_to_those_that_need_them() -> None:
    fleet = described_fleet("dgx-h100:1,l4x8:1")
    small = shape("small=1 gpu memory 16Gi")
    arrivals = [Arrival(i, 99 * HOUR, f"s{i}", small) for i in range(4)]
    large = [shape("large=8 gpu same nvlinkGroup")]
    fits = {
        s: play(fleet, arrivals, s, until=HOUR, shapes=large).samples[-1].counts[0].fits for s in Strategy
    }
    assert fits == {Strategy.FIRST_FIT: 0, Strategy.BEST_FIT: 1}


def test_partitions_count_for_their_part_of_the_memory() -> None:
    fleet = described_fleet("dgx-h100:1", ["1g.10gb", "7g.80gb"])
    _, total = weights_of(fleet)
    assert total == 8
    eighth, whole = sizes_of(fleet, [shape("mig profile 1g.10gb"), shape("mig profile 7g.80gb")])
    assert 0.1 < eighth < 0.15
    assert 0.95 < whole <= 1


def test_arrivals_follow_the_hours_of_the_day_and_the_load() -> None:
    (job,) = parse_jobs(["one=1:2h:1 gpu"])
    week = generated([job], [1.0], devices=100, load=0.5, days=7, seed=3)
    assert sum(a.seconds for a in week) / (7 * 86_400 * 100) == pytest.approx(0.5, rel=0.1)
    by_hour = [sum(int(a.at // HOUR) % 24 == hour for a in week) for hour in range(24)]
    assert max(by_hour[9:17]) > 4 * max(by_hour[2:5])
    working, weekend = (sum(a.at // 86_400 == day for a in week) for day in (1, 6))
    assert weekend < working / 2


@pytest.mark.parametrize(
    ("arguments", "texts"),
    [
        (
            ["--fleet", "dgx-h100:0,nothing:2"],
            ["'dgx-h100:0' is not understood; PROFILE:NODES is", "profile 'nothing' is unknown"],
        ),
        (
            ["--load", "0", "--days", "0"],
            ["--load 0: must be above 0", "--days 0: must be between"],
        ),
        (
            ["--job", "a=x:2h:gpu", "--job", "b=1:2h:cpu"],
            ["must be NAME=WEIGHT", "KIND 'cpu'"],
        ),
        (["--arrivals", "/nonexistent", "--seed", "2"], ["--seed is for arrivals that are generated"]),
        (["--arrivals", "/nonexistent"], ["/nonexistent: No such file"]),
        (["--plot", "/nonexistent/x.svg"], ["there is no folder /nonexistent"]),
        (["--shape", "8 gpus"], ["KIND 'gpus'"]),
        (["--fleet", "l4x8:1", "--job", "a=1:2h:mig profile 7g.80gb"], ["a does not fit on the empty fleet"]),
    ],
)
def test_bad_input_is_named(
    arguments: list[str], texts: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["simulate", *arguments]) == 2
    said = capsys.readouterr().err
    assert all(text in said for text in texts), said


def test_every_bad_line_of_recorded_arrivals_is_named(tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    lines = [
        '{"at": 5, "seconds": 60, "shape": "1 gpu", "name": "x"}',
        "no json",
        '{"at": -1, "seconds": 60, "shape": "1 gpu"}',
        '{"at": 1, "seconds": 60, "shape": "1 gpux"}',
        '{"at": 1, "seconds": 60, "shape": "1 gpu", "name": "x"}',
        '{"at": 1, "seconds": 60, "shape": "1 gpu", "extra": 1}',
    ]
    file.write_text("\n".join(lines), "utf-8")
    with pytest.raises(Exception, match="line 2") as caught:
        read_arrivals(file)
    assert [number for number in range(1, 7) if f"line {number}:" in str(caught.value)] == [2, 3, 4, 5, 6]
