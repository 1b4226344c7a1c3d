"""Pods for which devices are granted to kube-scheduler: which come first, how many at a time, until when.

``controller.allocate.decide.pods.granting`` decides what is granted; ``dra_driver.publishing.grants`` has the
table of a grant, and ``dra_driver.ownership.grants`` what the API server admits. This room has what is
between the two: the pods.
"""

from __future__ import annotations

from controller.allocate.granting.grant import Ending
from controller.allocate.granting.granter import Granter
from controller.allocate.granting.limits import CounterPools, GrantLimits
from controller.allocate.granting.pods import MOST_PODS, PodGrants, wants_grant
from controller.allocate.granting.port import Grants
from controller.allocate.granting.shown import GrantStatus

__all__ = [
    "MOST_PODS",
    "CounterPools",
    "Ending",
    "GrantLimits",
    "GrantStatus",
    "Granter",
    "Grants",
    "PodGrants",
    "wants_grant",
]
