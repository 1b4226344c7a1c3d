"""The table of feature gates in docs/installation.md, compared with the code and with Kubernetes' list."""

from __future__ import annotations

import re
import subprocess

from paths import PROJECT
from real_apiserver import binaries

from dra_driver.resourceslice import GATES

COLUMN = "1.36"


def table() -> dict[str, dict[str, str]]:
    """Return gate → column → text."""
    text = (PROJECT / "docs" / "installation.md").read_text()
    section = text.split("## Kubernetes versions")[1].split("\n## ")[0]
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
    assert f"v{COLUMN}." in version, f"the table has no column that is compared with {version.strip()}"
    text = subprocess.run([program, "--help"], check=True, capture_output=True, text=True).stdout
    listed = dict(re.findall(r"kube:(\w+)=true\|false \(\w+ - default=(\w+)\)", text))
    # What is not listed is on for good.
    defaults = {gate: "on" if listed.get(gate, "true") == "true" else "off" for gate in table()}
    assert {gate: row[COLUMN] for gate, row in table().items()} == defaults
