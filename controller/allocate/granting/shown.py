"""Writes down for people whether devices are granted, why not, and for which pods."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

import msgspec
import structlog

from dra_driver.api.core import CONFIG_MAPS
from dra_driver.api.names import GRANT_STATUS
from dra_driver.errors import DraError
from dra_driver.fleet import MOST_NAMED_NAMESPACES, GrantedToPod, GrantsShown, grants_data
from dra_driver.kube import Backoff
from dra_driver.kube.clock import rfc3339
from dra_driver.ports import Clock, KubeClient

__all__ = ["GrantStatus"]

log = structlog.get_logger(__name__)

# A grant that is used lives for less than a second: not each of them is worth two writes.
_SECONDS: Final = 2.0
_RENEW_SECONDS: Final = 300.0


class GrantStatus:
    """Keeps the ConfigMap ``dra-driver-grant-status``, which nothing is decided by.

    Args:
        client: of the leader.
        clock: for times.
        namespace: of the object.
        obstacle: why nothing is now.
        ungated: namespaces whose pods come without the gate.
        pods: for which of them devices are.
    """

    def __init__(
        self,
        client: KubeClient,
        clock: Clock,
        namespace: str,
        obstacle: Callable[[], str],
        ungated: Callable[[], tuple[str, ...]],
        pods: Callable[[], tuple[GrantedToPod, ...]],
    ) -> None:
        self._client = client
        self._clock = clock
        self._namespace = namespace
        self._obstacle = obstacle
        self._ungated = ungated
        self._pods = pods

    def now(self) -> GrantsShown:
        """Return what is to be shown, without the time."""
        ungated = self._ungated()
        return GrantsShown(
            obstacle=self._obstacle(),
            ungated=ungated[:MOST_NAMED_NAMESPACES],
            more_ungated=len(ungated[MOST_NAMED_NAMESPACES:]),
            pods=self._pods(),
        )

    async def run(self) -> None:
        """Write until cancelled. What fails is logged and tried again."""
        backoff = Backoff(base=_SECONDS, cap=60.0)
        written: GrantsShown | None = None
        at = 0.0
        while True:
            delay, now = _SECONDS, self._clock.monotonic()
            shown = self.now()
            if shown != written or now - at >= _RENEW_SECONDS:
                try:
                    await self._write(shown)
                except DraError as e:
                    delay = backoff.next()
                    log.warning("what is granted cannot be shown", config_map=GRANT_STATUS, error=str(e))
                else:
                    backoff.reset()
                    written, at = shown, now
            await asyncio.sleep(delay)

    async def _write(self, shown: GrantsShown) -> None:
        dated = msgspec.structs.replace(shown, updated=rfc3339(self._clock.now()))
        patch = {"data": grants_data(dated)}
        await self._client.merge_patch(CONFIG_MAPS, GRANT_STATUS, patch, self._namespace)
