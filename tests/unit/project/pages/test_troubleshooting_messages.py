"""The page about symptoms quotes messages as the programs print them."""

from __future__ import annotations

import functools
import re

import pytest
from paths import PROJECT

PAGE = (PROJECT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
SYMPTOMS = [
    row.split(" | ")[0].removeprefix("| ")
    for row in PAGE.splitlines()
    if row.startswith("| ") and not row.startswith(("| ---", "| what"))
]
# What others print: Kubernetes, its autoscaler, container runtimes.
OF_OTHERS = {
    "ContainerCreating",
    "CreateContainerError",
    "FailedPrepareDynamicResources",
    "NotTriggerScaleUp",
    "cannot allocate all claims",
    "Insufficient cpu",
    "unknown error",
    "unresolvable CDI devices",
    "`/run/nvidia` is mounted on `/run` but it is not a shared or slave mount",
}
# Said in two parts, which the source has apart.
COMPOSED = {
    "skipped: its pool is allocated by kube-scheduler": (
        "skipped: ",
        "its pool is",
        "allocated by kube-scheduler",
    )
}
# What a page writes for a name, and for what is left out.
_GAP = re.compile(r"…|\b[A-Z]{3,}\b|\b\d+\w*\b")


@functools.cache
def source() -> str:
    """All code and templates that words of the page may come from, with the pieces of each string joined."""
    files = [
        p for room in ("dra_driver", "controller", "kubelet_plugin") for p in (PROJECT / room).rglob("*.py")
    ]
    files += (PROJECT / "deploy" / "manifests").rglob("*.yaml")
    text = "\n".join(p.read_text(encoding="utf-8") for p in files if "dra_driver/wire" not in p.as_posix())
    return re.sub(r"[\"']\s*\n\s*f?[\"']", "", text)


def quotations() -> list[str]:
    found = [q for symptom in SYMPTOMS for q in re.findall(r'"([^"]+)"', symptom)]
    return [q for q in found if q not in OF_OTHERS]


def reasons() -> list[str]:
    found = [r for symptom in SYMPTOMS for r in re.findall(r"`([A-Z][a-z]+(?:[A-Z][a-z]+)+)`", symptom)]
    return sorted({r for r in found if r not in OF_OTHERS})


def test_the_page_has_symptoms() -> None:
    assert len(SYMPTOMS) > 30
    assert len(reasons()) > 15
    assert len(quotations()) > 10


@pytest.mark.parametrize("reason", reasons())
def test_reasons_are_those_of_the_programs(reason: str) -> None:
    assert re.search(rf"[\"']{reason}[\"']", source()), f"nothing says {reason}"


@pytest.mark.parametrize("quotation", quotations())
def test_quoted_messages_are_in_the_source(quotation: str) -> None:
    found = [piece.strip(" .,:`") for piece in _GAP.split(quotation)]
    pieces = [part for piece in found for part in COMPOSED.get(piece, (piece,))]
    missing = [p for p in pieces if len(p) > 3 and p not in source()]
    assert missing == [], f"of {quotation!r}"


def test_what_is_of_others_is_on_the_page() -> None:
    assert [words for words in OF_OTHERS if words not in PAGE] == []
