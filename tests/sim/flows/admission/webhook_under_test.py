"""The webhooks of a controller alone, as a process whose memory can be measured.

It prints its port, and ends when its standard input does.
"""

from __future__ import annotations

import asyncio
import sys

from fake_client import FakeClient

from controller.admission import AdmissionConfig, AdmissionServer
from controller.observe.metrics import Metrics
from dra_driver.api.core import SECRETS
from dra_driver.kube import SystemClock

NAMESPACE = "dra-driver"


async def main() -> None:
    client = FakeClient()
    await client.create(
        SECRETS,
        {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "dra-driver-admission"}},
        NAMESPACE,
    )
    config = AdmissionConfig(port=0, host="127.0.0.1", url="https://127.0.0.1:9443/")
    server = AdmissionServer(
        client, client, SystemClock(), config, NAMESPACE, ("gpu.dra-driver.dev",), Metrics()
    )
    async with server.serving():
        await server.keeper.changed.wait()
        secret = await client.get(SECRETS, "dra-driver-admission", NAMESPACE)
        assert server.address is not None
        print("serving", server.address[1], (secret.data or {})["ca.crt"], flush=True)
        await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(main())
