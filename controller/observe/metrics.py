"""Prometheus metrics of the controller, and a client that counts its calls.

Each controller has a registry of its own, so that several can live in one process (tests, the embedded
cluster). Labels are bounded: verbs, plurals of kinds, codes, outcomes; never names of objects.
"""

from __future__ import annotations

import functools
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from typing import Final, TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from controller.observe.tracing import span
from dra_driver.api.meta import Resource, WireObject
from dra_driver.api.names import GRANTS
from dra_driver.api.server.watch import WatchEvent
from dra_driver.errors import ApiError, ApiUnavailable
from dra_driver.fleet import ShapeCount
from dra_driver.kube import Call, DelegatingClient
from dra_driver.ownership import AgentState
from dra_driver.ports import KubeClient
from dra_driver.publishing.grants import GrantState

__all__ = ["CONTENT_TYPE", "MeteredClient", "Metrics"]

T = TypeVar("T", bound=WireObject)
R = TypeVar("R")

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
_SECONDS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)
# Dense where it begins to matter: the lease is lost after 10 s, a probe fails after 1 s.
_LAG_SECONDS: Final = (
    0.001,
    0.0025,
    0.005,
    0.01,
    0.025,
    0.05,
    0.075,
    0.1,
    0.15,
    0.25,
    0.5,
    1,
    2.5,
    5,
    10,
    30,
)


