"""Finds out whether the API server keeps requests for capacity, for the webhook that refuses them else."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

import structlog

from controller.admission.wire import Capacity
from dra_driver.api.meta import DriverName
from dra_driver.errors import DraError
from dra_driver.kube import Backoff
from dra_driver.kube.features import drops_capacity
from dra_driver.ports import KubeClient

__all__ = ["PROBE_SECONDS", "follow_capacity"]

log = structlog.get_logger(__name__)

PROBE_SECONDS: Final = 60.0
"""How often the API server is asked: its feature gate changes with a restart."""


async def follow_capacity(client: KubeClient, driver: DriverName, tell: Callable[[Capacity], None]) -> None:
    """Tell whether the API server keeps requests for capacity whenever that changes, until cancelled.

    Nothing is told before it has answered; what was found last counts where it cannot be asked.

    Args:
        client: the server; every replica asks, because every one reviews.
        driver: ours.
        tell: is given what is found.
    """
    backoff = Backoff(base=0.5, cap=PROBE_SECONDS)
    known: bool | None = None
    while True:
        try:
            kept = not await drops_capacity(client, driver)
        except DraError as e:
            log.warning("cannot ask the API server whether it keeps requests for capacity", error=str(e))
            await asyncio.sleep(backoff.next())
            continue
        backoff.reset()
        if kept != known:
            log.info("API server asked whether it keeps requests for capacity", kept=kept)
            tell(Capacity(kept=kept))
        known = kept
        await asyncio.sleep(PROBE_SECONDS)
