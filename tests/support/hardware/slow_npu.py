"""A backend that needs longer to prepare a device than the kubelet waits."""

from __future__ import annotations

import asyncio
import threading

import pytest
from npu_backend import Npu

from dra_driver import sdk
from dra_driver.errors import PrepareError, StillPreparing
from kubelet_plugin.claims.planning import ClaimReference
from kubelet_plugin.claims.preparer import Preparer

__all__ = ["WAIT", "SlowNpu", "prepared", "still"]

# That a call of the kubelet waits, here.
WAIT = 0.15


class SlowNpu(Npu):
    """Prepares a device when it is told to, and has planned to need up to a minute."""

    def __init__(self, seconds: float | None = 60) -> None:
        super().__init__()
        self.finish = threading.Event()
        self.plan = lambda use: sdk.DevicePlan({"watts": 100}, seconds=seconds)

    def prepare_device(self, work: sdk.DeviceWork) -> None:
        self.calls.append(f"prepare {work.device}")
        assert self.finish.wait(30)
        self.set[work.device] = work.settings["watts"]
        self.in_prepare()


async def prepared(
    preparer: Preparer, reference: ClaimReference, passing: type[PrepareError] = StillPreparing
) -> None:
    """Ask as the kubelet does until it is prepared; such errors pass."""
    async with asyncio.timeout(30):
        while True:
            try:
                await preparer.prepare(reference)
                return
            except passing:
                await asyncio.sleep(0.02)


async def still(preparer: Preparer, reference: ClaimReference) -> str:
    with pytest.raises(StillPreparing) as caught:
        await preparer.prepare(reference)
    return str(caught.value)