class Metrics:
    """The metrics, each under ``dra_driver_controller_``."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        prefix = "dra_driver_controller"
        self.calls = Counter(
            f"{prefix}_api_calls",
            "Calls to the API server by status code; code 0: no answer.",
            ["verb", "resource", "code"],
            registry=self.registry,
        )
        self.call_seconds = Histogram(
            f"{prefix}_api_call_seconds",
            "Duration of calls to the API server.",
            ["verb"],
            buckets=_SECONDS,
            registry=self.registry,
        )
        self.slice_writes = Counter(
            f"{prefix}_slice_writes",
            "ResourceSlices written.",
            ["operation"],
            registry=self.registry,
        )
        self.allocations = Counter(
            f"{prefix}_allocations",
            "Decisions about pods: allocated, refused (does not fit now), conflict, error.",
            ["outcome"],
            registry=self.registry,
        )
        self.allocation_seconds = Histogram(
            f"{prefix}_allocation_seconds",
            "Time from the first decision about a pod to the allocation of its claims.",
            buckets=_SECONDS,
            registry=self.registry,
        )
        self.decision_seconds = Histogram(
            f"{prefix}_decision_seconds",
            "CPU time of one decision, about a pod or about all pods of a group.",
            buckets=_SECONDS,
            registry=self.registry,
        )
        self.deallocations = Counter(
            f"{prefix}_tentative_deallocations",
            "Pods whose claims were deallocated because they were not bound: unschedulable (kube-scheduler "
            "could not place them), timeout (no report from it), displaced (a pod bound to the node needs "
            "the devices), group (another pod of the group could not be placed).",
            ["reason"],
            registry=self.registry,
        )
        self.grants = Counter(
            f"{prefix}_ended_grants",
            "Pods whose grants of devices to kube-scheduler have ended: allocated, gone (the pod), timeout "
            "(kube-scheduler did not use them), refused (it could not place the pod), elsewhere (it chose "
            "other devices), interrupted (the controller needed them).",
            ["reason"],
            registry=self.registry,
        )
        self.outdated_answers = Counter(
            f"{prefix}_outdated_answers",
            "Decisions that were dropped because the state that they are based on had changed.",
            registry=self.registry,
        )
        self._agents = Gauge(
            f"{prefix}_agents",
            "Node agents, by the condition Registered of their DeviceInventories: registered, gone (ended, "
            "and the kubelet has withdrawn the devices), not_registered (ended, and has said so), "
            "node_not_ready.",
            ["state"],
            registry=self.registry,
        )
        self.worker_restarts = Counter(
            f"{prefix}_worker_restarts",
            "Ends of the process that makes decisions: limit (a decision exceeded a limit), ended.",
            ["reason"],
            registry=self.registry,
        )
        self.stopped_decisions = Counter(
            f"{prefix}_stopped_decisions",
            "Decisions that reached a limit although they were made beside others.",
            registry=self.registry,
        )
        self.admissions = Counter(
            f"{prefix}_admission_reviews",
            "Objects that the webhook reviewed: allowed, refused, gated, unreadable; and other calls: "
            "unauthorized, stopped (CPU time exceeded).",
            ["resource", "outcome"],
            registry=self.registry,
        )
        self.certificate_expiry = Gauge(
            f"{prefix}_admission_certificate_expiry_timestamp_seconds",
            "Expiry of the webhook's serving certificate; 0 if there is none.",
            registry=self.registry,
        )
        self.authority_expiry = Gauge(
            f"{prefix}_admission_authority_expiry_timestamp_seconds",
            "Expiry of the authority that signs the webhook's serving certificate; 0 if there is none.",
            registry=self.registry,
        )
        self.reviewer_restarts = Counter(
            f"{prefix}_admission_process_restarts",
            "Ends of the process that reviews objects: hangs, memory, ended.",
            ["reason"],
            registry=self.registry,
        )
        self.missing_gates = Gauge(
            f"{prefix}_missing_feature_gates",
            "1 for each feature gate that the API server has turned off.",
            ["gate"],
            registry=self.registry,
        )
        self._dropped = Gauge(
            f"{prefix}_dropped_capacity",
            "Claims and templates from which the API server dropped a request for capacity.",
            registry=self.registry,
        )
        self._unreadable = Gauge(
            f"{prefix}_unreadable_objects",
            "Objects of the API server that this version cannot read, by kind.",
            ["kind"],
            registry=self.registry,
        )
        self._doubles = Gauge(
            f"{prefix}_double_allocations",
            "Devices of the controller's pools that several claims hold although they cannot share them.",
            registry=self.registry,
        )
        self._tolerating = Gauge(
            f"{prefix}_tolerating_claims",
            "Claims and templates for which kube-scheduler could allocate the controller's devices.",
            registry=self.registry,
        )
        self._unbound = Gauge(
            f"{prefix}_unbound_pods",
            "Pods with allocated claims that kube-scheduler has not bound yet.",
            registry=self.registry,
        )
        self._gone_claims = Gauge(
            f"{prefix}_gone_claims",
            "Claims that were deleted without being deallocated, and whose devices their nodes have not "
            "freed yet.",
            registry=self.registry,
        )
        self._granted_for = Gauge(
            f"{prefix}_granted_pods",
            "Pods for which devices are granted to kube-scheduler.",
            registry=self.registry,
        )
        self._set_aside = Gauge(
            f"{prefix}_set_aside_devices",
            "Devices that are set aside for a pod that has waited for a long time (--starvation-timeout).",
            registry=self.registry,
        )
        self._longest_wait = Gauge(
            f"{prefix}_longest_wait_seconds",
            "Longest time that a waiting pod has waited for devices; 0 if none waits.",
            registry=self.registry,
        )
        self._scale_up = Gauge(
            f"{prefix}_scale_up_pods",
            "Waiting pods that autoscalers see because a new node could have their devices.",
            registry=self.registry,
        )
        self.preemption_rounds = Counter(
            f"{prefix}_preemption_rounds",
            "Rounds of preemption by their end: served, timed out, changed, gone, other (than before), not "
            "recorded, unanswered.",
            ["outcome"],
            registry=self.registry,
        )
        self.preemption_victims = Counter(
            f"{prefix}_preemption_victims",
            "Attempts to remove pods for others: evicted, deleted (against a budget), gone, kept (by a "
            "budget or a webhook, tried again), later (tried again).",
            ["outcome"],
            registry=self.registry,
        )
        self.preemption_dry_runs = Counter(
            f"{prefix}_preemption_wishes",
            "Reports that pods would be preempted, in a dry run.",
            registry=self.registry,
        )
        self._preempting = Gauge(
            f"{prefix}_preempting",
            "Pods and groups for which others are being preempted.",
            registry=self.registry,
        )
        self._would_preempt = Gauge(
            f"{prefix}_would_preempt",
            "Pods and groups for which others would be preempted, in a dry run.",
            registry=self.registry,
        )
        self._grants = Gauge(
            f"{prefix}_grants",
            "Units of devices that are granted to kube-scheduler, or change hands, by state.",
            ["state"],
            registry=self.registry,
        )
        self._open_pools = Gauge(
            f"{prefix}_open_pools",
            "Pools that are published without the driver's taint, because an admission policy protects them.",
            registry=self.registry,
        )
        self._policy_in_force = Gauge(
            f"{prefix}_grant_policy_in_force",
            "1 if the admission policy is verified to refuse what others allocate.",
            ["policy"],
            registry=self.registry,
        )
        self._depth = Gauge(
            f"{prefix}_queue_depth", "Keys that wait for a worker.", ["queue"], registry=self.registry
        )
        self._leader = Gauge(
            f"{prefix}_leader",
            "1 if this process is active and may write, 0 on a standby.",
            registry=self.registry,
        )

        self._loop_lag = Histogram(
            f"{prefix}_event_loop_lag_seconds",
            "Delay of tasks of the event loop; 100 samples per second.",
            buckets=_LAG_SECONDS,
            registry=self.registry,
        )
        self._longest_loop_lag = Gauge(
            f"{prefix}_event_loop_lag_max_seconds",
            "The longest delay of the event loop since the start.",
            registry=self.registry,
        )
        self._longest_lag = 0.0
        self._shape_fits = Gauge(
            f"{prefix}_shape_fits",
            "Copies of a request shape (--shape) that fit at the same time.",
            ["shape"],
            registry=self.registry,
        )
        self._shape_suggested = Gauge(
            f"{prefix}_shape_suggested",
            "Copies of a request shape that would fit if all free devices were together.",
            ["shape"],
            registry=self.registry,
        )
        self._shapes_counted = Gauge(
            f"{prefix}_shapes_counted_timestamp_seconds",
            "Time of the last count of request shapes; they are counted again when devices are allocated or "
            "released.",
            registry=self.registry,
        )

    def set_shape_counts(self, counts: Iterable[ShapeCount]) -> None:
        """Show how often request shapes fit; one that cannot be counted has no values."""
        self._shape_fits.clear()
        self._shape_suggested.clear()
        for count in counts:
            if not count.problem:
                self._shape_fits.labels(count.shape).set(count.fits)
                self._shape_suggested.labels(count.shape).set(count.suggested)
        self._shapes_counted.set_to_current_time()

    def observe_loop_lag(self, seconds: float) -> None:
        """Count a delay of the event loop."""
        self._loop_lag.observe(seconds)
        if seconds > self._longest_lag:
            self._longest_lag = seconds
            self._longest_loop_lag.set(seconds)

    def watch_queue(self, name: str, depth: Callable[[], float]) -> None:
        """Read the length of a queue whenever metrics are read."""
        self._depth.labels(queue=name).set_function(depth)

    def watch_unbound(self, count: Callable[[], float]) -> None:
        """Read how many pods are allocated and not bound whenever metrics are read."""
        self._unbound.set_function(count)

    def watch_gone_claims(self, count: Callable[[], float]) -> None:
        """Read how many claims that are gone keep devices whenever metrics are read."""
        self._gone_claims.set_function(count)

    def watch_agents(self, count: Callable[[AgentState], float]) -> None:
        """Read how many node agents are in each state whenever metrics are read."""
        for state in AgentState:
            self._agents.labels(state.name.lower()).set_function(functools.partial(count, state))

    def watch_grants(self, pods: Callable[[], float], count: Callable[[GrantState], float]) -> None:
        """Read for how many pods devices are granted, and how many units, whenever metrics are read."""
        self._granted_for.set_function(pods)
        for state in GrantState:
            if state.blocked:
                self._grants.labels(state.name.lower()).set_function(functools.partial(count, state))

    def watch_set_aside(self, devices: Callable[[], float], longest_wait: Callable[[], float]) -> None:
        """Read how many devices are set aside, and how long pods wait, whenever metrics are read."""
        self._set_aside.set_function(devices)
        self._longest_wait.set_function(longest_wait)

    def watch_scale_up(self, count: Callable[[], float]) -> None:
        """Read how many pods that wait autoscalers see whenever metrics are read."""
        self._scale_up.set_function(count)

    def watch_preemption(self, rounds: Callable[[], float], wishes: Callable[[], float]) -> None:
        """Read for how many pods and groups others are, or would be, preempted whenever metrics are read."""
        self._preempting.set_function(rounds)
        self._would_preempt.set_function(wishes)

    def watch_open_pools(self, count: Callable[[], float], in_force: Callable[[], bool | None]) -> None:
        """Read how many pools are open, and whether the policy is in force, whenever metrics are read."""
        self._open_pools.set_function(count)
        # Where no pool is to be open there is no such value.
        self._policy_in_force.labels(GRANTS).set_function(lambda: float(in_force() is True))

    def watch_leader(self, leads: Callable[[], bool]) -> None:
        """Read whether this process works whenever metrics are read."""
        self._leader.set_function(lambda: float(leads()))

    def watch_double_allocations(self, count: Callable[[], float]) -> None:
        """Read how many devices have several holders whenever metrics are read."""
        self._doubles.set_function(count)

    def watch_dropped_capacity(self, count: Callable[[], float]) -> None:
        """Read how many claims and templates lack what they asked for whenever metrics are read."""
        self._dropped.set_function(count)

    def watch_unreadable(self, kind: str, count: Callable[[], float]) -> None:
        """Read how many objects of a kind cannot be read whenever metrics are read."""
        self._unreadable.labels(kind).set_function(count)

    def watch_tolerating_claims(self, count: Callable[[], float]) -> None:
        """Read how many claims and templates tolerate our taint whenever metrics are read."""
        self._tolerating.set_function(count)

    def text(self) -> bytes:
        """Return everything in Prometheus' text format."""
        return generate_latest(self.registry)


