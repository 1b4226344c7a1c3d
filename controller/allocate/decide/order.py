"""The order in which pods are served: by priority, then by age. Turns of namespaces are the queue's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from dra_driver.api.core import Pod
from dra_driver.api.meta import ObjectKey

__all__ = ["Rank", "rank_of", "rank_of_group"]


class Rank(NamedTuple):
    """The place of a pod, or of a group, among those that wait; the lesser one is served first.

    Attributes:
        level: ``spec.priority`` of the pod, negated: levels are served from the least one on.
        since: creationTimestamp (RFC 3339, UTC, so that texts compare as times do).
        key: of the pod, so that no two pods have the same rank.
    """

    level: int
    since: str
    key: ObjectKey


def rank_of(pod: Pod) -> Rank:
    """Return the rank of a pod by itself."""
    return Rank(-pod.spec.priority, pod.metadata.creation_timestamp or "", pod.key)


def rank_of_group(members: Sequence[Pod], priority: int | None = None) -> Rank:
    """Return the rank of a group, which has one member at least.

    Its priority is the lowest of its pods', so that one pod of a class that its author may use once does not
    carry others along. That of a PodGroup may lower it, not raise it: quotas by class count pods only. The
    group is as old as its youngest pod: before that it could not be served.

    Args:
        members: pods that count.
        priority: of the PodGroup, where it has one.
    """
    ranks = [rank_of(pod) for pod in members]
    levels = [r.level for r in ranks] + ([] if priority is None else [-priority])
    return Rank(
        max(levels),
        max(r.since for r in ranks),
        min(r.key for r in ranks),
    )
