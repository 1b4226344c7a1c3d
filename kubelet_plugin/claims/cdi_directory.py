"""The CDI documents of our claims, in the directory that the container runtime reads.

The directory belongs to all drivers: a file is touched only if its name says that it is of a claim of ours,
and removed as an orphan only if its content says so too.

Nothing here is synced to the disk. Usually there is none (``/var/run`` is a tmpfs), and where there is one, a
power failure can leave a file old, empty or back again, but it also ends every container; before the next one
starts, the plugin compares every file with the record in its checkpoint, which holds the whole document.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from pathlib import Path
from typing import Final, Protocol, TypeVar

import structlog

from dra_driver import cdi
from dra_driver.api.meta import Uid
from dra_driver.preparation import spec_file_name, spec_file_prefix, uid_of_spec_file
from kubelet_plugin.core import files

__all__ = ["CdiDirectory", "Specs"]

# Runtimes may run as another user than we do, and so may the tools that people look with.
FILE_MODE: Final = 0o644

_T = TypeVar("_T")

log = structlog.get_logger(__name__)


class Specs(Protocol):
    """The CDI documents of this driver's claims, one file each."""

    async def write(self, uid: Uid, spec: cdi.Spec) -> None:
        """Write the document of a claim; what reads it never sees half of it.

        Raises:
            OSError: the file is as it was before.
        """
        ...

    async def verify(self, uid: Uid, spec: cdi.Spec) -> bool:
        """Write the document again if the file is missing or differs; return whether it was written.

        Raises:
            OSError: it differs and cannot be written.
        """
        ...

    async def holds(self, uid: Uid, spec: cdi.Spec) -> bool:
        """Return whether the file of a claim is there and has just this document.

        Raises:
            OSError: it cannot be read.
        """
        ...

    async def remove(self, uid: Uid) -> None:
        """Remove the document; success where there is none.

        Raises:
            OSError: it is still there.
        """
        ...

    async def ours(self) -> Mapping[Uid, bytes]:
        """Return the content of every file whose name says that it is of a claim of this driver.

        Raises:
            OSError: the directory cannot be read.
        """
        ...

    async def clean(self) -> None:
        """Remove what a crash left of writes. The caller holds the node's lock, so that none is under way.

        Raises:
            OSError: the directory cannot be written.
        """
        ...


class CdiDirectory:
    """Implements ``Specs``."""

    def __init__(self, path: Path, driver: str, executor: Executor) -> None:
        self._path = path
        self._driver = driver
        self._executor = executor

    async def write(self, uid: Uid, spec: cdi.Spec) -> None:
        """See ``Specs.write``."""
        await self._in_thread(lambda: self._write(uid, cdi.encode(spec)))

    async def verify(self, uid: Uid, spec: cdi.Spec) -> bool:
        """See ``Specs.verify``."""
        return await self._in_thread(lambda: self._verify(uid, cdi.encode(spec)))

    async def holds(self, uid: Uid, spec: cdi.Spec) -> bool:
        """See ``Specs.holds``."""
        return await self._in_thread(lambda: self._holds(uid, cdi.encode(spec)))

    async def remove(self, uid: Uid) -> None:
        """See ``Specs.remove``."""
        await self._in_thread(lambda: self._remove(uid))

    async def ours(self) -> Mapping[Uid, bytes]:
        """See ``Specs.ours``."""
        return await self._in_thread(self._ours)

    async def clean(self) -> None:
        """See ``Specs.clean``."""
        await self._in_thread(self._clean)

    async def _in_thread(self, work: Callable[[], _T]) -> _T:
        return await asyncio.get_running_loop().run_in_executor(self._executor, work)

    def _file(self, uid: Uid) -> Path:
        return self._path / spec_file_name(self._driver, uid)

    def _write(self, uid: Uid, data: bytes) -> None:
        # On a tmpfs the directory itself may be gone.
        files.make_directory(self._path, 0o755)
        files.write(self._file(uid), data, FILE_MODE, content=False, name=False)

    def _verify(self, uid: Uid, data: bytes) -> bool:
        if self._holds(uid, data):
            return False
        self._write(uid, data)
        return True

    def _holds(self, uid: Uid, data: bytes) -> bool:
        file = self._file(uid)
        try:
            return file.read_bytes() == data and file.stat().st_mode & 0o777 == FILE_MODE
        except FileNotFoundError:
            return False

    def _remove(self, uid: Uid) -> None:
        files.remove(self._file(uid))

    def _ours(self) -> dict[Uid, bytes]:
        found: dict[Uid, bytes] = {}
        if not self._path.is_dir():
            return found
        for file in self._path.iterdir():
            uid = uid_of_spec_file(self._driver, file.name)
            if uid is None:
                continue
            try:
                if file.is_file():
                    found[uid] = file.read_bytes()
            except FileNotFoundError:
                pass  # unprepared meanwhile
            except OSError as e:
                # One bad block must not keep the plugin from serving all other claims.
                log.error("a CDI file of a claim cannot be read", file=str(file), error=str(e))
        return found

    def _clean(self) -> None:
        if self._path.is_dir():
            files.remove_temporary(self._path, spec_file_prefix(self._driver))
