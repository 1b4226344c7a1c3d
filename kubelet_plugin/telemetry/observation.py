"""Puts together how the node agent is watched and what it watches: health, Events, claim status, metrics."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Protocol

import grpc
import grpc.aio
import msgspec
import structlog

from dra_driver.api import codec
from dra_driver.hardware import BackendMetric, DeviceSample
from dra_driver.kube.clock import rfc3339
from dra_driver.ports import Clock, DeviceBackend, KubeClient, MetricsSource, TelemetrySource
from dra_driver.preparation import PreparedClaim
from dra_driver.serving import Authorizer
from dra_driver.wire import (
    dra_v1_pb2,
    dra_v1_pb2_grpc,
    pluginregistration_pb2,
    pluginregistration_pb2_grpc,
)
from kubelet_plugin.config import Configuration
from kubelet_plugin.core.endurance import endure
from kubelet_plugin.core.registration import RegistrationState
from kubelet_plugin.devices.table import DeviceTable
from kubelet_plugin.health.claim_status import ClaimStatusWriter
from kubelet_plugin.health.health import HealthEvents, HealthMonitor
from kubelet_plugin.telemetry import http
from kubelet_plugin.telemetry.backend_metrics import measured
from kubelet_plugin.telemetry.metrics import Metrics, Sources
from kubelet_plugin.telemetry.reservations import Reservations
from kubelet_plugin.usage.claim_use import ClaimUse

__all__ = ["Observation", "Observed", "telemetry_sources"]

# A library that hangs must not keep Prometheus from everything else.
_SAMPLE_SECONDS: Final = 3.0
_PROBE_SECONDS: Final = 3.0

log = structlog.get_logger(__name__)


class Observed(Protocol):
    """The engine, as far as it is looked at."""

    @property
    def claims(self) -> tuple[PreparedClaim, ...]:
        """What is prepared."""
        ...

    @property
    def failures(self) -> Mapping[str, int]:
        """How often what failed."""
        ...


def telemetry_sources(backends: Sequence[DeviceBackend]) -> Iterable[TelemetrySource]:
    """Return the backends that can be sampled."""
    return (b for b in backends if isinstance(b, TelemetrySource))


class Observation:
    """Health, metrics and what else is watched; it runs beside the calls.

    Attributes:
        address: where metrics are served, while they are.
    """

    def __init__(
        self,
        configuration: Configuration,
        *,
        engine: Observed,
        table: DeviceTable,
        state: RegistrationState,
        leads: Any,
        ready: asyncio.Event,
        client: KubeClient,
        backends: Sequence[DeviceBackend],
        clock: Clock,
        use: ClaimUse,
        reconciled: Callable[[], int] = lambda: 0,
        unmanaged: Callable[[], int] = lambda: 0,
        findings: Callable[[], Mapping[str, int]] = dict,
    ) -> None:
        self._configuration = configuration
        self._engine = engine
        self._table = table
        self._state = state
        self._ready = ready
        self._telemetry = tuple(telemetry_sources(backends))
        self._sampling: dict[int, asyncio.Future[Sequence[DeviceSample]]] = {}
        self._measurable = {b.name: b for b in backends if isinstance(b, MetricsSource)}
        self._measuring: dict[str, asyncio.Future[Sequence[BackendMetric]]] = {}
        self._authorizer = Authorizer(client, clock) if configuration.http_authorization == "rbac" else None
        self._reservations = Reservations(client, lambda: engine.claims, leads, use.list, use.joined)
        self.metrics = Metrics(
            Sources(
                devices=lambda: table.devices,
                claims=self._reservations.claims,
                failures=lambda: engine.failures,
                registrations=lambda: state.confirmations,
                registered=lambda: state.registered is True,
                reconciled=reconciled,
                kept=lambda: use.kept,
                visible=lambda: use.visible,
                unmanaged=unmanaged,
                findings=findings,
                backends=lambda: table.reports,
                last_looks=table.last_looks,
            )
        )
        self._monitor = HealthMonitor(backends, table, self.metrics.event)
        self._status = ClaimStatusWriter(
            client=client,
            clock=clock,
            driver=configuration.driver_name,
            table=table,
            claims=lambda: engine.claims,
            leads=leads,
        )
        self._events = HealthEvents(
            client=client,
            clock=clock,
            node_name=configuration.node_name,
            table=table,
            claims=self._reservations.claims,
            leads=leads,
            refresh=self._reservations.refresh,
        )
        self.address: tuple[str, int] | None = None

    def call(self, operation: str, result: str, seconds: float) -> None:
        """Note that a claim was prepared or unprepared."""
        self.metrics.call(operation, result, seconds)
        if operation == "prepare" and result == "success":
            self._status.prepared()

    async def run(self) -> None:
        """Run until cancelled.

        Raises:
            ConfigurationError: the address for metrics cannot be used.
        """
        async with self._served(), asyncio.TaskGroup() as tasks:
            for work, name in (
                (self._monitor.run, "health"),
                (self._events.run, "events of health"),
                (self._status.run, "status of claims"),
                (self._reservations.run, "pods of claims"),
            ):
                tasks.create_task(endure(name, work))
            await asyncio.get_running_loop().create_future()

    @contextlib.asynccontextmanager
    async def _served(self) -> AsyncIterator[None]:
        async with http.serve(
            self._configuration.metrics_address,
            metrics_text=self._metrics_text,
            unhealthy=self.unhealthy,
            unready=self.unready,
            state=self.state,
            authorizer=self._authorizer,
        ) as address:
            self.address = address
            try:
                yield
            finally:
                self.address = None

    async def _metrics_text(self) -> bytes:
        samples = await self.samples()
        return self.metrics.render(samples, await self._measured())

    async def _measured(self) -> Mapping[str, Sequence[BackendMetric]]:
        """Return what backends measure besides; of one that does not answer in time, nothing."""
        loop = asyncio.get_running_loop()
        for name, source in self._measurable.items():
            if name not in self._measuring or self._measuring[name].done():
                executor = self._table.executor_of(source)
                self._measuring[name] = loop.run_in_executor(executor, measured, source)
        if not self._measuring:
            return {}
        done, _ = await asyncio.wait(self._measuring.values(), timeout=_SAMPLE_SECONDS)
        return {name: m.result() for name, m in self._measuring.items() if m in done}

    async def samples(self) -> Sequence[DeviceSample]:
        """Return the samples of every source; of one that does not answer in time, none."""
        loop = asyncio.get_running_loop()
        for i, source in enumerate(self._telemetry):
            # A sample that hangs is not asked for a second time.
            if i not in self._sampling or self._sampling[i].done():
                executor = self._table.executor_of(source)
                self._sampling[i] = loop.run_in_executor(executor, _sample, source)
        if not self._sampling:
            return ()
        done, _ = await asyncio.wait(self._sampling.values(), timeout=_SAMPLE_SECONDS)
        return [s for sampling in self._sampling.values() if sampling in done for s in sampling.result()]

    async def unhealthy(self) -> str:
        """Return why the kubelet could not call the plugin. Asks over its sockets, as the kubelet does."""
        if not self._ready.is_set():
            return ""  # starting or ending, which has its own limits
        registrar, dra = self._configuration.registrar_socket, self._configuration.dra_socket
        try:
            async with _channel(registrar) as channel:
                info = await pluginregistration_pb2_grpc.RegistrationStub(channel).GetInfo(
                    pluginregistration_pb2.InfoRequest(), timeout=_PROBE_SECONDS
                )
            if info.name != self._configuration.driver_name:
                return f"{registrar} answers for {info.name[:80]!r}"
            async with _channel(dra) as channel:
                await dra_v1_pb2_grpc.DRAPluginStub(channel).NodePrepareResources(
                    dra_v1_pb2.NodePrepareResourcesRequest(), timeout=_PROBE_SECONDS
                )
        except grpc.RpcError as e:
            return f"a socket does not answer: {e.details() if isinstance(e, grpc.aio.AioRpcError) else e}"
        return ""

    def unready(self) -> str:
        """Return why the kubelet does not use the plugin, or what of the hardware hangs."""
        if not self._ready.is_set():
            return "the plugin is starting or ending"
        if self._state.registered is not True:
            return "the kubelet has not registered the plugin"
        return "; ".join(r.message for r in self._table.reports if r.state == "hanging")

    def state(self) -> object:
        """Return what is known, as plain data."""
        looks = self._table.last_looks()
        return {
            "driver": self._configuration.driver_name,
            "node": self._configuration.node_name,
            "registration": {
                "registered": self._state.registered,
                "confirmations": self._state.confirmations,
            },
            "failures": dict(self._engine.failures),
            "backends": [
                {
                    "backend": r.backend,
                    "state": r.state,
                    "message": r.message,
                    "knownAt": rfc3339(at) if (at := looks[r.backend]) is not None else None,
                    "problems": list(map(str, r.problems)),
                }
                for r in self._table.reports
            ],
            "devices": [
                {"uuid": d.uuid, **codec.plain(msgspec.structs.replace(d.device, partitions=()))}
                for d in self._table.devices
            ],
            "claims": [
                {**codec.plain(msgspec.structs.replace(c, spec=None)), "state": c.state.value}
                for c in self._reservations.claims()
            ],
        }


def _sample(source: TelemetrySource) -> Sequence[DeviceSample]:
    try:
        told: tuple[object, ...] = tuple(source.sample())
        return [s for s in told if isinstance(s, DeviceSample)]
    except Exception as e:
        # A backend of a third party must not cost all metrics.
        log.warning("devices could not be sampled", error=f"{type(e).__name__}: {e}")
        return ()


def _channel(path: Path) -> grpc.aio.Channel:
    return grpc.aio.insecure_channel(f"unix:{path}", options=[("grpc.use_local_subchannel_pool", 1)])
