"""Pods that got devices and could not be placed: nothing is set aside for them. No I/O, no clock."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Collection, Hashable
from typing import Final, NamedTuple

from dra_driver.api.meta import Uid
from dra_driver.doubling import doubled

__all__ = ["SetAsideExclusions"]

# Doubling ends there.
_LONGEST_SECONDS: Final = 86_400.0
# What is known of more than so many kinds of pods is forgotten, the oldest first.
_MOST_KINDS: Final = 4096


class _Rest(NamedTuple):
    times: int
    until: float


class _Hopeless(NamedTuple):
    """What kube-scheduler says about a pod whose devices were taken back.

    Attributes:
        case: the pod, or its group.
        suitable: nodes that would suit it but for its claims; None: it has not reported since then.
    """

    case: Hashable
    suitable: int | None


class SetAsideExclusions:
    """Knows for which pods nothing is to be set aside, because their last allocation was taken back.

    kube-scheduler looks at a pod again whenever something changes that it looks at, and reports. So a pod
    that it found no node for, or not the one with the pod's devices, is left out until it reports more nodes
    that would suit the pod but for its claims. Of pods that take its place it knows nothing yet: those of the
    same owner, and those of its namespace that ask for the same, are left out for a time. It doubles whenever
    one of them is turned down after it, up to a day. So is a pod left out that was turned down for a reason
    that is not known.

    Args:
        seconds: half of the first time.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._rests: OrderedDict[Hashable, _Rest] = OrderedDict()
        self._hopeless: dict[Uid, _Hopeless] = {}
        self._cases: Counter[Hashable] = Counter()

    def add(
        self,
        pod: Uid,
        case: Hashable,
        similar: Collection[Hashable],
        now: float,
        *,
        hopeless: bool,
        everywhere: bool = False,
    ) -> None:
        """Note that the devices of a pod were taken back.

        Args:
            pod: which one.
            case: the pod, or its group.
            similar: what it has in common with pods that may take its place.
            now: the time.
            hopeless: kube-scheduler says that it has no node for the pod as things are.
            everywhere: no node suits it, whatever devices it has there.
        """
        for of in {case, *similar}:
            known = self._rests.pop(of, _Rest(0, 0.0))
            if now >= known.until:
                seconds = doubled(self._seconds, known.times + 1, _LONGEST_SECONDS)
                known = _Rest(known.times + 1, now + seconds)
            self._rests[of] = known
        while len(self._rests) > _MOST_KINDS:
            self._rests.popitem(last=False)
        self.forget(pod)
        if hopeless:
            self._hopeless[pod] = _Hopeless(case, 0 if everywhere else None)
            self._cases[case] += 1

    def reported(self, pod: Uid, suitable: int) -> None:
        """Note what kube-scheduler reports: how many nodes would suit a pod but for its claims."""
        known = self._hopeless.get(pod)
        if known is None:
            return
        if known.suitable is None:
            self._hopeless[pod] = known._replace(suitable=suitable)
        elif suitable > known.suitable:
            self.forget(pod)

    def __bool__(self) -> bool:
        """Return whether any pod may be left out."""
        return bool(self._rests)

    def bound(self, pod: Uid, case: Hashable, similar: Collection[Hashable]) -> None:
        """Note that a pod is bound: pods like it can be placed."""
        self.forget(pod)
        for of in (case, *similar):
            self._rests.pop(of, None)

    def forget(self, pod: Uid) -> None:
        """Forget a pod that has ended or is gone; what it has in common with others is remembered."""
        known = self._hopeless.pop(pod, None)
        if known is not None:
            self._cases[known.case] -= 1
            if not self._cases[known.case]:
                del self._cases[known.case]

    def leaves_out(self, case: Hashable, similar: Collection[Hashable], now: float) -> bool:
        """Return whether nothing is to be set aside for a pod or its group now.

        Args:
            case: the pod, or its group.
            similar: what it has in common with other pods.
            now: the time.
        """
        if case in self._cases:
            return True
        return any(of in self._rests and now < self._rests[of].until for of in (case, *similar))
