"""The controller's parts and how they are connected: first what they share, then the parts that use it.

Nothing here refers to what is made further down. Where one part wakes another, both know a ``Signal``.
"""

from __future__ import annotations

from controller.assembly.allocation import Allocation
from controller.assembly.environment import AnswersOf, Environment, State, worker_process
from controller.assembly.parts import labeler_of
from controller.assembly.publishing import Publishing

__all__ = [
    "Allocation",
    "AnswersOf",
    "Environment",
    "Publishing",
    "State",
    "labeler_of",
    "worker_process",
]
