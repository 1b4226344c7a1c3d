"""Helm, from ``HELM``, ``build/helm`` or ``PATH``; ``make chart-test`` installs it."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from chart_support import ROOT, Chart


@pytest.fixture(scope="session")
def chart() -> Chart:
    named = os.environ.get("HELM")
    built = ROOT / "build" / "helm" / "node_modules" / ".bin" / "helm"
    helm = named or (str(built) if built.exists() else shutil.which("helm"))
    if helm is None:
        pytest.skip("helm is not installed; make chart-test installs it")
    assert Path(helm).exists(), f"HELM={helm}: no such file"
    return Chart(helm)
