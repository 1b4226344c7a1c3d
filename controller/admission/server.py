"""HTTPS for the API server's AdmissionReviews."""

from __future__ import annotations

import asyncio
import contextlib
import os
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Coroutine, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Final

import structlog
from aiohttp import web

from controller.admission.config import TIMEOUT_SECONDS, AdmissionConfig
from controller.admission.keeper import CertificateKeeper
from controller.admission.pki import Material
from controller.admission.registration import CAPACITY_PATH, GATE_PATH, VALIDATE_PATH, Registration
from controller.admission.review import Judgement, gate, judge, read_review, refuse_capacity, write_review
from controller.observe.metrics import Metrics
from dra_driver.api.meta import DriverName
from dra_driver.api.names import RDMA_DRIVER_NAME
from dra_driver.api.own.kinds import BackendParameters
from dra_driver.api.server.admission import AdmissionRequest
from dra_driver.errors import DecodeError
from dra_driver.kube.features import drops_capacity
from dra_driver.ports import Clock, KubeClient
from dra_driver.serving import Limits, Port, serve

__all__ = ["AdmissionServer"]

log = structlog.get_logger(__name__)

# The API server stores at most 1.5 MiB in one object; a review carries two at most. What is being received at
# a time is bounded to 32 MiB, whoever sends it.
LIMITS: Final = Limits(request_bytes=4 << 20, body_bytes=32 << 20)


class AdmissionServer:
    """Serves the webhooks. Every replica does; only the leader registers them.

    Attributes:
        address: host and port, while it listens.
        keeper: of the certificates.
        registration: with the API server.
    """

    def __init__(
        self,
        client: KubeClient,
        leader_client: KubeClient,
        clock: Clock,
        config: AdmissionConfig,
        namespace: str,
        drivers: Collection[str],
        metrics: Metrics,
        review_seconds: float = float(TIMEOUT_SECONDS),
        *,
        lends: bool = False,
        kinds: Mapping[tuple[str, str], type[BackendParameters]] | None = None,
    ) -> None:
        """Connect the parts.

        Args:
            client: with which every replica keeps the certificates, whether it leads or not.
            leader_client: with which the leader registers the webhooks.
            clock: certificates end by it.
            config: where to listen, and how we are reached.
            namespace: of the Service and the Secret.
            drivers: ours; the first is that of the GPUs.
            metrics: of this controller.
            review_seconds: in which a review must be received and judged.
            lends: whether devices are lent to kube-scheduler.
            kinds: opaque parameters that installed backends of third parties understand.
        """
        self._config = config
        self._review_seconds = review_seconds
        self._drivers = frozenset(drivers)
        self._lends = lends
        # The first, and the NICs', have the backends of this project.
        self._others = self._drivers - {*tuple(drivers)[:1], RDMA_DRIVER_NAME}
        self._kinds = dict(kinds or {})
        self._metrics = metrics
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.minimum_version = ssl.TLSVersion.TLSv1_2
        self.address: tuple[str, int] | None = None
        self._driver = DriverName(next(iter(drivers)))
        self.registration = Registration(
            leader_client,
            config,
            namespace,
            drivers,
            drops_capacity=partial(drops_capacity, leader_client, self._driver),
            lends=lends,
        )
        self.keeper = CertificateKeeper(
            client,
            clock,
            namespace,
            config.names(namespace),
            install=self._install,
            trusted=self.registration.trusted,
        )

    def _install(self, material: Material) -> None:
        """Serve another certificate from now on; connections that are open keep theirs."""
        with _as_file(material.leaf) as certificate, _as_file(material.leaf_key) as key:
            self._context.load_cert_chain(certificate, key)
        self._metrics.certificate_expiry.set(material.ends)

    @contextlib.asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        """Listen, and keep the certificates, for as long as the block runs.

        Until the first certificate is there, connections fail in their handshake.

        Raises:
            ConfigurationError: the port cannot be bound.
        """
        host, number = self._config.host, self._config.port
        limits = replace(LIMITS, body=self._review_seconds + 5)
        async with serve(
            host, number, self._app, flag="--admission-port", limits=limits, context=self._context
        ) as port:
            self.address = port.address
            log.info("serving admission webhooks", host=port.address[0], port=port.address[1])
            try:
                async with _background(self.keeper.run()):
                    yield
            finally:
                self.address = None

    def _app(self, port: Port) -> web.Application:
        app = web.Application(middlewares=[port.middleware], client_max_size=LIMITS.request_bytes)
        validate = self._handler(port, self._judge)
        app.router.add_post(VALIDATE_PATH, validate)
        refuse = self._handler(port, lambda r: refuse_capacity(r, self._driver))
        app.router.add_post(CAPACITY_PATH, refuse)
        app.router.add_post(GATE_PATH, self._handler(port, lambda r: gate(r, lends=self._lends)))
        return app

    def _judge(self, request: AdmissionRequest) -> Judgement:
        return judge(request, self._drivers, kinds=self._kinds, others=self._others)

    def _handler(
        self, port: Port, decide: Callable[[AdmissionRequest], Judgement]
    ) -> Callable[[web.Request], Awaitable[web.Response]]:
        async def handle(http: web.Request) -> web.Response:
            if http.content_type != "application/json":
                return web.Response(status=415, text="expected application/json\n")
            try:
                async with asyncio.timeout(self._review_seconds):
                    body = await port.body(http)
                request = read_review(body)
                judgement = decide(request)
            except TimeoutError:
                return web.Response(status=408, text=f"no review within {self._review_seconds:g} s\n")
            except DecodeError as e:
                self._metrics.admissions.labels("", "unreadable").inc()
                return web.Response(status=400, text=f"{str(e)[:500]}\n")
            self._metrics.admissions.labels(_known(request.kind.kind), judgement.outcome).inc()
            if judgement.outcome == "refused":
                status = judgement.response.status
                log.info(
                    "object refused",
                    kind=request.kind.kind,
                    object=f"{request.namespace}/{request.name}"[:320],
                    reason=status.message[:1000] if status is not None else "",
                )
            return web.Response(body=write_review(judgement.response), content_type="application/json")

        return handle


def _known(kind: str) -> str:
    """Return a bounded value for a label, whatever was sent."""
    return kind if kind in ("ResourceClaim", "ResourceClaimTemplate", "DeviceClass", "Pod") else "other"


@contextlib.asynccontextmanager
async def _background(work: Coroutine[object, object, None]) -> AsyncIterator[None]:
    task = asyncio.get_running_loop().create_task(work)
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


@contextlib.contextmanager
def _as_file(content: bytes) -> Iterator[str]:
    """Yield a path to read the content from: OpenSSL's binding wants files, keys belong on no disk."""
    descriptor = os.memfd_create("dra-driver-admission")
    try:
        os.write(descriptor, content)
        yield f"/proc/self/fd/{descriptor}"
    finally:
        os.close(descriptor)
