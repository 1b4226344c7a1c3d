"""Helm, from ``HELM``, ``build/helm`` or ``PATH``; ``make chart-test`` installs it."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from chart_support import ROOT, Chart

DEAR = {"chart", "wheel", "image"}


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Function]) -> None:
    """Leave what needs Helm or makes environments to ``make chart-test``."""
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent) and DEAR & set(item.fixturenames):
            item.add_marker(pytest.mark.long)


@pytest.fixture(scope="session")
def chart() -> Chart:
    named = os.environ.get("HELM")
    built = ROOT / "build" / "helm" / "node_modules" / ".bin" / "helm"
    helm = named or (str(built) if built.exists() else shutil.which("helm"))
    if helm is None:
        pytest.skip("helm is not installed; make chart-test installs it")
    assert Path(helm).exists(), f"HELM={helm}: no such file"
    return Chart(helm)
