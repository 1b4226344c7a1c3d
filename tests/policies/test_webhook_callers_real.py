"""A real API server (``DRA_K8S_BIN``) shows the webhooks its certificate, as docs/admission.md says."""

from __future__ import annotations

import asyncio
import base64
import socket
import time
from pathlib import Path
from typing import Any

import builders
import pytest
import yaml
from connecting import client_certificate
from manifest_files import documents
from real_apiserver import real_apiserver

from controller.admission import AdmissionConfig, AdmissionServer
from controller.admission.pki import with_new_authority
from controller.observe.metrics import Metrics
from dra_driver.api.names import DEFAULT_DRIVER_NAME
from dra_driver.api.resource import RESOURCE_CLAIMS
from dra_driver.api.server.admission import MUTATING_WEBHOOKS, VALIDATING_WEBHOOKS
from dra_driver.cli.certificates import provide
from dra_driver.errors import DraError
from dra_driver.kube import SystemClock
from dra_driver.sim.assets import deploy_directory

NAME = "kube-apiserver-webhook-client"
SECONDS = 60.0
CONFIGURATIONS = {r.kind: r for r in (MUTATING_WEBHOOKS, VALIDATING_WEBHOOKS)}


def configuration(folder: Path, host: str, certificate: tuple[bytes, bytes]) -> Path:
    """Write what ``--admission-control-config-file`` names, and the kubeconfig that it names."""
    data = [base64.b64encode(part).decode() for part in certificate]
    user = {"client-certificate-data": data[0], "client-key-data": data[1]}
    kubeconfig = {"apiVersion": "v1", "kind": "Config", "users": [{"name": host, "user": user}]}
    (folder / "callers.yaml").write_text(yaml.safe_dump(kubeconfig))
    plugin = {
        "name": "ValidatingAdmissionWebhook",
        "configuration": {
            "apiVersion": "apiserver.config.k8s.io/v1",
            "kind": "WebhookAdmissionConfiguration",
            "kubeConfigFile": str(folder / "callers.yaml"),
        },
    }
    body = {
        "apiVersion": "apiserver.config.k8s.io/v1",
        "kind": "AdmissionConfiguration",
        "plugins": [plugin],
    }
    path = folder / "admission.yaml"
    path.write_text(yaml.safe_dump(body))
    return path


def wrong(name: str) -> dict[str, Any]:
    claim: dict[str, Any] = builders.claim(name, builders.request())
    parameters = {"apiVersion": "dra-driver.dev/v1alpha1", "kind": "GpuConfig", "typo": True}
    claim["spec"]["devices"]["config"] = [
        {"opaque": {"driver": DEFAULT_DRIVER_NAME, "parameters": parameters}}
    ]
    return claim


@pytest.mark.parametrize("named", [True, False])
def test_the_api_server_shows_its_certificate_to_the_webhooks(tmp_path: Path, named: bool) -> None:
    authority = with_new_authority(None, time.time())
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    (tmp_path / "clients.crt").write_bytes(authority.bundle)
    config = AdmissionConfig(
        port=port,
        host="127.0.0.1",
        url=f"https://127.0.0.1:{port}",
        client_authorities=tmp_path / "clients.crt",
        client_names=(NAME,),
    )
    shown = client_certificate(authority, NAME if named else "somebody")
    file = configuration(tmp_path, f"127.0.0.1:{port}", shown)

    async def refused(client: Any, number: int) -> bool:
        try:
            await client.create(RESOURCE_CLAIMS, wrong(f"wrong-{number}"), "default")
        except DraError as e:
            return "typo" in str(e)
        return False

    async def main() -> None:
        with real_apiserver(tmp_path, f"--admission-control-config-file={file}") as started:
            async with await started.client() as client:
                await installed(client, config.url)
                metrics = Metrics()
                drivers = (DEFAULT_DRIVER_NAME,)
                server = AdmissionServer(client, SystemClock(), config, "default", drivers, metrics)
                async with server.serving():
                    assert server.process is not None
                    await server.process.answers.wait()
                    deadline, number, unknown = time.monotonic() + SECONDS, 0, 0.0
                    while not (is_refused := await refused(client, number)) and unknown == 0.0:
                        assert time.monotonic() < deadline
                        number += 1
                        await asyncio.sleep(1.2)
                        unknown = metrics.admissions.labels("", "unauthorized")._value.get()
                    assert is_refused is named

    asyncio.run(main())


async def installed(client: Any, url: str) -> None:
    for found in documents(deploy_directory("optional") / "webhooks.yaml"):
        for webhook in found["webhooks"]:
            webhook["clientConfig"] = {"url": url + webhook["clientConfig"]["service"]["path"]}
        await client.create(CONFIGURATIONS[found["kind"]], found)
    await provide(client, "default", time.time())
