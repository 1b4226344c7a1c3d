"""Pods for which devices are lent to kube-scheduler: which come first, how many at a time, until when.

What is lent is decided in ``controller.allocate.decide.pods.lending``; how a loan goes through notes, slices and
recalls is the publishing side's (``dra_driver.publishing.loans``). Here is what is between them: a pod.
"""

from __future__ import annotations

from controller.allocate.lending.lender import Lender
from controller.allocate.lending.limits import CounterPools, LoanLimits
from controller.allocate.lending.pods import MOST_PODS, Ending, PodLoans, wants_loan
from controller.allocate.lending.port import Loans
from controller.allocate.lending.shares import SettledShares
from controller.allocate.lending.shown import LendingStatus

__all__ = [
    "MOST_PODS",
    "CounterPools",
    "Ending",
    "Lender",
    "LendingStatus",
    "LoanLimits",
    "Loans",
    "PodLoans",
    "SettledShares",
    "wants_loan",
]
