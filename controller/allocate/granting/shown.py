"""Writes down for people whether devices are granted, or lent, why not, and for which pods."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

import msgspec
import structlog

from dra_driver.api.core import CONFIG_MAPS
from dra_driver.api.names import LENDING_STATUS
from dra_driver.errors import DraError
from dra_driver.fleet import GRANTING, LENDING, MOST_NAMED_NAMESPACES, LendingShown, LentToPod, lending_data
from dra_driver.kube import Backoff
from dra_driver.kube.clock import rfc3339
from dra_driver.ports import Clock, KubeClient

__all__ = ["GrantStatus"]

log = structlog.get_logger(__name__)

# A grant that is used lives for less than a second: not each of them is worth two writes.
_SECONDS: Final = 2.0
_RENEW_SECONDS: Final = 300.0


class GrantStatus:
    """Keeps the ConfigMap ``dra-driver-lending``, which nothing is decided by.

    Args:
        client: of the leader.
        clock: for times.
        namespace: of the object.
        mode: whether devices are granted, or lent (``LendingShown``).
        obstacle: why nothing is now.
        ungated: namespaces whose pods come without the gate.
        pods: for which of them devices are.
    """

    def __init__(
        self,
        client: KubeClient,
        clock: Clock,
        namespace: str,
        mode: str,
        obstacle: Callable[[], str],
        ungated: Callable[[], tuple[str, ...]],
        pods: Callable[[], tuple[LentToPod, ...]],
    ) -> None:
        self._client = client
        self._clock = clock
        self._namespace = namespace
        self._mode = mode
        self._obstacle = obstacle
        self._ungated = ungated
        self._pods = pods

    def now(self) -> LendingShown:
        """Return what is to be shown, without the time."""
        ungated = self._ungated()
        return LendingShown(
            mode=self._mode,
            obstacle=self._obstacle() if self._mode in (LENDING, GRANTING) else "",
            ungated=ungated[:MOST_NAMED_NAMESPACES],
            more_ungated=len(ungated[MOST_NAMED_NAMESPACES:]),
            loans=self._pods(),
        )

    async def run(self) -> None:
        """Write until cancelled. What fails is logged and tried again."""
        backoff = Backoff(base=_SECONDS, cap=60.0)
        written: LendingShown | None = None
        at = 0.0
        while True:
            delay, now = _SECONDS, self._clock.monotonic()
            shown = self.now()
            if shown != written or now - at >= _RENEW_SECONDS:
                try:
                    await self._write(shown)
                except DraError as e:
                    delay = backoff.next()
                    log.warning("what is granted cannot be shown", config_map=LENDING_STATUS, error=str(e))
                else:
                    backoff.reset()
                    written, at = shown, now
            await asyncio.sleep(delay)

    async def _write(self, shown: LendingShown) -> None:
        dated = msgspec.structs.replace(shown, updated=rfc3339(self._clock.now()))
        patch = {"data": lending_data(dated)}
        await self._client.merge_patch(CONFIG_MAPS, LENDING_STATUS, patch, self._namespace)
