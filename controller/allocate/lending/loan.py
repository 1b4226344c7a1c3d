"""The loan of one pod: what is lent for it where, how far that is, and how it ended."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from controller.allocate.decide import PodID, Report, report_of
from dra_driver.api.core import Pod
from dra_driver.api.meta import ObjectKey
from dra_driver.ownership import PoolID, is_newer

__all__ = ["LOAN_SECONDS", "Ending", "NodeLoan", "PodLoan", "is_refused"]

LOAN_SECONDS: Final = 30.0
"""For which kube-scheduler may use what is lent for a pod, from when it sees the pod."""


class Ending(enum.Enum):
    """Why the loan for a pod is over."""

    ALLOCATED = "allocated"
    GONE = "gone"
    TIMEOUT = "timeout"
    REFUSED = "refused"
    TAKEN = "taken"
    INTERRUPTED = "interrupted"


Units = Mapping[PoolID, Mapping[str, frozenset[str]]]


@dataclass(frozen=True, slots=True)
class NodeLoan:
    """What is lent for a pod on one node.

    Attributes:
        node: which one.
        units: that are lent, with their devices, by pool.
    """

    node: str
    units: Units

    @property
    def devices(self) -> tuple[str, ...]:
        """Their names, in order."""
        names = (d for of_pool in self.units.values() for of_unit in of_pool.values() for d in of_unit)
        return tuple(sorted(names))


@dataclass(slots=True)
class PodLoan:
    """What is lent for one pod.

    Attributes:
        pod: which one.
        places: where it is lent still, the best node first.
        nodes: where it was lent.
        claims: of the pod.
        since: monotonic time in seconds when it began.
        seconds: for which kube-scheduler may use it.
        opened: when kube-scheduler could see the pod and all devices; None: it cannot yet.
        before: what kube-scheduler had reported about the pod by then.
        nominated: resourceVersion of the pod with the nomination.
    """

    pod: PodID
    places: list[NodeLoan]
    nodes: tuple[str, ...]
    claims: frozenset[ObjectKey]
    since: float
    seconds: float = LOAN_SECONDS
    opened: float | None = None
    before: Report | None = None
    nominated: str = ""


def is_refused(loan: PodLoan, pod: Pod) -> bool:
    """Return whether kube-scheduler has failed with a pod since it sees it with its loan.

    It clears the nomination when it fails, also where the report is the one that is there already.
    """
    report = report_of(pod)
    if report is None or report.reason != "Unschedulable":
        # After an error, perhaps about a decision of long before, kube-scheduler tries again by itself.
        return False
    cleared = not pod.status.nominated_node_name and is_newer(pod.metadata.resource_version, loan.nominated)
    return cleared or report != loan.before
