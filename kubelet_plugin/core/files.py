"""Durable files: a reader sees the old content or the new, also after a power failure.

Everything here blocks; run it in an executor.
"""

from __future__ import annotations

import os
import secrets
from pathlib import Path

__all__ = [
    "keep_previous",
    "make_directory",
    "probe",
    "remove",
    "remove_temporary",
    "sync_directory",
    "write",
]


def write(path: Path, data: bytes, mode: int, *, content: bool = True, name: bool = True) -> None:
    """Replace a file: temporary file beside it, fsync, rename, fsync of the directory.

    The temporary name begins with a dot and ends with ``.tmp``, which CDI readers ignore.

    Args:
        path: the file.
        data: its new content.
        mode: permission bits, whatever the umask says.
        content: fsync the file, so that after a power failure it is never empty or torn.
        name: fsync the directory, so that after a power failure it is not the old one. Readers on the running
            machine, and a plugin that was killed, need neither.

    Raises:
        OSError: the file is as it was before; no temporary file is left.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
    try:
        try:
            os.fchmod(descriptor, mode)  # whatever the umask says
            view = memoryview(data)
            while view:
                view = view[os.write(descriptor, view) :]
            if content:
                os.fsync(descriptor)
        finally:
            os.close(descriptor)
        temporary.rename(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    if name:
        sync_directory(path.parent)


def keep_previous(path: Path, previous: Path) -> None:
    """Make ``previous`` another name of what ``path`` is now; do nothing if there is no such file.

    Raises:
        OSError: ``previous`` is as it was before.
    """
    temporary = previous.with_name(f".{previous.name}.{secrets.token_hex(4)}.tmp")
    try:
        temporary.hardlink_to(path)
    except FileNotFoundError:
        return
    try:
        temporary.rename(previous)
    finally:
        # Two names of one file: rename does nothing then, and the temporary name stays.
        temporary.unlink(missing_ok=True)


def remove(path: Path) -> bool:
    """Remove a file; return whether there was one. A power failure may bring it back.

    Raises:
        OSError: it could not be removed.
    """
    try:
        path.unlink()
    except FileNotFoundError:
        return False
    return True


def remove_temporary(folder: Path, prefix: str) -> None:
    """Remove what a crash left of ``write`` and ``keep_previous`` for files whose names begin so.

    Raises:
        OSError: the folder cannot be read or written.
    """
    for file in folder.iterdir():
        if file.name.startswith(f".{prefix}") and file.suffix == ".tmp":
            file.unlink(missing_ok=True)


def sync_directory(path: Path) -> None:
    """Make renames and removals in a directory durable.

    Raises:
        OSError: the device reports an error.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_directory(path: Path, mode: int) -> None:
    """Create a directory and its parents (0755); a directory that exists keeps its mode.

    Raises:
        OSError: it is not there and cannot be made, or is no directory.
    """
    if path.is_dir():
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    path.mkdir(mode=mode, exist_ok=True)


def probe(path: Path) -> None:
    """Write and remove a file: permission bits say nothing to root or about read-only mounts.

    Where the directory is not there, its nearest ancestor is tried; nothing is created that stays.

    Raises:
        OSError: nothing can be written there.
    """
    there = next((p for p in (path, *path.parents) if os.path.lexists(p)), path)
    # Always the same name: what a crash leaves is gone after the next probe.
    file = there / ".dra-driver-probe.tmp"
    os.close(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))
    file.unlink(missing_ok=True)
