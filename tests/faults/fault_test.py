"""Random fault schedules on the embedded API server: ``make fault-test`` (``N=200 SEED=1``).

Prints what was done and found; the exit status is 0 only if no invariant was violated. What a failed schedule
did is written to ``build/fault-test/SEED.log``; ``SEED=… N=1`` plays it again (not to the letter: time and
the machine have their part in it). Pools are open, as by default; ``POOLS=tainted`` has them tainted.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1] / "sim"))
sys.path.insert(0, str(Path(__file__).parents[1] / "support"))
sys.path.insert(0, str(Path(__file__).parents[1] / "support" / "controller"))
sys.path.insert(0, str(Path(__file__).parents[1] / "support" / "control_plane"))

from fault_granting import GrantingScenario
from fault_world import Result, Scenario, play, quiet_logs

LOGS = Path("build/fault-test")
# What keeps kube-scheduler from the controller's devices; each is a run of its own.
SCENARIOS: dict[str, type[Scenario]] = {"open": GrantingScenario, "tainted": Scenario}
SCENARIO = SCENARIOS[os.environ.get("POOLS") or "open"]


async def _all(seeds: Sequence[int], side_by_side: int) -> list[Result]:
    slots = asyncio.Semaphore(side_by_side)
    results: list[Result] = []

    async def one(seed: int) -> None:
        async with slots:
            result = await play(SCENARIO(seed))
        results.append(result)
        if result.violations:
            LOGS.mkdir(parents=True, exist_ok=True)
            lines = [result.plan, *result.violations, "", *result.state, "", *result.log]
            (LOGS / f"{seed}.log").write_text("\n".join(lines), encoding="utf-8")
            print(f"seed {seed}: {'; '.join(result.violations)} (see {LOGS}/{seed}.log)", flush=True)
        elif len(results) % 20 == 0:
            print(f"{len(results)} schedules", flush=True)

    async with asyncio.TaskGroup() as group:
        for seed in seeds:
            group.create_task(one(seed))
    return results


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--schedules", type=int, default=200, metavar="N")
    parser.add_argument("--seed", type=int, default=1, help="of the first schedule; the others follow")
    parser.add_argument("--side-by-side", type=int, default=6, metavar="N", help="schedules at a time")
    args = parser.parse_args()
    if args.schedules < 1 or args.side_by_side < 1:
        parser.error("at least one schedule, and one at a time")
    quiet_logs()
    start = time.monotonic()
    results = asyncio.run(_all(range(args.seed, args.seed + args.schedules), args.side_by_side))
    forms = sorted(set().union(*(r.forms for r in results)))
    violations = sum(len(r.violations) for r in results)
    print(
        f"schedules {len(results)}, faults injected {sum(r.faults for r in results)} "
        f"(of them kills {sum(r.kills for r in results)}), writes {sum(r.writes for r in results)}, "
        f"claims {sum(r.claims for r in results)}, victims {sum(r.victims for r in results)}, "
        f"grants {sum(r.granted for r in results)} (devices allocated by them "
        f"{sum(r.taken for r in results)}, by the controller {sum(r.own for r in results)}; "
        f"longest {max(r.longest for r in results):.0f} s; refused {sum(r.refused for r in results)}), "
        f"given out: {', '.join(forms)}; "
        f"violations {violations}; {time.monotonic() - start:.0f} s"
    )
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main())
