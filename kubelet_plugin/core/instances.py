"""The plugins of one driver on one node: which run, which were killed, which one represents the node.

During a rolling update there are two for a while. Each holds a lock on a file of its own in the state
directory, so that its death is seen however it comes. The kubelet calls the one that it registered last; that
one writes the node's inventory.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import socket
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Final

import structlog

from dra_driver.errors import DraError
from dra_driver.ports import Clock
from kubelet_plugin.core import files

__all__ = ["Instances", "remove_stale_socket"]

_PREFIX: Final = "instance"
_SUFFIX: Final = ".lock"

log = structlog.get_logger(__name__)


class Instances:
    """One instance among those that share a state directory.

    Args:
        folder: the state directory.
        name: of this instance; may be empty.
    """

    def __init__(self, folder: Path, name: str, clock: Clock) -> None:
        self._folder = folder
        self._name = name
        self._clock = clock
        self._descriptor: int | None = None
        self._confirmed = 0
        self._led = True

    @contextlib.asynccontextmanager
    async def entered(self, seconds: float) -> AsyncIterator[None]:
        """Hold the instance's lock file as long as it runs.

        Args:
            seconds: how long one of the same name, which is ending, is waited for.

        Raises:
            DraError: it does not end.
        """
        deadline = asyncio.get_running_loop().time() + seconds
        while not self._enter():
            if asyncio.get_running_loop().time() > deadline:
                raise DraError(
                    "another kubelet-plugin of this driver runs on the node: "
                    f"it holds {self._file(self._name)}"
                )
            await asyncio.sleep(0.1)
        try:
            yield
        finally:
            self._leave()

    def registered(self, is_so: bool) -> None:
        """Note whether the kubelet has this instance registered; the one that noted it last leads."""
        now = int(self._clock.monotonic() * 1e9) if is_so else 0
        if self._descriptor is None or not (now or self._confirmed):
            return
        self._confirmed = now
        self._note(now)

    def leads(self) -> bool:
        """Return whether this instance represents the node: no running one was registered later.

        While that cannot be looked at (no more files, say), it is as it was.
        """
        try:
            self._led = all(confirmed <= self._confirmed for confirmed in self._others())
        except OSError as e:
            log.debug("which instances run is not known", error=str(e))
        return self._led

    def alone(self) -> bool:
        """Return whether no other instance runs, as far as that can be looked at."""
        try:
            return not any(True for _ in self._others())
        except OSError:
            return False

    def dead(self) -> Iterator[str]:
        """Yield the names of killed instances. Each one's file is removed when the caller's loop goes on."""
        for name in self._names():
            if name == self._name:
                continue
            with _opened(self._file(name)) as descriptor:
                if descriptor is not None and _locked(descriptor):
                    yield name
                    self._file(name).unlink(missing_ok=True)

    # --- inside ---------------------------------------------------------------------------------------------

    def _file(self, name: str) -> Path:
        return self._folder / f"{_PREFIX}{'-' if name else ''}{name}{_SUFFIX}"

    def _names(self) -> Iterator[str]:
        for file in sorted(self._folder.glob(f"{_PREFIX}*{_SUFFIX}")):
            rest = file.name[len(_PREFIX) : -len(_SUFFIX)]
            if not rest or rest.startswith("-"):
                yield rest[1:]

    def _others(self) -> Iterator[int]:
        """Yield when each other running instance was registered; 0 if it is not."""
        self._put_back()
        for name in self._names():
            if name == self._name:
                continue
            with _opened(self._file(name)) as descriptor:
                if descriptor is None or _locked(descriptor):
                    continue
                text = os.pread(descriptor, 32, 0)
                yield int(text) if text.isdigit() else 0

    def _enter(self) -> bool:
        path = self._file(self._name)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        if not _locked(descriptor):
            os.close(descriptor)
            return False
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(descriptor), path.stat()):
                os.ftruncate(descriptor, 0)
                self._descriptor = descriptor
                return True
        os.close(descriptor)  # it was being forgotten: the file has no name any more
        return False

    def _put_back(self) -> None:
        """Make the file anew if it was removed, with its directory for example: others look for its name."""
        path, old = self._file(self._name), self._descriptor
        if old is None:
            return
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(old), path.lstat()):
                return
        files.make_directory(self._folder, 0o700)
        if self._enter():
            os.close(old)
            if self._confirmed:
                self._note(self._confirmed)

    def _note(self, confirmed: int) -> None:
        assert self._descriptor is not None
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, str(confirmed).encode(), 0)

    def _leave(self) -> None:
        if self._descriptor is not None:
            self._file(self._name).unlink(missing_ok=True)
            os.close(self._descriptor)
            self._descriptor = None


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[int | None]:
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        yield None
        return
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _locked(descriptor: int) -> bool:
    """Try to lock, without blocking; the lock ends with the descriptor."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def remove_stale_socket(path: Path) -> bool:
    """Remove a socket on which no process listens any more; return whether it was removed."""
    if not path.is_socket():
        return False
    with socket.socket(socket.AF_UNIX) as probe:
        probe.setblocking(False)
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink(missing_ok=True)
            log.info("removed the socket of a plugin that was killed", path=str(path))
            return True
        except OSError:
            return False  # busy, or no business of ours
    return False
