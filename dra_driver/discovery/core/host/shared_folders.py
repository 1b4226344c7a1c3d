"""Directories that containers may write: file systems in memory with a limit, and the removal of the rest.

What containers may write is on a file system of its own, so that it takes nothing from the one that holds the
checkpoint, and is gone when it is unmounted. Where nothing can be mounted it is a plain directory; such a one
is put aside when its claims have ended, and removed in steps, by descriptors of directories and never by a
path, because containers of before may still be at work in it.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import functools
import os
import re
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import structlog

__all__ = ["is_mounted", "mount_memory", "put_aside", "sweep", "unmount"]

log = structlog.get_logger(__name__)

# The name of what is to be removed; no device has such a one, and no version takes it for a daemon's.
_ASIDE: Final = ".ended-"
_ESCAPED: Final = re.compile(r"[ \t\n\\]")
_MS_NOSUID, _MS_NODEV, _MS_NOEXEC = 2, 4, 8
_MNT_DETACH, _UMOUNT_NOFOLLOW = 2, 8
_FIRST_PID_NAMESPACE: Final = 0xEFFFFFFC
_NOT_SEEN: Final = (
    "mounts made here are not seen by the host: the volume of the state directory needs mountPropagation "
    "Bidirectional"
)


def mount_memory(folder: Path, *, size: int, inodes: int, mode: int) -> str:
    """Mount a file system in memory on a directory; return why that cannot be done, as a clause.

    Args:
        folder: one that has no mount yet.
        size: of all its files together, in bytes.
        inodes: of its files and directories.
        mode: of its root.
    """
    options = f"size={size},nr_inodes={inodes},mode={mode:o}"
    flags = _MS_NOSUID | _MS_NODEV | _MS_NOEXEC
    path = os.fsencode(folder)
    if _libc().mount(b"dra-driver", path, b"tmpfs", ctypes.c_ulong(flags), options.encode()) != 0:
        return f"a file system cannot be mounted: {os.strerror(ctypes.get_errno())}"
    if not _is_seen_by_host(folder):
        unmount(folder)
        return _NOT_SEEN
    return ""


def is_mounted(folder: Path) -> bool:
    """Return whether a file system is mounted on the directory."""
    try:
        return folder.lstat().st_dev != folder.parent.stat().st_dev
    except OSError:
        return False


def unmount(folder: Path) -> None:
    """Unmount everything that is mounted on the directory; containers keep what they have of it.

    Raises:
        OSError: it cannot be unmounted.
    """
    while is_mounted(folder):
        if _libc().umount2(os.fsencode(folder), _MNT_DETACH | _UMOUNT_NOFOLLOW) != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), str(folder))


def put_aside(folder: Path, root: Path) -> None:
    """Move a directory to where ``sweep`` finds it; success where there is none.

    Raises:
        OSError: it cannot be moved.
    """
    with contextlib.suppress(FileNotFoundError):
        folder.rename(root / f"{_ASIDE}{secrets.token_hex(8)}")


def sweep(root: Path, entries: int) -> bool:
    """Remove some of what was put aside; return whether there is more that can be removed.

    A directory that is not empty is moved beside the one that it was in, so that neither its depth nor what
    is renamed meanwhile leads anywhere else. A crash loses nothing: what is left is found by its name.

    Args:
        root: of all daemons.
        entries: that are removed or moved at most.

    Raises:
        OSError: the directory cannot be read.
    """
    try:
        top = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        done, before = 0, -1
        # Again, because directories are moved out of those of the round before.
        while done > before and (names := _aside(top)):
            before = done
            for name in names:
                try:
                    for _ in _removed(top, name):
                        done += 1
                        if done >= entries:
                            return True
                except OSError as e:
                    log.warning("what containers have left cannot be removed", name=name, error=str(e))
        return False
    finally:
        os.close(top)


def _aside(top: int) -> list[str]:
    with os.scandir(top) as found:
        return [entry.name for entry in found if entry.name.startswith(_ASIDE)]


def _removed(top: int, name: str) -> Iterator[None]:
    """Remove an entry that was put aside; yield after each step.

    Raises:
        OSError: something of it cannot be removed; the rest is.
    """
    try:
        folder = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=top)
    except NotADirectoryError:
        os.unlink(name, dir_fd=top)
        yield
        return
    problem: OSError | None = None
    try:
        with os.scandir(folder) as found:
            for entry in found:
                try:
                    _remove_one(top, folder, entry)
                except FileNotFoundError:
                    continue
                except OSError as e:
                    problem = problem or e
                    continue
                yield
    finally:
        os.close(folder)
    if problem is not None:
        raise problem
    os.rmdir(name, dir_fd=top)  # not empty if a container has written meanwhile
    yield


def _remove_one(top: int, folder: int, entry: os.DirEntry[str]) -> None:
    if not entry.is_dir(follow_symlinks=False):
        os.unlink(entry.name, dir_fd=folder)
        return
    # Only this driver's own mounts are seen here.
    unmount(Path(f"/proc/self/fd/{folder}/{entry.name}"))
    try:
        os.rmdir(entry.name, dir_fd=folder)
    except OSError as e:
        if e.errno != errno.ENOTEMPTY:
            raise
        aside = f"{_ASIDE}{secrets.token_hex(8)}"
        os.rename(entry.name, aside, src_dir_fd=folder, dst_dir_fd=top)


def _is_seen_by_host(folder: Path) -> bool:
    """Return whether the container runtime, in the host's mount namespace, has a mount of ours too."""
    own, first = Path("/proc/self/ns"), Path("/proc/1/ns")
    # Without the right to look at process 1, this is no agent of the host itself.
    with contextlib.suppress(OSError):
        if (own / "pid").stat().st_ino == _FIRST_PID_NAMESPACE and (
            (first / "mnt").stat().st_ino == (own / "mnt").stat().st_ino
        ):
            return True
    place = _ESCAPED.sub(lambda found: f"\\{ord(found[0]):03o}", str(folder))
    for line in reversed(Path("/proc/self/mountinfo").read_text(encoding="utf-8").splitlines()):
        fields = line.partition(" - ")[0].split(" ")
        if fields[4] == place:
            return any(tag.startswith("shared:") for tag in fields[6:])
    return False


@functools.cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)
