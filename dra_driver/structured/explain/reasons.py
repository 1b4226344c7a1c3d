"""Why nothing fits: for each node, request and device the first reason that excluded it.

``explain.summaries`` puts these reasons into words.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Final

from dra_driver.api.core import Node
from dra_driver.api.resource import DeviceConstraint
from dra_driver.structured.matching import hints
from dra_driver.structured.matching.constraints import ANY_DOMAIN
from dra_driver.structured.matching.plan import Alternative, ClaimPlan
from dra_driver.structured.matching.problem import Candidate, NodeProblem, Verdict
from dra_driver.structured.model.pools import DeviceEntry, PoolView
from dra_driver.structured.model.types import Exclusion, ExclusionReason, NodeReasons
from dra_driver.structured.search.bounds import devices_needed, too_few_devices

__all__ = ["node_reasons", "refused_node"]

# Of a pool of which the caller does not say why it may not be used.
_NOT_GIVEN: Final = "not among those that may be used"
# Checks after which it is looked at whether the device has what constraints compare.
_OF_CAPACITY: Final = frozenset({ExclusionReason.CAPACITY, ExclusionReason.CAPACITY_IN_USE})


def node_reasons(problem: NodeProblem) -> NodeReasons:
    """Return the first reason that excluded each device, for each request and subrequest.

    Raises:
        BudgetExhausted: there are more devices and requests than the problem's budget pays for.
    """
    found: list[Exclusion] = []
    # The matching behind it is worked out once, and only if some device fits by itself.
    lacking = cache(lambda: devices_needed(problem) if too_few_devices(problem) else 0)
    for claim in problem.claims:
        for request in claim.requests:
            for alternative in request.alternatives:
                devices = [
                    _exclude(problem, alternative, entry, pool, lacking)
                    for pool in problem.pools
                    for entry in pool.devices
                ]
                found += devices or _without_devices(problem, alternative)
    return NodeReasons(problem.node.metadata.name, tuple(found))


def _without_devices(problem: NodeProblem, alternative: Alternative) -> list[Exclusion]:
    """Return why the node has no device in a pool that may be used: one reason per pool that it has."""
    withheld = problem.options.withheld or {}

    def because(reason: ExclusionReason, found: str = "") -> Exclusion:
        return Exclusion(alternative.claim, alternative.request, None, reason, "", found)

    return [
        because(ExclusionReason.POOL_NOT_USABLE, withheld.get(pool.id, _NOT_GIVEN))
        for pool in problem.unusable
        if pool.devices
    ] or [because(ExclusionReason.NO_DEVICES)]


def refused_node(node: Node, plans: Sequence[ClaimPlan]) -> NodeReasons:
    """Return the reasons of a node that the allocation of another claim of the pod excludes."""
    allocated = [plan for plan in plans if plan.allocation is not None]
    return NodeReasons(
        node.metadata.name,
        tuple(Exclusion(plan.name, "", None, ExclusionReason.NODE_SELECTOR) for plan in allocated),
    )


def _exclude(
    problem: NodeProblem,
    alternative: Alternative,
    entry: DeviceEntry,
    pool: PoolView,
    lacking: Callable[[], int],
) -> Exclusion:
    def because(reason: ExclusionReason, wanted: str = "", found: str = "", hint: str = "") -> Exclusion:
        return Exclusion(alternative.claim, alternative.request, entry.id, reason, wanted, found, hint)

    looked = problem.look(alternative, entry, pool)
    if isinstance(looked, Verdict) and looked.reason not in _OF_CAPACITY:
        return because(looked.reason, looked.wanted, looked.found, _selector_hint(problem, looked, entry))
    if isinstance(looked, Candidate) and looked.error is not None:
        return because(ExclusionReason.SELECTOR_ERROR, "", looked.error)
    if lacks := _lacking_attribute(problem, alternative, entry, looked):
        hint = hints.attribute_hint(lacks, entry.device, entry.id.driver)
        return because(ExclusionReason.ATTRIBUTE, lacks, "", hint)
    if isinstance(looked, Verdict):
        absent = looked.wanted and not looked.found
        hint = hints.capacity_hint(looked.wanted.partition(" ")[0], entry.device) if absent else ""
        return because(looked.reason, looked.wanted, looked.found, hint)
    if pool.invalid or pool.incomplete:
        return because(
            ExclusionReason.POOL_INVALID if pool.invalid else ExclusionReason.POOL_INCOMPLETE,
            "",
            str(pool.id),
        )
    if looked.tainted:
        taints = problem.blocking_taints(alternative, entry)
        return because(ExclusionReason.TAINT, "", ", ".join(f"{t.key}={t.value}:{t.effect}" for t in taints))
    if looked.allocated and not alternative.admin:
        holder = problem.snapshot.allocated.pool(pool.id).devices[entry.id.device]
        return because(ExclusionReason.IN_USE, "", holder)
    short = next((key for key, amount, left in looked.counters if amount > left), None)
    if short is not None:
        return because(ExclusionReason.COUNTERS, f"counter {short[2]} of {short[1]}")
    apart = next((of for of, groups in looked.groups if not groups), None)
    if apart is not None:
        return because(ExclusionReason.INCOMPATIBLE, f"counter set {apart[1]}")
    # Nothing speaks against the device alone, so it is the combination that is impossible.
    return because(ExclusionReason.CONSTRAINT, _combination(problem, alternative, lacking()))


def _selector_hint(problem: NodeProblem, looked: Verdict, entry: DeviceEntry) -> str:
    if looked.reason is not ExclusionReason.SELECTOR:
        return ""
    selectors = problem.snapshot.selectors
    return hints.selector_hint(selectors.references(looked.wanted), selectors.view(entry))


def _lacking_attribute(
    problem: NodeProblem, alternative: Alternative, entry: DeviceEntry, looked: Candidate | Verdict
) -> str:
    """Return an attribute that a constraint compares and the device lacks; empty if it has all of them.

    No choice of other devices helps then, and no share or device that becomes free.
    """
    claim = problem.claims[alternative.claim_index]
    derived = {index for index, _ in alternative.derived}
    for index in alternative.constraints:
        if isinstance(looked, Candidate):
            values = looked.values[index]
        elif index in derived:
            continue
        else:
            values = problem.values(claim, index, entry)
        if not values:
            return _attribute(claim.constraints[index])
    return ""


def _attribute(constraint: DeviceConstraint) -> str:
    return (constraint.match_attribute or constraint.distinct_attribute or "").removeprefix(ANY_DOMAIN)


def _combination(problem: NodeProblem, alternative: Alternative, lacking: int) -> str:
    """Return the combination that a device which fits by itself fails to be part of.

    Args:
        problem: the claims on the node.
        alternative: a request.
        lacking: number of devices that all requests need, if that alone is too many; otherwise 0.
    """
    if lacking > 1:
        return f"{lacking} devices"
    claim = problem.claims[alternative.claim_index]
    count = alternative.count
    parts = [f"{count} device{'s' * (count != 1)}" if count is not None else "all devices"]
    for index in alternative.constraints:
        constraint = claim.constraints[index]
        kind = "the same" if constraint.match_attribute is not None else "a different"
        parts.append(f"{kind} {_attribute(constraint)}")
    return ", ".join(parts)
