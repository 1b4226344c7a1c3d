"""A few random fault schedules on the embedded API server; ``make fault-test`` plays hundreds.

In a process of its own, because the schedules shorten delays of the controller. By default only schedules in
memory are played: ``tests/property/controller/test_controller_fault_schedules.py``.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

FAULT_TEST = Path(__file__).with_name("fault_test.py")


@pytest.mark.long
@pytest.mark.sim
@pytest.mark.parametrize(("pools", "schedules"), [("open", 3), ("tainted", 13)])
def test_no_invariant_is_violated_under_faults(tmp_path: Path, pools: str, schedules: int) -> None:
    command = [sys.executable, str(FAULT_TEST), f"--schedules={schedules}", "--side-by-side=8"]
    environment = {**os.environ, "POOLS": pools}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=600)
    logs = "\n".join(_ends(p.read_text()) for p in tmp_path.rglob("*.log"))
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr[-4000:]}\n{logs}"
    assert f"schedules {schedules}, faults injected" in done.stdout
    assert "violations 0" in done.stdout


def _ends(log: str) -> str:
    """Return the beginning of a log, which says what was done, and its end, which says what became of it."""
    return log if len(log) <= 20_000 else f"{log[:8000]}\n...\n{log[-12_000:]}"
