"""A few attacks on a small cluster, and violations that the suite must find; ``make attack`` plays all.

Nothing here depends on how fast the machine is: of the attacks only what they show is looked at, and whether
a device was in two claims.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ATTACK_TEST = Path(__file__).with_name("attack_test.py")
FOUND = ("planted-double-allocation", "planted-restart", "planted-slow-claim", "planted-harmless-attack")


def play(folder: Path, *attacks: str) -> dict[str, Any]:
    flags = ["--nodes=6", "--seconds=2", "--attempts=1", *(f"--only={a}" for a in attacks)]
    done = subprocess.run(
        [sys.executable, str(ATTACK_TEST), *flags], cwd=folder, capture_output=True, text=True, timeout=280
    )
    assert done.returncode in (0, 1), f"{done.stdout}\n{done.stderr[-4000:]}"
    records = json.loads((folder / "build/attack/attack.json").read_text())["attacks"]
    assert [r["attack"] for r in records] == list(attacks), done.stdout
    return {r["attack"]: r for r in records}


def check(record: dict[str, Any]) -> None:
    assert record["problems"] == []
    assert record["doubled"] == []
    assert len(record["honest"]) == 12
    assert record["lag"][0]["buckets"]["inf"] > 0
    assert record["memory"] > 0


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.sim
def test_a_violation_is_found_beside_honest_pods(tmp_path: Path) -> None:
    record = play(tmp_path, FOUND[0])[FOUND[0]]
    assert record["passed"], record["findings"]
    assert record["doubled"]
    check({**record, "doubled": []})


@pytest.mark.long
@pytest.mark.nightly
@pytest.mark.sim
def test_attacks_are_played_and_measured(tmp_path: Path) -> None:
    """In open pools, as by default; the violations are committed in tainted ones."""
    for record in play(tmp_path, "alternatives-alike", "honest-looking", "pods-come-and-go").values():
        check(record)


@pytest.mark.long
@pytest.mark.nightly
@pytest.mark.sim
def test_violations_are_found(tmp_path: Path) -> None:
    for name, record in play(tmp_path, *FOUND).items():
        assert record["passed"], (name, record["findings"])


def test_there_are_enough_attacks_and_each_says_what_it_tries(capsys: pytest.CaptureFixture[str]) -> None:
    # Here, since it needs much that other tests do not.
    import attack_test

    assert attack_test.main(["--list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) >= 40
    assert {line.partition("/")[0] for line in lines} == {
        *("claims", "selectors", "generated", "gangs", "names", "storms", "churn", "sizes"),
        *("nodes", "connections", "reviews", "processes"),
    }
    assert all(len(line.partition(": ")[2]) > 20 for line in lines)
