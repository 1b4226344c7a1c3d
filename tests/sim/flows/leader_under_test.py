"""The controller as a process with a short lease: ``leader_under_test.py KUBECONFIG IDENTITY``."""

from __future__ import annotations

import asyncio
import signal
import sys
from pathlib import Path

from controller.app import LEASE, Controller
from controller.config import ControllerConfig
from dra_driver.api.names import SYSTEM_NAMESPACE
from dra_driver.kube import KubeApi, LeaderConfig

LEASE_SECONDS = 3


async def main(kubeconfig: Path, identity: str) -> None:
    """Works as ``dra-driver controller`` does; the API server knows it by its identity."""
    election = LeaderConfig(
        SYSTEM_NAMESPACE,
        LEASE,
        identity,
        lease_seconds=LEASE_SECONDS,
        renew_deadline_seconds=2.0,
        retry_seconds=0.5,
    )
    async with await KubeApi.connect(kubeconfig, user_agent=identity) as api:
        controller = Controller(api, ControllerConfig(), election=election)
        task = asyncio.create_task(controller.run())
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
        await task


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), sys.argv[2]))
