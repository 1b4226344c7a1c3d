"""What is on the host of the device nodes and files that CDI documents name.

The host's ``/dev`` is seen whole, of its files what is mounted. A file whose place is not seen counts as
there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Set
from concurrent.futures import Executor
from pathlib import Path
from typing import Final, Protocol

from dra_driver import cdi
from dra_driver.discovery.core.bus import pci
from dra_driver.discovery.core.host.host_view import HostView
from dra_driver.preparation import PreparedClaim, named_on_host, without_absent

__all__ = ["EverythingThere", "Host", "HostFiles"]

_DEV: Final = "/dev/"


class Host(Protocol):
    """What is on the host, as far as documents depend on it."""

    async def document(self, record: PreparedClaim) -> cdi.Spec:
        """Return the document of a claim that has one, without the nodes and files that are not there.

        Raises:
            DeviceNodeAbsent: the node of a device is not there; the document must not be in force.
        """
        ...


class EverythingThere:
    """Implements ``Host`` without looking: everything counts as there."""

    async def document(self, record: PreparedClaim) -> cdi.Spec:
        """See ``Host``."""
        assert record.spec is not None
        return record.spec


class HostFiles:
    """Implements ``Host``.

    Args:
        dev_root: where the host's device nodes are.
        host_root: where the host's file system is; if it is ``/``, that is not known, and no file is judged.
        mounts: the agent's table of mounts, ``/proc/self/mountinfo``.
        executor: for calls that block.
    """

    def __init__(self, *, dev_root: Path, host_root: Path, mounts: Path, executor: Executor) -> None:
        self._dev_root = dev_root
        self._host_root = host_root
        self._mounts = mounts
        self._executor = executor

    async def document(self, record: PreparedClaim) -> cdi.Spec:
        """See ``Host``."""
        named = named_on_host(record)
        absent: Set[str] = frozenset()
        if named:
            loop = asyncio.get_running_loop()
            absent = await loop.run_in_executor(self._executor, self._absent, named)
        spec = without_absent(record, absent)
        assert spec is not None
        return spec

    def _absent(self, paths: Iterable[str]) -> Set[str]:
        host = HostView(self._host_root, self._mounts)
        return {
            path
            for path in paths
            if (
                not pci.exists(self._dev_root / path.removeprefix(_DEV))
                if path.startswith(_DEV)
                else host.absent(path)
            )
        }
