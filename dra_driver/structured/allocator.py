"""``allocate``: the one question that the allocator answers."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from dra_driver.api.meta import DriverName, PoolName
from dra_driver.api.resource import DeviceTaint, ResourceClaim
from dra_driver.structured.snapshot import Snapshot
from dra_driver.structured.types import Outcome, Strategy

__all__ = ["allocate"]


def allocate(
    snapshot: Snapshot,
    claims: Sequence[ResourceClaim],
    *,
    strategy: Strategy = Strategy.BEST_FIT,
    nodes: Collection[str] | None = None,
    ignore_taint: Callable[[DeviceTaint], bool] | None = None,
    usable: Callable[[DriverName, PoolName], bool] | None = None,
) -> Outcome:
    """Finds a node and devices for all claims of one pod together.

    Args:
        snapshot: the cluster.
        claims: solved together. Those that have an allocation keep it and restrict the node only.
        strategy: how to choose among several answers.
        nodes: candidates, by name; None for every node of the snapshot. Names that the snapshot does not
            have are ignored.
        ignore_taint: taints that do not count, for example our own that keeps kube-scheduler away.
        usable: pools that this allocation may use.
    """
    raise NotImplementedError
