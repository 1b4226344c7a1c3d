"""The webhooks of a controller alone, as a process whose memory can be measured.

It prints its port, and ends when its standard input does.
"""

from __future__ import annotations

import asyncio
import sys
import time

from fake_client import FakeClient

from controller.admission import AdmissionConfig, AdmissionServer
from controller.admission.pki import with_new_authority
from controller.observe.metrics import Metrics
from dra_driver.api.core import SECRETS
from dra_driver.kube import SystemClock

NAMESPACE = "dra-driver"


async def main() -> None:
    client = FakeClient()
    authority = with_new_authority(None, time.time())
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "dra-driver-admission"}}
    await client.create(SECRETS, {**secret, "data": authority.authorities_to_secret()}, NAMESPACE)
    config = AdmissionConfig(port=0, host="127.0.0.1", url="https://127.0.0.1:9443/")
    drivers = ("gpu.dra-driver.dev",)
    server = AdmissionServer(client, SystemClock(), config, NAMESPACE, drivers, Metrics())
    async with server.serving():
        await server.keeper.changed.wait()
        assert server.address is not None
        assert server.process is not None
        await server.process.answers.wait()
        bundle = authority.authorities_to_secret()["ca.crt"]
        print("serving", server.address[1], bundle, server.process.pid, flush=True)
        await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(main())
