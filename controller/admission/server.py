"""The webhooks: their port, their certificates, and the process that reviews."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Collection
from typing import Final

import structlog

from controller.admission.capacity import follow_capacity
from controller.admission.config import TIMEOUT_SECONDS, AdmissionConfig
from controller.admission.keeper import POLL_SECONDS, CertificateKeeper
from controller.admission.loading import load
from controller.admission.pki import Material
from controller.admission.process import ReviewProcess
from controller.admission.wire import Certificate, Pong, Start
from controller.observe.metrics import Metrics
from dra_driver.api.meta import DriverName
from dra_driver.api.names import RDMA_DRIVER_NAME
from dra_driver.errors import ConfigurationError
from dra_driver.ports import Clock, KubeClient
from dra_driver.serving import listening_sockets

__all__ = ["AdmissionServer"]

log = structlog.get_logger(__name__)

# CPU time of one judgement. Those of the API server take milliseconds.
_CPU_SECONDS: Final = 0.5
# Connections and bodies take 100 MiB at most; the rest is for judging, and for what the allocator keeps.
_MEMORY: Final = 320 << 20
_KINDS: Final = frozenset({"", "other", "ResourceClaim", "ResourceClaimTemplate", "DeviceClass", "Pod"})
_OUTCOMES: Final = frozenset({"allowed", "refused", "gated", "unreadable", "unauthorized", "stopped"})


class AdmissionServer:
    """Serves the webhooks. Every replica does.

    Attributes:
        address: host and port, while it listens.
        keeper: of the certificates.
        process: that reviews, while it listens.
    """

    def __init__(
        self,
        client: KubeClient,
        clock: Clock,
        config: AdmissionConfig,
        namespace: str,
        drivers: Collection[str],
        metrics: Metrics,
        review_seconds: float = float(TIMEOUT_SECONDS),
        *,
        resources: bool = False,
    ) -> None:
        """Connect the parts.

        Args:
            client: with which every replica keeps the certificates, and asks the API server what it keeps,
                whether it leads or not.
            clock: certificates end by it.
            config: where to listen, and how we are reached.
            namespace: of the Service and the Secret.
            drivers: ours; the first is that of the GPUs.
            metrics: of this controller.
            review_seconds: in which a review must be received.
            resources: whether pools may be open: pods get the gate for extended
                resources, too.
        """
        self._client = client
        self._config = config
        self._review_seconds = review_seconds
        self._drivers = tuple(drivers)
        self._resources = resources
        self._metrics = metrics
        self.address: tuple[str, int] | None = None
        self.process: ReviewProcess | None = None
        self.keeper = CertificateKeeper(
            client, clock, namespace, config.secret, config.names(namespace), install=self._install
        )

    def _install(self, material: Material) -> None:
        """Serve another certificate from now on; connections that are open keep theirs.

        Raises:
            ssl.SSLError: it cannot be used; the one before stays.
        """
        certificate = _served(material)
        load(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), certificate)
        if self.process is not None:
            self.process.tell(certificate)
        self._metrics.certificate_expiry.set(material.ends)
        self._metrics.authority_expiry.set(material.authority_ends)

    @contextlib.asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        """Listen, and keep the certificates, for as long as the block runs.

        Until the first certificate is there, connections fail in their handshake.

        Raises:
            ConfigurationError: the port cannot be bound, or the authorities of callers cannot be read.
        """
        authorities = self._config.read_client_authorities()
        listening = await listening_sockets(self._config.host, self._config.port, "--admission-port")
        try:
            name = listening[0].getsockname()
            self.address = (str(name[0]), int(name[1]))
            start = self._start(tuple(one.fileno() for one in listening), authorities)
            self.process = process = ReviewProcess(start, self._counted, self._ended)
            if self.keeper.material is not None:
                process.tell(_served(self.keeper.material))
            log.info("serving admission webhooks", host=self.address[0], port=self.address[1])
            tasks = [
                asyncio.get_running_loop().create_task(work)
                for work in (
                    process.run(),
                    self.keeper.run(),
                    self._follow_authorities(process, start),
                    follow_capacity(self._client, DriverName(self._drivers[0]), process.tell),
                )
            ]
            try:
                yield
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.wait(tasks)
        finally:
            self.address = self.process = None
            for one in listening:
                one.close()

    def _start(self, listening: tuple[int, ...], authorities: str) -> Start:
        # The first, and the NICs', have the backends of this project.
        others = set(self._drivers) - {*self._drivers[:1], RDMA_DRIVER_NAME}
        return Start(
            listening=listening,
            drivers=self._drivers,
            others=tuple(sorted(others)),
            resources=self._resources,
            client_authorities=authorities,
            client_names=self._config.client_names,
            receive_seconds=self._review_seconds,
            cpu_seconds=_CPU_SECONDS,
            memory=_MEMORY,
        )

    async def _follow_authorities(self, process: ReviewProcess, start: Start) -> None:
        """Have other authorities of callers count when the file names others, until cancelled."""
        known = start.client_authorities
        while self._config.client_authorities:
            await asyncio.sleep(POLL_SECONDS)
            try:
                found = await asyncio.to_thread(self._config.read_client_authorities)
            except ConfigurationError as e:
                log.error("those that were read before count", error=str(e))
                continue
            if found != known:
                known = found
                process.begin_anew(self._start(start.listening, found))

    def _counted(self, pong: Pong) -> None:
        """Report what the process has seen; it may name what it likes."""
        for key, number in pong.reviews.items():
            kind, _, outcome = key.partition("/")
            if kind in _KINDS and outcome in _OUTCOMES:
                self._metrics.admissions.labels(kind, outcome).inc(number)
        for refused in pong.refused:
            log.info("object refused", kind=refused.kind, object=refused.object, reason=refused.reason)

    def _ended(self, reason: str) -> None:
        self._metrics.reviewer_restarts.labels(reason).inc()


def _served(material: Material) -> Certificate:
    return Certificate(certificate=material.leaf.decode("ascii"), key=material.leaf_key.decode("ascii"))
