"""Makes room for pods of higher priority: pods of lower priority are removed, or it is said which would be.

docs/preemption.md describes it. Which pods have to go is worked out in a copy of the worker; what it says is
compared with what is known here before each removal.
"""

from __future__ import annotations

from controller.allocate.preempting.candidates import Candidates
from controller.allocate.preempting.judging import Judge
from controller.allocate.preempting.preemption import Preemption
from controller.allocate.preempting.removing import Remover
from controller.allocate.preempting.shown import PreemptionCondition
from controller.allocate.preempting.terms import TermsSource

__all__ = ["Candidates", "Judge", "Preemption", "PreemptionCondition", "Remover", "TermsSource"]
