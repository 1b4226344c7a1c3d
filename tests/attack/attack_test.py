"""Attacks on a live controller with two replicas, each with honest pods beside it: ``make attack``.

An API server and two controllers with leader election run as processes of their own; nodes are inventories.
Prints a line per attack and a table; exit status 1 if an attack misses a bar. ``--only`` plays some of them,
``--list`` says what they try, ``--planted`` commits violations, each of which must be found. All that is
random is made of ``--seed``; logs of the processes and the figures are in ``build/attack``.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import json
import math
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

_HERE = Path(__file__).parent
_TESTS = _HERE.parent
sys.path[:0] = [
    str(f) for f in (_HERE, _TESTS / "support", _TESTS / "support" / "allocator", _TESTS / "benchmarks")
]

import attacks  # noqa: E402, F401 - fills the table
from attack_judgement import BARS, Measured, findings, p999, table, together  # noqa: E402
from attack_run import Stage, stage  # noqa: E402
from attack_world import ATTACKS, Attack  # noqa: E402

_OUT = Path("build/attack")
_BUSY_SECONDS = 0.02


def _say(text: str) -> None:
    print(text, flush=True)


async def _play(
    chosen: Sequence[Attack], args: argparse.Namespace, folder: Path, rows: list[Measured]
) -> None:
    """Play attacks; append what was measured beside each."""
    started = time.monotonic()
    opens = args.pools == "open" and not any(attack.planted for attack in chosen)
    async with stage(folder, args.nodes, args.seed, _say, open_pools=opens) as live:
        _say(f"ready after {time.monotonic() - started:.0f} s")
        for number, attack in enumerate(chosen, start=1):
            measured = await _tried(live, attack, args)
            rows.append(measured)
            verdict = "; ".join(_judged(attack, measured)) or "pass"
            _say(f"{number}/{len(chosen)} {attack.name} ({measured.seconds:.0f} s): {verdict}")
            for note in measured.notes:
                _say(f"  {note}")


async def _tried(live: Stage, attack: Attack, args: argparse.Namespace) -> Measured:
    """Play an attack, and again if it misses a bar on a machine that is busy with something else."""
    for left in range(args.attempts - 1, -1, -1):
        measured = await live.play(attack, args.seconds)
        missed = _judged(attack, measured)
        if not missed or not left or measured.noise < _BUSY_SECONDS:
            break
        busy = f"the machine is busy ({1000 * measured.noise:.0f} ms)"
        _say(f"  {attack.name} again, as {busy}: {'; '.join(missed)}")
    return measured


def _judged(attack: Attack, measured: Measured) -> list[str]:
    """Return why an attack was not withstood, or why a planted violation was not found."""
    found = findings(measured)
    if not attack.planted:
        return found
    return [] if any(f.startswith(attack.planted) for f in found) else [f"not found: {attack.planted}"]


def _record(attack: Attack, measured: Measured) -> dict[str, Any]:
    """Return everything about an attack as plain data."""
    data = {
        **dataclasses.asdict(measured),
        "topic": attack.topic,
        "description": attack.description,
        "median": measured.median,
        "worst": measured.worst,
        "lag_p999": measured.lag_p999,
        "lag_longest": measured.lag_longest,
        "findings": findings(measured),
        "passed": not _judged(attack, measured),
    }
    data["lag"] = [
        {"longest": lag.longest, "buckets": {str(b): n for b, n in lag.buckets.items()}}
        for lag in measured.lag or ()
    ]
    return {k: _finite(v) for k, v in data.items()}


def _finite(value: Any) -> Any:
    """Replace what JSON has no number for."""
    if isinstance(value, float) and math.isinf(value):
        return "never"
    return [_finite(v) for v in value] if isinstance(value, list) else value


def _chosen(args: argparse.Namespace) -> list[Attack]:
    table_ = [a for a in ATTACKS.values() if bool(a.planted) is args.planted]
    if not args.only:
        return table_
    unknown = [n for n in args.only if not any(n in (a.name, a.topic) for a in ATTACKS.values())]
    if unknown:
        raise SystemExit(f"no attack and no topic is called {', '.join(unknown)}; --list names them")
    return [a for n in args.only for a in ATTACKS.values() if n in (a.name, a.topic)]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--only", action="append", metavar="NAME", help="this attack, or all of this topic; may be repeated"
    )
    parser.add_argument("--seed", type=int, default=1, help="of everything that is random; default: 1")
    parser.add_argument("--nodes", type=int, default=1000, help="with eight GPUs each; default: 1000")
    parser.add_argument(
        "--seconds", type=float, default=3.5, help="for which honest pods come, per attack; default: 3.5"
    )
    parser.add_argument(
        "--attempts",
        type=int,
        default=2,
        metavar="N",
        help="times that an attack is played, while it misses a bar and the machine is busy; default: 2",
    )
    parser.add_argument("--list", action="store_true", help="say what the attacks try, and end")
    parser.add_argument(
        "--planted", action="store_true", help="commit violations, each of which must be found"
    )
    parser.add_argument(
        "--pools",
        choices=("open", "tainted"),
        default=os.environ.get("POOLS") or "open",
        help="how pools are kept for the controller; default: open, or what POOLS says. Planted violations "
        "are committed in tainted pools, because the API server refuses them in open ones",
    )
    parser.add_argument("--json", type=Path, default=_OUT / "attack.json", help="where the figures go")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line."""
    args = _parser().parse_args(arguments)
    chosen = _chosen(args)
    if args.list:
        for attack in chosen:
            _say(f"{attack.topic}/{attack.name}: {attack.description}")
        return 0
    _say(f"{len(chosen)} attacks, seed {args.seed}, {args.nodes} nodes, load {os.getloadavg()[0]:.1f}")
    started = time.monotonic()
    rows: list[Measured] = []
    with tempfile.TemporaryDirectory() as directory:
        try:
            asyncio.run(_play(chosen, args, Path(directory), rows))
        except KeyboardInterrupt:
            _say("interrupted; so far:")
        finally:
            _OUT.mkdir(parents=True, exist_ok=True)
            for log in Path(directory).glob("*.log"):
                shutil.copy(log, _OUT)
    failed = _report(chosen, rows, args)
    _say(f"seed {args.seed}, {time.monotonic() - started:.0f} s, figures in {args.json}")
    return 1 if failed or len(rows) < len(chosen) else 0


def _report(chosen: Sequence[Attack], rows: Sequence[Measured], args: argparse.Namespace) -> list[str]:
    """Write the figures, print the table; return what failed."""
    played = list(zip(chosen, rows, strict=False))
    records = [_record(a, m) for a, m in played]
    document = {"seed": args.seed, "nodes": args.nodes, "bars": dataclasses.asdict(BARS), "attacks": records}
    args.json.parent.mkdir(parents=True, exist_ok=True)
    args.json.write_text(json.dumps(document, indent=1) + "\n")
    _say(table([(m, _judged(a, m)) for a, m in played]))
    failed = [r["attack"] for r in records if not r["passed"]]
    _say(f"{len(records) - len(failed)} of {len(chosen)} attacks passed")
    lag = p999(together(rows))
    _say(f"lag p99.9 beside all attacks together: {1000 * lag:.0f} ms")
    if lag > BARS.lag_p999 and not args.planted:
        failed.append(
            f"the event loops beside all attacks together: lag p99.9 {lag:g} over {BARS.lag_p999:g} s"
        )
    if failed:
        _say(f"failed: {', '.join(failed)}")
    return failed


if __name__ == "__main__":
    sys.exit(main())
