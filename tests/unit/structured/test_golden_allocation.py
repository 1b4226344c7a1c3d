"""Golden cases of allocations: manifests, and the devices that the claims in them get, or why they get none.

A case is a file of ``tests/golden/allocation``. Its first document says what comes of it:

* ``devices``: the devices of each claim, in order, as ``request: device``;
* ``refused``: a part of the reason;
* ``results``: of a claim, fields that all of its results have, as they are written.

A claim with an allocation holds its devices; those without are one pod's. Best fit, the search of Kubernetes
and the scan over all nodes have to agree; ``upstream`` says where kube-scheduler does something else.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from allocator_oracle import allocate_by_scan
from nonempty import nonempty
from paths import GOLDEN

from dra_driver.api import codec
from dra_driver.api.core import Node
from dra_driver.api.meta import ObjectMeta, WireObject
from dra_driver.api.resource import DeviceClass, DeviceTaintRule, ResourceClaim, ResourceSlice
from dra_driver.structured import (
    Allocated,
    AllocatedState,
    DoesNotFit,
    Outcome,
    Snapshot,
    Strategy,
    allocate,
    with_rules,
)

CASES = nonempty(sorted((GOLDEN / "allocation").glob("*.yaml")))
KINDS: dict[str, type[WireObject]] = {
    "ResourceSlice": ResourceSlice,
    "ResourceClaim": ResourceClaim,
    "DeviceClass": DeviceClass,
    "DeviceTaintRule": DeviceTaintRule,
}


class Case:
    """What a file says."""

    def __init__(self, path: Path) -> None:
        expected, *objects = yaml.safe_load_all(path.read_text())
        self.expected: dict[str, Any] = expected
        made: dict[str, list[Any]] = {kind: [] for kind in KINDS}
        for raw in objects:
            made[raw["kind"]].append(codec.convert(KINDS[raw["kind"]], raw))
        slices = [with_rules(s, made["DeviceTaintRule"]) for s in made["ResourceSlice"]]
        claims: list[ResourceClaim] = made["ResourceClaim"]
        self.claims = [c for c in claims if c.status.allocation is None]
        names = sorted({s.spec.node_name for s in slices if s.spec.node_name})
        self.snapshot = Snapshot.build(
            nodes=[Node(metadata=ObjectMeta(name=name)) for name in names],
            slices=slices,
            classes=made["DeviceClass"],
            allocated=AllocatedState.from_claims(claims),
        )

    def shown(self, outcome: Outcome) -> dict[str, Any]:
        """Return an outcome in the words of ``expected``."""
        if isinstance(outcome, Allocated):
            devices = {
                claim.metadata.name: [f"{r.request}: {r.device}" for r in result.devices.results]
                for claim, result in zip(self.claims, outcome.results, strict=True)
            }
            found: dict[str, Any] = {"devices": devices}
            if "results" in self.expected:
                found["results"] = {
                    claim.metadata.name: [
                        {k: v for k, v in codec.plain(r).items() if k in self.expected["results"]["fields"]}
                        for r in result.devices.results
                    ]
                    for claim, result in zip(self.claims, outcome.results, strict=True)
                }
            return found
        text = outcome.summary() if isinstance(outcome, DoesNotFit) else outcome.message
        refused = self.expected.get("refused", "")
        return {"refused": refused if refused and refused in text else text}


def want(expected: dict[str, Any]) -> dict[str, Any]:
    found = {k: v for k, v in expected.items() if k in ("devices", "refused")}
    if "results" in expected:
        found["results"] = expected["results"]["of"]
    return found


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_what_the_claims_of_a_case_get(path: Path) -> None:
    case = Case(path)
    expected = want(case.expected)
    assert case.shown(allocate(case.snapshot, case.claims)) == expected
    assert case.shown(allocate_by_scan(case.snapshot, case.claims)) == expected
    upstream = want(case.expected.get("upstream", case.expected))
    assert case.shown(allocate(case.snapshot, case.claims, strategy=Strategy.FIRST_FIT)) == upstream
