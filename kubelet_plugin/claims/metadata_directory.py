"""The device metadata files of our claims (KEP-5304), in the plugin's own directory on the host.

Like CDI documents they are not synced: a power failure ends every container that reads them, and they are
compared with the record before the next one starts.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable, Mapping, Set
from concurrent.futures import Executor
from pathlib import Path
from typing import Final, Protocol, TypeVar

from dra_driver.api.meta import Uid
from dra_driver.errors import DraError
from dra_driver.preparation import METADATA_FILE, check_uid
from kubelet_plugin.core import files

__all__ = ["Metadata", "MetadataDirectory", "NoMetadata"]

# Read in containers, by any user; a bind mount of a file does not need the way to it.
FILE_MODE: Final = 0o644

_T = TypeVar("_T")


class Metadata(Protocol):
    """The metadata files of claims."""

    async def write(self, uid: Uid, content: Mapping[str, bytes]) -> None:
        """Make the files of a claim what they should be; those that are right are left alone.

        Raises:
            OSError: a file is as it was before.
        """
        ...

    async def remove(self, uid: Uid) -> None:
        """Remove the files of a claim; success if there are none.

        Raises:
            OSError: some are still there.
        """
        ...

    async def ours(self) -> Set[Uid]:
        """Return the claims that have files.

        Raises:
            OSError: the directory cannot be read.
        """
        ...


class NoMetadata:
    """Implements ``Metadata`` without files."""

    async def write(self, uid: Uid, content: Mapping[str, bytes]) -> None:
        """Do nothing."""

    async def remove(self, uid: Uid) -> None:
        """Do nothing."""

    async def ours(self) -> Set[Uid]:
        """Return no claim."""
        return frozenset()


class MetadataDirectory:
    """Implements ``Metadata``: ``<path>/<claim UID>/<request>/metadata.json``."""

    def __init__(self, path: Path, executor: Executor) -> None:
        self._path = path
        self._executor = executor

    async def write(self, uid: Uid, content: Mapping[str, bytes]) -> None:
        """See ``Metadata.write``."""
        await self._in_thread(lambda: self._write(uid, content))

    async def remove(self, uid: Uid) -> None:
        """See ``Metadata.remove``."""
        await self._in_thread(lambda: self._remove(uid))

    async def ours(self) -> Set[Uid]:
        """See ``Metadata.ours``."""
        return await self._in_thread(self._ours)

    async def _in_thread(self, work: Callable[[], _T]) -> _T:
        return await asyncio.get_running_loop().run_in_executor(self._executor, work)

    def _write(self, uid: Uid, content: Mapping[str, bytes]) -> None:
        for request, data in content.items():
            file = self._path / check_uid(uid) / check_uid(request) / METADATA_FILE
            try:
                if file.read_bytes() == data:
                    continue
            except FileNotFoundError:
                pass
            files.make_directory(file.parent, 0o755)
            files.write(file, data, FILE_MODE, content=False, name=False)

    def _remove(self, uid: Uid) -> None:
        try:
            shutil.rmtree(self._path / check_uid(uid))
        except FileNotFoundError:
            pass

    def _ours(self) -> Set[Uid]:
        if not self._path.is_dir():
            return frozenset()
        return {uid for folder in self._path.iterdir() if (uid := _uid(folder.name)) and folder.is_dir()}


def _uid(name: str) -> Uid | None:
    try:
        return check_uid(name)
    except DraError:
        return None
