"""Where tests write: in memory where there is plenty of it.

A run makes a hundred thousand small files, and agents wait for each of theirs to be on disk.
"""

from __future__ import annotations

import os
import tempfile

__all__ = ["use_memory"]

MEMORY = "/dev/shm"
# Several times what a run leaves there.
LEAST_BYTES = 2 << 30


def use_memory() -> None:
    """Have this process and its children make temporary files in memory, unless TMPDIR names another place.

    Containers have little of it, or run no programs from it; there everything stays as it is.
    """
    try:
        found = os.statvfs(MEMORY)
    except OSError:
        return
    if (
        "TMPDIR" not in os.environ
        and os.access(MEMORY, os.W_OK)
        and found.f_bavail * found.f_frsize >= LEAST_BYTES
        and not found.f_flag & os.ST_NOEXEC
    ):
        os.environ["TMPDIR"] = MEMORY
        # Pytest has asked for it already.
        tempfile.tempdir = None
