"""Processes of a run in a fresh clone share the work of compiling."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import cold_start
import pytest
from paths import SUPPORT


def test_shares_are_all_and_none_twice() -> None:
    files = [Path(f"test_{i:02}.py") for i in range(23)]
    shares = [cold_start.share_of(reversed(files), number, 6) for number in range(6)]
    assert sorted(path for share in shares for path in share) == files
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


@pytest.mark.slow
def test_what_one_process_compiles_the_others_find(tmp_path: Path) -> None:
    """Play both processes of a run, one after the other, on a project that has two modules."""
    (tmp_path / "conftest.py").write_text(
        f"import sys\nsys.path.append({str(SUPPORT)!r})\nimport cold_start\n"
        "def pytest_collection(session):\n    cold_start.compile_share(session.config)\n"
        # Nothing but the share is loaded.
        "def pytest_ignore_collect():\n    return True\n"
    )
    (tmp_path / "pytest.ini").touch()
    (tmp_path / "dra_driver").mkdir()
    (tmp_path / "tests/e2e").mkdir(parents=True)
    for name in ("dra_driver/a.py", "dra_driver/b.py", "tests/test_a.py", "tests/test_b.py"):
        (tmp_path / name).write_text("def test() -> None:\n    assert True\n")
    compiled = set[str]()
    for number, letter in enumerate("ab"):
        environment = {
            **os.environ,
            "PYTEST_XDIST_WORKER": f"gw{number}",
            "PYTEST_XDIST_WORKER_COUNT": "2",
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        }
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        subprocess.run(
            [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "tests"],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
        )
        found = {p.name.partition(".")[0] for p in tmp_path.rglob("[!c]*.pyc")}
        assert found - compiled == {letter, f"test_{letter}"}
        compiled = found
