"""The webhooks over real HTTPS, with certificates and configurations kept on the embedded API server."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import io
import json
import ssl
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from manifest_files import documents

from controller.admission import AdmissionConfig, AdmissionServer
from controller.admission.keeper import CertificateKeeper
from controller.admission.pki import CA_LIFE, CA_RENEW, Material, renewed
from controller.config import ControllerConfig
from controller.observe.metrics import Metrics
from dra_driver.api.core import SECRETS
from dra_driver.api.server.admission import MUTATING_WEBHOOKS, VALIDATING_WEBHOOKS
from dra_driver.errors import ConfigurationError
from dra_driver.kube import KubeApi
from dra_driver.sim import assets
from dra_driver.sim.apiserver import ApiServer

NAME, NAMESPACE = "dra-driver-admission", "dra-driver"
DRIVERS = ("gpu.dra-driver.dev",)
CONFIG = AdmissionConfig(port=0, host="127.0.0.1", url="https://127.0.0.1:9443/base/")


class HandClock:
    """Stands still until it is moved."""

    def __init__(self, now: float = 1_800_000_000.0) -> None:
        self.time = now

    def now(self) -> float:
        return self.time

    def monotonic(self) -> float:
        return self.time


@contextlib.asynccontextmanager
async def api_server(tmp_path: Path) -> AsyncIterator[KubeApi]:
    server = ApiServer()
    path = assets.deploy_directory("manifests")
    await server.install(documents(path / "00-namespace.yaml", path / "50-admission.yaml"))
    await server.start()
    try:
        server.write_kubeconfig(tmp_path / "kubeconfig")
        async with await KubeApi.connect(tmp_path / "kubeconfig") as api:
            yield api
    finally:
        await server.stop()


def replica(api: KubeApi, clock: HandClock, config: AdmissionConfig = CONFIG, **more: Any) -> AdmissionServer:
    return AdmissionServer(api, api, clock, config, NAMESPACE, DRIVERS, Metrics(), **more)


async def material(api: KubeApi) -> Material:
    secret = await api.get(SECRETS, NAME, NAMESPACE)
    found = Material.from_secret(secret.data or {})
    assert found is not None
    return found


async def post(
    server: AdmissionServer, path: str, body: bytes, bundle: bytes, **headers: str
) -> tuple[int, bytes]:
    assert server.address is not None
    context = ssl.create_default_context(cadata=bundle.decode())
    url = f"https://127.0.0.1:{server.address[1]}{path}"
    sent = {"Content-Type": "application/json", **headers}
    async with (
        aiohttp.ClientSession() as session,
        session.post(url, data=io.BytesIO(body), headers=sent, ssl=context) as response,
    ):
        return response.status, await response.read()


def claim_review(parameters: object) -> bytes:
    config = [{"opaque": {"driver": DRIVERS[0], "parameters": parameters}}]
    kind = {"group": "resource.k8s.io", "version": "v1", "kind": "ResourceClaim"}
    object_ = {"spec": {"devices": {"config": config}}}
    request = {"uid": "u", "kind": kind, "operation": "CREATE", "object": object_}
    return json.dumps(
        {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}
    ).encode()


def run(scenario: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(asyncio.wait_for(scenario(), 240))


def test_reviews_are_answered_over_https(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with api_server(tmp_path) as api:
            server = replica(api, HandClock(time.time()))
            async with server.serving():
                await server.keeper.changed.wait()
                bundle = (await material(api)).bundle
                status, body = await post(server, "/validate", claim_review({"kind": "X"}), bundle)
                assert (status, json.loads(body)["response"]["allowed"]) == (200, False)
                status, body = await post(server, "/gate", claim_review({}), bundle)
                assert (status, json.loads(body)["response"]["allowed"]) == (200, True)
                assert (await post(server, "/validate", b"{", bundle))[0] == 400
                assert (await post(server, "/validate", b"x" * (5 << 20), bundle))[0] == 413
                assert (await post(server, "/validate", b"{}", bundle, **{"Content-Type": "text/a"}))[
                    0
                ] == 415
                other = renewed(None, {"127.0.0.1"}, time.time(), trusted=False)
                assert other is not None
                # Who trusts another authority does not talk to us.
                with pytest.raises(aiohttp.ClientConnectorCertificateError):
                    await post(server, "/validate", b"{}", other.bundle)
            assert server.address is None

    run(scenario)


async def half_a_review(server: AdmissionServer, bundle: bytes) -> bytes:
    """The answer to a review of which the second half never comes.

    It is empty where the server has closed the connection before it was read: that resets the connection.
    """
    assert server.address is not None
    context = ssl.create_default_context(cadata=bundle.decode())
    reader, writer = await asyncio.open_connection("127.0.0.1", server.address[1], ssl=context)
    head = (
        "POST /validate HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n"
    )
    writer.write(head.encode() + b"{" * 50)
    try:
        return await reader.readline()
    except ConnectionResetError:
        return b""
    finally:
        writer.transport.abort()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


def test_a_review_that_does_not_come_to_its_end_is_answered_in_time(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with api_server(tmp_path) as api:
            server = replica(api, HandClock(time.time()), review_seconds=3.0)
            async with server.serving():
                await server.keeper.changed.wait()
                bundle = (await material(api)).bundle
                halves = [asyncio.create_task(half_a_review(server, bundle)) for _ in range(20)]
                assert (await post(server, "/validate", claim_review({}), bundle))[0] == 200
                for half in halves:
                    assert await half in (b"HTTP/1.1 408 Request Timeout\r\n", b"")

    run(scenario)


def test_a_certificate_that_cannot_be_used_does_not_end_the_keeping(tmp_path: Path) -> None:
    used: list[Material] = []

    def fail_once(material: Material) -> None:
        used.append(material)
        if len(used) == 1:
            raise ssl.SSLError("no such curve")

    async def trusted(_: Material) -> bool:
        return True

    async def scenario() -> None:
        async with api_server(tmp_path) as api:
            clock = HandClock(time.time())
            keeper = CertificateKeeper(
                api, clock, NAMESPACE, CONFIG.names(NAMESPACE), install=fail_once, trusted=trusted
            )
            keeping = asyncio.create_task(keeper.run())
            await keeper.changed.wait()
            keeping.cancel()
            await asyncio.wait([keeping])
            assert len(used) == 2
            assert keeper.material == used[-1]

    run(scenario)


def test_two_replicas_agree_on_one_authority(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with api_server(tmp_path) as api:
            clock = HandClock()
            servers = [replica(api, clock) for _ in range(4)]
            async with contextlib.AsyncExitStack() as stack:
                for server in servers:
                    await stack.enter_async_context(server.serving())
                for server in servers:
                    await server.keeper.changed.wait()
            assert {s.keeper.material for s in servers} == {await material(api)}

    run(scenario)


def test_the_configurations_name_drivers_address_and_authority(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with api_server(tmp_path) as api:
            server = replica(api, HandClock())
            await server.keeper.once()
            made = await material(api)
            assert not await server.registration.trusted(made)
            await server.registration.apply(made)
            assert await server.registration.trusted(made)
            before = await api.get(VALIDATING_WEBHOOKS, NAME)
            await server.registration.apply(made)
            assert await api.get(VALIDATING_WEBHOOKS, NAME) == before  # nothing is written twice
            assert len(before.webhooks or ()) == 4
            assert set(before.bundles().values()) == {base64.b64encode(made.bundle).decode()}
            # The embedded server has policies, so the gate is theirs.
            assert not (await api.get(MUTATING_WEBHOOKS, NAME)).webhooks

    run(scenario)


def test_without_policies_the_webhook_sets_the_gate(tmp_path: Path) -> None:
    class OldServer(KubeApi):
        async def served(self, group: str, version: str) -> frozenset[str]:
            return await super().served(group, version) - {"mutatingadmissionpolicies"}

    async def scenario() -> None:
        async with api_server(tmp_path), await OldServer.connect(tmp_path / "kubeconfig") as api:
            assert "validatingadmissionpolicies" in await api.served("admissionregistration.k8s.io", "v1")
            assert await api.served("admissionregistration.k8s.io", "v9") == frozenset()
            server = replica(api, HandClock(), AdmissionConfig(port=0))
            await server.keeper.once()
            await server.registration.apply(await material(api))
            (gate,) = (await api.get(MUTATING_WEBHOOKS, NAME)).webhooks or ()
            assert gate.name == "gate.admission.dra-driver.dev"
            assert (await material(api)).names == {
                "dra-driver-admission.dra-driver.svc",
                "dra-driver-admission.dra-driver.svc.cluster.local",
            }

    run(scenario)


def test_a_new_authority_comes_without_a_gap_and_without_a_restart(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with api_server(tmp_path) as api:
            # What is served now was made so long ago that the authority is due.
            age = (CA_LIFE - CA_RENEW).total_seconds() - 3600
            clock = HandClock(time.time() - age)
            server = replica(api, clock)
            await server.keeper.once()
            await server.registration.apply(await material(api))
            clock.time = time.time() - 1800
            await server.keeper.once()  # the serving certificate has expired long ago
            first = await material(api)
            async with server.serving():
                while server.keeper.material is None:
                    await asyncio.sleep(0.01)
                assert (await post(server, "/validate", claim_review({}), first.bundle))[0] == 200
                clock.time = time.time() + 3 * 3600  # the authority is due
                await server.keeper.once()
                both = await material(api)
                assert len(both.authorities) == 2
                assert both.leaf == first.leaf
                clock.time += 3600
                await server.keeper.once()  # the configuration does not have it yet: nothing moves
                assert (await material(api)) == both
                await server.registration.apply(both)
                await server.keeper.once()
                rolled = await material(api)
                assert rolled.issuer == both.authorities[0]
                assert rolled.bundle == both.bundle

    run(scenario)


def test_a_taken_port_and_wrong_flags_are_named(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with api_server(tmp_path) as api:
            taken = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
            port = taken.sockets[0].getsockname()[1]
            server = replica(api, HandClock(), AdmissionConfig(port=port, host="127.0.0.1"))
            with pytest.raises(ConfigurationError, match=f"--admission-port.*{port}"):
                async with server.serving():
                    pass
            taken.close()
            await taken.wait_closed()

    run(scenario)
    with pytest.raises(ConfigurationError) as caught:
        ControllerConfig(
            admission=AdmissionConfig(port=-1, service="A_b", service_port=0, url="http://x/?q#f")
        )
    assert len(caught.value.findings) == 4
