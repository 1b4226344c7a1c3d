"""Starts node agents for the crash test: imports once, forks one process per agent.

Each line on stdin is a request ``{"id", "arguments", "plan", "root", "log", "stderr", "faults", "driver",
"environment"}``; lines on stdout say ``{"id", "pid"}`` and, when that process has ended, ``{"id", "status"}``
(negative: the signal). The agent is the real command line; only ``faults``, ``live_faults`` and, where
a machine asks for it, ``short_waits`` are put under it.
"""

from __future__ import annotations

import gc
import json
import os
import select
import signal
import sys
from pathlib import Path
from typing import Any, NoReturn

sys.path.insert(0, str(Path(__file__).parent))

import crash_gpus
import live_faults
import short_waits
from faults import Injector, Plan

# Imported before the first fork, so that an agent costs no imports; nothing here starts a thread.
import dra_driver.cli.processes.kubelet_plugin
import dra_driver.discovery.simulated.backend  # noqa: F401
from dra_driver.cli.main import main as command


def main() -> None:
    readable, writable = os.pipe()
    for end in (readable, writable):
        os.set_blocking(end, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(writable)
    # The collector would write to the pages of everything that agents share with us.
    gc.freeze()
    agents: dict[int, int] = {}
    pending = b""
    answer({"ready": True})
    while True:
        ready, _, _ = select.select([0, readable], [], [])
        if readable in ready:
            os.read(readable, 4096)
            reap(agents)
        if 0 in ready:
            data = os.read(0, 65536)
            if not data:
                break
            *lines, pending = (pending + data).split(b"\n")
            for line in lines:
                request = json.loads(line)
                pid = os.fork()
                if pid == 0:
                    agent(request)
                agents[pid] = request["id"]
                answer({"id": request["id"], "pid": pid})
    for pid in agents:
        os.kill(pid, signal.SIGKILL)


def answer(line: dict[str, Any]) -> None:
    os.write(1, json.dumps(line).encode() + b"\n")


def reap(agents: dict[int, int]) -> None:
    while agents:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            return
        answer({"id": agents.pop(pid), "status": os.waitstatus_to_exitcode(status)})


def agent(request: dict[str, Any]) -> NoReturn:
    """The forked process."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    try:
        errors = os.open(request["stderr"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        null = os.open(os.devnull, os.O_RDWR)
        os.dup2(null, 0)
        os.dup2(null, 1)
        os.dup2(errors, 2)
        os.environ.update(request["environment"])
        faults = live_faults.Faults(Path(request["faults"]))
        plan = Plan(**request["plan"])
        Injector(plan, Path(request["root"]), Path(request["log"]), request["driver"], faults.disk).install()
        crash_gpus.install(Path(request["root"]))
        faults.install()
        if short_waits.VARIABLE in os.environ:
            short_waits.install()
        code = command(request["arguments"])
    except BaseException:
        import traceback

        traceback.print_exc()
        sys.stderr.flush()
        os._exit(70)
    # As any process of the command ends: threads that hang in a library are waited for, or not.
    sys.exit(code)


if __name__ == "__main__":
    main()
