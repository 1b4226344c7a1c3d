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
from manifest_files import documents
from real_apiserver import ADMIN, RealApiServer, real_apiserver

from controller.admission import AdmissionConfig, AdmissionServer
from controller.observe.metrics import Metrics
from dra_driver.api.meta import DriverName
from dra_driver.api.names import DEFAULT_DRIVER_NAME
from dra_driver.api.resource import RESOURCE_CLAIM_TEMPLATES, RESOURCE_CLAIMS
from dra_driver.api.server.admission import MUTATING_WEBHOOKS, VALIDATING_WEBHOOKS
from dra_driver.cli.capacity import object_notes, server_notes
from dra_driver.cli.certificates import provide
from dra_driver.kube import KubeApi, SystemClock
from dra_driver.kube.features import keeps_capacity, probe_features
from dra_driver.resourceclaim import LAST_APPLIED, dropped_from
from dra_driver.sim.assets import deploy_directory

GATE = "--feature-gates=DRAConsumableCapacity={}"
NAMESPACE = "default"
SELECTOR = (
    'has(device.capacity["gpu.dra-driver.dev"].memory) && '
    'device.capacity["gpu.dra-driver.dev"].memory.compareTo(quantity("32Gi")) >= 0'
)
SECONDS = 60.0
Server = tuple[RealApiServer, bool]


@pytest.fixture(scope="module", params=[True, False], ids=["gate on", "gate off"])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server, and whether it keeps capacity."""
    folder: Path = tmp_path_factory.mktemp("real")
    with real_apiserver(folder, GATE.format(str(request.param).lower())) as started:
        yield started, request.param


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


def test_the_webhook_refuses_what_would_be_dropped(server: Server) -> None:
    """In every version that is served, for claims and templates, and while no controller answers, too."""
    started, kept = server

    async def main() -> None:
        async with await started.client() as client:
            with socket.socket() as free:
                free.bind(("127.0.0.1", 0))
                port = free.getsockname()[1]
            config = AdmissionConfig(port=port, host="127.0.0.1", url=f"https://127.0.0.1:{port}")
            drivers = (DEFAULT_DRIVER_NAME,)
            await installed(client, config.url)
            webhook = AdmissionServer(client, SystemClock(), config, NAMESPACE, drivers, Metrics())
            await until(started, 500)
            async with webhook.serving():
                await until(started, 201 if kept else 422)
                for version, plural, body in every_form():
                    if plural not in await client.served("resource.k8s.io", version):
                        continue
                    status, text = await made(started, body, version, plural)
                    assert (status, SELECTOR in text) == ((201, False) if kept else (422, True)), text
                    status, text = await made(started, without_capacity(body), version, plural)
                    assert status == 201, text
                assert await keeps_capacity(client, "default") is kept
            status, text = await made(started, big("down"))
            assert (status, "failed calling webhook" in text) == (500, True), text
            status, text = await made(started, builders.claim("small", builders.request()))
            assert status == 201, text

    asyncio.run(main())


def every_form() -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Yield version, plural and body of objects that ask for capacity."""
    asked = builders.request(memory="32Gi")
    alternative = {"name": "big", **asked["exactly"]}
    either = {"name": "either", "firstAvailable": [alternative]}
    old = {"name": "gpu", **asked["exactly"]}
    for version, requests in (
        ("v1", [asked]),
        ("v1", [builders.request("any"), either]),
        ("v1beta2", [asked]),
        ("v1beta1", [old]),
    ):
        devices = {"devices": {"requests": requests}}
        for plural, kind, spec in (
            ("resourceclaims", "ResourceClaim", devices),
            ("resourceclaimtemplates", "ResourceClaimTemplate", {"spec": devices}),
        ):
            metadata = {"generateName": "form-", "namespace": NAMESPACE}
            head = {"apiVersion": f"resource.k8s.io/{version}", "kind": kind}
            yield version, plural, {**head, "metadata": metadata, "spec": spec}


def without_capacity(body: dict[str, Any]) -> dict[str, Any]:
    text = json.dumps(body)
    found: dict[str, Any] = json.loads(text.replace(', "capacity": {"requests": {"memory": "32Gi"}}', ""))
    assert found != body
    return found


async def installed(client: KubeApi, url: str) -> None:
    """Do what an administrator does for the webhooks, which the server reaches by a URL here."""
    folder = deploy_directory("optional")
    for configuration in documents(folder / "webhooks.yaml", folder / "refuse-dropped-capacity.yaml"):
        for webhook in configuration["webhooks"]:
            path = webhook["clientConfig"].pop("service")["path"]
            webhook["clientConfig"]["url"] = url + path
        kind = configuration["kind"]
        resource = MUTATING_WEBHOOKS if kind == MUTATING_WEBHOOKS.kind else VALIDATING_WEBHOOKS
        await client.create(resource, configuration)
    done = await provide(client, NAMESPACE, time.time())
    assert len([text for text in done if "authorities written" in text]) == 3


async def until(started: RealApiServer, expected: int) -> None:
    """Make claims for capacity until one is answered as it must be in the end."""
    deadline = time.monotonic() + SECONDS
    number, status, text = 0, 0, ""
    while status != expected and time.monotonic() < deadline:
        number += 1
        status, text = await made(started, big(f"tried-{expected}-{number}"))
        await asyncio.sleep(0.2)
    assert status == expected, text


async def made(
    started: RealApiServer, body: dict[str, Any], version: str = "v1", plural: str = "resourceclaims"
) -> tuple[int, str]:
    """Make a claim or template; return the status and what the server says."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    url = f"{started.url}/apis/resource.k8s.io/{version}/namespaces/{NAMESPACE}/{plural}"
    headers = {"Authorization": f"Bearer {ADMIN}"}
    async with (
        aiohttp.ClientSession() as session,
        session.post(url, json=body, headers=headers, ssl=context) as response,
    ):
        return response.status, str((await response.json()).get("message", ""))
