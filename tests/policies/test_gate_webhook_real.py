"""The webhook that sets the gate, as the chart installs it, on a real API server (``DRA_K8S_BIN``)."""

from __future__ import annotations

import asyncio
import socket
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import builders
from manifest_files import documents
from real_apiserver import real_apiserver

from controller.admission import AdmissionConfig, AdmissionServer
from controller.observe.metrics import Metrics
from dra_driver.api.core import NAMESPACES, PODS
from dra_driver.api.names import DEFAULT_DRIVER_NAME, KUBE_SYSTEM, SYSTEM_NAMESPACE
from dra_driver.api.server.admission import MUTATING_WEBHOOKS
from dra_driver.cli.certificates import provide
from dra_driver.kube import KubeApi, SystemClock
from dra_driver.resourceclaim import is_gated
from dra_driver.sim.assets import deploy_directory

SECONDS = 60.0
ASKING = {"requests": {"vendor.example/gpu": "1"}, "limits": {"vendor.example/gpu": "1"}}


def pod(*claims: str, **container: Any) -> dict[str, Any]:
    body: dict[str, Any] = builders.pod("p", *claims, gated=False)
    del body["status"]
    body["metadata"] = {"generateName": "p-"}
    body["spec"]["containers"] = [{"name": "c", "image": "i", **container}]
    return body


WITH_CLAIM, EXTENDED, PLAIN = pod("c"), pod(resources=ASKING), pod()


async def gated(client: KubeApi, body: dict[str, Any], namespace: str) -> bool:
    """Whether a new pod gets the gate; nothing is stored."""
    return is_gated(await client.create(PODS, body, namespace, dry_run=True))


async def seconds(client: KubeApi, body: dict[str, Any]) -> float:
    """The median time that the creation of a pod takes."""
    times = []
    for _ in range(20):
        began = time.monotonic()
        await gated(client, body, "default")
        times.append(time.monotonic() - began)
    return statistics.median(times)


async def installed(client: KubeApi, url: str) -> None:
    for namespace in (SYSTEM_NAMESPACE, "team"):
        await client.create(NAMESPACES, {"metadata": {"name": namespace}})
    for found in documents(deploy_directory("optional") / "webhooks.yaml"):
        if found["kind"] == MUTATING_WEBHOOKS.kind:
            for webhook in found["webhooks"]:
                webhook["clientConfig"] = {"url": url + webhook["clientConfig"]["service"]["path"]}
            await client.create(MUTATING_WEBHOOKS, found)
    await provide(client, SYSTEM_NAMESPACE, time.time())


def test_it_gates_pods_of_every_namespace_while_a_controller_answers_and_no_pod_else(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    config = AdmissionConfig(port=port, host="127.0.0.1", url=f"https://127.0.0.1:{port}")

    async def until(condition: Callable[[], Any]) -> None:
        async with asyncio.timeout(SECONDS):
            while not await condition():
                await asyncio.sleep(0.2)

    async def main() -> None:
        with real_apiserver(tmp_path) as started:
            async with await started.client() as client:
                await installed(client, config.url)
                # As at a first installation: there is no controller yet, and pods of others are created.
                assert not await gated(client, WITH_CLAIM, "team")
                metrics, drivers = Metrics(), (DEFAULT_DRIVER_NAME,)
                server = AdmissionServer(
                    client, SystemClock(), config, SYSTEM_NAMESPACE, drivers, metrics, resources=True
                )
                async with server.serving():
                    assert server.process is not None
                    await server.process.answers.wait()
                    await until(lambda: gated(client, WITH_CLAIM, "team"))
                    for body in (WITH_CLAIM, EXTENDED):
                        assert await gated(client, body, "default")
                    asked = await calls(metrics)
                    for body, namespace in (
                        (PLAIN, "default"),
                        (WITH_CLAIM, KUBE_SYSTEM),
                        (EXTENDED, KUBE_SYSTEM),
                        (WITH_CLAIM, SYSTEM_NAMESPACE),
                    ):
                        assert not await gated(client, body, namespace)
                    assert await calls(metrics) == asked, "they were sent to the webhook"
                    called, other = await seconds(client, WITH_CLAIM), await seconds(client, PLAIN)
                    print(
                        f"creation of a pod {1000 * called:.1f} ms with a call, {1000 * other:.1f} ms without"
                    )
                began = time.monotonic()
                assert not await gated(client, WITH_CLAIM, "default")
                print(f"without a controller {1000 * (time.monotonic() - began):.1f} ms")

    asyncio.run(main())


async def calls(metrics: Metrics) -> float:
    """How many reviews were answered, once the process that answers has told."""
    await asyncio.sleep(2.0)
    samples = [s for metric in metrics.admissions.collect() for s in metric.samples]
    return sum(s.value for s in samples if s.name.endswith("_total"))
