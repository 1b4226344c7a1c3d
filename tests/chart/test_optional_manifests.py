"""What is added to an installation without Helm makes of it what the chart makes with a value."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from chart_support import ROOT, Chart, Object

Key = tuple[str, str, str]
FOLDERS: dict[str, dict[str, Any]] = {
    "preemption": {"controller": {"preemption": "on", "preemptionViolatesBudgets": True}},
}


def key(raw: Object) -> Key:
    return raw["kind"], raw["metadata"].get("namespace", ""), raw["metadata"]["name"]


def objects(*paths: Path) -> dict[Key, Object]:
    """The objects of files; one that is there twice fails."""
    found: dict[Key, Object] = {}
    for path in paths:
        for raw in yaml.safe_load_all(path.read_text(encoding="utf-8")):
            assert key(raw) not in found
            found[key(raw)] = raw
    return found


def folder(name: str) -> dict[Key, Object]:
    """The objects of a folder below deploy."""
    return objects(*sorted((ROOT / "deploy" / name).glob("*.yaml")))


def manifests() -> dict[Key, Object]:
    """The objects of an installation with webhooks, of which one sets the gate."""
    webhooks = ROOT / "deploy/optional/webhooks.yaml"
    return objects(*sorted((ROOT / "deploy/manifests").glob("*.yaml")), webhooks)


@pytest.mark.parametrize("name", FOLDERS)
def test_a_folder_has_only_what_an_installation_has_not(name: str) -> None:
    installed = manifests()
    assert not [k for k, raw in folder(f"optional/{name}").items() if installed.get(k) == raw]


@pytest.mark.parametrize("added", ["", *FOLDERS])
def test_what_is_applied_is_what_the_chart_makes(chart: Chart, added: str) -> None:
    installed = manifests() | (folder(f"optional/{added}") if added else {})
    values = {"webhooks": {"certificates": "external"}, **FOLDERS.get(added, {})}
    # Arguments of the controller are for the administrator to set; Helm makes the Namespace itself.
    rendered = {key(raw): raw for raw in chart.render(values) if raw["kind"] != "Deployment"}
    crds = {k for k in rendered if k[0] == "CustomResourceDefinition"}
    assert rendered.keys() - crds == {k for k in installed if k[0] not in ("Deployment", "Namespace")}
    assert not [k for k in rendered.keys() - crds if rendered[k] != installed[k]]


def test_where_a_policy_sets_the_gate_it_is_that_of_the_chart(chart: Chart) -> None:
    everywhere = folder("manifests/gate-policy")
    labelled = everywhere | objects(ROOT / "deploy/optional/labelled-namespaces.yaml")
    for values, expected in (
        ({"webhooks": {"enabled": False}}, everywhere),
        ({"admissionPolicies": {"gateNamespaces": "labelled"}}, labelled),
    ):
        rendered = {key(raw): raw for raw in chart.render(values)}
        assert {k: raw for k, raw in rendered.items() if k[0].startswith("MutatingAdmission")} == expected
