"""What a look for devices costs kube-scheduler: an estimate, in seconds of one thread.

It looks at one pod after the other, so while it looks no other pod of the cluster is placed. Measured with
the structured allocator of Kubernetes 1.36 in fleets of 8 GPUs a node: 42 µs a node, and once a pod 17 ms for
5,000 slices. Slices with counters are read for every node that is looked at, and for each of their pools all
slices of the cluster are gone through, whether the devices are tainted or not: with a pool of two slices on
each node a look at one node takes 0.6 ms at 100, 18 ms at 1,000 and 560 ms at 5,000.
"""

from __future__ import annotations

from typing import Final

__all__ = ["look_seconds", "scan_seconds"]

_SLICE: Final = 3.4e-6
_NODE: Final = 42e-6
_POOL: Final = 4e-6
_POOL_AND_SLICE: Final = 11e-9


def look_seconds(slices: int, counter_pools: int) -> float:
    """Return what kube-scheduler needs to look for the devices of a pod on one node.

    Args:
        slices: of the whole cluster.
        counter_pools: pools whose counters it sees (partitions) in the whole cluster.
    """
    return _NODE + counter_pools * (_POOL + slices * _POOL_AND_SLICE)


def scan_seconds(nodes: int, slices: int, counter_pools: int) -> float:
    """Return what kube-scheduler needs to look for the devices of a pod on several nodes.

    Args:
        nodes: that suit the pod otherwise.
        slices: as above.
        counter_pools: as above.
    """
    return slices * _SLICE + nodes * look_seconds(slices, counter_pools)
