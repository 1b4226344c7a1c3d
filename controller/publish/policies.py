"""Which DevicePolicies apply to a node, and what became of each: their status.

The publisher records what became of the policies in each pool (``record``). The status of a policy sums that
up over all pools, a short while after the last change, and is written only where it says something new.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

import structlog

from controller.config import Timings
from controller.observe.tracing import traced
from dra_driver.api.core import Node
from dra_driver.api.meta import DriverName
from dra_driver.api.own.inventory import DeviceInventory
from dra_driver.api.own.policy import DEVICE_POLICIES, DevicePolicy
from dra_driver.api.resource import Condition
from dra_driver.errors import NotFound
from dra_driver.kube import EventRecorder, Handler, Informer, WorkQueue
from dra_driver.kube.clock import rfc3339
from dra_driver.ownership import PoolAllocator, PoolID
from dra_driver.ports import Clock, KubeClient
from dra_driver.publishing import conditions
from dra_driver.resourceslice import (
    DesiredPool,
    PolicyOutcome,
)
from dra_driver.structured import (
    DEFAULT_POLICY,
    NodePolicy,
    PoolPolicy,
    Strategy,
)
from dra_driver.structured.model.nodeselection import selector_matches

__all__ = ["MANY_PARTITIONED_NODES", "PolicyBook"]

log = structlog.get_logger(__name__)

# Beyond this number of nodes with partitions, kube-scheduler's search takes minutes for one pod: its cost for
# partitionable pools grows with the square of their number, for every node that it looks at.
MANY_PARTITIONED_NODES: Final = 200
_SHOWN: Final = 8


class PolicyBook:
    """The policies of the cluster, and their statuses."""

    def __init__(
        self,
        client: KubeClient,
        clock: Clock,
        recorder: EventRecorder,
        policies: Informer[DevicePolicy],
        *,
        timings: Timings,
        default: PoolPolicy = DEFAULT_POLICY,
    ) -> None:
        """Connect it.

        Args:
            client: for statuses.
            clock: for times of conditions.
            recorder: for Events.
            policies: all.
            timings: when statuses are written.
            default: how the allocator chooses where no policy says.
        """
        self._settle = timings.settle
        self._default = default
        self._rules: dict[PoolID, PoolPolicy] = {}
        self._client = client
        self._clock = clock
        self._recorder = recorder
        self._policies = policies
        self._pools: dict[str, DesiredPool] = {}
        self._ranked: tuple[DevicePolicy, ...] | None = None
        self.queue: WorkQueue[str] = WorkQueue("policies", max_delay=30.0)
        policies.add_handler(
            Handler(
                added=self._changed,
                updated=lambda old, new: (
                    self._changed(new)
                    if old.metadata.generation != new.metadata.generation or old.spec != new.spec
                    else None
                ),
                deleted=self._changed,
            )
        )

    @property
    def informer(self) -> Informer[DevicePolicy]:
        """The policies."""
        return self._policies

    def _changed(self, policy: DevicePolicy) -> None:
        self._ranked = None
        self.queue.add_after(policy.metadata.name, self._settle)

    # --- questions ------------------------------------------------------------------------------------------

    def for_node(self, node: Node) -> tuple[DevicePolicy, ...]:
        """Return the policies whose node selector matches, those that win first."""
        if self._ranked is None:
            self._ranked = tuple(sorted(self._policies.items(), key=lambda p: p.rank))
        return tuple(
            p
            for p in self._ranked
            if p.spec.node_selector is None or selector_matches(p.spec.node_selector, node)
        )

    @property
    def looks_at_labels(self) -> bool:
        """Whether a change of a node's labels can change what applies to it."""
        return any(p.spec.node_selector is not None for p in self._policies.items())

    def wants_controller(self, drivers: Iterable[DriverName]) -> bool:
        """Whether a policy gives a pool of these drivers to the controller."""
        known = ("", *drivers)
        return any(
            p.spec.allocator == PoolAllocator.CONTROLLER.value and p.spec.driver in known
            for p in self._policies.items()
        )

    def rule(self, pool: PoolID) -> PoolPolicy:
        """Return how our allocator chooses the devices of a pool."""
        return self._rules.get(pool, self._default)

    # --- status ---------------------------------------------------------------------------------------------

    def record(self, inventory: DeviceInventory, desired: DesiredPool) -> bool:
        """Take note of what became of the policies in one pool.

        Returns:
            Whether ``rule`` has another answer for the pool now.
        """
        name = inventory.metadata.name
        changed = self._set_rule(PoolID(desired.driver, desired.pool), self._rule_of(desired))
        old, self._pools[name] = self._pools.get(name), desired
        if old is None or (old.outcomes, old.partitioned, old.allocator) != (
            desired.outcomes,
            desired.partitioned,
            desired.allocator,
        ):
            self._touch(old, desired)
        return changed

    def forget(self, inventory: DeviceInventory) -> bool:
        """Forget a pool that is gone, or that its node publishes.

        Returns:
            Whether ``rule`` has another answer for the pool now.
        """
        old = self._pools.pop(inventory.metadata.name, None)
        self._touch(old, None)
        return old is not None and self._set_rule(PoolID(old.driver, old.pool), self._default)

    def _rule_of(self, desired: DesiredPool) -> PoolPolicy:
        return PoolPolicy(
            Strategy(desired.strategy) if desired.strategy else self._default.strategy,
            NodePolicy(desired.node_policy) if desired.node_policy else self._default.nodes,
        )

    def _set_rule(self, pool: PoolID, rule: PoolPolicy) -> bool:
        if self.rule(pool) == rule:
            return False
        if rule == self._default:
            del self._rules[pool]
        else:
            self._rules[pool] = rule
        return True

    def _touch(self, old: DesiredPool | None, new: DesiredPool | None) -> None:
        for pool in (old, new):
            for name in pool.outcomes if pool is not None else ():
                self.queue.add_after(name, self._settle)

    async def run(self) -> None:
        """Write statuses until cancelled."""
        await self.queue.process(traced("policy status", self.reconcile))

    async def reconcile(self, name: str) -> None:
        """Bring the status of one policy up to date."""
        policy = self._policies.get_by_name(name)
        if policy is None:
            return
        found = {
            pool.node_name: pool.outcomes[name] for pool in self._pools.values() if name in pool.outcomes
        }
        devices = sum(o.devices for o in found.values())
        nodes = sum(1 for o in found.values() if o.devices)
        wanted = [
            self._applied(policy, found, nodes, devices),
            _conflicting(found),
            _pending(found),
        ]
        status: dict[str, Any] = {}
        present = policy.status
        generation = policy.metadata.generation
        if (present.nodes, present.devices, present.observed_generation) != (nodes, devices, generation):
            status = {"nodes": nodes, "devices": devices, "observedGeneration": generation}
        changed = [c for c in wanted if not conditions.same(present.conditions, c)]
        if changed:
            status["conditions"] = conditions.merged_all(
                present.conditions, wanted, rfc3339(self._clock.now())
            )
        if not status:
            return
        patch = {"metadata": {"resourceVersion": policy.metadata.resource_version}, "status": status}
        try:
            await self._client.merge_patch(DEVICE_POLICIES, name, patch, subresource="status")
        except NotFound:
            return
        for condition in changed:
            if condition.reason in ("ManyPartitionedNodes", "Invalid", "SamePriority"):
                self._recorder.event(DEVICE_POLICIES, policy, "Warning", condition.reason, condition.message)

    def _without_effect(self, policy: DevicePolicy) -> int:
        """Return the number of pools in which strategy and nodePolicy do nothing: kube-scheduler has them."""
        if not (policy.spec.strategy or policy.spec.node_policy):
            return 0
        found = (p for p in self._pools.values() if policy.metadata.name in p.outcomes)
        return sum(1 for p in found if p.allocator is PoolAllocator.SCHEDULER)

    def _applied(
        self, policy: DevicePolicy, found: Mapping[str, PolicyOutcome], nodes: int, devices: int
    ) -> Condition:
        problems = _by_text({node: o.problems for node, o in found.items()})
        text = f"{devices} device{'s' * (devices != 1)} on {nodes} node{'s' * (nodes != 1)}"
        idle = self._without_effect(policy)
        if idle:
            text += (
                f"; strategy and nodePolicy have no effect on {idle} of the nodes, where kube-scheduler "
                "allocates"
            )
        if problems:
            return _condition("Applied", "False", "Invalid", f"{text}; {problems}")
        partitioned = sum(
            1
            for p in self._pools.values()
            if p.partitioned and p.allocator is PoolAllocator.SCHEDULER and policy.metadata.name in p.outcomes
        )
        cuts = policy.spec.partitions is not None and policy.spec.partitions.profiles
        if cuts and partitioned > MANY_PARTITIONED_NODES:
            return _condition(
                "Applied",
                "True",
                "ManyPartitionedNodes",
                f"{text}; {partitioned} nodes have partitions that kube-scheduler allocates: its time for "
                "one pod grows with the square of that number for every node that it looks at, to minutes "
                f"beyond {MANY_PARTITIONED_NODES}; set allocator: controller, or select fewer nodes",
            )
        return _condition("Applied", "True", "Applied" if devices else "NothingMatches", text)


