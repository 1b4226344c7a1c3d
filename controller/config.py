"""Configuration of the controller: one frozen value, checked at once."""

from __future__ import annotations

import enum
import re
import socket
import uuid
from dataclasses import dataclass, field
from pathlib import Path

from controller.admission.config import TIMEOUT_SECONDS, AdmissionConfig
from dra_driver.api.meta import DriverName
from dra_driver.api.names import DEFAULT_DRIVER_NAME, DEFAULT_SCHEDULER, SYSTEM_NAMESPACE
from dra_driver.errors import ConfigurationError
from dra_driver.fleet import RequestShape
from dra_driver.ownership import PoolAllocator
from dra_driver.structured import GroupLabels, NodePolicy, Strategy

__all__ = [
    "ControllerConfig",
    "PreemptionMode",
    "PreemptionSettings",
    "Timings",
    "identity_of",
]

_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")


def identity_of(pod_name: str = "") -> str:
    """Return a holder of the Lease: the pod's name, "_", and text that differs from process to process.

    The policy ``dra-driver-leader-only`` compares what is before the "_", which no name of a pod has, with
    the pod that the token belongs to. A restarted container keeps its name, but must not take its
    predecessor's lease for its own.

    Args:
        pod_name: if empty, the host name, of which a pod has at most 63 characters.
    """
    return f"{pod_name or socket.gethostname()}_{uuid.uuid4().hex[:8]}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Timings:
    """How long the controller waits, in seconds. No flags: other values are for tests.

    Attributes:
        wake: between a change and the next look at waiting pods, so that a burst of changes costs one look.
        unused: until a claim that no pod uses and that is not reserved is deallocated.
        avoid: for which a node is left out where kube-scheduler could not place a pod; doubled each time that
            it could not place the pod there again.
        longest_avoid: the most that doubling leads to.
        drain: between the last decision of one allocator in a pool and the first of the other. kube-scheduler
            writes an allocation in its binding cycle, usually within a second of the decision; a busy API
            server may need longer.
        closing: until every API server follows the end of a grant. One that lags for longer is cut off from
            etcd, and writes no claims.
        kept: for which not everything is admitted of a pool that has become kube-scheduler's: longer than a
            decision of before can be under way. It waits up to ten minutes each for volumes and for devices.
        settle: between a change and the write of the policies' statuses, so that a change of all nodes is one
            write.
        preempt: for which a pod waits before others are preempted for it, so that what passes has passed.
        probe: between two questions which fields the API server keeps: its upgrade changes that.
        agent: for which the agent of a node must be away until that is shown: longer than a restart, and than
            what an agent takes to ask again for slices that somebody has deleted.
        review: in which an admission review must be received and judged. The API server has given up by
            then; a request that holds its place for longer holds it from others.
    """

    wake: float = 0.05
    unused: float = 2.0
    avoid: float = 15.0
    longest_avoid: float = 600.0
    drain: float = 15.0
    closing: float = 5.0
    kept: float = 3600.0
    settle: float = 0.5
    preempt: float = 3.0
    probe: float = 30.0
    agent: float = 20.0
    review: float = float(TIMEOUT_SECONDS)


class PreemptionMode(enum.Enum):
    """Whether pods are removed for others of higher priority."""

    OFF = "off"
    DRY_RUN = "dry-run"
    """It is only said which pods would be."""
    ON = "on"


@dataclass(frozen=True, slots=True, kw_only=True)
class PreemptionSettings:
    """How pods are preempted.

    Attributes:
        mode: whether they are.
        seconds: duration of a round, in which no further pod is removed for the same pod or group.
        per_minute: how many pods are removed in the long run, and at once after a pause.
        violates_budgets: whether PodDisruptionBudgets are violated where no other choice is left.
    """

    mode: PreemptionMode = PreemptionMode.DRY_RUN
    seconds: float = 300.0
    per_minute: float = 10.0
    violates_budgets: bool = False

    def findings(self) -> list[str]:
        """Return what is wrong."""
        found: list[str] = []
        if not 30 <= self.seconds <= 86_400:
            found.append(f"--preemption-timeout {self.seconds:g}: must be between 30 and 86400 seconds")
        if not 1 <= self.per_minute <= 10_000:
            found.append(f"--preemption-rate {self.per_minute:g}: must be between 1 and 10000 pods a minute")
        return found


