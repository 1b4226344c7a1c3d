"""Sharing daemons of GPUs that do not exist: their directories and pipes without a process behind them.

What containers see of MPS (variables, mounts, limits) is the same as with a real daemon, so that sharing can
be tried and tested anywhere. Nothing is enforced, for nothing is computed.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

__all__ = ["SimulatedDaemons"]


class SimulatedDaemons:
    """Implements ``ports.Daemons`` in ``folder``; they outlive the plugin as real ones do, being files."""

    def __init__(self, folder: Path) -> None:
        self._folders = folder

    def directory(self, device: str) -> str:
        """See ``ports.Daemons``."""
        return str(self._folders / device)

    def start(self, device: str, gpu: str) -> None:
        """See ``ports.Daemons``."""
        folder = self._folders / device
        for name, mode in (("pipe", 0o755), ("log", 0o700), ("shm", 0o1777)):
            (folder / name).mkdir(parents=True, exist_ok=True)
            (folder / name).chmod(mode)
        (folder / "pipe" / "control").write_text(f"{gpu}\n", encoding="utf-8")

    def stop(self, device: str) -> None:
        """See ``ports.Daemons``."""
        shutil.rmtree(self._folders / device, ignore_errors=True)

    def present(self) -> Sequence[str]:
        """See ``ports.Daemons``."""
        return sorted(p.name for p in self._folders.iterdir()) if self._folders.is_dir() else ()