def _conflicting(found: Mapping[str, PolicyOutcome]) -> Condition:
    lost = sorted({o for outcome in found.values() for o in outcome.overridden})
    if not lost:
        return _condition("Conflicting", "False", "NoConflict", "")
    ties = [o for o in lost if o.tie]
    text = "; ".join(
        f"{o.field}: policy {o.winner} {'has the same priority and sorts first' if o.tie else 'wins'}"
        for o in (*ties, *(o for o in lost if not o.tie))[:_SHOWN]
    )
    return _condition("Conflicting", "True", "SamePriority" if ties else "Overridden", text)


def _pending(found: Mapping[str, PolicyOutcome]) -> Condition:
    text = _by_text({node: o.pending for node, o in found.items()})
    if not text:
        return _condition("Pending", "False", "NothingPending", "")
    return _condition("Pending", "True", "DevicesInUse", text)


def _by_text(texts: Mapping[str, Iterable[str]]) -> str:
    every = [f"{text} (node {node})" for node, found in sorted(texts.items()) for text in found]
    more = f"; and {len(every) - _SHOWN} more" if len(every) > _SHOWN else ""
    return "; ".join(every[:_SHOWN]) + more


def _condition(type_: str, status: str, reason: str, message: str) -> Condition:
    return Condition(
        type=type_, status=status, reason=reason, message=conditions.cut(message), last_transition_time=""
    )
