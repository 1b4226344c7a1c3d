"""Which pods could go to nodes that an autoscaler adds, by what DevicePolicies say about these nodes."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from dra_driver.api.core import Pod
from dra_driver.api.own.policy import DevicePolicy
from dra_driver.api.resource import NodeSelectorRequirement, NodeSelectorTerm
from dra_driver.kube import Informer
from dra_driver.ownership import PoolAllocator
from dra_driver.structured.model.nodeselection import NODE_NAME_FIELD, label_holds, requirements_hold

__all__ = ["AddedNodes"]


class AddedNodes:
    """Judges pods by the policies alone: there may be no node yet.

    Args:
        policies: all.
        drivers: whose devices are allocated here.
        default: the allocator of nodes that no policy names.
    """

    def __init__(
        self, policies: Informer[DevicePolicy], drivers: Collection[str], default: PoolAllocator
    ) -> None:
        self._policies = policies
        self._drivers = ("", *drivers)
        self._default = default

    @property
    def may_come(self) -> bool:
        """Whether nodes may be added at all."""
        return self._default is PoolAllocator.SCHEDULER or any(
            self._is_about_added(p, grouped=False) for p in self._policies.items()
        )

    def could_take(self, pod: Pod, *, grouped: bool) -> bool:
        """Return whether the pod could go to a node that is added, as far as labels are known beforehand.

        Args:
            pod: that waits.
            grouped: it is of a group. kube-scheduler places members one by one in its own pools, so that
                these count only where a policy names them.
        """
        if self._default is PoolAllocator.SCHEDULER and not grouped:
            return True
        return any(
            self._is_about_added(policy, grouped=grouped) and _could_match(policy, pod)
            for policy in self._policies.items()
        )

    def _is_about_added(self, policy: DevicePolicy, *, grouped: bool) -> bool:
        spec = policy.spec
        if spec.driver not in self._drivers or policy.metadata.deletion_timestamp:
            return False
        if spec.autoscaled is not None:
            return spec.autoscaled
        return spec.allocator == PoolAllocator.SCHEDULER.value and not grouped


def _could_match(policy: DevicePolicy, pod: Pod) -> bool:
    selector = policy.spec.node_selector
    if selector is None:
        return True
    return any(_could_go(pod, term) for term in selector.node_selector_terms)


def _could_go(pod: Pod, nodes: NodeSelectorTerm) -> bool:
    """Return whether a node that the term selects may suit the pod."""
    wanted = pod.spec.node_selector
    if not all(
        _holds(requirement, wanted[requirement.key])
        for requirement in nodes.match_expressions
        if requirement.key in wanted
    ):
        return False
    affinity = pod.spec.affinity.node_affinity if pod.spec.affinity is not None else None
    required = affinity.required_during_scheduling_ignored_during_execution if affinity is not None else None
    if required is None:
        return True
    return any(_agree(nodes.match_expressions, term) for term in required.node_selector_terms)


def _agree(nodes: Iterable[NodeSelectorRequirement], term: NodeSelectorTerm) -> bool:
    """Return whether nodes of which these labels are known may be what a term of a pod's affinity requires.

    A pod that names its node waits for no other one.
    """
    if any(field.key == NODE_NAME_FIELD and field.operator == "In" for field in term.match_fields):
        return False
    for known in nodes:
        asked = [r for r in term.match_expressions if r.key == known.key]
        if known.operator == "In" and not any(
            requirements_hold(asked, {known.key: value}) for value in known.values
        ):
            return False
    return True


def _holds(requirement: NodeSelectorRequirement, value: str) -> bool:
    return requirement.operator in ("Gt", "Lt") or label_holds(
        requirement.operator, requirement.values, value
    )
