"""What evaluating the expressions of claims on all devices of a fleet may cost."""

from __future__ import annotations

from typing import Final

from dra_driver.structured.index.columns import Facts
from dra_driver.structured.model.budget import Budget, BudgetExhausted

__all__ = ["EVALUATION_STEPS", "Evaluations", "SelectorsTooExpensive"]

# Steps that evaluating the expressions of a projection on all nodes may take, and more for each device:
# claims name them, so what they cost has an end, however many questions it is spread over.
EVALUATION_STEPS: Final = 480_000
_EVALUATION_STEPS_PER_DEVICE: Final = 4


class Evaluations(Budget):
    """What evaluating the expressions of a projection on all nodes may cost; it is upkeep as well.

    Attributes:
        question: that is being answered.
        devices: that were looked at.
    """

    __slots__ = ("_last", "devices", "question")

    def __init__(self, steps: int) -> None:
        super().__init__(steps)
        self.question = Budget()
        self.devices = 0
        self._last: Facts | None = None

    def allow(self, facts: Facts, expressions: int) -> None:
        """Allow more for the devices of a node."""
        # Once for each node, which several questions may try, and not when everything is used up: each
        # question would get a little further at the cost of all others.
        if expressions and facts is not self._last and not self.exhausted:
            self._last = facts
            self.devices += len(facts.entries)
            self.left += _EVALUATION_STEPS_PER_DEVICE * expressions * len(facts.entries)

    def spend(self, steps: int = 1) -> None:
        """See ``Budget.spend``. It ends no evaluation because the question may do no more upkeep."""
        super().spend(steps)
        self.question.kept_up(steps)


class SelectorsTooExpensive(BudgetExhausted):
    """The expressions of claims cost too much on the devices of this fleet."""

    def __init__(self, devices: int) -> None:
        super().__init__()
        self.devices = devices

    def __str__(self) -> str:
        return (
            f"gave up: the selectors are too expensive to be evaluated on every device ({self.devices} were "
            "looked at); ask for attributes by name, with fewer functions"
        )