class MeteredClient(DelegatingClient):
    """A ``KubeClient`` that counts and times what goes through it, with a span where calls are traced.

    What the server serves is asked for without being counted: it is about no kind.
    """

    def __init__(self, client: KubeClient, metrics: Metrics) -> None:
        super().__init__(client)
        self._metrics = metrics

    async def _call(self, call: Call, send: Callable[[], Awaitable[R]]) -> R:
        if call.resource is None:
            return await send()
        plural = call.resource.plural
        started = time.monotonic()
        code = "0"
        try:
            with span(f"{call.verb} {plural}"):
                answer = await send()
            code = "200"
        except ApiError as e:
            code = str(e.code)
            raise
        finally:
            self._metrics.calls.labels(call.verb, plural, code).inc()
            self._metrics.call_seconds.labels(call.verb).observe(time.monotonic() - started)
        if plural == "resourceslices" and call.verb in ("create", "update", "delete") and not call.dry_run:
            self._metrics.slice_writes.labels(call.verb).inc()
        return answer

    async def watch(
        self,
        resource: Resource[T],
        namespace: str = "",
        *,
        resource_version: str,
        label_selector: str = "",
        field_selector: str = "",
        timeout_seconds: int = 300,
    ) -> AsyncIterator[WatchEvent[T]]:
        """See ``KubeClient``. Counted when it ends; a watch has no duration worth measuring."""
        events = super().watch(
            resource,
            namespace,
            resource_version=resource_version,
            label_selector=label_selector,
            field_selector=field_selector,
            timeout_seconds=timeout_seconds,
        )
        code = "200"
        try:
            async for event in events:
                yield event
        except ApiError as e:
            code = str(e.code)
            raise
        except ApiUnavailable:
            code = "0"
            raise
        finally:
            self._metrics.calls.labels("watch", resource.plural, code).inc()
            close = getattr(events, "aclose", None)
            if close is not None:
                await close()
