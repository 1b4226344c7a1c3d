"""What replays have shown, as a table and as plain data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dra_driver.cli import common
from dra_driver.cli.simulation.replay import Played
from dra_driver.fleet import RequestShape

__all__ = ["data_of", "text_of"]

_PERCENTILES = (50, 90, 99)


def data_of(played: Played, shapes: Sequence[RequestShape]) -> dict[str, Any]:
    """Return everything about one replay; times are in seconds."""
    every = [wait for waits in played.waits.values() for wait in waits]
    return {
        "refused": played.refused,
        "waiting": played.waiting,
        "inUse": round(played.in_use, 4),
        "waits": _waits(every),
        "waitsByShape": {name: _waits(waits) for name, waits in sorted(played.waits.items())},
        "fits": {
            shape.name: {
                "mean": round(_mean([s.counts[i].fits for s in played.samples]), 2),
                "suggestedMean": round(_mean([s.counts[i].suggested for s in played.samples]), 2),
                "none": round(_mean([s.counts[i].fits == 0 for s in played.samples]), 4),
                "exact": all(s.counts[i].exact for s in played.samples),
            }
            for i, shape in enumerate(shapes)
        },
        "samples": [
            {
                "at": s.at,
                "waiting": s.waiting,
                "inUse": round(s.in_use, 3),
                "fits": [c.fits for c in s.counts],
                "suggested": [c.suggested for c in s.counts],
            }
            for s in played.samples
        ],
    }


def text_of(replays: Sequence[Played], shapes: Sequence[RequestShape]) -> str:
    """Return the tables."""
    data = [data_of(r, shapes) for r in replays]
    names = [r.strategy.value.upper() for r in replays]
    rows: list[tuple[object, ...]] = [
        ("devices in use, mean", *(f"{d['inUse']:.1%}" for d in data)),
        ("claims that would fit on no empty node", *(d["refused"] for d in data)),
        ("claims that still wait at the end", *(d["waiting"] for d in data)),
    ]
    rows += [(f"wait, p{p}", *(_time(d["waits"][f"p{p}"]) for d in data)) for p in _PERCENTILES]
    for name in sorted({name for d in data for name in d["waitsByShape"]}):
        waits = [d["waitsByShape"].get(name, _waits([])) for d in data]
        rows.append((f"wait of {name}, p90", *(_time(w["p90"]) for w in waits)))
    counts = []
    for shape in shapes:
        found = [d["fits"][shape.name] for d in data]
        counts.append((shape.name, "fits, mean", *(f"{f['mean']:.1f}" for f in found)))
        counts.append(("", "sum of free suggests, mean", *(f"{f['suggestedMean']:.1f}" for f in found)))
        counts.append(("", "fits not once, part of the time", *(f"{f['none']:.0%}" for f in found)))
    return "\n\n".join([common.table(("", *names), rows), common.table(("SHAPE", "", *names), counts)])


def _waits(waits: Sequence[float]) -> dict[str, float]:
    ordered = sorted(waits)
    found = {f"p{p}": ordered[(len(ordered) - 1) * p // 100] if ordered else 0.0 for p in _PERCENTILES}
    return {"claims": len(ordered), **{name: round(wait, 1) for name, wait in found.items()}}


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0


def _time(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
