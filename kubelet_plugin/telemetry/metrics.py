"""Metrics of the node agent, for Prometheus.

Values of a device carry the claim, namespace and pod that hold it. Where several claims share a device these
labels are empty, because the value is the device's and must not be counted twice;
``dra_driver_device_claim_info`` lists every holder. A pod is named where the claim was prepared for one pod.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from prometheus_client import CollectorRegistry, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from dra_driver.discovery import BackendReport
from dra_driver.hardware import BackendMetric, DeviceSample, DiscoveredDevice, HealthEvent
from dra_driver.preparation import ClaimState, PreparedClaim, PreparedDevice
from kubelet_plugin.health.health import physical_device, troubles
from kubelet_plugin.telemetry.backend_metrics import backend_families

__all__ = ["CONTENT_TYPE", "Metrics", "Sources"]

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

# From a repeated prepare (under a millisecond) to the kubelet's deadline (45 s).
_BUCKETS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 45)
_MOST_XID_SERIES: Final = 1000
_DEVICE: Final = ("device", "uuid", "model")
_HOLDER: Final = ("namespace", "claim", "pod")
_NOBODY: Final = ("", "", "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """Where values are read when they are asked for."""

    devices: Callable[[], Sequence[DiscoveredDevice]]
    claims: Callable[[], Iterable[PreparedClaim]]
    failures: Callable[[], Mapping[str, int]]
    registrations: Callable[[], int]
    registered: Callable[[], bool]
    reconciled: Callable[[], int] = lambda: 0
    kept: Callable[[], int] = lambda: 0
    visible: Callable[[], bool | None] = lambda: None
    unmanaged: Callable[[], int] = lambda: 0
    findings: Callable[[], Mapping[str, int]] = dict
    backends: Callable[[], Sequence[BackendReport]] = tuple
    last_looks: Callable[[], Mapping[str, float | None]] = dict


class Metrics:
    """The metrics of one node agent, in a registry of its own."""

    def __init__(self, sources: Sources) -> None:
        self._sources = sources
        self._registry = CollectorRegistry()
        self._seconds = Histogram(
            "dra_driver_claim_duration_seconds",
            "Time to prepare or unprepare one claim",
            ("operation", "result"),
            registry=self._registry,
            buckets=_BUCKETS,
        )
        self._calls: Counter[tuple[str, ...]] = Counter()
        self._xids: Counter[tuple[str, ...]] = Counter()
        self._samples: Sequence[DeviceSample] = ()
        self._measured: Mapping[str, Sequence[BackendMetric]] = {}
        self._registry.register(_Collector(self._collect))

    def call(self, operation: str, result: str, seconds: float) -> None:
        """Count one claim that was prepared or unprepared; ``result`` is success or error."""
        self._calls[operation, result] += 1
        self._seconds.labels(operation, result).observe(seconds)

    def event(self, event: HealthEvent) -> None:
        """Count one event of the hardware that has a number, for the claim that holds the device now."""
        if event.code is None:
            return
        device = next((d for d in self._sources.devices() if d.uuid == event.uuid), None)
        name = device.device.name if device else ""
        labels = (*_device_labels(device, event.uuid), *self._holders().get(name, _NOBODY))
        key = (*labels, str(event.code))
        if key not in self._xids and len(self._xids) >= _MOST_XID_SERIES:
            # Claims come and go: a job that fails again and again must not fill the memory.
            del self._xids[next(iter(self._xids))]
        self._xids[key] += 1

    def render(
        self, samples: Sequence[DeviceSample], measured: Mapping[str, Sequence[BackendMetric]] | None = None
    ) -> bytes:
        """Return the text for Prometheus.

        Args:
            samples: what devices do right now.
            measured: metrics of backends' own, by the names of the backends.
        """
        self._samples, self._measured = samples, measured or {}
        return generate_latest(self._registry)

    def _holders(self) -> dict[str, tuple[str, str, str]]:
        """Return the claim that alone holds a device or partition, by its name; none where several do."""
        held: dict[str, set[tuple[str, str, str]]] = {}
        for claim in self._sources.claims():
            for device in claim.devices:
                if not device.admin_access:
                    for name in {physical_device(device), device.device}:
                        held.setdefault(name, set()).add(_holder(claim))
        return {name: next(iter(h)) if len(h) == 1 else _NOBODY for name, h in held.items()}

    def _collect(self) -> Iterator[Metric]:
        yield _counter(
            "dra_driver_claim_operations",
            "Claims prepared and unprepared since the start",
            ("operation", "result"),
            self._calls,
        )
        yield from self._of_claims()
        yield _counter(
            "dra_driver_store_errors",
            "Failures to write or remove durable files, or to change hardware",
            ("store",),
            {(name,): n for name, n in self._failures().items()},
        )
        registrations = CounterMetricFamily(
            "dra_driver_registrations", "How often the kubelet has confirmed the registration"
        )
        registrations.add_metric([], self._sources.registrations())
        yield registrations
        yield GaugeMetricFamily(
            "dra_driver_registered",
            "1 while the kubelet has the plugin registered",
            value=float(self._sources.registered()),
        )
        reconciled = CounterMetricFamily(
            "dra_driver_claims_reconciled",
            "Claims that were unprepared because they no longer exist in the API server",
        )
        reconciled.add_metric([], self._sources.reconciled())
        yield reconciled
        yield GaugeMetricFamily(
            "dra_driver_claims_gone_in_use",
            "Deleted claims that keep their devices because containers may use them",
            value=self._sources.kept(),
        )
        if (visible := self._sources.visible()) is not None:
            yield GaugeMetricFamily(
                "dra_driver_pod_processes_visible",
                "1 while the agent can see which pods of the node have processes",
                value=float(visible),
            )
        yield GaugeMetricFamily(
            "dra_driver_foreign_instances",
            "Partitions that no claim holds and this driver did not create",
            value=self._sources.unmanaged(),
        )
        yield _counter(
            "dra_driver_findings",
            "Problems that the node agent has found, and repaired or reported, since the start; see its "
            "Events",
            ("kind",),
            {(kind,): n for kind, n in self._sources.findings().items()},
        )
        yield from self._of_backends()
        yield from self._of_devices()
        yield _counter(
            "dra_driver_device_xid_errors",
            "Errors (XIDs) that the device has reported since the start, with its holder at that time",
            (*_DEVICE, *_HOLDER, "xid"),
            self._xids,
        )
        yield from backend_families(self._measured)

    def _failures(self) -> dict[str, int]:
        known = ("checkpoint", "cdi", "metadata", "hardware", "backend")
        return {**dict.fromkeys(known, 0), **self._sources.failures()}

    def _of_backends(self) -> Iterator[Metric]:
        state = GaugeMetricFamily(
            "dra_driver_backend_state",
            "1 for the state of each backend: waiting, ok, absent, driverless, vanished, failed or hanging",
            labels=("backend", "state"),
        )
        unknown = GaugeMetricFamily(
            "dra_driver_backend_problems",
            "Facts that the last scan of the hardware could not read",
            labels=("backend",),
        )
        looked = GaugeMetricFamily(
            "dra_driver_backend_last_look_timestamp_seconds",
            "Time of the last successful scan of a backend, in seconds since the epoch",
            labels=("backend",),
        )
        for backend, at in self._sources.last_looks().items():
            if at is not None:
                looked.add_metric([backend], at)
        for report in self._sources.backends():
            state.add_metric([report.backend, report.state], 1)
            unknown.add_metric([report.backend], len(report.problems))
        yield state
        yield unknown
        yield looked

    def _of_claims(self) -> Iterator[Metric]:
        claims = tuple(self._sources.claims())
        states = Counter(c.state for c in claims)
        prepared = GaugeMetricFamily("dra_driver_prepared_claims", "Claims on this node", labels=("state",))
        prepared.add_metric(["prepared"], states[ClaimState.COMPLETED])
        prepared.add_metric(["unfinished"], states[ClaimState.STARTED])
        yield prepared
        info = GaugeMetricFamily(
            "dra_driver_device_claim_info",
            "1 for each device that a claim holds; parent is the device that a partition belongs to",
            labels=("device", "parent", "namespace", "claim", "pod", "request", "share"),
        )
        for claim in claims:
            for device in claim.devices:
                for pod in [p.name for p in claim.pods] or [""]:
                    info.add_metric(_info(claim, device, pod), 1)
        yield info
        shares = GaugeMetricFamily(
            "dra_driver_device_shares",
            "Shares that claims hold, by what limits their memory: mps, or none",
            labels=("device", "enforced"),
        )
        held = Counter((d.device, d.enforced) for c in claims for d in c.devices if d.enforced)
        for key, number in sorted(held.items()):
            shares.add_metric(key, number)
        yield shares

    def _of_devices(self) -> Iterator[Metric]:
        devices = {d.device.name: d for d in self._sources.devices()}
        holders = self._holders()

        def labels(name: str) -> list[str]:
            return [*_device_labels(devices.get(name), "", name), *holders.get(name, _NOBODY)]

        healthy = GaugeMetricFamily(
            "dra_driver_device_healthy",
            "1 if no condition of the device prevents its use",
            labels=(*_DEVICE, *_HOLDER),
        )
        condition = GaugeMetricFamily(
            "dra_driver_device_condition",
            "1 for each condition of a device",
            labels=(*_DEVICE, *_HOLDER, "reason", "severity"),
        )
        for name, device in devices.items():
            healthy.add_metric(labels(name), float(not troubles(device.device.health)))
            for h in device.device.health:
                condition.add_metric([*labels(name), h.reason, h.severity], 1)
        yield healthy
        yield condition
        for metric, text, read in _SAMPLES:
            family = GaugeMetricFamily(metric, text, labels=(*_DEVICE, *_HOLDER))
            for sample in self._samples:
                value = read(sample)
                if value is not None:
                    family.add_metric(labels(sample.device), value)
            yield family
        errors = GaugeMetricFamily(
            "dra_driver_device_errors",
            "Errors of memories and links that the device has counted since its driver was loaded",
            labels=(*_DEVICE, *_HOLDER, "block", "kind"),
        )
        for sample in self._samples:
            for (block, kind), count in sorted(sample.errors.items()):
                errors.add_metric([*labels(sample.device), block, kind], count)
        yield errors


_SAMPLES: Final[Sequence[tuple[str, str, Callable[[DeviceSample], float | None]]]] = (
    (
        "dra_driver_device_utilization_ratio",
        "Share of the time during which something ran on the device",
        lambda s: s.utilization,
    ),
    ("dra_driver_device_memory_used_bytes", "Device memory in use", lambda s: s.memory_used),
    ("dra_driver_device_memory_total_bytes", "Device memory", lambda s: s.memory_total),
    ("dra_driver_device_temperature_celsius", "Temperature of the device", lambda s: s.temperature),
    ("dra_driver_device_power_watts", "Power that the device draws", lambda s: s.power),
)


class _Collector(Collector):
    """What ``prometheus_client`` calls."""

    def __init__(self, collect: Callable[[], Iterator[Metric]]) -> None:
        self._collect = collect

    def collect(self) -> Iterable[Metric]:
        """Yield all families."""
        return self._collect()

    def describe(self) -> Iterable[Metric]:
        """Return nothing: without this method the registry would collect once at the start."""
        return ()


def _counter(
    name: str, text: str, labels: Sequence[str], values: Mapping[tuple[str, ...], int]
) -> CounterMetricFamily:
    family = CounterMetricFamily(name, text, labels=labels)
    for key, value in sorted(values.items()):
        family.add_metric(key, value)
    return family


def _holder(claim: PreparedClaim) -> tuple[str, str, str]:
    return claim.namespace, claim.name, claim.pods[0].name if len(claim.pods) == 1 else ""


def _info(claim: PreparedClaim, device: PreparedDevice, pod: str) -> list[str]:
    parent = physical_device(device)
    return [
        device.device,
        parent if parent != device.device else "",
        claim.namespace,
        claim.name,
        pod,
        ",".join(device.requests),
        device.share_id or "",
    ]


def _device_labels(device: DiscoveredDevice | None, uuid: str, name: str = "") -> tuple[str, str, str]:
    if device is None:
        return name, uuid, ""
    model = device.device.attributes.get("model") or device.device.attributes.get("productName")
    return device.device.name, device.uuid, (model.string_value or "") if model else ""
