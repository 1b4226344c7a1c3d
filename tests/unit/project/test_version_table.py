"""The table of what was run, in docs/installation.md, and the recorder of runs that it is made of."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import capabilities
import pytest
from paths import PROJECT

sys.path.append(str(PROJECT / "tests" / "e2e" / "harness"))

import version_table


def test_the_page_has_the_table_of_the_records() -> None:
    page = (PROJECT / "docs" / "installation.md").read_text(encoding="utf-8")
    assert version_table.table(version_table.recorded()) in page
    for run in version_table.recorded().values():
        assert list(run["served"]) == list(capabilities.CAPABILITIES)
        assert run["date"] in page


def test_versions_and_gates_are_columns_in_their_order() -> None:
    runs = version_table.recorded()
    assert list(runs) == [f"{v}-{g}" for v in ("1.34", "1.35", "1.36") for g in ("default", "all")]
    head = version_table.table(runs).splitlines()[0]
    assert head.startswith("| capability | 1.34.9, as released | 1.34.9, with gates |")


def report(nodeid: str, when: str, outcome: str, text: str = "") -> pytest.TestReport:
    found = ("file", 1, f"Skipped: {text}") if outcome == "skipped" else text
    return pytest.TestReport(
        nodeid=nodeid,
        location=("file", 1, nodeid),
        keywords={},
        outcome=outcome,  # type: ignore[arg-type]
        longrepr=found or None,
        when=when,  # type: ignore[arg-type]
    )


def test_a_run_is_recorded_with_the_reasons_of_what_it_skips(tmp_path: Path) -> None:
    file = tmp_path / "record.json"
    recorder = version_table.Recorder(str(file))
    recorder.served("1.34.9", {"device taints": False})
    for nodeid in ("a", "b"):
        recorder.pytest_runtest_logreport(report(nodeid, "setup", "skipped", "needs device taints"))
    for when, outcome in (("setup", "passed"), ("call", "passed"), ("teardown", "passed")):
        recorder.pytest_runtest_logreport(report("c", when, outcome))
    # What goes wrong when a test is torn down is a failure of it.
    for when, outcome in (("setup", "passed"), ("call", "passed"), ("teardown", "failed")):
        recorder.pytest_runtest_logreport(report("d", when, outcome))
    recorder.pytest_sessionfinish()
    record = json.loads(file.read_text())
    assert {k: record[k] for k in ("passed", "failed", "skipped")} == {"passed": 1, "failed": 1, "skipped": 2}
    assert record["reasons"] == {"needs device taints": 2}
    assert record["kubernetes"] == "1.34.9"


def test_what_a_test_needs_is_said_by_the_objects_that_it_makes() -> None:
    request = {"deviceClassName": "mig.x", "capacity": {"requests": {"memory": "1Gi"}}}
    pod = {"metadata": {"labels": {"dra-driver.dev/group-size": "2"}}}
    assert capabilities.needed_by({"spec": request}, pod) == (
        "allocation by the controller",
        "consumable capacity",
        "partitionable devices",
    )
    assert capabilities.needed_by({"spec": {"deviceClassName": "x"}}) == ()
    assert capabilities.needed_by({"firstAvailable": [], "adminAccess": True}) == (
        "prioritized list",
        "admin access",
    )
    text = capabilities.reason(["device taints", "gate policy"])
    assert text.startswith("needs device taints: this API server drops the taints of devices (feature gate ")
    assert "; gate policy: this API server does not serve MutatingAdmissionPolicy v1" in text
