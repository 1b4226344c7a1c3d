"""The controller as a process with a short lease: ``leader_under_test.py KUBECONFIG IDENTITY CLOCK``.

CLOCK is ``real``, or ``virtual``: one that stands still while the process is stopped, as all clocks of a
virtual machine do that is paused with everything in it.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from pathlib import Path

from controller.app import Controller
from controller.config import ControllerConfig
from dra_driver.api.names import CONTROLLER_LEASE, SYSTEM_NAMESPACE
from dra_driver.kube import KubeApi, LeaderConfig, SystemClock

LEASE_SECONDS = 3
# A gap between two looks at the clock that is longer was a stop; somebody looks every TICK_SECONDS.
STOP_SECONDS = 1.0
TICK_SECONDS = 0.05


class VirtualClock(SystemClock):
    """A clock that does not count while the process is stopped."""

    def __init__(self) -> None:
        self._seen = super().monotonic()
        self._lost = 0.0

    def monotonic(self) -> float:
        """Return seconds without the stops."""
        now = super().monotonic()
        if now - self._seen > STOP_SECONDS:
            self._lost += now - self._seen
        self._seen = now
        return now - self._lost

    async def tick(self) -> None:
        """Look at the clock again and again."""
        while True:
            self.monotonic()
            await asyncio.sleep(TICK_SECONDS)


async def main(kubeconfig: Path, identity: str, kind: str) -> None:
    """Work as ``dra-driver controller`` does; the API server knows the process by its identity."""
    election = LeaderConfig(
        SYSTEM_NAMESPACE,
        CONTROLLER_LEASE,
        identity,
        lease_seconds=LEASE_SECONDS,
        renew_deadline_seconds=2.0,
        retry_seconds=0.5,
    )
    clock = VirtualClock()
    async with await KubeApi.connect(kubeconfig, user_agent=identity) as api:
        used = clock if kind == "virtual" else SystemClock()
        controller = Controller(api, ControllerConfig(), used, election=election)
        task = asyncio.create_task(controller.run())
        ticking = asyncio.create_task(clock.tick())
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
        try:
            await task
        finally:
            ticking.cancel()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), sys.argv[2], sys.argv[3]))
