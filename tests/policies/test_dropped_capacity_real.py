"""What the real API server (``DRA_K8S_BIN``) does to requests for capacity, with the gate and without."""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import builders
import pytest
from real_apiserver import ADMIN, RealApiServer, real_apiserver

from controller.admission import AdmissionConfig, AdmissionServer
from controller.observe.metrics import Metrics
from dra_driver.api.core import SECRETS
from dra_driver.api.meta import DriverName
from dra_driver.api.names import DEFAULT_DRIVER_NAME
from dra_driver.api.resource import RESOURCE_CLAIM_TEMPLATES, RESOURCE_CLAIMS
from dra_driver.api.server.admission import MUTATING_WEBHOOKS, VALIDATING_WEBHOOKS
from dra_driver.cli.capacity import object_notes, server_notes
from dra_driver.kube import KubeApi, SystemClock
from dra_driver.kube.features import keeps_capacity, probe_features
from dra_driver.resourceclaim import LAST_APPLIED, capacity_advice, dropped_from

OFF = "--feature-gates=DRAConsumableCapacity=false"
NAME, NAMESPACE = "dra-driver-admission", "default"
SECONDS = 60.0
Server = tuple[RealApiServer, bool]


@pytest.fixture(scope="module", params=[(), (OFF,)], ids=["by default", "gate off"])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server, and whether it keeps capacity."""
    folder: Path = tmp_path_factory.mktemp("real")
    with real_apiserver(folder, *request.param) as started:
        yield started, not request.param


def big(name: str) -> dict[str, Any]:
    """Return a claim for 32Gi as ``kubectl apply`` sends it."""
    claim = builders.claim(name, builders.request(memory="32Gi"))
    claim["metadata"]["annotations"] = {LAST_APPLIED: json.dumps(claim)}
    return claim


def test_dropped_capacity_is_found(server: Server) -> None:
    started, kept = server

    async def main() -> None:
        async with await started.client() as client:
            assert await keeps_capacity(client, "default") is kept
            features = await probe_features(client, DriverName(DEFAULT_DRIVER_NAME))
            assert features.multi_allocation is kept
            stored = await client.create(RESOURCE_CLAIMS, big("found"), "default")
            assert dropped_from(stored) == (() if kept else ("gpu",))
            template: dict[str, Any] = {
                "apiVersion": "resource.k8s.io/v1",
                "kind": "ResourceClaimTemplate",
                "metadata": {"name": "found", "namespace": "default"},
                "spec": {"spec": big("found")["spec"]},
            }
            template["metadata"]["annotations"] = {LAST_APPLIED: json.dumps(template)}
            made = await client.create(RESOURCE_CLAIM_TEMPLATES, template, "default")
            assert dropped_from(made) == (() if kept else ("gpu",))
            templates = (await client.list(RESOURCE_CLAIM_TEMPLATES)).items
            notes = await server_notes(client)
            notes += object_notes(templates, (await client.list(RESOURCE_CLAIMS)).items)
            assert len(notes) == (0 if kept else 3)

    asyncio.run(main())


def test_the_webhook_warns_when_a_claim_is_made(server: Server) -> None:
    started, kept = server

    async def main() -> None:
        async with await started.client() as client:
            await installed(client)
            with socket.socket() as free:
                free.bind(("127.0.0.1", 0))
                port = free.getsockname()[1]
            config = AdmissionConfig(port=port, host="127.0.0.1", url=f"https://127.0.0.1:{port}")
            drivers = (DEFAULT_DRIVER_NAME,)
            webhook = AdmissionServer(client, client, SystemClock(), config, NAMESPACE, drivers, Metrics())
            async with webhook.serving():
                running = asyncio.create_task(webhook.registration.run(webhook.keeper))
                try:
                    await until_warned(started, kept=kept)
                finally:
                    running.cancel()
                    await asyncio.wait({running})

    asyncio.run(main())


async def installed(client: KubeApi) -> None:
    """Make what the manifests bring for the webhook."""
    metadata = {"name": NAME, "namespace": NAMESPACE}
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "type": "Opaque"}
    await client.create(SECRETS, secret, NAMESPACE)
    for resource in (VALIDATING_WEBHOOKS, MUTATING_WEBHOOKS):
        body = {"apiVersion": resource.api_version, "kind": resource.kind, "metadata": {"name": NAME}}
        await client.create(resource, body)


async def until_warned(started: RealApiServer, *, kept: bool) -> None:
    """Make claims until one of them is warned of what must be, and of nothing else."""
    deadline = time.monotonic() + (5.0 if kept else SECONDS)
    number = 0
    warnings: list[str] = []
    while not warnings and time.monotonic() < deadline:
        number += 1
        warnings = await made(started, big(f"warned-{number}"))
        await asyncio.sleep(0.2)
    assert warnings == ([] if kept else [capacity_advice(["gpu"])])


async def made(started: RealApiServer, body: dict[str, Any]) -> list[str]:
    """Make a claim; return the warnings in the answer."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    url = f"{started.url}/apis/resource.k8s.io/v1/namespaces/{NAMESPACE}/resourceclaims"
    headers = {"Authorization": f"Bearer {ADMIN}"}
    async with (
        aiohttp.ClientSession() as session,
        session.post(url, json=body, headers=headers, ssl=context) as response,
    ):
        assert response.status == 201, await response.text()
        return [w.split('"', 1)[1].rsplit('"', 1)[0] for w in response.headers.getall("Warning", [])]
