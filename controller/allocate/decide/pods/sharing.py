"""Pods that share claims, as far as kube-scheduler has to do with them.

Anybody can make thousands of pods of one claim, and each question about one of them asks about the others. So
those that matter are kept in order here, and no question goes through all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import Final, TypeVar

from controller.allocate.decide.order import Rank, rank_of
from controller.allocate.decide.state.objects import Objects, claims_of, is_finished
from dra_driver.api.core import Pod
from dra_driver.api.meta import ObjectKey
from dra_driver.indices import Indices
from dra_driver.resourceclaim import is_gated

__all__ = ["SharingPods"]

K = TypeVar("K", bound=Hashable)

_CLAIM: Final = "claim"
# Nodes for which pods of one claim are nominated: what follows from several is the same.
_MOST_NODES: Final = 8
# Behind all names of pods.
_LAST: Final = "\U0010ffff"


class SharingPods:
    """Finds the pods with a claim that kube-scheduler sees.

    Args:
        pods: followed from now on; there are none yet.
    """

    def __init__(self, pods: Objects[Pod]) -> None:
        self._pods = pods
        # Those that kube-scheduler looks at, in its order; those that it may be binding, by node.
        self._looked_at: Indices[Rank, Pod] = Indices({_CLAIM: lambda p: claims_of(p) if _waits(p) else ()})
        self._nominated: Indices[tuple[str, str], Pod] = Indices(
            {_CLAIM: lambda p: claims_of(p) if _waits(p) and p.status.nominated_node_name else ()}
        )
        self._ungated: Indices[ObjectKey, Pod] = Indices(
            {_CLAIM: lambda p: () if is_gated(p) or is_finished(p) else claims_of(p)}
        )
        pods.follow(self._changed)

    def _changed(self, old: Pod | None, new: Pod | None) -> None:
        _move(self._looked_at, rank_of, old, new)
        _move(self._nominated, _place_of, old, new)
        _move(self._ungated, _key_of, old, new)

    def looked_at_before(self, claim: ObjectKey, pod: Pod) -> Iterator[Pod]:
        """Yield the pods with a claim that kube-scheduler looks at before another pod, in its order."""
        own = rank_of(pod)
        for rank in self._looked_at.keys(_CLAIM, claim):
            if rank >= own:
                return
            user = self._pods.get(rank.key)
            if user is not None:
                yield user

    def ungated(self, claim: ObjectKey) -> Iterator[Pod]:
        """Yield the pods with a claim that have no gate of ours and have not ended."""
        return (p for p in map(self._pods.get, self._ungated.keys(_CLAIM, claim)) if p is not None)

    def nominated(self, claims: Iterable[ObjectKey]) -> dict[str, str]:
        """Return the nodes that pods with these claims are nominated for, each with one of the pods, up to 8.

        kube-scheduler may be binding such a pod to that node, although the claims are not allocated any more.
        It reserves a claim as it finds it (PreBind, after a conflict), so if the claim were allocated on
        another node by then, the pod would be bound to a node without its devices.
        """
        found: dict[str, str] = {}
        for claim in claims:
            last: tuple[str, str] | None = None
            while len(found) < _MOST_NODES and (place := self._nominated.after(_CLAIM, claim, last, 1)):
                node, pod = place[0]
                found[node] = pod
                last = (node, _LAST)
        return found


def _waits(pod: Pod) -> bool:
    """Return whether kube-scheduler looks at a pod."""
    held = pod.spec.node_name or pod.spec.scheduling_gates or pod.metadata.deletion_timestamp
    return not (held or is_finished(pod))


def _place_of(pod: Pod) -> tuple[str, str]:
    return pod.status.nominated_node_name, pod.metadata.name


def _key_of(pod: Pod) -> ObjectKey:
    return pod.key


def _move(indices: Indices[K, Pod], key_of: Callable[[Pod], K], old: Pod | None, new: Pod | None) -> None:
    """Take in another version of a pod, under another key perhaps."""
    if old is not None and (new is None or key_of(old) != key_of(new)):
        indices.change(key_of(old), old, None)
        old = None
    if new is not None:
        indices.change(key_of(new), old, new)