@dataclass(frozen=True, slots=True)
class ControllerConfig:
    """Everything that can be set.

    Attributes:
        drivers: only inventories, slices and claims of these drivers are ours.
        kubeconfig: file; if None, the KUBECONFIG variable, then the service account.
        allocator: the controller or kube-scheduler, where no policy says otherwise.
        strategy: of this allocator, where no policy says otherwise.
        node_policy: of this allocator, where no policy says otherwise.
        leader_elect: whether to wait for the lease; off where there is one process for sure.
        heartbeat: whether the lease is renewed without that, so that others see that this process works.
        namespace: of the lease.
        identity: in the lease.
        health_port: for /healthz, /readyz and /metrics; if None, they are not served.
        health_host: address that they are served on.
        web_port: for the page that draws the fleet; if None, it is not served.
        web_host: address that the page is served on.
        http_authorization: ``none``, or ``rbac``: metrics and the page need a token whose account may get
            their path, by a rule for ``nonResourceURLs``; probes, and a page on a loopback address, do not.
        otlp_endpoint: of a collector of traces; if empty, there are no traces.
        node_labels: ``none``, ``own`` (under dra-driver.dev) or ``nvidia`` (NVIDIA's names as well).
        admission: webhooks; if None, they are not served.
        group_seconds: how long members of a group may hold devices while others of it are missing.
        schedulers: ``spec.schedulerName`` of the pods that are served; others are left alone.
        binding_seconds: for which kube-scheduler may say nothing about a pod whose claims are allocated; then
            they are deallocated.
        starvation_seconds: for which a pod waits before devices are set aside for it; 0: they never are.
        scale_up_seconds: for which a pod waits before autoscalers see it, where nodes may be added.
        scale_up_pods: that autoscalers see at a time for that; 0: none.
        preemption: of pods of lower priority.
        open_pools: whether pools are open where the admission policy and the gate in every namespace allow
            it.
        grant_scan_seconds: that kube-scheduler may look for devices because of grants, by estimate.
        workers: pods whose allocations are written at the same time.
        decision_seconds: CPU time that a decision about a pod may take.
        group_decision_seconds: likewise about all pods of a group.
        decision_memory: bytes that a decision may take.
        shapes: requests that are counted, for metrics.
        group_labels: labels of others that make pods a group.
        timings: how long to wait for what.

    Raises:
        ConfigurationError: with every finding.
    """

    drivers: tuple[DriverName, ...] = (DriverName(DEFAULT_DRIVER_NAME),)
    kubeconfig: Path | None = None
    allocator: PoolAllocator = PoolAllocator.CONTROLLER
    strategy: Strategy = Strategy.BEST_FIT
    node_policy: NodePolicy = NodePolicy.PACK
    leader_elect: bool = True
    heartbeat: bool = False
    namespace: str = SYSTEM_NAMESPACE
    identity: str = field(default_factory=identity_of)
    health_port: int | None = None
    health_host: str = "127.0.0.1"
    web_port: int | None = None
    web_host: str = "127.0.0.1"
    http_authorization: str = "none"
    otlp_endpoint: str = ""
    schedulers: tuple[str, ...] = (DEFAULT_SCHEDULER,)
    binding_seconds: float = 60.0
    starvation_seconds: float = 300.0
    scale_up_seconds: float = 15.0
    scale_up_pods: int = 64
    preemption: PreemptionSettings = PreemptionSettings()
    open_pools: bool = False
    grant_scan_seconds: float = 1.0
    workers: int = 16
    node_labels: str = "none"
    admission: AdmissionConfig | None = None
    group_seconds: float = 30.0
    decision_seconds: float = 2.0
    group_decision_seconds: float = 10.0
    decision_memory: int = 256 << 20
    shapes: tuple[RequestShape, ...] = ()
    group_labels: tuple[str, ...] = tuple(GroupLabels)
    timings: Timings = Timings()

    def __post_init__(self) -> None:
        findings: list[str] = []
        if not self.drivers:
            findings.append("--driver-name: at least one is needed")
        findings += [
            f"--driver-name {driver!r}: must be a DNS name in lower case of at most 63 characters, "
            "such as gpu.dra-driver.dev"
            for driver in self.drivers
            if len(driver) > 63 or not _SUBDOMAIN.fullmatch(driver)
        ]
        if len(set(self.drivers)) != len(self.drivers):
            findings.append("--driver-name: the same name is given twice")
        if not _LABEL.fullmatch(self.namespace):
            findings.append(f"--namespace {self.namespace!r}: must be a DNS label of at most 63 characters")
        if self.health_port is not None and not 0 <= self.health_port <= 65535:
            findings.append(f"--health-port {self.health_port}: must be between 0 and 65535 (0: any)")
        if self.web_port is not None and not 0 <= self.web_port <= 65535:
            findings.append(f"--web-port {self.web_port}: must be between 0 and 65535 (0: any)")
        if self.otlp_endpoint and not re.match(r"https?://[^/]", self.otlp_endpoint):
            findings.append(
                f"--otlp-endpoint {self.otlp_endpoint!r}: must be an address such as http://collector:4318"
            )
        if not 0 <= self.group_seconds <= 86_400:
            findings.append(f"--group-timeout {self.group_seconds:g}: must be between 0 and 86400 seconds")
        for flag, seconds in (
            ("--decision-seconds", self.decision_seconds),
            ("--group-decision-seconds", self.group_decision_seconds),
        ):
            if not 0.1 <= seconds <= 600:
                findings.append(f"{flag} {seconds:g}: must be between 0.1 and 600 seconds")
        if not 16 << 20 <= self.decision_memory <= 1 << 40:
            findings.append(f"--decision-memory {self.decision_memory >> 20}: must be at least 16 MiB")
        if not 5 <= self.binding_seconds <= 86_400:
            findings.append(
                f"--binding-timeout {self.binding_seconds:g}: must be between 5 and 86400 seconds"
            )
        if not (self.starvation_seconds == 0 or 1 <= self.starvation_seconds <= 86_400):
            findings.append(
                f"--starvation-timeout {self.starvation_seconds:g}: must be 0, or between 1 and 86400 seconds"
            )
        if not 0 <= self.scale_up_seconds <= 86_400:
            findings.append(
                f"--scale-up-delay {self.scale_up_seconds:g}: must be between 0 and 86400 seconds"
            )
        if not 0 <= self.scale_up_pods <= 10_000:
            findings.append(f"--scale-up-pods {self.scale_up_pods}: must be between 0 and 10000")
        findings += [
            f"--scheduler-name {name!r}: must be a DNS name in lower case, such as default-scheduler"
            for name in self.schedulers
            if not _SUBDOMAIN.fullmatch(name)
        ]
        if not self.schedulers:
            findings.append("--scheduler-name: at least one is needed")
        findings += [
            f"--group-labels {name!r}: must be none, or some of {', '.join(GroupLabels)}"
            for name in self.group_labels
            if name not in list(GroupLabels)
        ]
        findings += self.preemption.findings()
        if not 0.01 <= self.grant_scan_seconds <= 3_600:
            findings.append(
                f"--grant-scan-budget {self.grant_scan_seconds:g}: must be between 0.01 and 3600 seconds"
            )
        if not 1 <= self.workers <= 256:
            findings.append(f"--workers {self.workers}: must be between 1 and 256")
        if self.node_labels not in ("none", "own", "nvidia"):
            findings.append(f"--node-labels {self.node_labels!r}: must be none, own or nvidia")
        if self.http_authorization not in ("none", "rbac"):
            findings.append(f"--http-authorization {self.http_authorization!r}: must be none or rbac")
        if self.admission is not None:
            findings += self.admission.findings()
        if findings:
            raise ConfigurationError(findings)
