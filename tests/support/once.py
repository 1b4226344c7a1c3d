"""What is dear to make is made once in a run, by one of its processes, and shared by all of them."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # what runs as a script without tests need not import it
    import pytest

__all__ = ["once_in_a_run"]


def once_in_a_run(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], object]) -> Path:
    """Return the folder of this name, which the first process that asks for it has filled.

    The others wait meanwhile. If ``make`` fails, the next one that asks tries again.

    Args:
        factory: of the temporary folders of this process of the run.
        name: of the folder, the same in all processes.
        make: fills the folder that it is given.
    """
    base = factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        # That of the run, in which each process has a folder.
        base = base.parent
    folder, unfinished = base / name, base / f"{name}.unfinished"
    with (base / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            shutil.rmtree(unfinished, ignore_errors=True)
            unfinished.mkdir()
            make(unfinished)
            unfinished.rename(folder)
    return folder
