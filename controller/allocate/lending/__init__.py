"""Pods for which devices are lent to kube-scheduler: which come first, how many at a time, until when.

``controller.allocate.decide.pods.lending`` decides what is lent; ``dra_driver.publishing.loans`` takes a
loan through notes, slices and recalls. This room has what is between the two: the pods.
"""

from __future__ import annotations

from controller.allocate.lending.lender import Lender
from controller.allocate.lending.limits import CounterPools, LoanLimits
from controller.allocate.lending.loan import Ending
from controller.allocate.lending.pods import MOST_PODS, PodLoans, wants_loan
from controller.allocate.lending.port import Loans
from controller.allocate.lending.shares import SettledShares

__all__ = [
    "MOST_PODS",
    "CounterPools",
    "Ending",
    "Lender",
    "LoanLimits",
    "Loans",
    "PodLoans",
    "SettledShares",
    "wants_loan",
]
