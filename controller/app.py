"""Runs the controller: serves from the start, and works while it has the lease."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterable
from typing import Final

from controller.admission import AdmissionServer
from controller.allocate.waiting_plans import WaitingPlans
from controller.assembly import (
    Allocation,
    AnswersOf,
    Environment,
    Publishing,
    State,
    labeler_of,
    worker_process,
)
from controller.config import ControllerConfig, PreemptionMode
from controller.informers import Informers
from controller.observe.endpoints import serve_health
from controller.observe.event_loop import measuring_lag
from controller.observe.metrics import MeteredClient, Metrics
from controller.observe.tracing import tracing
from controller.observe.unreadable import UnreadableObjects
from controller.web import CurrentFeed, Feed, Past, Plans, Standby
from controller.web import serve as serve_page
from dra_driver.api.core import Pod
from dra_driver.api.names import CONTROLLER_LEASE
from dra_driver.api.resource import ResourceClaim
from dra_driver.kube import EventRecorder, FencedClient, Heartbeat, LeaderConfig, LeaderElector, SystemClock
from dra_driver.ports import Clock, KubeClient
from dra_driver.serving import Authorizer

__all__ = ["Controller"]

# In the long run. Why a pod waits is also in a condition of it.
_EVENTS_PER_SECOND: Final = 1.0
_UNASKED: Final = (
    "cannot ask the API server which fields it keeps: the condition Published of inventories says why\n"
)


class Controller:
    """The controller in one object. ``run`` ends when it is cancelled, or raises when the lease is lost.

    Attributes:
        leads: set from when it begins to fill its caches.
        ready: set while it works: caches are filled and the loops run.
        health_address: host and port, while health is served.
        web_address: host and port, while the page is served.
        admission: the webhooks; None where they are not served.
        metrics: of this controller.
    """

    def __init__(
        self,
        client: KubeClient,
        config: ControllerConfig,
        clock: Clock | None = None,
        *,
        election: LeaderConfig | None = None,
        answers_of: AnswersOf = worker_process,
    ) -> None:
        """Put together what serves from the start; the rest is made anew whenever this process leads.

        Args:
            client: of the API server.
            config: everything that can be set.
            clock: defaults to the clocks of the machine.
            election: lease and its times; defaults to our lease with the usual times.
            answers_of: makes what decides about pods; defaults to a process of its own.
        """
        self.metrics = Metrics()
        self._config = config
        self._clock = clock or SystemClock()
        self._answers_of = answers_of
        # For reads, the lease, and the certificate that every replica may renew. All else is the leader's.
        self._client: KubeClient = MeteredClient(client, self.metrics)
        self._leader_client = self._client
        self._elector: LeaderElector | None = None
        self._heartbeat: Heartbeat | None = None
        lease = election or LeaderConfig(config.namespace, CONTROLLER_LEASE, config.identity)
        if config.heartbeat:
            self._heartbeat = Heartbeat(self._client, lease, self._clock)
        if config.leader_elect:
            self._elector = LeaderElector(self._client, lease, self._clock)
            self._leader_client = MeteredClient(FencedClient(client, self._elector.fence), self.metrics)
        # Standbys serve pages, too, so this is not the leader's client; nothing of it is stored.
        self._authorizer = (
            Authorizer(self._client, self._clock) if config.http_authorization == "rbac" else None
        )
        self.leads = asyncio.Event()
        self.ready = asyncio.Event()
        self.metrics.watch_leader(self._leads)
        self.health_address: tuple[str, int] | None = None
        self.web_address: tuple[str, int] | None = None
        self._unreadable: UnreadableObjects | None = None
        self._publishing: Publishing | None = None
        self._feed = CurrentFeed(leader=self._leader)
        self._past = Past(config.drivers, self._clock)
        self._standby = Standby(self._client, config.drivers, self._feed, self._past)
        self.admission: AdmissionServer | None = None
        if config.admission is not None:
            self.admission = AdmissionServer(
                self._client,
                self._clock,
                config.admission,
                config.namespace,
                config.drivers,
                self.metrics,
                config.timings.review,
                resources=config.open_pools,
            )

    def _leads(self) -> bool:
        return self.ready.is_set() and (self._elector is None or self._elector.fence.is_open)

    def _leader(self) -> str:
        return self._elector.holder if self._elector is not None else ""

    async def run(self) -> None:
        """Work until cancelled.

        Raises:
            LeadershipLost: another controller took over; the process should end and start again.
            ConfigurationError: a port cannot be bound.
        """
        # Standbys serve webhooks as well: the Service sends them their part.
        webhooks = self.admission.serving() if self.admission is not None else contextlib.nullcontext()
        async with tracing(self._config.otlp_endpoint), self._health(), self._page(), webhooks:
            if self._elector is None:
                async with self._heartbeat.beating() if self._heartbeat else contextlib.nullcontext():
                    await self._lead()
                return
            shown = self._standby.running() if self.web_address is not None else contextlib.nullcontext()
            async with shown:
                await self._elector.run(self._lead)

    async def _lead(self) -> None:
        """Work, after everything was listed anew: what a predecessor wrote last must be seen."""
        await self._standby.stop()
        self.leads.set()
        client = self._leader_client
        env = Environment(
            config=self._config,
            client=client,
            clock=self._clock,
            informers=await Informers.of(client, self._config.group_labels),
            recorder=EventRecorder(
                client, "dra-driver-controller", self._clock, per_second=_EVENTS_PER_SECOND
            ),
            metrics=self.metrics,
            answers_of=self._answers_of,
        )
        watched = (*env.informers.all(), *env.informers.of_preemption())
        self._unreadable = UnreadableObjects(watched, env.recorder, self.metrics)
        state = State.of(env)
        self._publishing = publishing = Publishing.of(env, state)
        allocation = Allocation.of(env, state, publishing)
        labeler = labeler_of(env)
        try:
            async with asyncio.TaskGroup() as tasks:
                for informer in env.informers.all():
                    tasks.create_task(informer.run())
                if self._config.preemption.mode is not PreemptionMode.OFF:
                    for informer in env.informers.of_preemption():
                        tasks.create_task(informer.run())
                if self._config.open_pools:
                    tasks.create_task(env.informers.namespaces.run())
                tasks.create_task(env.recorder.run())
                tasks.create_task(state.answers.run())
                await env.informers.wait(client)
                await publishing.probe(env.metrics)
                publishing.start(tasks)
                tasks.create_task(labeler.run())
                allocation.start(tasks)
                if self._config.web_port is not None:
                    self._feed.feed = feed = _feed(env, allocation, self._past)
                    tasks.create_task(feed.run())
                    plans = WaitingPlans(state.answers, state.journal, env.informers.pods)
                    self._feed.plans = Plans(plans)
                self.ready.set()
        finally:
            self.ready.clear()
            self._feed.feed = self._feed.plans = self._publishing = None
            publishing.close()
            allocation.close()
            labeler.queue.close()

    @contextlib.asynccontextmanager
    async def _page(self) -> AsyncIterator[None]:
        if self._config.web_port is None:
            yield
            return
        async with serve_page(
            self._config.web_host, self._config.web_port, self._feed, self._authorizer
        ) as address:
            self.web_address = address
            yield

    @contextlib.asynccontextmanager
    async def _health(self) -> AsyncIterator[None]:
        if self._config.health_port is None:
            yield
            return
        async with (
            measuring_lag(self.metrics.observe_loop_lag),  # where the result can be read, standbys included
            serve_health(
                self._config.health_host,
                self._config.health_port,
                self._is_ready,
                self.metrics,
                self._authorizer,
                detail=self._detail,
            ) as address,
        ):
            self.health_address = address
            yield

    def _is_ready(self) -> bool:
        # A standby waits for the lease and is ready to take over.
        return self._config.leader_elect or self.ready.is_set()

    def _detail(self) -> str:
        unreadable = str(self._unreadable or "")
        unasked = self._publishing is not None and self._publishing.publisher.unasked.problem
        return (f"cannot be read: {unreadable}\n" if unreadable else "") + (_UNASKED if unasked else "")


def _feed(env: Environment, allocation: Allocation, past: Past) -> Feed:
    """Return what the page shows, from what the controller has in memory anyway."""

    def reason_of(_: ResourceClaim, users: Iterable[Pod]) -> str:
        return next((reason for pod in users if (reason := allocation.allocator.reason(pod.key))), "")

    informers = env.informers
    feed = Feed(env.config.drivers, reason_of, past)
    feed.attach(informers.slices, informers.inventories, informers.claims, informers.pods, informers.nodes)
    return feed
