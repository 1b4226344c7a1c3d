"""What runs have found of API servers, and the table of docs/installation.md that is made of it.

``E2E_RECORD=FILE`` has a run of the suite write a record: what the API server can do, and what became of the
tests, by reasons. Without nodes ``tests/policies/test_capabilities_real.py`` finds out the former. ``python
tests/e2e/harness/version_table.py`` prints the table of the records in ``tests/e2e/runs``.
"""

from __future__ import annotations

import datetime
import json
import os
import re
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

__all__ = ["RUNS", "Recorder", "table", "version"]

RUNS = Path(__file__).resolve().parents[1] / "runs"


async def version(api: Any) -> str:
    """Return the version that an API server says it is, such as ``1.36.3``."""
    found = json.loads(await api._call("GET", "/version"))["gitVersion"]
    return str(found).removeprefix("v").partition("-")[0].partition("+")[0]


class Recorder:
    """A plugin of pytest that writes a record of its run.

    Args:
        file: the record; empty: none is written.
    """

    def __init__(self, file: str) -> None:
        self.wanted = bool(file)
        self._file = file
        self._record: dict[str, Any] = {}
        self._outcomes: dict[str, str] = {}
        self._reasons: dict[str, str] = {}

    def served(self, kubernetes: str, served: Mapping[str, bool]) -> None:
        """Note what the server is, and what it can do."""
        gates = os.environ.get("E2E_GATES", "")
        date = datetime.datetime.now(datetime.UTC).date().isoformat()
        self._record = {"kubernetes": kubernetes, "gates": gates, "date": date, "served": dict(served)}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note what became of a test; what goes wrong before or after it counts as a failure of it."""
        if report.failed:
            self._outcomes[report.nodeid] = "failed"
        elif report.skipped:
            self._outcomes[report.nodeid] = "skipped"
            text = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
            self._reasons[report.nodeid] = text.removeprefix("Skipped: ")
        elif report.when == "call":
            self._outcomes.setdefault(report.nodeid, "passed")

    def pytest_sessionfinish(self) -> None:
        """Write the record."""
        number = Counter(self._outcomes.values())
        skipped = Counter(self._reasons.values())
        record = {
            **self._record,
            **{outcome: number[outcome] for outcome in ("passed", "failed", "skipped")},
            "reasons": dict(sorted(skipped.items())),
        }
        Path(self._file).write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


def table(runs: Mapping[str, Mapping[str, Any]]) -> str:
    """Return what the servers of some runs can do, as a table in Markdown.

    Args:
        runs: records by their names, in the order of the columns.
    """
    names: list[str] = list(next(iter(runs.values()))["served"])
    head = [f"{run['kubernetes']}, {_GATES.get(run['gates'], run['gates'])}" for run in runs.values()]
    lines = [f"| capability | {' | '.join(head)} |", f"| --- |{' --- |' * len(head)}"]
    for name in names:
        cells = ["yes" if run["served"].get(name) else "–" for run in runs.values()]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


_GATES = {"": "as released", "default": "as released", "all": "with gates"}


def recorded() -> dict[str, dict[str, Any]]:
    """Return the records of this project, oldest version first, each version as it is released first."""
    found = {file.stem: json.loads(file.read_text(encoding="utf-8")) for file in RUNS.glob("*.json")}

    def order(item: tuple[str, dict[str, Any]]) -> tuple[list[int], bool]:
        run = item[1]
        return [int(n) for n in re.findall("[0-9]+", run["kubernetes"])], run["gates"] == "all"

    return dict(sorted(found.items(), key=order))


if __name__ == "__main__":
    sys.stdout.write(table(recorded()) + "\n")
