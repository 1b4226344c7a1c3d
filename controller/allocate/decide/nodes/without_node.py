"""Pods for which kube-scheduler has no node, whatever devices they have there, and where they are tried."""

from __future__ import annotations

from itertools import takewhile
from typing import NamedTuple

from dra_driver.api.meta import Uid
from dra_driver.doubling import doubled

__all__ = ["PodsWithoutNode"]


class _Refused(NamedTuple):
    """A pod, since kube-scheduler has reported it, or since its last allocation in vain.

    Attributes:
        until: time up to which only nodes that have changed are tried.
        since: how many changes of nodes there had been.
        times: number of allocations in vain, as far as is known.
    """

    until: float
    since: int
    times: int = 0


class _Rest(NamedTuple):
    times: int
    until: float


class PodsWithoutNode:
    """Decides where such pods are tried.

    kube-scheduler looks at such a pod again when something changes that may help it, and says that claims are
    missing where it has a node then. Sooner, only nodes that have changed are tried; after some time all are,
    lest a pod whose report is lost waits for ever. A second attempt in vain begins a *rest*, in which the pod
    is not tried before kube-scheduler reports something else, and each one after it a rest of twice the
    length. Pods of one ReplicaSet rest together.

    Args:
        rest: seconds of the first rest.
        longest: seconds up to which rests double, and for which only nodes that have changed are tried.
    """

    def __init__(self, rest: float, longest: float) -> None:
        self._rest = rest
        self._longest = longest
        self._refused: dict[Uid, _Refused] = {}
        self._rests: dict[Uid, _Rest] = {}
        # Nodes that have changed since a pod is known, by the number of the change, the last one last:
        # a set for each pod would take as much memory as there are pods times nodes.
        self._changes = 0
        self._changed: dict[str, int] = {}

    def __contains__(self, pod: Uid) -> bool:
        """Return whether a pod is known."""
        return pod in self._refused

    def notice(self, pod: Uid, now: float) -> None:
        """Note that kube-scheduler has no node for a pod, as its status says."""
        if pod not in self._refused:
            self._refused[pod] = _Refused(now + self._longest, self._changes)

    def add(self, pod: Uid, kin: Uid, now: float) -> float:
        """Note that an allocation of a pod was in vain; return for how long few nodes are tried, in seconds.

        Args:
            pod: which one.
            kin: what pods that rest together have in common.
            now: the time.
        """
        known = self._refused.get(pod)
        times = 1 if known is None else known.times + 1
        self._refused[pod] = _Refused(now + self._longest, self._changes, times)
        if times > 1:
            before = self._rests.get(kin, _Rest(0, 0.0)).times
            seconds = doubled(self._rest, before, max(self._rest, self._longest))
            self._rests[kin] = _Rest(before + 1, now + seconds)
        return self._longest

    def seconds(self, pod: Uid, kin: Uid, now: float) -> float:
        """Return after how many seconds more nodes are tried for a pod; 0 or less: none is left out."""
        known = self._refused.get(pod)
        if known is None:
            return 0.0
        rest = self._rests.get(kin, _Rest(0, 0.0)).until
        return (rest if self._has_changed(known) and rest > now else max(rest, known.until)) - now

    def rests(self, kin: Uid, now: float) -> bool:
        """Return whether pods rest."""
        return kin in self._rests and now < self._rests[kin].until

    def tried(self, pod: Uid, now: float) -> set[str] | None:
        """Return the nodes that are tried for a pod unless it rests; None: all are."""
        known = self._refused.get(pod)
        if known is None or known.until <= now:
            return None
        return set(takewhile(lambda node: self._changed[node] > known.since, reversed(self._changed)))

    def _has_changed(self, known: _Refused) -> bool:
        last = next(reversed(self._changed), None)
        return last is not None and self._changed[last] > known.since

    def changed(self, node: str) -> None:
        """Note that something on a node has changed."""
        if self._refused:
            self._changes += 1
            self._changed.pop(node, None)
            self._changed[node] = self._changes

    def node_gone(self, node: str) -> None:
        """Forget a node that is gone."""
        self._changed.pop(node, None)

    def has_node(self, pod: Uid, kin: Uid) -> None:
        """Note that some node may suit a pod now: those that have changed, if there are any."""
        self._rests.pop(kin, None)
        known = self._refused.get(pod)
        if known is not None and not self._has_changed(known):
            self.forget(pod)

    def forget(self, pod: Uid) -> None:
        """Forget a pod that is gone."""
        self._refused.pop(pod, None)
        if not self._refused:
            self._changed.clear()

    def forget_kin(self, kin: Uid) -> None:
        """Forget what pods have in common that are all gone."""
        self._rests.pop(kin, None)
