"""Kills real node agents at every durable step of prepare and unprepare, and looks at what is left.

Then the scenarios: reboots, clocks that jump, hardware that hangs, and what else goes wrong around an agent.
``make crash-test``: a thousand kills and more, ten runs of each scenario on each kind of hardware.
``--kills N`` and ``--runs N`` for fewer, ``--seed S`` for another run, ``--only NAME`` for some of it.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import resource
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))
sys.path.insert(0, str(Path(__file__).parent))

import crash_mounts
import structlog
from crash_figures import Figures, summary, table
from crash_runs import kill_at_every_step, play_scenarios
from scenarios import SCENARIOS

KILLS = "kills"


def arguments() -> argparse.Namespace:
    """The command line."""
    names = [KILLS, *(s.name for s in SCENARIOS)]
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--kills", type=int, default=1000, help="at least so many at chosen steps and under load"
    )
    parser.add_argument("--runs", type=int, default=10, help="of each scenario on each kind of hardware")
    parser.add_argument("--only", action="append", choices=names, help="may be repeated")
    parser.add_argument("--list", action="store_true", help="say what there is, and end")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=(os.cpu_count() or 2) + 2, help="nodes side by side")
    return parser.parse_args()


async def run(options: argparse.Namespace) -> tuple[dict[str, Figures], dict[str, str]]:
    """Play what was asked for; return the figures, and why scenarios were skipped."""
    wanted = [s for s in SCENARIOS if not options.only or s.name in options.only]
    skipped = {s.name: why for s in wanted if (why := s.skipped())}
    figures: dict[str, Figures] = {}
    if not options.only or KILLS in options.only:
        figures[KILLS] = await kill_at_every_step(options.kills, options.seed, options.jobs)
    if played := [s for s in wanted if s.name not in skipped]:
        figures |= await play_scenarios(played, options.runs, options.seed, options.jobs)
    return figures, skipped


def main() -> int:
    """Play, and say what came of it."""
    options = arguments()
    if options.list:
        for scenario in SCENARIOS:
            print(f"{scenario.name:20} {(scenario.play.__doc__ or '').partition(chr(10))[0]}")
        return 0
    import logging

    # The API server's connections break whenever an agent is killed.
    logging.getLogger("aiohttp.server").setLevel(logging.CRITICAL)
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, max(soft, 8192)), hard))
    real = crash_mounts.isolate()
    started = time.monotonic()
    figures, skipped = asyncio.run(run(options))
    print(f"disks that refuse: {'real mounts' if real else 'injected errors, for want of root'}")
    for line in (*table(figures, skipped), *summary(figures.values(), time.monotonic() - started)):
        print(line)
    clean = not any(f.violations for f in figures.values())
    kills = figures[KILLS].kills if KILLS in figures else options.kills
    if kills < options.kills:
        print(f"only {kills} kills of {options.kills}")
    passed = clean and kills >= options.kills
    print("passed" if passed else "FAILED")
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
