"""What a pod takes of a node.

The rules are those of ``PodRequests`` in ``k8s.io/component-helpers/resource``: containers run at the same
time, init containers one after the other before them, and a restartable init container (a sidecar) from its
turn on until the pod ends (KEP-753). Requests of the whole pod take the place of the sum (KEP-2837), overhead
comes on top. A pod that is bound counts with what it may have by now, where it is resized in place
(KEP-1287): the most of spec, allocated and actual resources. What its devices count as, or cost, is in its
status (KEP-5517) and comes on top as well.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from dra_driver.api.core import ActualResources, Container, ContainerStatus, NodeAllocatableClaimStatus, Pod
from dra_driver.api.quantity import Quantity
from dra_driver.nodefit.ports import MOST_PORTS, HostPort, host_ports

__all__ = ["MOST_RESOURCES", "PodNeeds", "amount", "needs_of", "shrinks"]

MOST_RESOURCES: Final = 64
"""Resources of one pod that are counted; a pod can name tens of thousands."""

_FIRST: Final = ("cpu", "memory", "ephemeral-storage")
_HUGE_PAGES: Final = "hugepages-"
_MOST: Final = 2**63 - 1

_Amounts = dict[str, int]
"""Resource → amount × 1e9."""
_Requests = Mapping[str, Quantity]


class PodNeeds(NamedTuple):
    """What decides whether a pod has room on a node.

    Attributes:
        amounts: of resources, sorted by name, without those that are 0: CPU in 1e-3 cores, all else in
            bytes or pieces. ``pods`` is 1.
        ports: of the host, sorted.
        priority: ``spec.priority``.
        preempts: whether kube-scheduler may evict pods of lower priority for it (``preemptionPolicy``).
    """

    amounts: tuple[tuple[str, int], ...]
    ports: tuple[HostPort, ...] = ()
    priority: int = 0
    preempts: bool = True


def needs_of(pod: Pod) -> PodNeeds:
    """Return what a pod takes of a node.

    Of more than 64 resources, and of more than 1,024 ports, the rest is left out.
    """
    spec = pod.spec
    found = {name: amount(name, nano) for name, nano in _requests(pod).items() if nano > 0 and _counts(name)}
    if len(found) > MOST_RESOURCES:
        names = sorted(found, key=lambda name: (name not in _FIRST, name))
        found = {name: found[name] for name in names[:MOST_RESOURCES]}
    found["pods"] = 1
    ports = sorted(set(host_ports(spec)))[:MOST_PORTS]
    return PodNeeds(
        tuple(sorted(found.items())), tuple(ports), spec.priority, spec.preemption_policy != "Never"
    )


def shrinks(old: Pod, new: Pod) -> bool:
    """Return whether a pod that is bound takes less of some resource after a change: it was resized."""
    if not new.spec.node_name or _sources(old) == _sources(new):
        return False
    now = dict(needs_of(new).amounts)
    return any(now.get(name, 0) < number for name, number in needs_of(old).amounts)


def _sources(pod: Pod) -> tuple[object, ...]:
    """Return what the needs of a pod come from, as far as it can change while the pod is bound."""
    spec, status = pod.spec, pod.status
    return (
        spec.containers,
        spec.init_containers,
        spec.resources,
        status.container_statuses,
        status.init_container_statuses,
        status.resources,
        status.allocated_resources,
        status.node_allocatable_resource_claim_statuses,
        _is_infeasible(pod),
    )


def amount(name: str, nano: int) -> int:
    """Return an amount × 1e9 as kube-scheduler counts it: rounded up, in an int64."""
    unit = 1_000_000 if name == "cpu" else 1_000_000_000
    return max(-_MOST, min(-(-nano // unit), _MOST))


def _counts(name: str) -> bool:
    """Return whether kube-scheduler counts a resource: all but names that only quotas have."""
    if name in _FIRST:
        return True
    if name.startswith(("requests.", "limits.")):
        return False
    return "/" in name or name.startswith((_HUGE_PAGES, "attachable-volumes-"))


def _requests(pod: Pod) -> _Amounts:
    """Return the requests of a pod, × 1e9."""
    spec, status = pod.spec, pod.status
    resized: Mapping[str, ContainerStatus] = {}
    if spec.node_name and (status.container_statuses or status.init_container_statuses):
        resized = {s.name: s for s in (*status.container_statuses, *status.init_container_statuses)}
    total: _Amounts = {}
    for container in spec.containers:
        _add(total, _running(pod, container, resized))
    if spec.init_containers:
        _start(pod, resized, total)
    if spec.resources is not None:
        _put_pod_level(pod, spec.resources.requests, total)
    if spec.overhead:
        _add(total, spec.overhead)
    for claim in status.node_allocatable_resource_claim_statuses[:MOST_RESOURCES]:
        _add_devices(claim, total)
    return total


def _add_devices(claim: NodeAllocatableClaimStatus, total: _Amounts) -> None:
    """Add what the devices of a claim count as, and what their use costs the pod and its containers."""
    for mapped in claim.mapping[:MOST_RESOURCES]:
        _add(total, {mapped.name: mapped.quantity})
    for overhead in claim.overhead[:MOST_RESOURCES]:
        if overhead.per_pod is not None:
            _add(total, {overhead.name: overhead.per_pod})
        if overhead.per_container is not None:
            each = overhead.per_container.nano
            total[overhead.name] = total.get(overhead.name, 0) + each * len(claim.containers)


def _start(pod: Pod, resized: Mapping[str, ContainerStatus], total: _Amounts) -> None:
    """Take in init containers: sidecars run on, and beside each one that starts after them."""
    sidecars: _Amounts = {}
    most: _Amounts = {}
    for container in pod.spec.init_containers:
        if container.restart_policy == "Always":
            asked = _running(pod, container, resized)
            _add(total, asked)
            _add(sidecars, asked)
            _raise(most, sidecars)
        else:
            now = dict(sidecars)
            _add(now, container.resources.requests)
            _raise(most, now)
    _raise(total, most)


def _running(pod: Pod, container: Container, resized: Mapping[str, ContainerStatus]) -> _Requests:
    """Return what a container requests, or has while it is resized."""
    asked = container.resources.requests
    known = resized.get(container.name)
    if known is None or known.resources is None:
        return asked
    return _effective(pod, asked, known.resources, known.allocated_resources)


def _put_pod_level(pod: Pod, asked: _Requests, total: _Amounts) -> None:
    """Put requests of the whole pod in the place of what its containers come to."""
    now = asked
    if pod.spec.node_name and pod.status.resources is not None:
        now = _effective(pod, asked, pod.status.resources, pod.status.allocated_resources)
    for name in asked:
        if name in ("cpu", "memory") or name.startswith(_HUGE_PAGES):
            total[name] = now[name].nano if name in now else 0


def _effective(pod: Pod, asked: _Requests, actual: ActualResources, allocated: _Requests) -> _Requests:
    """Return the most of what is asked, allocated and actual; what is infeasible does not count."""
    found = {} if _is_infeasible(pod) else dict(asked)
    for more in (actual.requests, allocated):
        for name, quantity in more.items():
            if name not in found or quantity > found[name]:
                found[name] = quantity
    return found


def _is_infeasible(pod: Pod) -> bool:
    """Return whether the kubelet has said that a resize can never be done."""
    for condition in pod.status.conditions:
        if condition.get("type") == "PodResizePending":
            return condition.get("reason") == "Infeasible"
    return False


def _add(total: _Amounts, more: _Requests) -> None:
    for name, quantity in more.items():
        total[name] = total.get(name, 0) + quantity.nano


def _raise(total: _Amounts, least: _Amounts) -> None:
    for name, nano in least.items():
        if nano > total.get(name, 0):
            total[name] = nano
