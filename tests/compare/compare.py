"""The same pods with the controller, and with kube-scheduler alone, on a real control plane: prints both.

etcd, kube-apiserver, kube-controller-manager and kube-scheduler of a Kubernetes release run with their
defaults, and the controller with the process that decides for it, all on the same two cores (--cores). Nodes
are objects: no kubelet runs, and where a scenario needs what kubelets report, a stand-in reports it at once.
Either of the two gets a new control plane for each kind of nodes. Writes are counted by the API server's
audit log. Exit status: 0 if everything was measured, 1 if something failed, 2 for bad usage; bars that are
missed change nothing.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import NoReturn

_TESTS = Path(__file__).resolve().parent.parent
_FOLDERS = ("compare", "support", "support/control_plane", "e2e", "e2e/harness", "benchmarks")
sys.path[:0] = [str(_TESTS / folder) for folder in _FOLDERS]

from compare_grants import GRANTS  # noqa: E402
from compare_nodes import make_nodes  # noqa: E402
from compare_plane import PROGRAMS, plane  # noqa: E402
from compare_report import Row, figures_table, rows_of, writes_json, writes_table  # noqa: E402
from compare_scenarios import SCENARIOS  # noqa: E402
from compare_stage import Measured, Scenario, Stage  # noqa: E402
from local.processes import NotUpError  # noqa: E402
from real_apiserver import VARIABLE  # noqa: E402
from run import machine  # noqa: E402

# Played where they are asked for only.
_OPTIONAL = (GRANTS,)
_EVERY = (*SCENARIOS, *_OPTIONAL)
_NAMES = [scenario.name for scenario in _EVERY]
_LOGS = _TESTS.parent / "build" / "compare"
_OURS, _ALONE = "with the controller", "kube-scheduler alone"
_PLANE_SECONDS = 20
_started = time.monotonic()


def _say(text: str) -> None:
    """Report progress; figures go to standard output, this does not."""
    print(f"{time.monotonic() - _started:5.0f} s  {text}", file=sys.stderr, flush=True)


async def _play(
    scenarios: Sequence[Scenario],
    folder: Path,
    found: dict[str, Measured],
    problems: list[str],
    *,
    ours: bool,
) -> None:
    """Play scenarios for one of the two, one after the other on a control plane of their own."""
    who, first = _OURS if ours else _ALONE, scenarios[0]
    _say(f"{who}: starting a control plane with {first.nodes} nodes")
    async with plane(folder, open_pools=first.open_pools) as made:
        await make_nodes(made, first.nodes, first.gpus, partitions=first.partitions, ours=ours)
        made.check()
        for scenario in scenarios:
            name = scenario.name

            def report(text: str, name: str = name) -> None:
                _say(f"{name}, {who}: {text}")

            stage = Stage(made, f"compared-{name}", report, ours=ours)
            await stage.make(gates=not scenario.open_pools)
            report("begins")
            try:
                found[name] = measured = await scenario.play(stage)
            except (AssertionError, TimeoutError) as e:  # the next one may do
                problems.append(f"{name}, {who}: {type(e).__name__}: {e}")
                report(problems[-1])
            else:
                report(", ".join(f"{key} {value:.2f}" for key, value in measured.values.items()))
            if scenario is not scenarios[-1]:
                await stage.clear()


def _try(
    scenarios: Sequence[Scenario], logs: Path, problems: list[str], *, ours: bool
) -> dict[str, Measured]:
    """Play scenarios for one of the two; note what goes wrong, and keep the logs."""
    folder = Path(tempfile.mkdtemp(prefix="dra-compare-"))
    found: dict[str, Measured] = {}
    try:
        asyncio.run(_play(scenarios, folder / "plane", found, problems, ours=ours))
    except Exception as e:
        if not isinstance(e, (NotUpError, TimeoutError)):  # those say what is wrong by themselves
            traceback.print_exc()
        problems.append(f"{_OURS if ours else _ALONE}, {scenarios[0].nodes} nodes: {type(e).__name__}: {e}")
    finally:
        kept = logs / f"{scenarios[0].nodes}-nodes-{'controller' if ours else 'alone'}"
        shutil.rmtree(kept, ignore_errors=True)
        kept.mkdir(parents=True)
        for log in (folder / "plane").glob("*.log"):
            shutil.copy(log, kept)
        shutil.rmtree(folder, ignore_errors=True)
    return found


@dataclass(frozen=True)
class _Compared:
    """What a scenario has found out about both."""

    scenario: Scenario
    ours: Measured
    alone: Measured

    @property
    def rows(self) -> list[Row]:
        """Return its figures."""
        return rows_of(self.scenario.figures, self.ours.values, self.alone.values)

    def as_json(self) -> dict[str, object]:
        """Return everything as plain data."""
        number = max(1, self.ours.number, self.alone.number)
        return {
            "what": self.scenario.what,
            "figures": [row.as_json() for row in self.rows],
            f"writes_a_{self.ours.per}": writes_json(self.ours.written, self.alone.written, number),
        }


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    listed = "\n".join(f"  {s.name:14} about {s.seconds:3} s  {s.what}" for s in _EVERY)
    parser = argparse.ArgumentParser(
        prog="make compare",
        description=__doc__,
        epilog=f"scenarios:\n{listed}\n\nmake compare BIN=DIR ARGS='--only fleet --only burst'",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--bin", default="", metavar="DIR", help="folder of Kubernetes release binaries and etcd"
    )
    parser.add_argument(
        "--only", action="append", choices=_NAMES, metavar="NAME", help="play this one; may be repeated"
    )
    parser.add_argument("--cores", type=int, default=2, metavar="N", help="cores for everything; default: 2")
    parser.add_argument("--json", action="store_true", help="print JSON in place of tables")
    parser.add_argument("--writes", action="store_true", help="print as well who wrote what")
    parser.add_argument("--logs", type=Path, default=_LOGS, metavar="DIR", help="default: build/compare")
    options = parser.parse_args(arguments)
    folder = Path(options.bin)
    if not options.bin:
        parser.error("which binaries? make compare BIN=DIR, a folder of Kubernetes release binaries and etcd")
    if missing := [name for name in PROGRAMS if not os.access(folder / name, os.X_OK)]:
        parser.error(f"BIN={folder}: {', '.join(missing)} is not there, or is no program")
    available = sorted(os.sched_getaffinity(0))
    if not 1 <= options.cores <= len(available):
        parser.error(f"--cores {options.cores}: this process may use {len(available)}")
    os.environ[VARIABLE] = str(folder.absolute())
    os.sched_setaffinity(0, available[: options.cores])
    return options


def _seconds(chosen: Sequence[Scenario]) -> int:
    """Return about how long scenarios take: two control planes for each number of nodes as well."""
    return sum(s.seconds for s in chosen) + 2 * _PLANE_SECONDS * len({s.hardware for s in chosen})


def main(arguments: Sequence[str]) -> int:
    """Play the scenarios, one after the other, and print what was measured."""
    options = _parse(arguments)
    signal.signal(signal.SIGTERM, _terminate)
    chosen = [s for s in _EVERY if s.name in options.only] if options.only else list(SCENARIOS)
    what = machine()
    _say(f"{len(chosen)} scenarios, about {_seconds(chosen)} s; logs go to {options.logs}")
    problems: list[str] = []
    compared: list[_Compared] = []
    for _, group in itertools.groupby(chosen, key=lambda scenario: scenario.hardware):
        scenarios = list(group)
        both = [scenario for scenario in scenarios if scenario.alone]
        alone = _try(both, options.logs, problems, ours=False) if both else {}
        ours = _try(scenarios, options.logs, problems, ours=True)
        for scenario in scenarios:
            found = (ours.get(scenario.name, Measured()), alone.get(scenario.name, Measured()))
            compared.append(_Compared(scenario, *found))
    if options.json:
        scenarios_json = {c.scenario.name: c.as_json() for c in compared}
        print(json.dumps({"machine": what, "scenarios": scenarios_json, "failed": problems}, indent=2))
        return 1 if problems else 0
    print(
        f"{what['cpu']}, {options.cores} cores, {what['memory_mib']} MiB, "
        f"load {what['load_1m']} at the start, Linux {what['kernel']}, Python {what['python']}\n"
    )
    print(figures_table([row for c in compared for row in c.rows]))
    for c in compared if options.writes else ():
        if c.ours.written and c.alone.written:
            table = writes_table(c.ours.written, c.alone.written, c.ours.number, c.ours.per)
            print(f"\n{c.scenario.what}:\n\n{table}")
    for problem in problems:
        print(f"failed: {problem}")
    return 1 if problems else 0


def _terminate(number: int, _frame: FrameType | None) -> NoReturn:
    """Make an exception of SIGTERM, so that all processes are ended."""
    sys.exit(128 + number)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
