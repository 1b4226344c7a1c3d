"""Groups: the claims of several pods, on several nodes, allocated all or none, and decided together.

What members ask for is solved as one question over alternatives, nodes, domains and devices: which of them
come first, or how they are called, makes no difference to whether they fit.
"""

from __future__ import annotations

from dra_driver.structured.groups.members import GroupAllocated, GroupMember, GroupRefused, Level
from dra_driver.structured.groups.solver import allocate_group

__all__ = ["GroupAllocated", "GroupMember", "GroupRefused", "Level", "allocate_group"]
