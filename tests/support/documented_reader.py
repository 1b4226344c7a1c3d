"""A folder as a reader of the documentation has it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from paths import PROJECT

__all__ = ["reader_folder", "requires_kubectl"]


def reader_folder(folder: Path, programs: Path) -> Path:
    """Make a folder with what the pages name of a checkout.

    Args:
        folder: an empty one.
        programs: of the virtual environment.
    """
    for name in ("deploy", "docs"):
        (folder / name).symlink_to(PROJECT / name)
    (folder / ".venv").mkdir()
    (folder / ".venv" / "bin").symlink_to(programs)
    return folder


def requires_kubectl() -> None:
    """Skip the test where there is no kubectl."""
    if shutil.which("kubectl") is None:
        pytest.skip("kubectl is not installed")
