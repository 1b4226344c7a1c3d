"""Pods that kube-scheduler is to place: whether they keep their allocations, and how many there may be.

The reservation is kube-scheduler's commit. Until then an allocation is tentative: it is deallocated on
evidence that the pod cannot be placed. Plain values and rules: no I/O, no event loop, no clock but the times
that are passed in.
"""

from __future__ import annotations

from controller.allocate.attempts.attempts import Attempts
from controller.allocate.attempts.evidence import (
    Attempt,
    Bound,
    Deallocate,
    Hold,
    TakenBack,
    failed_before_claims,
    judge,
)
from controller.allocate.attempts.window import BindingWindow

__all__ = [
    "Attempt",
    "Attempts",
    "BindingWindow",
    "Bound",
    "Deallocate",
    "Hold",
    "TakenBack",
    "failed_before_claims",
    "judge",
]
