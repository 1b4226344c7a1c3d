"""The grants of one pod: what is granted where, how far that is, and how it ended."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Final

from controller.allocate.decide import PodID, Report, is_about_own_decision, report_of
from controller.allocate.granting.port import Wanted
from dra_driver.api.core import Pod
from dra_driver.api.meta import ObjectKey
from dra_driver.ownership import is_newer

__all__ = ["GRANT_SECONDS", "Ending", "NodeGrant", "PodGrant", "verdict"]

GRANT_SECONDS: Final = 30.0
"""For which kube-scheduler may use what is granted for a pod, from when it sees the pod."""


class Ending(enum.Enum):
    """Why the grants for a pod are over."""

    ALLOCATED = "allocated"
    GONE = "gone"
    TIMEOUT = "timeout"
    REFUSED = "refused"
    ELSEWHERE = "elsewhere"
    INTERRUPTED = "interrupted"


@dataclass(frozen=True, slots=True)
class NodeGrant:
    """What is granted for a pod on one node.

    Attributes:
        node: which one.
        units: that are granted, with the devices of each claim, by pool.
    """

    node: str
    units: Wanted

    @property
    def devices(self) -> tuple[str, ...]:
        """Their names, in order."""
        of_units = (of_unit for of_pool in self.units.values() for of_unit in of_pool.values())
        return tuple(sorted({name for of_unit in of_units for names in of_unit.values() for name in names}))


@dataclass(slots=True)
class PodGrant:
    """What is granted for one pod.

    Attributes:
        pod: which one.
        places: where it is granted still, the best node first.
        nodes: where it was granted.
        claims: of the pod.
        since: monotonic time in seconds when it began.
        seconds: for which kube-scheduler may use it.
        opened: when kube-scheduler could see the pod and take all devices; None: it cannot yet.
        before: what kube-scheduler had reported about the pod by then.
        nominated: resourceVersion of the pod with the nomination.
        first: whether kube-scheduler sees the pod for the first time by then, as its gate was lifted.
        refused: whether kube-scheduler has said since that it has no place for the pod.
        elsewhere: when it has first said that it may not allocate what it has chosen.
        again: whether it was sent to the node again after that.
    """

    pod: PodID
    places: list[NodeGrant]
    nodes: tuple[str, ...]
    claims: frozenset[ObjectKey]
    since: float
    seconds: float = GRANT_SECONDS
    opened: float | None = None
    before: Report | None = None
    nominated: str = ""
    first: bool = False
    refused: bool = False
    elsewhere: float | None = None
    again: bool = False


def verdict(grant: PodGrant, pod: Pod) -> Ending | None:
    """Return how kube-scheduler has failed with a pod since it sees it with its grants; None: it has not.

    It clears the nomination when it fails, also where the report is the one that is there already.
    """
    report = report_of(pod)
    if report is None:
        return None
    cleared = not pod.status.nominated_node_name and is_newer(pod.metadata.resource_version, grant.nominated)
    if not cleared and report == grant.before:
        return None
    if report.reason == "Unschedulable":
        return Ending.REFUSED
    # After any other error, perhaps about a decision of long before, it tries again by itself.
    return Ending.ELSEWHERE if is_about_own_decision(report) else None
