"""What is added to an installation without Helm: each folder by itself, and both in any order."""

from __future__ import annotations

from itertools import permutations
from typing import Any

import pytest
import yaml
from chart_support import ROOT, Chart, Object

Key = tuple[str, str, str]
FOLDERS = ("open-pools", "preemption")
VALUES: dict[str, dict[str, Any]] = {
    "open-pools": {"admissionPolicies": {"gateNamespaces": "all"}},
    "preemption": {"controller": {"preemption": "on", "preemptionViolatesBudgets": True}},
}


def key(raw: Object) -> Key:
    return raw["kind"], raw["metadata"].get("namespace", ""), raw["metadata"]["name"]


def folder(name: str) -> dict[Key, Object]:
    """The objects of a folder below deploy; one that is there twice fails."""
    found: dict[Key, Object] = {}
    for path in sorted((ROOT / "deploy" / name).glob("*.yaml")):
        for raw in yaml.safe_load_all(path.read_text(encoding="utf-8")):
            assert key(raw) not in found
            found[key(raw)] = raw
    return found


def manifests() -> dict[Key, Object]:
    """The objects of an installation on Kubernetes 1.36."""
    return {**folder("manifests"), **folder("manifests/gate-policy")}


def test_no_object_is_in_two_folders() -> None:
    first, second = (folder(f"optional/{name}") for name in FOLDERS)
    assert first
    assert second
    assert not first.keys() & second.keys()


@pytest.mark.parametrize("name", FOLDERS)
def test_a_folder_has_only_what_an_installation_has_not(name: str) -> None:
    installed = manifests()
    assert not [k for k, raw in folder(f"optional/{name}").items() if installed.get(k) == raw]


@pytest.mark.parametrize(
    "order",
    [(f,) for f in FOLDERS] + list(permutations(FOLDERS)),
    ids="-".join,
)
def test_what_is_applied_in_any_order_is_what_the_chart_makes(chart: Chart, order: tuple[str, ...]) -> None:
    installed = manifests()
    for raw in yaml.safe_load_all((ROOT / "deploy/optional/webhooks.yaml").read_text(encoding="utf-8")):
        installed[key(raw)] = raw
    for name in order:
        installed |= folder(f"optional/{name}")
    values: dict[str, dict[str, Any]] = {"webhooks": {"certificates": "external"}}
    for name in order:
        for part, more in VALUES[name].items():
            values.setdefault(part, {}).update(more)
    # Arguments of the controller are for the administrator to set; Helm makes the Namespace itself.
    rendered = {key(raw): raw for raw in chart.render(values) if raw["kind"] != "Deployment"}
    crds = {k for k in rendered if k[0] == "CustomResourceDefinition"}
    assert rendered.keys() - crds == {k for k in installed if k[0] not in ("Deployment", "Namespace")}
    assert not [k for k in rendered.keys() - crds if rendered[k] != installed[k]]
