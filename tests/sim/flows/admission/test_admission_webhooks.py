"""The webhooks over real HTTPS, with certificates kept on the embedded API server."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import os
import signal
import socket
import ssl
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from connecting import client_certificate
from manifest_files import documents

from controller.admission import AdmissionConfig, AdmissionServer
from controller.admission.config import CAPACITY_CONFIGURATION
from controller.admission.keeper import CertificateKeeper
from controller.admission.pki import LEAF_LIFE, LEAF_RENEW, Material, signed, with_new_authority
from controller.config import ControllerConfig
from controller.observe.metrics import Metrics
from dra_driver.api.core import SECRETS
from dra_driver.api.resource import RESOURCE_CLAIMS
from dra_driver.api.server.admission import MUTATING_WEBHOOKS, VALIDATING_WEBHOOKS
from dra_driver.cli.certificates import provide
from dra_driver.errors import ApiError, ConfigurationError, Invalid, InvalidInput
from dra_driver.kube import KubeApi
from dra_driver.sim import assets
from dra_driver.sim.apiserver import ApiServer

NAME, NAMESPACE = "dra-driver-admission", "dra-driver"
DRIVERS = ("gpu.dra-driver.dev",)
CONFIG = AdmissionConfig(port=0, host="127.0.0.1", url="https://127.0.0.1:9443/base/")
DAY = 86400.0


class HandClock:
    """Stands still until it is moved."""

    def __init__(self, now: float = 1_800_000_000.0) -> None:
        self.time = now

    def now(self) -> float:
        return self.time

    def monotonic(self) -> float:
        return self.time


@contextlib.asynccontextmanager
async def api_server(tmp_path: Path, *, webhooks: bool = False, port: int = 9) -> AsyncIterator[KubeApi]:
    server = ApiServer(services={f"{NAMESPACE}/{NAME}": f"127.0.0.1:{port}"})
    path = assets.deploy_directory("manifests")
    files = [path / "00-namespace.yaml", path / "50-admission.yaml"]
    if webhooks:
        files.append(assets.deploy_directory("optional") / "webhooks.yaml")
    await server.install(documents(*files))
    await server.start()
    try:
        server.write_kubeconfig(tmp_path / "kubeconfig")
        async with await KubeApi.connect(tmp_path / "kubeconfig") as api:
            yield api
    finally:
        await server.stop()


def replica(api: KubeApi, clock: HandClock, config: AdmissionConfig = CONFIG, **more: Any) -> AdmissionServer:
    return AdmissionServer(api, clock, config, NAMESPACE, DRIVERS, Metrics(), **more)


@contextlib.asynccontextmanager
async def serving(server: AdmissionServer) -> AsyncIterator[None]:
    """Serve, from when the process answers that has the certificate."""
    async with server.serving():
        while server.keeper.material is None:
            await asyncio.sleep(0.01)
        assert server.process is not None
        await server.process.answers.wait()
        yield


async def material(api: KubeApi) -> Material:
    secret = await api.get(SECRETS, NAME, NAMESPACE)
    found = Material.from_secret(secret.data or {})
    assert found is not None
    return found


@contextlib.asynccontextmanager
async def served(tmp_path: Path, **more: Any) -> AsyncIterator[tuple[AdmissionServer, bytes]]:
    """Serve with certificates that an administrator has made; yield whom callers trust."""
    async with api_server(tmp_path) as api:
        await provide(api, NAMESPACE, time.time())
        server = replica(api, HandClock(time.time()), **more)
        async with serving(server):
            yield server, (await material(api)).bundle
        assert server.address is None


async def store(api: KubeApi, data: Mapping[str, str], name: str = NAME) -> None:
    body = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "data": dict(data)}
    await api.apply(SECRETS, {**body, "metadata": {"name": name, "namespace": NAMESPACE}}, field_manager="x")


async def post(
    server: AdmissionServer,
    path: str,
    body: bytes,
    bundle: bytes,
    certificate: tuple[bytes, bytes] | None = None,
    content_type: str = "application/json",
) -> tuple[int, bytes]:
    assert server.address is not None
    context = ssl.create_default_context(cadata=bundle.decode())
    if certificate is not None:
        with tempfile.NamedTemporaryFile() as file:
            file.write(b"".join(certificate))
            file.flush()
            context.load_cert_chain(file.name)
    url = f"https://127.0.0.1:{server.address[1]}{path}"
    sent = {"Content-Type": content_type}
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
        async with served(tmp_path) as (server, bundle):
            status, body = await post(server, "/validate", claim_review({"kind": "X"}), bundle)
            assert (status, json.loads(body)["response"]["allowed"]) == (200, False)
            status, body = await post(server, "/gate", claim_review({}), bundle)
            assert (status, json.loads(body)["response"]["allowed"]) == (200, True)
            assert (await post(server, "/validate", b"{", bundle))[0] == 400
            # The answer may come before all is sent, and then the client sees a broken connection.
            with contextlib.suppress(aiohttp.ClientOSError):
                assert (await post(server, "/validate", b"x" * (5 << 20), bundle))[0] == 413
            assert (await post(server, "/validate", b"{}", bundle, content_type="text/a"))[0] == 415
            other = with_new_authority(None, time.time())
            # Who trusts another authority does not talk to us.
            with pytest.raises(aiohttp.ClientConnectorCertificateError):
                await post(server, "/validate", b"{}", other.bundle)

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
        async with served(tmp_path, review_seconds=3.0) as (server, bundle):
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

    async def scenario() -> None:
        async with api_server(tmp_path) as api:
            clock = HandClock(time.time())
            await provide(api, NAMESPACE, clock.time)
            keeper = CertificateKeeper(
                api, clock, NAMESPACE, NAME, CONFIG.names(NAMESPACE), install=fail_once
            )
            keeping = asyncio.create_task(keeper.run())
            await keeper.changed.wait()
            keeping.cancel()
            await asyncio.wait([keeping])
            assert len(used) == 2
            assert keeper.material == used[-1]

    run(scenario)


def test_replicas_agree_on_one_certificate_and_never_write_the_authority(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with api_server(tmp_path) as api:
            clock = HandClock()
            await provide(api, NAMESPACE, clock.time)
            authorities = (await material(api)).authorities_to_secret()
            servers = [replica(api, clock) for _ in range(4)]
            keeping = [asyncio.create_task(server.keeper.run()) for server in servers]
            for server in servers:
                await server.keeper.changed.wait()
            for task in keeping:
                task.cancel()
            await asyncio.wait(keeping)
            while {s.keeper.material for s in servers} != {await material(api)}:
                for server in servers:
                    await server.keeper.once()
            assert (await material(api)).authorities_to_secret() == authorities

    run(scenario)


def test_without_an_authority_nothing_is_served_nor_written(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with api_server(tmp_path) as api:
            server = replica(api, HandClock())
            before = await api.get(SECRETS, NAME, NAMESPACE)
            await server.keeper.once()
            assert server.keeper.material is None
            assert await api.get(SECRETS, NAME, NAMESPACE) == before
            await api.delete(SECRETS, NAME, NAMESPACE)
            await server.keeper.once()
            assert server.keeper.material is None

    run(scenario)


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port


def test_the_plain_manifests_need_one_command_of_the_administrator(tmp_path: Path) -> None:
    port = free_port()

    async def scenario() -> None:
        async with api_server(tmp_path, webhooks=True, port=port) as api:
            server = replica(api, HandClock(time.time()), AdmissionConfig(port=port, host="127.0.0.1"))
            async with server.serving():
                # Without it the webhooks fail open.
                await api.create(RESOURCE_CLAIMS, wrong_claim("before"), "default")
                done = await provide(api, NAMESPACE, time.time())
                assert "ValidatingWebhookConfiguration dra-driver-admission: authorities written" in done
                await server.keeper.once()
                assert server.process is not None
                await server.process.answers.wait()
                with pytest.raises(Invalid, match=r"sharing\.strategy"):
                    await api.create(RESOURCE_CLAIMS, wrong_claim("after"), "default")
                # Again: nothing is written twice.
                before = await api.get(VALIDATING_WEBHOOKS, NAME), await api.get(SECRETS, NAME, NAMESPACE)
                assert any("unchanged" in text for text in await provide(api, NAMESPACE, time.time()))
                assert before == (
                    await api.get(VALIDATING_WEBHOOKS, NAME),
                    await api.get(SECRETS, NAME, NAMESPACE),
                )
                # Another one beside it: there is no moment without.
                old = await material(api)
                await provide(api, NAMESPACE, time.time() + 3400 * DAY)
                both = await material(api)
                assert both.authorities[1:] == old.authorities
                with pytest.raises(Invalid):
                    await api.create(RESOURCE_CLAIMS, wrong_claim("both"), "default")
                # In its place, after the key has leaked.
                await provide(api, NAMESPACE, time.time(), renew=True)
                assert old.authorities[0] not in (await material(api)).authorities
                await server.keeper.once()
                await asyncio.sleep(1.5)  # the process is sent the certificate
                with pytest.raises(Invalid):
                    await api.create(RESOURCE_CLAIMS, wrong_claim("renewed"), "default")

    run(scenario)


def test_what_asks_for_capacity_is_refused_until_the_command_has_run(tmp_path: Path) -> None:
    """Then as long as the API server drops it, which the embedded one does not."""
    port = free_port()

    async def scenario() -> None:
        async with api_server(tmp_path, port=port) as api:
            (body,) = documents(assets.deploy_directory("optional") / "refuse-dropped-capacity.yaml")
            await api.create(MUTATING_WEBHOOKS, body)
            server = replica(api, HandClock(time.time()), AdmissionConfig(port=port, host="127.0.0.1"))
            async with server.serving():
                with pytest.raises(ApiError, match=r"capacity\.admission\.dra-driver\.dev"):
                    await api.create(RESOURCE_CLAIMS, big_claim("before"), "default")
                done = await provide(api, NAMESPACE, time.time())
                assert f"MutatingWebhookConfiguration {CAPACITY_CONFIGURATION}: authorities written" in done
                await server.keeper.once()
                assert server.process is not None
                await server.process.answers.wait()
                await api.create(RESOURCE_CLAIMS, big_claim("after"), "default")

    run(scenario)


def big_claim(name: str) -> dict[str, Any]:
    exactly = {"deviceClassName": "any", "capacity": {"requests": {"memory": "32Gi"}}}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"devices": {"requests": [{"name": "r", "exactly": exactly}]}},
    }


def wrong_claim(name: str) -> dict[str, Any]:
    parameters = {
        "apiVersion": "dra-driver.dev/v1alpha1",
        "kind": "GpuConfig",
        "sharing": {"strategy": "Sometimes"},
    }
    config = [{"opaque": {"driver": DRIVERS[0], "parameters": parameters}}]
    requests = [{"name": "r", "exactly": {"deviceClassName": "any"}}]
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"devices": {"config": config, "requests": requests}},
    }


def test_the_command_says_what_is_missing_and_leaves_what_others_make(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with api_server(tmp_path) as api:
            await api.delete(SECRETS, NAME, NAMESPACE)
            done = await provide(api, NAMESPACE, time.time())
            assert any("deploy/optional/webhooks.yaml" in text for text in done)
            assert (await material(api)).authority_key
            finished = signed(await material(api), {"127.0.0.1"}, time.time())
            assert finished is not None
            await api.delete(SECRETS, NAME, NAMESPACE)
            await store(api, finished.leaf_to_secret())
            with pytest.raises(InvalidInput, match="made elsewhere"):
                await provide(api, NAMESPACE, time.time())

    run(scenario)


def test_what_the_version_before_has_installed_goes_on(tmp_path: Path) -> None:
    """Its controller made an authority of a year and wrote it into the configurations, as their manager."""
    port = free_port()

    async def scenario() -> None:
        async with api_server(tmp_path, webhooks=True, port=port) as api:
            now = time.time() - 1200  # no certificate is of the future
            config = AdmissionConfig(port=port, host="127.0.0.1")
            made = signed(with_new_authority(None, now - 3400 * DAY), config.names(NAMESPACE), now)
            assert made is not None
            await store(api, made.to_secret())
            for resource in (VALIDATING_WEBHOOKS, MUTATING_WEBHOOKS):
                await api.apply(
                    resource, by_the_version_before(resource.kind, made), field_manager=NAME, force=True
                )
            server = replica(api, HandClock(now), config)
            async with serving(server):
                with pytest.raises(Invalid):
                    await api.create(RESOURCE_CLAIMS, wrong_claim("old"), "default")
                assert (await material(api)) == made  # nothing is written
                done = await provide(api, NAMESPACE, now)
                assert sum("authorities written" in text for text in done) == 2
                for resource in (VALIDATING_WEBHOOKS, MUTATING_WEBHOOKS):
                    found = await api.get(resource, NAME)
                    assert set(found.bundles().values()) == {(await material(api)).to_secret()["ca.crt"]}
                    assert all(w.match_conditions for w in found.webhooks or ())
                with pytest.raises(Invalid):
                    await api.create(RESOURCE_CLAIMS, wrong_claim("both"), "default")
                server.keeper._clock.time = now + 900  # type: ignore[attr-defined]
                await server.keeper.once()
                rolled = await material(api)
                assert rolled.issuer == rolled.authorities[0]
                assert rolled.issuer != made.issuer
                await asyncio.sleep(1.5)
                with pytest.raises(Invalid):
                    await api.create(RESOURCE_CLAIMS, wrong_claim("new"), "default")

    run(scenario)


def by_the_version_before(kind: str, made: Material) -> dict[str, Any]:
    service = {"name": NAME, "namespace": NAMESPACE, "port": 443, "path": "/validate"}
    rule = {"apiVersions": ["v1"], "operations": ["CREATE"], "scope": "*"}
    gates = kind == "MutatingWebhookConfiguration"
    webhook = {
        "name": "gate.admission.dra-driver.dev" if gates else "resourceclaims.admission.dra-driver.dev",
        "clientConfig": {
            "service": {**service, "path": "/gate"} if gates else service,
            "caBundle": made.to_secret()["ca.crt"],
        },
        "admissionReviewVersions": ["v1"],
        "failurePolicy": "Ignore",
        "sideEffects": "None",
        "rules": [
            {**rule, "apiGroups": [""], "resources": ["pods"]}
            if gates
            else {**rule, "apiGroups": ["resource.k8s.io"], "resources": ["resourceclaims"]}
        ],
        "matchConditions": [{"name": "any", "expression": "true"}],
    }
    return {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": kind,
        "metadata": {"name": NAME},
        "webhooks": [webhook],
    }


def served_until(server: AdmissionServer, bundle: bytes) -> float:
    """When the certificate ends that is served."""
    assert server.address is not None
    context = ssl.create_default_context(cadata=bundle.decode())
    context.check_hostname = False
    with (
        socket.create_connection(server.address) as plain,
        context.wrap_socket(plain) as secure,
    ):
        shown = secure.getpeercert()
        assert shown is not None
        return ssl.cert_time_to_seconds(str(shown["notAfter"]))


def test_the_serving_certificate_is_renewed_without_a_gap_and_without_a_restart(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with api_server(tmp_path) as api:
            # What is served now was made so long ago that it is due in a moment.
            clock = HandClock(time.time() - (LEAF_LIFE - LEAF_RENEW).total_seconds() - 60)
            await provide(api, NAMESPACE, clock.time)
            server = replica(api, clock)
            async with serving(server):
                bundle = (await material(api)).bundle
                assert server.process is not None
                process = server.process.pid
                first = await asyncio.to_thread(served_until, server, bundle)
                answered: list[int] = []

                async def ask() -> None:
                    while True:
                        answered.append((await post(server, "/validate", claim_review({}), bundle))[0])

                asking = asyncio.create_task(ask())
                clock.time = time.time()
                await server.keeper.once()
                while await asyncio.to_thread(served_until, server, bundle) == first:
                    await asyncio.sleep(0.05)
                seen = len(answered)
                while len(answered) < seen + 5:
                    await asyncio.sleep(0.01)
                asking.cancel()
                assert set(answered) == {200}
                assert server.process.pid == process

    run(scenario)


def test_certificates_that_cert_manager_makes_are_served_as_they_come(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with api_server(tmp_path) as api:
            now = time.time()
            authority = with_new_authority(None, now)
            config = AdmissionConfig(port=0, host="127.0.0.1", secret="of-cert-manager")
            server = replica(api, HandClock(now), config)

            async def made(since: float) -> None:
                finished = signed(authority, {"127.0.0.1"}, since)
                assert finished is not None
                data = {"ca.crt": finished.to_secret()["ca.crt"], **finished.leaf_to_secret()}
                await store(api, data, "of-cert-manager")

            await made(now - 10 * DAY)
            before = await api.get(SECRETS, "of-cert-manager", NAMESPACE)
            async with serving(server):
                first = await asyncio.to_thread(served_until, server, authority.bundle)
                assert (await post(server, "/validate", claim_review({}), authority.bundle))[0] == 200
                assert await api.get(SECRETS, "of-cert-manager", NAMESPACE) == before
                await made(now)
                await server.keeper.once()
                while await asyncio.to_thread(served_until, server, authority.bundle) == first:
                    await asyncio.sleep(0.05)

    run(scenario)


# --- the process that reviews -------------------------------------------------------------------------------


def ends(server: AdmissionServer) -> dict[str, float]:
    counted = server._metrics.reviewer_restarts
    return {
        s.labels["reason"]: s.value for m in counted.collect() for s in m.samples if s.name.endswith("_total")
    }


@pytest.mark.parametrize(
    ("how", "reason"),
    [(signal.SIGKILL, "ended"), pytest.param(signal.SIGSTOP, "hangs", marks=pytest.mark.long)],
)
def test_a_process_that_is_killed_or_hangs_is_replaced_and_told(
    tmp_path: Path, how: signal.Signals, reason: str
) -> None:
    async def scenario() -> None:
        async with served(tmp_path) as (server, bundle):
            assert server.process is not None
            os.kill(server.process.pid, how)
            # Meanwhile connections wait, and are answered by the next one.
            assert (await post(server, "/validate", claim_review({}), bundle))[0] == 200
            assert ends(server) == {reason: 1.0}

    run(scenario)


def test_a_process_that_replaces_another_knows_whether_capacity_is_kept(tmp_path: Path) -> None:
    """The embedded API server keeps it."""

    async def scenario() -> None:
        async with served(tmp_path) as (server, bundle):
            killed = 0
            assert server.process is not None
            for _ in range(2):
                while server.process.pid in (0, killed):
                    await asyncio.sleep(0.05)
                allowed = False
                while not allowed:
                    status, body = await post(server, "/capacity", claim_review({}), bundle)
                    answer = json.loads(body)["response"] if status == 200 else {}
                    allowed = answer.get("allowed", False)
                    assert allowed or answer.get("status", {}).get("code", 503) == 503
                    await asyncio.sleep(0.05)
                killed = server.process.pid
                os.kill(killed, signal.SIGKILL)

    run(scenario)


def test_reviews_and_refusals_are_counted_by_the_controller(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with served(tmp_path) as (server, bundle):
            await post(server, "/validate", claim_review({"kind": "X"}), bundle)
            await post(server, "/validate", b"{", bundle)
            counted = server._metrics.admissions
            while counted.labels("", "unreadable")._value.get() < 1:
                await asyncio.sleep(0.05)
            assert counted.labels("ResourceClaim", "refused")._value.get() == 1

    run(scenario)


def test_only_callers_with_a_certificate_of_the_api_servers_are_answered(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with api_server(tmp_path) as api:
            now = time.time()
            await provide(api, NAMESPACE, now)
            theirs, other = with_new_authority(None, now), with_new_authority(None, now)
            authorities = tmp_path / "clients.crt"
            authorities.write_bytes(theirs.bundle)
            config = AdmissionConfig(
                port=0,
                host="127.0.0.1",
                url=CONFIG.url,
                client_authorities=authorities,
                client_names=("kube-apiserver",),
            )
            server = replica(api, HandClock(now), config)
            async with serving(server):
                bundle = (await material(api)).bundle

                async def asked(certificate: tuple[bytes, bytes] | None) -> int:
                    return (await post(server, "/validate", claim_review({}), bundle, certificate))[0]

                assert await asked(client_certificate(theirs, "kube-apiserver")) == 200
                assert await asked(client_certificate(theirs, "kubelet")) == 403
                for stranger in (None, client_certificate(other, "kube-apiserver")):
                    with pytest.raises((aiohttp.ClientError, ssl.SSLError, ConnectionError)):
                        await asked(stranger)
                assert await asked(client_certificate(theirs, "kube-apiserver")) == 200

    run(scenario)


def test_without_the_authorities_of_callers_nothing_is_served(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with api_server(tmp_path) as api:
            for content in (None, b"", b"hello"):
                file = tmp_path / "clients.crt"
                if content is not None:
                    file.write_bytes(content)
                config = AdmissionConfig(port=0, host="127.0.0.1", client_authorities=file)
                with pytest.raises(ConfigurationError, match="--admission-client-ca"):
                    async with replica(api, HandClock(), config).serving():
                        pass

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
            admission=AdmissionConfig(
                port=-1, service="A_b", secret="A_b", url="http://x/?q#f", client_names=("x",)
            )
        )
    assert len(caught.value.findings) == 5
