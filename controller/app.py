"""Puts the controller together and runs it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Any

import structlog
from aiohttp import web

from controller.admission import AdmissionServer
from controller.allocate.doubles import HELD_INDEX, DoubleAllocations, pools_held
from controller.allocate.gangs import GROUP_INDEX, groups_of
from controller.allocate.loop import CLAIM_INDEX, Allocator, claims_of
from controller.allocate.taint_rules import informer_of_rules, until_rules_are_known
from controller.config import ControllerConfig
from controller.observe.metrics import CONTENT_TYPE, MeteredClient, Metrics
from controller.observe.node_labels import NodeLabeler
from controller.observe.tracing import tracing
from controller.publish.device_plugins import DevicePlugins
from controller.publish.freeze import FrozenPools
from controller.publish.handover import Handover, Tolerators
from controller.publish.policies import PolicyBook
from controller.publish.publisher import POOL_INDEX, Publisher, pool_of
from controller.web import Feed
from controller.web import serve as serve_page
from dra_driver.api.core import NODES, PODS, Node, Pod
from dra_driver.api.inventory import DEVICE_INVENTORIES, DeviceInventory
from dra_driver.api.policy import DEVICE_POLICIES, DevicePolicy
from dra_driver.api.resource import (
    DEVICE_CLASSES,
    RESOURCE_CLAIM_TEMPLATES,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    DeviceClass,
    DeviceTaintRule,
    ResourceClaim,
    ResourceClaimTemplate,
    ResourceSlice,
)
from dra_driver.errors import ConfigurationError, DraError, NotFound
from dra_driver.kube import (
    Backoff,
    EventRecorder,
    FencedClient,
    Informer,
    LeaderConfig,
    LeaderElector,
    SystemClock,
)
from dra_driver.ownership import PoolID, refusal_of
from dra_driver.ports import Clock, KubeClient
from dra_driver.publishing import LeavingPlugins
from dra_driver.structured import PoolPolicy

__all__ = ["Controller"]

log = structlog.get_logger(__name__)

LEASE = "dra-driver-controller"


@dataclass(frozen=True, slots=True)
class Informers:
    """Everything that the controller watches."""

    inventories: Informer[DeviceInventory]
    policies: Informer[DevicePolicy]
    slices: Informer[ResourceSlice]
    nodes: Informer[Node]
    classes: Informer[DeviceClass]
    claims: Informer[ResourceClaim]
    templates: Informer[ResourceClaimTemplate]
    pods: Informer[Pod]
    taint_rules: Informer[DeviceTaintRule] | None = None

    @classmethod
    def of(cls, client: KubeClient, taint_rules: Informer[DeviceTaintRule] | None = None) -> Informers:
        """Not started yet."""
        return cls(
            inventories=Informer(client, DEVICE_INVENTORIES),
            policies=Informer(client, DEVICE_POLICIES),
            slices=Informer(client, RESOURCE_SLICES, indices={POOL_INDEX: pool_of}),
            nodes=Informer(client, NODES),
            classes=Informer(client, DEVICE_CLASSES),
            claims=Informer(
                client, RESOURCE_CLAIMS, indices={GROUP_INDEX: groups_of, HELD_INDEX: pools_held}
            ),
            templates=Informer(client, RESOURCE_CLAIM_TEMPLATES),
            pods=Informer(client, PODS, indices={CLAIM_INDEX: claims_of, GROUP_INDEX: groups_of}),
            taint_rules=taint_rules,
        )

    def all(self) -> tuple[Informer[Any], ...]:
        """All of them."""
        optional = (self.policies,) if self.taint_rules is None else (self.policies, self.taint_rules)
        return (*self.needed(), *optional)

    def needed(self) -> tuple[Informer[Any], ...]:
        """Those that must be filled before anything is decided.

        Policies may be missing altogether: a cluster where their CRD is not installed (yet) has none.
        """
        return (
            self.inventories,
            self.slices,
            self.nodes,
            self.classes,
            self.claims,
            self.templates,
            self.pods,
        )


@dataclass(frozen=True, slots=True)
class _Parts:
    """The loops, connected."""

    publisher: Publisher
    policies: PolicyBook
    allocator: Allocator
    doubles: DoubleAllocations
    labeler: NodeLabeler

    @classmethod
    def of(
        cls,
        client: KubeClient,
        config: ControllerConfig,
        clock: Clock,
        recorder: EventRecorder,
        informers: Informers,
        metrics: Metrics,
    ) -> _Parts:
        def pool_changed(pool: PoolID) -> None:
            allocator.pool_changed(pool)
            doubles.queue.add(pool)

        policies = PolicyBook(
            client,
            clock,
            recorder,
            informers.policies,
            timings=config.timings,
            default=PoolPolicy(config.strategy, config.node_policy),
            rule_changed=lambda pool: allocator.pool_changed(pool),  # noqa: PLW0108 - made below
        )
        tolerators = Tolerators(
            config.drivers,
            informers.claims,
            informers.classes,
            changed=lambda: publisher.all_again(),  # noqa: PLW0108 - made below
            templates=informers.templates,
            recorder=recorder,
        )
        metrics.watch_tolerating_claims(tolerators.count)
        handover = Handover(
            client,
            clock,
            informers.inventories,
            tolerators,
            assume_cache=lambda: allocator.assume_cache,
            changed=pool_changed,
            timings=config.timings,
        )
        frozen = FrozenPools(pool_changed)
        publisher = Publisher(
            client,
            config,
            clock,
            recorder,
            inventories=informers.inventories,
            slices=informers.slices,
            nodes=informers.nodes,
            policies=policies,
            handover=handover,
            taken=lambda pool: allocator.assume_cache.allocated().pool(pool),
            frozen=frozen,
            device_plugins=DevicePlugins(
                informers.classes,
                LeavingPlugins(clock),
                changed=lambda: publisher.all_again(),  # noqa: PLW0108 - made here
            ),
        )
        allocator = Allocator(
            client,
            config,
            clock,
            recorder,
            lambda: publisher.allocator,
            pods=informers.pods,
            claims=informers.claims,
            slices=informers.slices,
            classes=informers.classes,
            nodes=informers.nodes,
            inventories=informers.inventories,
            taint_rules=informers.taint_rules,
            blocked=lambda pool: pool in frozen or handover.blocked(pool),
            rule=policies.rule,
            metrics=metrics,
            released=publisher.pending_again,
        )
        doubles = DoubleAllocations(
            config.drivers,
            allocator.assume_cache,
            recorder,
            claims=informers.claims,
            slices_of=lambda pool: informers.slices.by_index(POOL_INDEX, pool),
            is_ours=allocator.is_ours,
            take_back=allocator.take_back,
        )
        metrics.watch_double_allocations(doubles.count)
        for queue in (publisher.queue, policies.queue, allocator.queue, allocator.unused, doubles.queue):
            metrics.watch_queue(queue.name, queue.__len__)
        labeler = NodeLabeler(
            client,
            config.drivers,
            config.node_labels,
            lambda inventory, node: not refusal_of(inventory, node),
            inventories=informers.inventories,
            nodes=informers.nodes,
        )
        metrics.watch_queue(labeler.queue.name, labeler.queue.__len__)
        return cls(publisher, policies, allocator, doubles, labeler)

    def close(self) -> None:
        """Cancels timers."""
        self.publisher.queue.close()
        self.policies.queue.close()
        self.labeler.queue.close()
        self.allocator.close()
        self.doubles.queue.close()


class Controller:
    """The controller in one object. ``run`` ends when it is cancelled, or raises when the lease is lost.

    Attributes:
        ready: set while it works: caches are filled and the loops run.
        health_address: host and port, while health is served.
        web_address: host and port, while the page is served.
        admission: the webhooks; None: not served.
        metrics: of this controller.
    """

    def __init__(
        self,
        client: KubeClient,
        config: ControllerConfig,
        clock: Clock | None = None,
        *,
        election: LeaderConfig | None = None,
    ) -> None:
        """Puts it together.

        Args:
            client: of the API server.
            config: everything that can be set.
            clock: defaults to the clocks of the machine.
            election: lease and its times; defaults to our lease with the usual times.
        """
        self.metrics = Metrics()
        self._config = config
        self._clock = clock or SystemClock()
        # For reads, the lease, and the certificate that every replica may renew. All else is the leader's.
        self._client: KubeClient = MeteredClient(client, self.metrics)
        self._leader_client = self._client
        self._elector: LeaderElector | None = None
        if config.leader_elect:
            lease = election or LeaderConfig(config.namespace, LEASE, config.identity)
            self._elector = LeaderElector(self._client, lease, self._clock)
            self._leader_client = MeteredClient(FencedClient(client, self._elector.fence), self.metrics)
        self.ready = asyncio.Event()
        self.metrics.watch_leader(self._leads)
        self.health_address: tuple[str, int] | None = None
        self.web_address: tuple[str, int] | None = None
        self._feed: Feed | None = None
        self.admission: AdmissionServer | None = None
        if config.admission is not None:
            self.admission = AdmissionServer(
                self._client,
                self._leader_client,
                self._clock,
                config.admission,
                config.namespace,
                config.drivers,
                self.metrics,
                config.timings.review,
            )

    def _leads(self) -> bool:
        return self.ready.is_set() and (self._elector is None or self._elector.fence.is_open)

    async def run(self) -> None:
        """Works until cancelled.

        Raises:
            LeadershipLost: another controller took over; the process should end and start again.
            ConfigurationError: a port cannot be bound.
        """
        # Standbys serve webhooks as well: the Service sends them their part.
        webhooks = self.admission.serving() if self.admission is not None else contextlib.nullcontext()
        async with tracing(self._config.otlp_endpoint), self._health(), self._page(), webhooks:
            if self._elector is None:
                await self._lead()
                return
            await self._elector.run(self._lead)

    async def _lead(self) -> None:
        """Everything is listed anew after the lease is ours: what a predecessor wrote last is seen."""
        client = self._leader_client
        informers = Informers.of(client, await informer_of_rules(client))
        recorder = EventRecorder(client, "dra-driver-controller", self._clock)
        parts = _Parts.of(client, self._config, self._clock, recorder, informers, self.metrics)
        try:
            async with asyncio.TaskGroup() as group:
                for informer in informers.all():
                    group.create_task(informer.run())
                group.create_task(recorder.run())
                if self.admission is not None:
                    group.create_task(self.admission.registration.run(self.admission.keeper))
                for informer in informers.needed():
                    await informer.synced.wait()
                await _until_policies(client, informers.policies)
                if informers.taint_rules is not None:
                    await until_rules_are_known(client, informers.taint_rules)
                log.info("caches are filled", **{i.resource.plural: len(i) for i in informers.all()})
                await _until_probed(parts.publisher)
                group.create_task(parts.publisher.run())
                group.create_task(parts.policies.run())
                group.create_task(parts.labeler.run())
                group.create_task(parts.allocator.run())
                group.create_task(parts.doubles.queue.process(parts.doubles.reconcile))
                if self._config.web_port is not None:
                    self._feed = _feed(self._config, informers, parts.allocator)
                self.ready.set()
        finally:
            self.ready.clear()
            self._feed = None
            parts.close()

    @contextlib.asynccontextmanager
    async def _page(self) -> AsyncIterator[None]:
        if self._config.web_port is None:
            yield
            return
        async with serve_page(self._config.web_host, self._config.web_port, lambda: self._feed) as address:
            self.web_address = address
            yield

    async def _serve_metrics(self, _: web.Request) -> web.Response:
        return web.Response(body=self.metrics.text(), headers={"Content-Type": CONTENT_TYPE})

    @contextlib.asynccontextmanager
    async def _health(self) -> AsyncIterator[None]:
        if self._config.health_port is None:
            yield
            return
        app = web.Application()
        app.router.add_get("/healthz", _answer(lambda: True))
        # A standby waits for the lease and is ready to take over.
        app.router.add_get("/readyz", _answer(lambda: self._config.leader_elect or self.ready.is_set()))
        app.router.add_get("/metrics", self._serve_metrics)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        try:
            try:
                await web.TCPSite(runner, self._config.health_host, self._config.health_port).start()
            except OSError as e:
                where = f"{self._config.health_host}:{self._config.health_port}"
                raise ConfigurationError(f"--health-port: cannot listen on {where}: {e.strerror}") from e
            self.health_address = runner.addresses[0][:2]
            log.info("serving health", host=self.health_address[0], port=self.health_address[1])
            yield
        finally:
            await runner.cleanup()


def _feed(config: ControllerConfig, informers: Informers, allocator: Allocator) -> Feed:
    """What the page shows, from what the controller has in memory anyway."""

    def reason_of(_: ResourceClaim, users: Iterable[Pod]) -> str:
        return next((reason for pod in users if (reason := allocator.reason(pod.key))), "")

    feed = Feed(config.drivers, reason_of)
    feed.attach(informers.slices, informers.inventories, informers.claims, informers.pods, informers.nodes)
    return feed


async def _until_policies(client: KubeClient, policies: Informer[DevicePolicy]) -> None:
    """Waits until the policies are known, or until the server says that there is no such kind."""
    while not policies.synced.is_set():
        try:
            await client.list(DEVICE_POLICIES)
        except NotFound:
            log.warning("the kind DevicePolicy is not installed: there are no policies")
            return
        except DraError:
            pass  # the informer logs the same and tries again
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(1.0):
                await policies.synced.wait()


async def _until_probed(publisher: Publisher) -> None:
    """What the server keeps decides who allocates, so nothing starts before that is known."""
    backoff = Backoff(base=0.5, cap=10.0)
    while True:
        try:
            await publisher.probe()
        except DraError as e:
            delay = backoff.next()
            log.error("cannot ask the API server what it keeps", error=str(e), retry_in=round(delay, 2))
            await asyncio.sleep(delay)
        else:
            return


def _answer(healthy: Callable[[], bool]) -> Callable[[web.Request], Awaitable[web.Response]]:
    async def handle(_: web.Request) -> web.Response:
        good = healthy()
        return web.Response(text="ok\n" if good else "not ready\n", status=200 if good else 503)

    return handle
