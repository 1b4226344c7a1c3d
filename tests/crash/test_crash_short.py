"""Short runs of the crash test: ``make crash-test`` is the whole one."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from crash_matrix import SCRIPTS
from crash_runs import kill_at_every_step
from scenarios import SCENARIOS


@pytest.mark.slow
@pytest.mark.long
def test_kills_leave_nothing_behind() -> None:
    # The steps of each script are counted first, in a whole life.
    figures = asyncio.run(kill_at_every_step(30, seed=7, jobs=3, quiet=True, of=SCRIPTS))
    assert figures.texts == []
    assert figures.kills >= 30


@pytest.mark.long
@pytest.mark.timeout(900)
def test_every_scenario_once_leaves_nothing_behind() -> None:
    # A process of its own, because it takes mounts of its own.
    script = Path(__file__).with_name("crash_test.py")
    scenarios = [word for s in SCENARIOS for word in ("--only", s.name)]
    command = [sys.executable, str(script), *scenarios, "--runs", "1", "--seed", "7", "--jobs", "3"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    listed = {line.split()[0] for line in done.stdout.splitlines() if line.split()}
    assert listed >= {s.name for s in SCENARIOS}
