"""Groups: the claims of several pods, on several nodes, allocated all or none, and decided together.

What members ask for is solved as one question over alternatives, nodes, domains and devices: which of them
come first, or how they are called, makes no difference to whether they fit.
"""

from __future__ import annotations

from dra_driver.structured.groups.labels import (
    READ_ANNOTATIONS,
    READ_LABELS,
    GroupLabels,
    group_by_problem,
    group_name,
    is_named_by_others,
    is_named_by_us,
    restart_of,
)
from dra_driver.structured.groups.members import GroupAllocated, GroupMember, GroupRefused, Level
from dra_driver.structured.groups.native import pod_group_terms
from dra_driver.structured.groups.solver import allocate_group
from dra_driver.structured.groups.terms import (
    GROUP_KEYS,
    LARGEST_GROUP,
    GroupFinding,
    GroupTerms,
    group_findings,
    group_terms,
    levels_of,
)

__all__ = [
    "GROUP_KEYS",
    "LARGEST_GROUP",
    "READ_ANNOTATIONS",
    "READ_LABELS",
    "GroupAllocated",
    "GroupFinding",
    "GroupLabels",
    "GroupMember",
    "GroupRefused",
    "GroupTerms",
    "Level",
    "allocate_group",
    "group_by_problem",
    "group_findings",
    "group_name",
    "group_terms",
    "is_named_by_others",
    "is_named_by_us",
    "levels_of",
    "pod_group_terms",
    "restart_of",
]
