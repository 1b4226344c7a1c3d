"""Real disks that go wrong: mounts of this process and its children alone, where it may make them."""

from __future__ import annotations

import ctypes
import os
import subprocess
from pathlib import Path

_CLONE_NEWNS = 0x00020000
_state = {"isolated": False}


def isolate() -> bool:
    """Give this process mounts of its own; return whether it may have them.

    To be called before there are other threads and processes.
    """
    if os.geteuid() == 0 and ctypes.CDLL(None, use_errno=True).unshare(_CLONE_NEWNS) == 0:
        _state["isolated"] = _mount("--make-rprivate", "/")
    return isolated()


def isolated() -> bool:
    """Return whether ``isolate`` has succeeded."""
    return _state["isolated"]


class ReadOnly:
    """A folder that can be made read-only; files that are open for writing stay so."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def begin(self) -> None:
        # Aside first: what is open for writing keeps a mount from becoming read-only.
        aside = self._folder.with_name(f"{self._folder.name}.read-only")
        aside.mkdir(exist_ok=True)
        for arguments in (
            ("--bind", str(self._folder), str(aside)),
            ("-o", "remount,bind,ro", str(aside)),
            ("--move", str(aside), str(self._folder)),
        ):
            assert _mount(*arguments), arguments

    def end(self) -> None:
        unmount(self._folder)


class FewInodes:
    """A file system on a folder whose inodes can be used up. What is in the folder moves there."""

    INODES = 300

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._ballast = folder / "ballast"
        before = {p.name: p.read_bytes() for p in folder.iterdir() if p.is_file()}
        assert _mount("-t", "tmpfs", "-o", f"nr_inodes={self.INODES},size=32m,mode=700", "few", str(folder))
        for name, data in before.items():
            (folder / name).write_bytes(data)

    def begin(self) -> None:
        self._ballast.mkdir()
        for n in range(self.INODES):
            try:
                (self._ballast / str(n)).touch()
            except OSError:
                return
        raise AssertionError(f"{self.INODES} inodes are not used up")

    def end(self) -> None:
        for path in self._ballast.iterdir():
            path.unlink()
        self._ballast.rmdir()

    def close(self) -> None:
        unmount(self._folder)


def unmount(folder: Path) -> None:
    """Take the topmost mount off, though processes may use it still."""
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def _mount(*arguments: str) -> bool:
    return subprocess.run(["mount", *arguments], capture_output=True).returncode == 0
