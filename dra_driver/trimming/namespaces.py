"""What the objects of each namespace take together.

Every object may take a little, whatever the number: there are as many as the API server has room for. What
objects take beyond that has a limit for each namespace, so that thousands of objects that each stay within
their own limits do not take all memory. Of an object that exceeds it is kept what every object may take.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Final, Generic, TypeVar

from dra_driver.api import codec
from dra_driver.api.core import Pod
from dra_driver.api.meta import Uid, WireObject
from dra_driver.api.policy import PodDisruptionBudget
from dra_driver.api.resource import ResourceClaim, ResourceClaimTemplate
from dra_driver.trimming.budgets import protecting_all, trimmed_budget
from dra_driver.trimming.claims import (
    least_of_claim,
    least_of_template,
    trimmed_claim,
    trimmed_template,
)
from dra_driver.trimming.pods import least_of, trimmed_pod

__all__ = ["FREE_WEIGHT", "MOST_WEIGHT", "Allowance", "NamespaceAllowance", "weight_of"]

T = TypeVar("T", bound=WireObject)

FREE_WEIGHT: Final = 8 * 1024
"""Bytes that every object may take."""
MOST_WEIGHT: Final = 16 * 1024 * 1024
"""Bytes that the objects of one namespace may take beyond that."""
# What a value takes besides its text.
_VALUE: Final = 64


def weight_of(item: WireObject) -> int:
    """Return about how many bytes an object takes in memory: its texts, and a little for each value."""
    text = codec.encode(item)
    return len(text) + _VALUE * text.count(b",")


class NamespaceAllowance:
    """Counts what is kept of each namespace, over all kinds.

    Args:
        free: bytes that every object may take.
        most: bytes that the objects of a namespace may take beyond that.
    """

    def __init__(self, free: int = FREE_WEIGHT, most: int = MOST_WEIGHT) -> None:
        self.free = free
        self.most = most
        self.totals: Counter[str] = Counter()

    def of_pods(self) -> Allowance[Pod]:
        """Return what counts pods, of one informer."""
        return Allowance(self, trimmed_pod, least_of)

    def of_claims(self) -> Allowance[ResourceClaim]:
        """Return what counts claims, of one informer."""
        return Allowance(self, trimmed_claim, least_of_claim)

    def of_templates(self) -> Allowance[ResourceClaimTemplate]:
        """Return what counts templates of claims, of one informer."""
        return Allowance(self, trimmed_template, least_of_template)

    def of_budgets(self) -> Allowance[PodDisruptionBudget]:
        """Return what counts budgets, of one informer."""
        return Allowance(self, trimmed_budget, lambda budget, _: protecting_all(budget))


class Allowance(Generic[T]):
    """Trims the objects of one kind and counts them: a ``Keeper`` of an informer.

    Args:
        namespaces: what there is in all.
        trim: gives what is kept of an object.
        least: gives what is kept where there is no room, and is told why.
    """

    def __init__(
        self, namespaces: NamespaceAllowance, trim: Callable[[T], T], least: Callable[[T, str], T]
    ) -> None:
        self._namespaces = namespaces
        self._trim = trim
        self._least = least
        # Namespace and bytes beyond what is free: of objects that are counted, and of those that are not.
        self._counted: dict[Uid, tuple[str, int]] = {}
        self._refused: dict[Uid, tuple[str, int]] = {}

    def keep(self, item: T) -> T:
        """Return what is kept of an object."""
        item = self._trim(item)
        self.forget(item)
        of, uid, namespace = self._namespaces, item.metadata.uid, item.metadata.namespace
        beyond = weight_of(item) - of.free
        if beyond <= 0:
            return item
        total = of.totals[namespace] + beyond
        if total <= of.most:
            of.totals[namespace] = total
            self._counted[uid] = (namespace, beyond)
            return item
        self._refused[uid] = (namespace, beyond)
        why = (
            f"objects of namespace {namespace} take {total} bytes of memory beyond {of.free} each, and the "
            f"controller keeps at most {of.most} of a namespace; delete some, or make them smaller"
        )
        return self._least(item, why)

    def forget(self, item: T) -> None:
        """Count an object no more."""
        self._forget(item.metadata.uid)

    def _forget(self, uid: Uid) -> None:
        self._refused.pop(uid, None)
        namespace, beyond = self._counted.pop(uid, ("", 0))
        if beyond:
            totals = self._namespaces.totals
            totals[namespace] -= beyond
            if not totals[namespace]:
                del totals[namespace]

    def listed(self, items: Iterable[T]) -> None:
        """Forget all but these: others were read by lists that failed half-way."""
        there = {item.metadata.uid for item in items}
        for uid in [u for u in (*self._counted, *self._refused) if u not in there]:
            self._forget(uid)

    def outdated(self) -> bool:
        """Return whether there is room by now for an object that there was none for."""
        of = self._namespaces
        return any(of.totals[namespace] + beyond <= of.most for namespace, beyond in self._refused.values())
