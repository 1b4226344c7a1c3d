"""What the command says about what it cannot use."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

COMMAND = Path(__file__).with_name("compare.py")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "status", "text"),
    [
        ([], 2, "which binaries?"),
        (["--bin", "/nowhere"], 2, "kube-scheduler"),
        (["--bin", "/nowhere", "--only", "nothing"], 2, "invalid choice: 'nothing'"),
        (["--help"], 0, "600 pods with claims made before"),
    ],
    ids=["no folder", "an empty folder", "an unknown scenario", "help"],
)
def test_bad_usage_is_explained(arguments: list[str], status: int, text: str) -> None:
    done = subprocess.run(
        [sys.executable, str(COMMAND), *arguments], capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == status
    assert text in done.stdout + done.stderr
