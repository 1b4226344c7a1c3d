"""Crashes and disk errors at chosen steps: wraps the calls that change the node's memory.

Only the agent under test installs this; the product knows nothing of it. A *step* is one call that changes
(or makes durable) something in the state or CDI directory, on a simulated GPU or on a device of a third
party's driver, counted from the start of the process.
"""

from __future__ import annotations

import errno
import os
import signal
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dra_driver.discovery.core.host import shared_folders


@dataclass(frozen=True)
class Plan:
    """What happens to one process.

    Attributes:
        kill_at: the step before which the process is killed; None: never.
        torn: half of the data is written first, where that step is a write.
        error: name of an errno, from step ``error_at`` on for ``error_count`` steps.
        read_only: ``cdi``, ``state``, ``metadata``, ``gpu`` or ``backend``: the errors come only there.
    """

    kill_at: int | None = None
    torn: bool = False
    error: str = ""
    error_at: int = 0
    error_count: int = 0
    read_only: str = ""


def metadata_folder(root: Path, driver: str) -> Path:
    """Where the agent of a world has the metadata files of containers."""
    return root / "plugins" / driver / "dra-device-metadata"


class Injector:
    """Counts steps and makes the plan come true.

    Args:
        log: gets one line a step.
        driver: whose metadata files count.
        disk: a file that makes steps fail while it is there, see ``live_faults``.
    """

    def __init__(self, plan: Plan, root: Path, log: Path, driver: str, disk: Path) -> None:
        self._plan = plan
        self._folders = {"state": f"{root}/state/", "cdi": f"{root}/cdi/"}
        self._metadata = str(metadata_folder(root, driver))
        self._disk = disk
        self._hardware = (
            f"{root}/state/.simulated-gpus.json",
            f"{root}/state/daemons/",
            f"{root}/state/mps/",
            f"{root}/sys/bus/pci/devices/",
        )
        # What a third party's driver writes, by whatever way it likes.
        self._backend = f"{root}/npus/sys/"
        self._log = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._names: dict[int | None, str] = {}
        self._steps = 0
        self._lock = threading.Lock()
        self._write = os.write

    def install(self) -> None:
        """Replaces the functions of ``os`` in this process."""
        wrapped: dict[str, Callable[..., Any]] = {
            name: self._by_path(name, getattr(os, name))
            for name in ("rename", "replace", "unlink", "link", "mkdir", "rmdir")
        }
        wrapped |= {
            "open": self._open(os.open),
            "close": self._close(os.close),
            "write": self._written(os.write),
            "fsync": self._by_descriptor("fsync", os.fsync),
            "fchmod": self._by_descriptor("fchmod", os.fchmod),
        }
        for name, function in wrapped.items():
            setattr(os, name, function)
        for name in ("mount_memory", "unmount"):
            setattr(shared_folders, name, self._by_path(name, getattr(shared_folders, name)))
        write_text = self._text(Path.write_text)
        Path.write_text = write_text  # type: ignore[method-assign]

    def _where(self, path: object) -> str:
        """Return a name of ``Plan.read_only``; empty where nothing of ours is (``gpu``: also daemons)."""
        text = os.fspath(path) if isinstance(path, str | Path) else ""
        if text.startswith(self._hardware):
            return "gpu"
        if text.startswith(self._backend):
            return "backend"
        if text.startswith(self._metadata):
            return "metadata"
        for where, folder in self._folders.items():
            if text.startswith(folder) and "lock" not in text.rpartition("/")[2]:
                if where == "cdi" or "checkpoint" in text.rpartition("/")[2]:
                    return where
            elif f"{text}/" == folder:
                return where
        return ""

    def _step(self, call: str, where: str, tear: Callable[[], object] | None = None) -> None:
        plan = self._plan
        with self._lock:
            number, self._steps = self._steps, self._steps + 1
            self._write(self._log, f"{where} {call}\n".encode())
            if number == plan.kill_at:
                if plan.torn and tear is not None:
                    tear()
                os.kill(os.getpid(), signal.SIGKILL)
            here = not plan.read_only or plan.read_only == where
            if plan.error and here and plan.error_at <= number < plan.error_at + plan.error_count:
                code = getattr(errno, plan.error)
                raise OSError(code, os.strerror(code))
            self._refuse(call, where)

    def _refuse(self, call: str, where: str) -> None:
        """Raise what the file ``disk`` says: an errno, a folder, and a call or ``all``."""
        try:
            error, folder, calls = self._disk.read_text().split()
        except FileNotFoundError:
            return
        if folder == where and calls in ("all", call):
            raise OSError(getattr(errno, error), os.strerror(getattr(errno, error)))

    def _by_path(self, call: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def function(path: Any, *more: Any, **named: Any) -> Any:
            # With a folder's descriptor where a tree is removed.
            if where := self._names.get(named.get("dir_fd")) or self._where(path):
                self._step(call, where)
            return real(path, *more, **named)

        return function

    def _open(self, real: Callable[..., int]) -> Callable[..., int]:
        def function(path: Any, flags: int, *more: Any, **named: Any) -> int:
            where = self._names.get(named.get("dir_fd")) or self._where(path)
            if where and flags & os.O_CREAT:
                self._step("create", where)
            descriptor = real(path, flags, *more, **named)
            if where:
                self._names[descriptor] = where
            return descriptor

        return function

    def _close(self, real: Callable[[int], None]) -> Callable[[int], None]:
        def function(descriptor: int) -> None:
            self._names.pop(descriptor, None)
            real(descriptor)

        return function

    def _written(self, real: Callable[[int, Any], int]) -> Callable[[int, Any], int]:
        def function(descriptor: int, data: Any) -> int:
            if where := self._names.get(descriptor):
                self._step("write", where, lambda: real(descriptor, data[: len(data) // 2]))
            return real(descriptor, data)

        return function

    def _text(self, real: Callable[..., int]) -> Callable[..., int]:
        """Wrap what opens and writes without ``os``; what others than backends write so is no step."""

        def function(path: Path, data: str, *more: Any, **named: Any) -> int:
            if self._where(path) == "backend":
                self._step("write", "backend", lambda: real(path, data[: len(data) // 2]))
            return real(path, data, *more, **named)

        return function

    def _by_descriptor(self, call: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def function(descriptor: int, *more: Any) -> Any:
            if where := self._names.get(descriptor):
                self._step(call, where)
            return real(descriptor, *more)

        return function
