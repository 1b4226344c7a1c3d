"""Sharing daemons of GPUs that do not exist: their directories and pipes without a process behind them.

What containers see of MPS (variables, mounts, limits) is the same as with a real daemon, so that sharing can
be tried and tested anywhere. Nothing is enforced, for nothing is computed; but containers are real, and write
there what they like.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from dra_driver.discovery.core.host import shared_folders
from dra_driver.errors import PrepareError

__all__ = ["SimulatedDaemons"]

# Removed at a time: about a tenth of a second.
_SWEPT_ENTRIES: Final = 2000


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
        control = folder / "pipe" / "control"
        control.unlink(missing_ok=True)
        # What was a link is not followed.
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with os.fdopen(os.open(control, flags, 0o644), "w", encoding="utf-8") as file:
            file.write(f"{gpu}\n")

    def stop(self, device: str) -> None:
        """See ``ports.Daemons``."""
        folder = self._folders / device
        try:
            shared_folders.put_aside(folder, self._folders)
        except OSError as e:
            raise PrepareError(
                f"device {device}: its directory cannot be put aside: {e}", retryable=True
            ) from e

    def present(self) -> Sequence[str]:
        """See ``ports.Daemons``."""
        if not self._folders.is_dir():
            return ()
        return sorted(p.name for p in self._folders.iterdir() if not p.name.startswith("."))

    def sweep(self) -> bool:
        """See ``ports.Daemons``."""
        return shared_folders.sweep(self._folders, _SWEPT_ENTRIES)
