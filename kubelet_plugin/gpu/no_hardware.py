"""The effects on hardware where none can be changed: for nodes and tests without GPUs that can be set up."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from dra_driver.errors import PrepareError
from dra_driver.preparation import Holdings, PreparedClaim
from kubelet_plugin.gpu.bindings import bindings_of
from kubelet_plugin.gpu.hardware import is_change

__all__ = ["NoHardware"]


class NoHardware:
    """Hardware that cannot be changed: claims that need it cannot be prepared, nothing is to be undone."""

    async def look(self, record: PreparedClaim, holdings: Holdings) -> PreparedClaim:
        """See ``Hardware``."""
        if any(is_change(s) for s in record.settings) or bindings_of(record):
            raise PrepareError("the devices of this node cannot be configured")
        return record

    async def locate(self, record: PreparedClaim) -> PreparedClaim:
        """See ``Hardware``."""
        return record

    async def configure(self, record: PreparedClaim) -> None:
        """See ``Hardware``."""

    async def restore(self, record: PreparedClaim, holdings: Holdings) -> None:
        """See ``Hardware``."""

    async def drop_missing_partitions(self, record: PreparedClaim) -> PreparedClaim:
        """See ``Hardware``."""
        return record

    async def create_partitions(
        self, record: PreparedClaim, note: Callable[[PreparedClaim], Awaitable[None]]
    ) -> PreparedClaim:
        """See ``Hardware``."""
        return record

    async def destroy_partitions(self, record: PreparedClaim, *, rebooted: bool = False) -> None:
        """See ``Hardware``."""

    async def start_daemons(self, record: PreparedClaim) -> None:
        """See ``Hardware``."""

    async def stop_daemons(self, record: PreparedClaim, holdings: Holdings) -> None:
        """See ``Hardware``."""

    async def bind_drivers(self, record: PreparedClaim) -> PreparedClaim:
        """See ``Hardware``."""
        return record

    async def restore_drivers(self, record: PreparedClaim) -> None:
        """See ``Hardware``."""

    def forgotten(self, record: PreparedClaim) -> None:
        """See ``Hardware``."""
