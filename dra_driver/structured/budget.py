"""How long the allocator may search: counted in devices that are tried, because the core has no clock."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

__all__ = ["LEAST_STEPS", "MAX_STEPS", "MAX_STEPS_IN_ALL", "Budget"]

# Devices that are tried on one node before the search gives up: about a second (Kubernetes: 10 s).
MAX_STEPS: Final = 200_000
# The same for one question over all nodes: a claim that is made to be hard must not stop a controller. When
# they are used up a node gets the least, which is enough for every claim without a trap in it.
MAX_STEPS_IN_ALL: Final = 1_000_000
LEAST_STEPS: Final = 300


@dataclass(slots=True)
class Budget:
    """Steps of one question.

    Attributes:
        left: what its searches may still use together.
        per_node: what one search may use.
    """

    left: int = MAX_STEPS_IN_ALL
    per_node: int = MAX_STEPS

    def spend(self, steps: int) -> None:
        """Takes steps off."""
        self.left = max(0, self.left - steps)
