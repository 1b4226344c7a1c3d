"""What is kept of a pod.

Of containers that is what they take of a node, in one sum. Where a pod can go matters only if it waits for
devices; of all others it matters what they are for those that wait: labels, anti-affinity, volumes, priority.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from dra_driver.api.core import (
    Affinity,
    Container,
    ContainerPort,
    ContainerResources,
    DiskSource,
    Pod,
    PodSchedulingGate,
    PodSpec,
    PodStatus,
    PodVolume,
)
from dra_driver.api.meta import ObjectMeta
from dra_driver.api.names import ALLOCATION_GATE, PREEMPTIBLE_LABEL
from dra_driver.api.pod_affinity import LabelSelector, PodAffinity, PodAffinityTerm
from dra_driver.api.quantity import Quantity
from dra_driver.nodefit import HostPort, needs_of, terms_of
from dra_driver.resourceclaim import extended_resources, named_twice
from dra_driver.structured import READ_ANNOTATIONS, READ_LABELS
from dra_driver.trimming.metadata import cut, only, size_of, too_large, too_many, trimmed_metadata

__all__ = [
    "MOST_AFFINITY_BYTES",
    "MOST_CLAIMS",
    "MOST_CONTAINERS",
    "MOST_GATES",
    "MOST_LABELS",
    "MOST_LABEL_BYTES",
    "MOST_NODE_CONDITIONS",
    "MOST_NODE_SELECTORS",
    "MOST_RESOURCE_ENTRIES",
    "MOST_SELECTOR_BYTES",
    "MOST_TERMS",
    "MOST_TERM_PARTS",
    "MOST_TOLERATIONS",
    "MOST_TOLERATION_BYTES",
    "least_of",
    "pod_problem",
    "trimmed_pod",
    "unservable",
]

MOST_LABELS: Final = 256
MOST_LABEL_BYTES: Final = 32 * 1024
MOST_CLAIMS: Final = 256
MOST_NODE_SELECTORS: Final = 256
MOST_SELECTOR_BYTES: Final = 16 * 1024
MOST_TOLERATIONS: Final = 1_024
MOST_TOLERATION_BYTES: Final = 64 * 1024
MOST_NODE_CONDITIONS: Final = 2_048
"""Terms, requirements and values of the required node affinity."""
MOST_TERMS: Final = 64
"""Required terms of affinity and anti-affinity; constraints of topology spread."""
MOST_TERM_PARTS: Final = 1_024
"""Their namespaces, labels, requirements and values."""
MOST_AFFINITY_BYTES: Final = 64 * 1024
"""Of node affinity, of affinity to pods with anti-affinity, and of topology spread, each."""
MOST_CONTAINERS: Final = 512
MOST_RESOURCE_ENTRIES: Final = 1_024
"""Requests of all containers of a pod that asks for extended resources."""
MOST_GATES: Final = 16
"""Scheduling gates that are kept. While there are more, none is removed: the pod cannot be scheduled."""

_FEW_CLAIMS: Final = 4
_FEW_RESOURCES: Final = 8
_FEW_PORTS: Final = 8
_WHAT: Final = "the pod"
_LABELS: Final = frozenset({*READ_LABELS, PREEMPTIBLE_LABEL})
_MOST_MONITORS: Final = 16


def unservable(pod: Pod) -> str:
    """Return why a pod that waits for devices can never get any; empty where nothing is wrong with it."""
    return pod_problem(pod) or named_twice(pod)


def pod_problem(pod: Pod) -> str:
    """Return which limit a pod exceeds that waits for devices; empty where it exceeds none."""
    return pod.left_out or _problem(pod, extended=bool(extended_resources(pod)))


def _problem(pod: Pod, *, extended: bool) -> str:
    meta, spec = pod.metadata, pod.spec
    affinity = spec.affinity or _NO_AFFINITY
    nodes = affinity.node_affinity
    near, apart = _terms(affinity.pod_affinity), _terms(affinity.pod_anti_affinity)
    spread = spec.topology_spread_constraints
    containers = (*spec.init_containers, *spec.containers) if extended else ()
    entries = sum(len(c.resources.requests) for c in containers)
    many = (
        ("metadata.labels", len(meta.labels or ()), MOST_LABELS),
        ("spec.resourceClaims", len(spec.resource_claims), MOST_CLAIMS),
        ("spec.nodeSelector", len(spec.node_selector), MOST_NODE_SELECTORS),
        ("spec.tolerations", len(spec.tolerations), MOST_TOLERATIONS),
        ("spec.affinity.nodeAffinity", _node_conditions(pod), MOST_NODE_CONDITIONS),
        ("spec.affinity.podAffinity and podAntiAffinity", len(near) + len(apart), MOST_TERMS),
        ("spec.affinity.podAffinity and podAntiAffinity", _parts((*near, *apart)), MOST_TERM_PARTS),
        ("spec.topologySpreadConstraints", len(spread), MOST_TERMS),
        (
            "spec.topologySpreadConstraints",
            sum(len(c.match_label_keys) + _requirements(c.label_selector) for c in spread),
            MOST_TERM_PARTS,
        ),
        ("spec.containers and initContainers", len(containers), MOST_CONTAINERS),
        ("resources.requests of the containers", entries, MOST_RESOURCE_ENTRIES),
    )
    if problem := next(filter(None, (too_many(_WHAT, *each) for each in many)), ""):
        return problem
    large: tuple[tuple[str, object, int], ...] = (
        ("metadata.labels", meta.labels, MOST_LABEL_BYTES),
        ("spec.nodeSelector", spec.node_selector, MOST_SELECTOR_BYTES),
        ("spec.tolerations", spec.tolerations, MOST_TOLERATION_BYTES),
        ("spec.affinity.nodeAffinity", nodes, MOST_AFFINITY_BYTES),
        ("spec.affinity.podAffinity and podAntiAffinity", (near, apart), MOST_AFFINITY_BYTES),
        ("spec.topologySpreadConstraints", spread, MOST_AFFINITY_BYTES),
    )
    if size_of(*(value for _, value, _ in large)) <= _LEAST_LIMIT:
        return ""
    return next(filter(None, (too_large(_WHAT, *each) for each in large)), "")


_NO_AFFINITY: Final = Affinity()
_LEAST_LIMIT: Final = min(MOST_LABEL_BYTES, MOST_SELECTOR_BYTES)


def _terms(affinity: PodAffinity | None) -> tuple[PodAffinityTerm, ...]:
    return affinity.required_during_scheduling_ignored_during_execution if affinity is not None else ()


def _node_conditions(pod: Pod) -> int:
    affinity = pod.spec.affinity.node_affinity if pod.spec.affinity is not None else None
    required = affinity.required_during_scheduling_ignored_during_execution if affinity is not None else None
    if required is None:
        return 0
    terms = required.node_selector_terms
    return len(terms) + sum(1 + len(r.values) for t in terms for r in (*t.match_expressions, *t.match_fields))


def _parts(terms: Iterable[PodAffinityTerm]) -> int:
    return sum(
        len(t.namespaces) + _requirements(t.label_selector) + _requirements(t.namespace_selector)
        for t in terms
    )


def _requirements(selector: LabelSelector | None) -> int:
    if selector is None:
        return 0
    return len(selector.match_labels) + sum(1 + len(r.values) for r in selector.match_expressions)


# --- what is kept -------------------------------------------------------------------------------------------


def trimmed_pod(pod: Pod) -> Pod:
    """Return a pod as it is kept; ``left_out`` says why it is not served, if it waits for devices."""
    spec, extended = pod.spec, bool(extended_resources(pod))
    ended = pod.status.phase in ("Succeeded", "Failed")
    wants = not ended and (bool(spec.resource_claims) or extended)
    problem = (pod.left_out or _problem(pod, extended=extended)) if wants else ""
    whole = wants and not problem
    folded = not (whole and extended)
    return Pod(
        metadata=_metadata(pod.metadata, whole=whole),
        spec=PodSpec(
            node_name=spec.node_name,
            scheduler_name=cut(spec.scheduler_name),
            node_selector=spec.node_selector if whole else {},
            affinity=spec.affinity if whole else _against_others(pod),
            tolerations=spec.tolerations if whole else (),
            topology_spread_constraints=spec.topology_spread_constraints if whole else (),
            scheduling_gates=_gates(spec.scheduling_gates),
            resource_claims=spec.resource_claims[:MOST_CLAIMS],
            containers=_sum_of(pod) if folded else tuple(map(_container, spec.containers)),
            init_containers=() if folded else tuple(map(_container, spec.init_containers)),
            resources=None if folded else spec.resources and _requests_only(spec.resources),
            overhead={} if folded else spec.overhead,
            priority=spec.priority,
            preemption_policy=spec.preemption_policy,
            volumes=tuple(map(_volume, spec.volumes)),
            scheduling_group=spec.scheduling_group,
        ),
        status=_status(pod.status) if folded else pod.status,
        left_out=problem,
    )


def least_of(pod: Pod, why: str) -> Pod:
    """Return a trimmed pod with nothing that can be large.

    Args:
        pod: as it was kept until now.
        why: it cannot be kept so, if it waits for devices.
    """
    wants = bool(pod.spec.resource_claims) or bool(extended_resources(pod))
    slim = trimmed_pod(msgspec.structs.replace(pod, left_out=pod.left_out or why))
    claims = slim.spec.resource_claims[:_FEW_CLAIMS]
    named = {entry.name for entry in claims}
    statuses = tuple(s for s in slim.status.resource_claim_statuses if s.name in named)[:_FEW_CLAIMS]
    replace = msgspec.structs.replace
    return replace(
        slim,
        metadata=replace(slim.metadata, labels=only(slim.metadata.labels, _LABELS), annotations=None),
        spec=replace(
            slim.spec,
            affinity=None,
            volumes=(),
            resource_claims=claims,
            containers=_few_needs(slim),
        ),
        status=replace(slim.status, resource_claim_statuses=statuses),
        left_out=(pod.left_out or why) if wants else "",
    )


def _few_needs(pod: Pod) -> tuple[Container, ...]:
    """Return what a pod takes of its node of the resources that matter to most; one without a node none."""
    if not pod.spec.node_name:
        return ()
    needs = needs_of(pod)
    amounts = sorted(needs.amounts, key=lambda each: ("/" in each[0], each))
    return _one_container(tuple(sorted(amounts[:_FEW_RESOURCES])), needs.ports[:_FEW_PORTS])


def _metadata(meta: ObjectMeta, *, whole: bool) -> ObjectMeta:
    labels = meta.labels
    if not whole and labels and (len(labels) > MOST_LABELS or size_of(labels) > MOST_LABEL_BYTES):
        labels = only(labels, _LABELS)
    return trimmed_metadata(meta, labels=labels, annotations=only(meta.annotations, READ_ANNOTATIONS))


def _against_others(pod: Pod) -> Affinity | None:
    """Return the anti-affinity of a pod, which holds against others, as far as it is looked at."""
    affinity = pod.spec.affinity
    apart = affinity.pod_anti_affinity if affinity is not None else None
    if apart is None or not terms_of(pod).anti or size_of(apart) > MOST_SELECTOR_BYTES:
        return None
    return Affinity(pod_anti_affinity=apart)


def _gates(gates: tuple[PodSchedulingGate, ...]) -> tuple[PodSchedulingGate, ...]:
    """Return the gates, ours first, and of more than are kept one more than these."""
    if len(gates) <= MOST_GATES:
        return gates
    ours = (gate for gate in gates if gate.name == ALLOCATION_GATE)
    others = (gate for gate in gates if gate.name != ALLOCATION_GATE)
    return (*ours, *others)[: MOST_GATES + 1]


def _sum_of(pod: Pod) -> tuple[Container, ...]:
    """Return one container that takes of a node what the pod does (``needs_of``)."""
    return _one_container(*needs_of(pod)[:2])


def _one_container(
    amounts: tuple[tuple[str, int], ...], ports: tuple[HostPort, ...]
) -> tuple[Container, ...]:
    """Return the same container for pods that take the same, unless it is too large to be remembered."""
    is_small = len(amounts) <= _FEW_RESOURCES and len(ports) <= _FEW_PORTS
    return (_same_container if is_small else _same_container.__wrapped__)(amounts, ports)


@functools.lru_cache(maxsize=1_024)
def _same_container(
    amounts: tuple[tuple[str, int], ...], ports: tuple[HostPort, ...]
) -> tuple[Container, ...]:
    # ``amount`` counts CPU in 1e-3 cores, all else in whole numbers.
    requests = {
        name: Quantity(number * (1_000_000 if name == "cpu" else 1_000_000_000))
        for name, number in amounts
        if name != "pods"
    }
    if not requests and not ports:
        return ()
    return (
        Container(
            name="",
            resources=ContainerResources(requests=requests),
            ports=tuple(
                ContainerPort(host_port=p.number, host_ip=p.address, protocol=p.protocol) for p in ports
            ),
        ),
    )


def _container(container: Container) -> Container:
    return msgspec.structs.replace(container, resources=_requests_only(container.resources))


def _requests_only(resources: ContainerResources) -> ContainerResources:
    return ContainerResources(requests=resources.requests)


def _status(status: PodStatus) -> PodStatus:
    """Return the status without resources of containers, which are part of the sum."""
    return msgspec.structs.replace(
        status,
        container_statuses=(),
        init_container_statuses=(),
        resources=None,
        allocated_resources={},
        node_allocatable_resource_claim_statuses=(),
    )


def _volume(volume: PodVolume) -> PodVolume:
    claim = volume.persistent_volume_claim
    disks: Mapping[str, DiskSource | None] = {
        name: disk and _disk(disk)
        for name in ("aws_elastic_block_store", "gce_persistent_disk", "iscsi", "rbd")
        if (disk := getattr(volume, name)) is not None
    }
    return msgspec.structs.replace(
        volume,
        persistent_volume_claim=claim and msgspec.structs.replace(claim, claim_name=cut(claim.claim_name)),
        **disks,
    )


def _disk(disk: DiskSource) -> DiskSource:
    """Return a disk with texts that are cut: two that differ only behind that are taken for one."""
    return DiskSource(
        pd_name=cut(disk.pd_name),
        volume_id=cut(disk.volume_id),
        iqn=cut(disk.iqn),
        monitors=tuple(map(cut, disk.monitors[:_MOST_MONITORS])),
        pool=cut(disk.pool),
        image=cut(disk.image),
        read_only=disk.read_only,
    )
