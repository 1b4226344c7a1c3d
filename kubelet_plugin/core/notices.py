"""Reports of what the node agent found and put in order by itself: Events on the Node, and counters.

The log says the same; Events and counters can be seen without reading the log of every node.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Final

import structlog

from dra_driver import discovery
from dra_driver.api.core import NODES
from dra_driver.api.names import CLAIM_GONE_IN_USE
from dra_driver.errors import DraError
from dra_driver.kube import EventRecorder
from dra_driver.ports import Clock, KubeClient

__all__ = [
    "CDI_FILE_WITHDRAWN",
    "CHECKPOINT_DAMAGED",
    "CLAIM_GONE",
    "DEVICE_PLUGIN",
    "DRIVER_HANGING",
    "DRIVER_MISSING",
    "FOREIGN_INSTANCE",
    "HEALTH_MEMORY_DAMAGED",
    "IDLE_DAEMON",
    "KINDS",
    "ORPHANED_CDI_FILE",
    "OTHER_DRIVER",
    "PARTITION_DESTROYED",
    "SERVER_NOT_ASKED",
    "Notices",
]

CDI_FILE_WITHDRAWN: Final = "CdiFileWithdrawn"
CHECKPOINT_DAMAGED: Final = "CheckpointDamaged"
CLAIM_GONE: Final = "ClaimGone"
DEVICE_PLUGIN: Final = "DevicePluginPresent"
DRIVER_HANGING: Final = discovery.DRIVER_HANGING
DRIVER_MISSING: Final = "DriverMissing"
FOREIGN_INSTANCE: Final = "ForeignPartition"
HEALTH_MEMORY_DAMAGED: Final = "HealthMemoryDamaged"
IDLE_DAEMON: Final = "IdleSharingDaemon"
ORPHANED_CDI_FILE: Final = "OrphanedCdiFile"
OTHER_DRIVER: Final = "OtherDriverPresent"
PARTITION_DESTROYED: Final = "PartitionDestroyed"
SERVER_NOT_ASKED: Final = "ServerNotAsked"
KINDS: Final = (
    CDI_FILE_WITHDRAWN,
    CHECKPOINT_DAMAGED,
    CLAIM_GONE,
    CLAIM_GONE_IN_USE,
    DEVICE_PLUGIN,
    DRIVER_HANGING,
    DRIVER_MISSING,
    FOREIGN_INSTANCE,
    HEALTH_MEMORY_DAMAGED,
    IDLE_DAEMON,
    ORPHANED_CDI_FILE,
    OTHER_DRIVER,
    PARTITION_DESTROYED,
    SERVER_NOT_ASKED,
)

COMPONENT: Final = "dra-driver-kubelet-plugin"
_MOST_WAITING: Final = 100
_RETRY_SECONDS: Final = 10.0

log = structlog.get_logger(__name__)


class Notices:
    """Reports that are noted at once and written in the background: no caller waits for the API server.

    Attributes:
        counts: number of findings since the start, by kind.
    """

    def __init__(self, client: KubeClient, clock: Clock, node_name: str) -> None:
        self._client = client
        self._recorder = EventRecorder(client, COMPONENT, clock)
        self._node_name = node_name
        self._waiting: asyncio.Queue[tuple[str, str]] = asyncio.Queue(_MOST_WAITING)
        self.counts: Counter[str] = Counter(dict.fromkeys(KINDS, 0))

    def report(self, kind: str, message: str) -> None:
        """Count a finding and queue a Warning on the Node.

        Args:
            kind: one of ``KINDS``; the Event's reason.
            message: for people. Events of Nodes are in the namespace ``default``, where tenants may read
                them: no claim, pod or namespace is named. The log names them, by the UID that is here.
        """
        self.counts[kind] += 1
        try:
            self._waiting.put_nowait((kind, message))
        except asyncio.QueueFull:
            log.debug("no Event: too many are waiting", kind=kind)

    async def run(self) -> None:
        """Write until cancelled. What was noted while the API server was away is written when it is back."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._recorder.run())
            tasks.create_task(self._write())

    async def _write(self) -> None:
        while True:
            kind, message = await self._waiting.get()
            while True:
                try:
                    node = await self._client.get(NODES, self._node_name)
                    break
                except DraError as e:
                    log.info("an Event waits: the Node cannot be read", kind=kind, error=str(e))
                    await asyncio.sleep(_RETRY_SECONDS)
            self._recorder.event(NODES, node, "Warning", kind, message, about=message)
