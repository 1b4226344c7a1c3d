"""Nodes that kube-scheduler turned down for a pod, and for how long they are left out for it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from typing import Final, NamedTuple

from controller.allocate.decide.nodes.placement import same_for_pods
from controller.allocate.decide.nodes.reports import failed_before_nodes, has_no_node
from controller.allocate.decide.nodes.without_node import PodsWithoutNode
from controller.allocate.decide.state.objects import is_finished
from dra_driver.api.core import Node, Pod
from dra_driver.api.meta import Uid, WireObject
from dra_driver.doubling import doubled
from dra_driver.nodefit import shrinks

__all__ = ["EVERYWHERE", "NodeBackoff", "changed_node"]

EVERYWHERE: Final = ""
"""In place of a node: kube-scheduler has no node for the pod, whatever devices it has there."""


# A report that is newer knows better.
_RECENT_SECONDS: Final = 5.0


class _TurnedDown(NamedTuple):
    at: float
    until: float
    times: int


def changed_node(old: WireObject | None, new: WireObject | None) -> str:
    """Return the node that may suit pods after a change which it did not suit before; empty: none.

    Args:
        old: a Node, or a Pod, before the change; None: it was not there.
        new: after the change; None: it is gone.
    """
    match old, new:
        case Pod(), None:
            return old.spec.node_name
        case Pod(), Pod() if (is_finished(new) and not is_finished(old)) or shrinks(old, new):
            return new.spec.node_name
        case Node(), Node() if not same_for_pods(old, new):
            return new.metadata.name
        case _:
            return ""


class _Siblings:
    """Nodes that were turned down for one pod of a ReplicaSet: they suit the others as little, at first."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._sets: dict[Uid, Uid] = {}
        self._members: Counter[Uid] = Counter()
        self._until: dict[Uid, dict[str, float]] = {}
        self._by_node: dict[str, set[Uid]] = {}

    def seen(self, pod: Pod) -> None:
        """Take in a pod."""
        uid = pod.metadata.uid
        owners = pod.metadata.owner_references or ()
        owner = next((o.uid for o in owners if o.controller and o.kind == "ReplicaSet"), None)
        if owner is not None and uid not in self._sets:
            self._sets[uid] = owner
            self._members[owner] += 1

    def kin(self, pod: Uid) -> Uid:
        """Return the ReplicaSet of a pod, or the pod itself where it has none."""
        return self._sets.get(pod, pod)

    def add(self, pod: Uid, node: str, now: float) -> None:
        """Note that a node does not suit a pod."""
        owner = self._sets.get(pod)
        if owner is not None:
            self._until.setdefault(owner, {})[node] = now + self._seconds
            self._by_node.setdefault(node, set()).add(owner)

    def nodes(self, pod: Uid, now: float) -> dict[str, float]:
        """Return the nodes that are avoided now, with the seconds for which they still are."""
        known = self._until.get(self._sets.get(pod, Uid("")), {})
        return {node: until - now for node, until in known.items() if until > now}

    def recent(self, pod: Uid, now: float) -> set[str]:
        """Return the nodes that were turned down in the last seconds."""
        left = self._seconds - _RECENT_SECONDS
        return {node for node, seconds in self.nodes(pod, now).items() if seconds > left}

    def reset(self, node: str) -> None:
        """Note that something on a node has changed."""
        for owner in self._by_node.pop(node, ()):
            del self._until[owner][node]

    def forget(self, pod: Uid) -> bool:
        """Forget a pod that is gone; return whether it was the last one of its kin."""
        owner = self._sets.pop(pod, None)
        if owner is None:
            return True
        self._members[owner] -= 1
        if self._members[owner]:
            return False
        del self._members[owner]
        for node in self._until.pop(owner, ()):
            self._by_node[node].discard(owner)
        return True


