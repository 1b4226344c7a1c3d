"""Preemption: which pods of lower priority have to go so that a pod, or a group, gets its devices.

``choose_victims`` answers. Of all removals that help it returns the one with the least ``Cost``.

Pure: no I/O, no clock but the budget's, no logging.
"""

from __future__ import annotations

from dra_driver.preemption.answers import Cost, Fits, NoVictims, Removal, Victim
from dra_driver.preemption.choice import choose_victims
from dra_driver.preemption.question import HoldingPod, OccupiedCluster, Preemptor

__all__ = [
    "Cost",
    "Fits",
    "HoldingPod",
    "NoVictims",
    "OccupiedCluster",
    "Preemptor",
    "Removal",
    "Victim",
    "choose_victims",
]
