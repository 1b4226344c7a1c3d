"""Child processes are logged, watched, stopped, and do not outlive us."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from dra_driver.sim.processes import ManagedProcess, ProcessFailed


def python(code: str) -> tuple[str, ...]:
    return (sys.executable, "-c", code)


def gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except FileNotFoundError:
        return True


def test_output_goes_to_the_log_and_an_unexpected_end_is_a_failure(tmp_path: Path) -> None:
    async def scenario() -> None:
        process = ManagedProcess("it", python("print('hello'); raise SystemExit(3)"), tmp_path / "log")
        await process.start()
        with pytest.raises(ProcessFailed, match=r"it ended with status 3\n.*\nhello"):
            await process.supervise()

    asyncio.run(scenario())


def test_stop_ends_it_even_if_it_ignores_sigterm(tmp_path: Path) -> None:
    async def scenario() -> None:
        code = (
            "import signal, time; signal.signal(15, signal.SIG_IGN); print('up', flush=True); time.sleep(60)"
        )
        process = ManagedProcess("deaf", python(code), tmp_path / "log")
        await process.start()
        while "up" not in process.tail():
            await asyncio.sleep(0.01)
        pid = process.pid
        assert pid is not None
        await process.stop(grace=0.2)
        assert gone(pid)
        assert not process.running
        await process.supervise()  # stopped on purpose: no failure

    asyncio.run(scenario())


def test_children_do_not_outlive_a_parent_that_is_killed(tmp_path: Path) -> None:
    code = f"""
import asyncio, pathlib
from dra_driver.sim.processes import ManagedProcess
async def main():
    command = ("{sys.executable}", "-c", "import time; print('up', flush=True); time.sleep(60)")
    p = ManagedProcess("c", command, pathlib.Path(r"{tmp_path}/log"))
    await p.start()
    while "up" not in p.tail():
        await asyncio.sleep(0.01)
    print(p.pid, flush=True)
    await asyncio.sleep(60)
asyncio.run(main())
"""
    with subprocess.Popen(python(code), stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        assert not gone(child)
        os.kill(parent.pid, signal.SIGKILL)
    deadline = time.monotonic() + 60
    while not gone(child):
        assert time.monotonic() < deadline
        time.sleep(0.01)