class NodeBackoff:
    """Nodes to avoid, by pod. Each time that a pod is turned down on a node, it is avoided for twice as long.

    Other nodes do not count: eight nodes that are tried in turn are each tried for the first time. What
    changes on a node ends its avoidance. A pod that no node suits is left out ``EVERYWHERE``, but where
    ``PodsWithoutNode`` says. Pods of one ReplicaSet need not find out one after the other: a node that was
    turned down for one is avoided once for all.

    Args:
        seconds: for which a node is avoided the first time.
        longest: seconds that doubling leads to at most.
        rest: see ``PodsWithoutNode``.
    """

    def __init__(self, seconds: float, longest: float, rest: float) -> None:
        self._seconds = seconds
        self._longest = longest
        self._nodes: dict[Uid, dict[str, _TurnedDown]] = {}
        self._pods: dict[str, set[Uid]] = {}
        self._came_back: set[Uid] = set()
        self._without_node = PodsWithoutNode(rest, longest)
        self._siblings = _Siblings(seconds)

    def seen(self, pod: Pod) -> None:
        """Take in a pod."""
        self._siblings.seen(pod)

    def add(self, pod: Uid, node: str, now: float) -> float:
        """Note that a node does not suit a pod; return the seconds for which it is avoided."""
        self._came_back.add(pod)
        if node == EVERYWHERE:
            return self._without_node.add(pod, self._siblings.kin(pod), now)
        known = self._nodes.setdefault(pod, {})
        self._pods.setdefault(node, set()).add(pod)
        times = known[node].times if node in known else 0
        seconds = doubled(self._seconds, times, self._longest)
        known[node] = _TurnedDown(now, now + seconds, times + 1)
        self._siblings.add(pod, node, now)
        return seconds

    def came_back(self, pod: Uid) -> bool:
        """Return whether a pod was turned down on some node, or everywhere, since it is known."""
        return pod in self._came_back

    def nodes(self, pod: Uid, now: float) -> dict[str, float]:
        """Return the nodes that are avoided now, with the seconds for which they still are."""
        found = self._avoided_nodes(pod, now)
        left = self._without_node.seconds(pod, self._siblings.kin(pod), now)
        if left > 0:
            found[EVERYWHERE] = left
        return found

    def _avoided_nodes(self, pod: Uid, now: float) -> dict[str, float]:
        found = self._siblings.nodes(pod, now)
        for node, entry in self._nodes.get(pod, {}).items():
            if entry.until > now:
                found[node] = max(found.get(node, 0.0), entry.until - now)
        return found

    def recent(self, pod: Uid, now: float) -> set[str]:
        """Return the nodes that have been turned down for a pod in the last seconds."""
        known = self._nodes.get(pod, {})
        own = {node for node, entry in known.items() if entry.at > now - _RECENT_SECONDS}
        return own | self._siblings.recent(pod, now)

    def avoided(self, pod: Pod, nodes: Iterable[str], now: float) -> Collection[str]:
        """Return the names of all nodes that are avoided now, of those that there are.

        All are for a pod with which kube-scheduler fails before it looks at nodes: what changes on those does
        not help it.
        """
        if failed_before_nodes(pod):
            return set(nodes)
        uid = pod.metadata.uid
        if has_no_node(pod):
            self._without_node.notice(uid, now)  # after a restart the status is all that is known
            if self._without_node.rests(self._siblings.kin(uid), now):
                return set(nodes)
        found = self._avoided_nodes(uid, now).keys()
        tried = self._without_node.tried(uid, now)
        return found if tried is None else {node for node in nodes if node in found or node not in tried}

    def has_node(self, pod: Uid) -> None:
        """Note that some node may suit a pod now: those that have changed, if there are any."""
        self._without_node.has_node(pod, self._siblings.kin(pod))

    def reset(self, node: str) -> None:
        """Note that something on a node has changed: it may suit all pods now."""
        if not node:
            return
        self._siblings.reset(node)
        self._without_node.changed(node)
        for pod in self._pods.pop(node, ()):
            known = self._nodes[pod]
            del known[node]
            if not known:
                del self._nodes[pod]

    def node_gone(self, node: str) -> None:
        """Forget that a node has changed which is gone."""
        self._without_node.node_gone(node)

    def forget(self, pod: Uid) -> None:
        """Forget a pod that is gone."""
        kin = self._siblings.kin(pod)
        self._came_back.discard(pod)
        if self._siblings.forget(pod):
            self._without_node.forget_kin(kin)
        self._without_node.forget(pod)
        for node in self._nodes.pop(pod, ()):
            pods = self._pods[node]
            pods.discard(pod)
            if not pods:
                del self._pods[node]
