"""Fragmentation: how often request shapes still fit, beside what the sum of free devices suggests."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from dra_driver.api.resource import DeviceTaint
from dra_driver.fleet.request_shapes import RequestShape
from dra_driver.structured import Budget, PoolPolicies, Snapshot, count_copies

__all__ = ["ShapeCount", "count_shapes"]


class ShapeCount(msgspec.Struct, frozen=True):
    """How often a shape fits.

    Attributes:
        shape: its name.
        fits: copies that can be allocated at the same time beside what is allocated.
        exact: whether no more than ``fits`` can be.
        suggested: copies that what is free would be enough for if all of it stood together.
        problem: why it cannot be counted; then both numbers are 0.
    """

    shape: str
    fits: int
    exact: bool
    suggested: int
    problem: str = ""

    @property
    def fragmentation(self) -> float:
        """The part of what is free that the shape cannot use because of where it is, from 0 to 1."""
        return 1.0 - self.fits / self.suggested if self.suggested else 0.0

    def data(self) -> dict[str, Any]:
        """Return it for JSON."""
        found = {
            "shape": self.shape,
            "fits": self.fits,
            "exact": self.exact,
            "suggested": self.suggested,
            "fragmentation": round(self.fragmentation, 4),
        }
        return found | ({"problem": self.problem} if self.problem else {})


def count_shapes(
    snapshot: Snapshot,
    shapes: Iterable[RequestShape],
    *,
    ignore_taint: Callable[[DeviceTaint], bool] | None = None,
    pools: PoolPolicies | None = None,
    budget: Callable[[], Budget] | None = None,
) -> tuple[ShapeCount, ...]:
    """Count each shape by itself, as if no other one were allocated.

    Args:
        snapshot: the cluster.
        shapes: to be counted.
        ignore_taint: taints that exclude nothing.
        pools: those that may be used; if None, all of them.
        budget: makes what each count may cost; if None, some ten seconds of work.
    """
    found = []
    for shape in shapes:
        made = budget() if budget is not None else None
        copies = count_copies(snapshot, shape.claim(), ignore_taint=ignore_taint, pools=pools, budget=made)
        found.append(
            ShapeCount(shape.name, copies.fits, copies.exact, copies.suggested, copies.problem[:1024])
        )
    return tuple(found)
