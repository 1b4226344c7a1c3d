"""Runs the benchmarks: ``make bench``, or ``run.py NAME…`` for some of them.

Every module ``bench_NAME.py`` here and below has ``run() -> list`` of rows ``{"name", "value", "unit"}``,
with ``baseline`` (what it is compared with, in the same unit, and ``baseline_of``: whose) where there is one.
Rows go to ``build/bench.json``, into a table and into a picture, ``build/bench.svg``; ``ratio`` is value /
baseline. With ``--docs`` those of the benchmarks that ran replace the ones in ``docs/performance.json``, and
``docs/performance.svg`` and the tables of the allocator in ``docs/performance.md`` are made anew.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import platform
import sys
import time
import traceback
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
DOCS = ROOT / "docs"
SUPPORT = HERE.parent / "support"
sys.path[:0] = [
    str(parent / room)
    for parent, rooms in (
        (HERE, ("", "allocator", "node", "page")),
        (SUPPORT, ("", "allocator", "controller", "documents", "hardware")),
    )
    for room in rooms
]

import page_figures  # noqa: E402
import plots  # noqa: E402


def machine() -> dict[str, Any]:
    """What the figures were measured on."""
    model = ""
    memory = 0
    cpuinfo, meminfo = Path("/proc/cpuinfo"), Path("/proc/meminfo")
    if cpuinfo.exists():
        lines = cpuinfo.read_text().splitlines()
        model = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
    if meminfo.exists():
        memory = int(meminfo.read_text().split()[1]) // 1024
    return {
        "cpu": model or platform.machine(),
        "cores": os.cpu_count(),
        "memory_mib": memory,
        "load_1m": round(os.getloadavg()[0], 2),
        "kernel": platform.release(),
        "python": platform.python_version(),
    }


def measure(name: str) -> list[dict[str, Any]]:
    """The rows of one module."""
    module = importlib.import_module(f"bench_{name}")
    rows: list[dict[str, Any]] = []
    for row in module.run():
        more = {"ratio": round(row["value"] / row["baseline"], 3)} if row.get("baseline") else {}
        rows.append({"benchmark": name, **row, **more})
    return rows


def table(rows: list[dict[str, Any]]) -> str:
    """The rows for people."""
    header = ("benchmark", "what", "value", "unit", "baseline", "ratio", "baseline of")
    fields = ("benchmark", "name", "value", "unit", "baseline", "ratio", "baseline_of")
    cells = [header, *(tuple(_text(row.get(f, "")) for f in fields) for row in rows)]
    widths = [max(len(c[i]) for c in cells) for i in range(len(header))]
    return "\n".join("   ".join(x.ljust(w) for x, w in zip(c, widths, strict=True)).rstrip() for c in cells)


def _text(value: object) -> str:
    return f"{value:,.3f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)


def renew(folder: Path, what: dict[str, Any], rows: list[dict[str, Any]]) -> None:
    """Write the figures, the picture and the tables of the page; benchmarks that were not run stay."""
    path = folder / "performance.json"
    named = {row["benchmark"] for row in rows}
    old = json.loads(path.read_text())["rows"] if path.exists() else []
    all_rows = sorted(
        [r for r in old if r["benchmark"] not in named] + rows, key=lambda r: str(r["benchmark"])
    )
    result = {"machine": what, "rows": all_rows}
    path.write_text(json.dumps(result, indent=2) + "\n")
    (folder / "performance.svg").write_text(plots.drawn(result))
    page = folder / "performance.md"
    page.write_text(page_figures.replaced(page.read_text(), result))


def main() -> int:
    """The command line."""
    known = sorted(p.stem.removeprefix("bench_") for p in HERE.rglob("bench_*.py"))
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"one of {', '.join(known)}; all without")
    parser.add_argument("--out", type=Path, default=ROOT / "build/bench.json", help="where the rows go")
    parser.add_argument(
        "--docs", action="store_true", help="renew the figures and the picture of docs/performance.md"
    )
    args = parser.parse_args()
    unknown = sorted(set(args.names) - set(known))
    if unknown:
        parser.error(f"unknown: {', '.join(unknown)}; there are {', '.join(known)}")
    what = machine()
    rows: list[dict[str, Any]] = []
    failed: list[str] = []
    for name in args.names or known:
        print(f"bench {name} …", file=sys.stderr, flush=True)
        started = time.monotonic()
        try:
            rows += measure(name)
        except Exception:
            traceback.print_exc()
            failed.append(name)
        print(f"bench {name}: {time.monotonic() - started:.1f} s", file=sys.stderr, flush=True)
    args.out.parent.mkdir(parents=True, exist_ok=True)
    result = {"machine": what, "rows": rows, "failed": failed}
    args.out.write_text(json.dumps(result, indent=2) + "\n")
    args.out.with_suffix(".svg").write_text(plots.drawn(result))
    if args.docs and not failed:
        renew(DOCS, what, rows)
    print(
        f"{what['cpu']}, {what['cores']} cores, {what['memory_mib']} MiB, load {what['load_1m']}, "
        f"Linux {what['kernel']}, Python {what['python']}"
    )
    print(table(rows))
    print(f"written to {args.out}")
    if failed:
        print(f"failed: {', '.join(failed)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
