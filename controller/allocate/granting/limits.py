"""What keeps a grant from being made although devices are there: what it may cost kube-scheduler.

kube-scheduler tries the nominated node of a pod first, and looks no further where the pod fits there. So a
grant costs it one look. It looks at every node for a pod that it could not place there: such a pod has no
gate any more, and is tried again and again. Meanwhile it places no other pod of the cluster. Any grant may be
in vain, so what is bounded is the cost of a look at every node for the pod, and for those that wait without
the gate together, where its namespace has some of them. What it costs depends above all on the number of
pools with counters: with those of a cut GPU on each of 5,000 nodes, one such look took minutes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from controller.allocate.decide import GrantDevices, PodID, is_ending
from controller.allocate.granting.grant import Ending
from controller.allocate.signal import Signal
from dra_driver.api.core import Pod
from dra_driver.api.meta import ObjectKey, Uid
from dra_driver.api.resource import ResourceSlice
from dra_driver.kube import Handler, Informer
from dra_driver.ownership import PoolID, pool_of_slice
from dra_driver.resourceclaim import is_gated
from dra_driver.structured import look_seconds, scan_seconds

__all__ = ["CounterPools", "GrantLimits"]

RETRY_SECONDS: Final = 30.0
"""After which a pod is looked at again whose grant would have cost too much."""


class CounterPools:
    """Counts slices, and the pools with counters that kube-scheduler sees.

    Args:
        slices: of the whole cluster.

    Attributes:
        fewer: sent when kube-scheduler sees the counters of fewer pools.
    """

    def __init__(self, slices: Informer[ResourceSlice]) -> None:
        self.fewer: Signal[[]] = Signal()
        self._slices = slices
        # Slices of each pool that have counters, by name.
        self._with: dict[PoolID, set[str]] = {}
        slices.add_handler(Handler(added=self._seen, updated=lambda _, s: self._seen(s), deleted=self._gone))

    def __len__(self) -> int:
        return len(self._with)

    @property
    def slices(self) -> int:
        """The number of all slices."""
        return len(self._slices)

    def _seen(self, slice_: ResourceSlice) -> None:
        before = len(self)
        self._remove(slice_)
        if slice_.spec.shared_counters:
            self._with.setdefault(pool_of_slice(slice_), set()).add(slice_.metadata.name)
        if len(self) < before:
            self.fewer.send()

    def _gone(self, slice_: ResourceSlice) -> None:
        before = len(self)
        self._remove(slice_)
        if len(self) < before:
            self.fewer.send()

    def _remove(self, slice_: ResourceSlice) -> None:
        pool = pool_of_slice(slice_)
        names = self._with.get(pool)
        if names is not None:
            names.discard(slice_.metadata.name)
            if not names:
                del self._with[pool]


class GrantLimits:
    """Refuses grants, and remembers for whom, until that has changed.

    Args:
        budget: seconds that kube-scheduler may spend on looking for devices, by estimate.
        counted: what a look costs.
        pods: all namespaces.
        ended: sent when the grants for a pod are over.
        look: has a pod looked at.
    """

    def __init__(
        self,
        budget: float,
        counted: CounterPools,
        pods: Informer[Pod],
        ended: Signal[[PodID, tuple[str, ...], Ending]],
        look: Callable[[ObjectKey], None],
    ) -> None:
        self._budget = budget
        self._counted = counted
        self._look = look
        self._refused: set[ObjectKey] = set()
        # Nodes that suit pods for which devices were granted; and those of pods that wait without the gate.
        self._nodes: dict[Uid, int] = {}
        self._waiting: dict[PodID, int] = {}
        counted.fewer.listen(self._again)
        ended.listen(self._ended)
        pods.add_handler(Handler(updated=lambda _, pod: self._seen(pod), deleted=self._forget))

    def refusal(self, pod: Pod, decision: GrantDevices) -> tuple[str, float]:
        """Return why nothing is granted for a pod, and seconds after which to look again.

        Returns:
            Empty if something may be granted; 0: nothing is to be looked at again before it is asked for.
        """
        self._nodes[pod.metadata.uid] = decision.suitable
        if not is_gated(pod):
            # kube-scheduler tries it in any case: the sooner it has devices, the better.
            self._waiting[_id(pod)] = decision.suitable
            return "", 0.0
        if why := self._too_costly(decision, pod.metadata.namespace):
            self._refused.add(pod.key)
            return why, RETRY_SECONDS
        return "", 0.0

    def _too_costly(self, decision: GrantDevices, namespace: str) -> str:
        """Return why the grant could cost kube-scheduler more than the budget; empty if it could not."""
        pools, slices = len(self._counted), self._counted.slices
        look = look_seconds(slices, pools)
        if look > self._budget:
            return (
                f"kube-scheduler would need about {look:.1f} s to look at one node, because of {pools} pools "
                f"with counters, and may spend {self._budget:g} s on it"
            )
        own = scan_seconds(decision.suitable, slices, pools)
        if own > self._budget:
            return (
                f"kube-scheduler would need about {own:.1f} s to look at the {decision.suitable} nodes that "
                f"suit the pod if it could not use what is granted, because of {pools} pools with counters, "
                f"and may spend {self._budget:g} s on it"
            )
        seconds = sum(scan_seconds(nodes, slices, pools) for nodes in self._waiting.values())
        # A namespace without such pods is not refused for those of others, who could have them for ever.
        adds = any(one.key.namespace == namespace for one in self._waiting)
        if adds and seconds + own > self._budget:
            number = len(self._waiting)
            return (
                f"{number} pod{'s' * (number != 1)} without the gate could not be placed with what was "
                f"granted, and kube-scheduler needs about {seconds:.1f} s to look at all nodes for that each "
                f"time; it may spend {self._budget:g} s on it"
            )
        return ""

    def _ended(self, pod: PodID, _nodes: tuple[str, ...], ending: Ending) -> None:
        nodes = self._nodes.pop(pod.uid, 0)
        if ending in (Ending.ALLOCATED, Ending.GONE):
            self._waiting.pop(pod, None)
        else:
            self._waiting[pod] = nodes

    def _seen(self, pod: Pod) -> None:
        if pod.spec.node_name or is_ending(pod):
            self._forget(pod)

    def _forget(self, pod: Pod) -> None:
        self._refused.discard(pod.key)
        self._nodes.pop(pod.metadata.uid, None)
        self._waiting.pop(_id(pod), None)

    def _again(self) -> None:
        refused, self._refused = self._refused, set()
        for key in refused:
            self._look(key)


def _id(pod: Pod) -> PodID:
    return PodID(pod.key, pod.metadata.uid)
