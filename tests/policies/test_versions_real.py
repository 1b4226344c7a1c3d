"""The table of feature gates in docs/installation.md, compared with the code and with Kubernetes' list."""

from __future__ import annotations

import subprocess

from paths import PROJECT
from real_apiserver import binaries, feature_gates

from dra_driver.resourceslice import GATES

COLUMNS = ("1.34", "1.35", "1.36")


def table() -> dict[str, dict[str, str]]:
    """Return gate → column → text."""
    text = (PROJECT / "docs" / "installation.md").read_text()
    section = text.split("## Kubernetes versions")[1].split("\n##")[0]
    head, _, *rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in section.splitlines()
        if line.startswith("|")
    ]
    found = [dict(zip(head, row, strict=True)) for row in rows]
    return {row["feature gate"].strip("`"): row for row in found if row["feature gate"]}


def test_every_gate_that_is_probed_is_in_the_table() -> None:
    assert set(GATES.values()) <= table().keys()


def test_the_defaults_are_those_of_kubernetes() -> None:
    program = binaries() / "kube-apiserver"
    version = subprocess.run([program, "--version"], check=True, capture_output=True, text=True).stdout
    column = next((c for c in COLUMNS if f" v{c}." in version), "")
    assert column, f"the table has no column that is compared with {version.strip()}"
    listed, before = feature_gates(program), COLUMNS[: COLUMNS.index(column)]
    # A gate that is not listed is on for good where it was on before, and else not there yet.
    defaults = {
        gate: "on" if listed.get(gate, any(row[c] == "on" for c in before)) else "off"
        for gate, row in table().items()
    }
    assert {gate: row[column] for gate, row in table().items()} == defaults
