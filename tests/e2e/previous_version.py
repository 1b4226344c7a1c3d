"""The version of this project that an update starts from: of git's history, unpacked."""

from __future__ import annotations

import io
import os
import subprocess
import tarfile
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[2]
# The oldest version from which an update must work, where there is no tag yet. It is named, not counted back,
# because not every commit runs by itself.
OLDEST_SUPPORTED = "7b21f846de4f885d90c6f2d09d17df013ece8574"


class NoPreviousVersion(Exception):
    """There is none at hand; the text says why."""


def unpack(folder: Path) -> str:
    """Unpacks it into a new folder and gives its commit.

    It is what ``E2E_PREVIOUS`` names, else the newest tag before this commit, else ``OLDEST_SUPPORTED``.

    Raises:
        NoPreviousVersion: there is no such history.
    """
    wanted = os.environ.get("E2E_PREVIOUS") or _git("describe", "--tags", "--abbrev=0", "HEAD~1")
    wanted = wanted or OLDEST_SUPPORTED
    commit = _git("rev-parse", "--verify", "--quiet", f"{wanted}^{{commit}}")
    if not commit:
        raise NoPreviousVersion(f"no version before this one: git's history here does not reach {wanted}")
    done = subprocess.run(["git", "-C", PROJECT, "archive", commit], capture_output=True)
    if done.returncode:
        raise NoPreviousVersion(f"git archive {commit}: {done.stderr.decode(errors='replace').strip()}")
    folder.mkdir(parents=True)
    with tarfile.open(fileobj=io.BytesIO(done.stdout)) as archive:
        archive.extractall(folder, filter="data")
    return commit


def _git(*arguments: str) -> str:
    try:
        # The harness runs as root, maybe in somebody else's checkout.
        command = ["git", "-c", f"safe.directory={PROJECT}", "-C", str(PROJECT), *arguments]
        done = subprocess.run(command, capture_output=True, text=True)
    except FileNotFoundError as e:
        raise NoPreviousVersion("no version before this one: there is no git") from e
    return done.stdout.strip() if done.returncode == 0 else ""
