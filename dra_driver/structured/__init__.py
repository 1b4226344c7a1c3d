"""The structured allocator: which devices on which node serve the claims of a pod.

``Snapshot.build`` indexes a cluster, ``allocate`` answers for one pod, ``allocate_group`` for several. The
semantics are those of the structured allocator of Kubernetes 1.36 (KEP-4381 and those that extend it);
``Strategy`` says which of several possible answers is taken. "It does not fit" is a value with reasons, not
an exception.

A pure library: no I/O, no clock but the budget's, no logging. Input and output are immutable.
"""

from __future__ import annotations

from dra_driver.structured.allocator import allocate
from dra_driver.structured.cluster import AllocationTracker, Cluster, prepare
from dra_driver.structured.explain.folding import Folded, FoldedReason, fold, seen_values
from dra_driver.structured.explain.summaries import as_lines
from dra_driver.structured.granting import GrantChoice, NoGrant, choose_grants
from dra_driver.structured.groups import (
    GROUP_KEYS,
    LARGEST_GROUP,
    READ_ANNOTATIONS,
    READ_LABELS,
    GroupAllocated,
    GroupFinding,
    GroupLabels,
    GroupMember,
    GroupRefused,
    GroupTerms,
    Level,
    allocate_group,
    group_by_problem,
    group_findings,
    group_name,
    group_terms,
    is_named_by_others,
    is_named_by_us,
    levels_of,
    pod_group_terms,
    restart_of,
)
from dra_driver.structured.index.copies import Copies, count_copies
from dra_driver.structured.index.room import Room, room
from dra_driver.structured.index.similar import (
    attribute_text,
    emptied,
    node_layouts,
    similar_nodes,
    suitable_devices,
)
from dra_driver.structured.matching.contested import contested, fits_beside
from dra_driver.structured.matching.taintrules import concerns, with_rules
from dra_driver.structured.model.budget import Budget, BudgetExhausted, IndexUnfinished
from dra_driver.structured.model.persistent import PersistentMap
from dra_driver.structured.model.pools import DeviceEntry, NodeView
from dra_driver.structured.model.snapshot import Snapshot
from dra_driver.structured.model.state import AllocatedState, PoolState
from dra_driver.structured.model.types import (
    DEFAULT,
    DEFAULT_POLICY,
    Allocated,
    DeviceID,
    DoesNotFit,
    Exclusion,
    ExclusionReason,
    Failed,
    Features,
    NodePolicy,
    NodeReasons,
    Outcome,
    PoolID,
    PoolPolicies,
    PoolPolicy,
    Strategy,
)
from dra_driver.structured.search.scan import look_seconds, scan_seconds
from dra_driver.structured.search.upstream import scheduler_takes
from dra_driver.structured.understood import understood

__all__ = [
    "DEFAULT",
    "DEFAULT_POLICY",
    "GROUP_KEYS",
    "LARGEST_GROUP",
    "READ_ANNOTATIONS",
    "READ_LABELS",
    "Allocated",
    "AllocatedState",
    "AllocationTracker",
    "Budget",
    "BudgetExhausted",
    "Cluster",
    "Copies",
    "DeviceEntry",
    "DeviceID",
    "DoesNotFit",
    "Exclusion",
    "ExclusionReason",
    "Failed",
    "Features",
    "Folded",
    "FoldedReason",
    "GrantChoice",
    "GroupAllocated",
    "GroupFinding",
    "GroupLabels",
    "GroupMember",
    "GroupRefused",
    "GroupTerms",
    "IndexUnfinished",
    "Level",
    "NoGrant",
    "NodePolicy",
    "NodeReasons",
    "NodeView",
    "Outcome",
    "PersistentMap",
    "PoolID",
    "PoolPolicies",
    "PoolPolicy",
    "PoolState",
    "Room",
    "Snapshot",
    "Strategy",
    "allocate",
    "allocate_group",
    "as_lines",
    "attribute_text",
    "choose_grants",
    "concerns",
    "contested",
    "count_copies",
    "emptied",
    "fits_beside",
    "fold",
    "group_by_problem",
    "group_findings",
    "group_name",
    "group_terms",
    "is_named_by_others",
    "is_named_by_us",
    "levels_of",
    "look_seconds",
    "node_layouts",
    "pod_group_terms",
    "prepare",
    "restart_of",
    "room",
    "scan_seconds",
    "scheduler_takes",
    "seen_values",
    "similar_nodes",
    "suitable_devices",
    "understood",
    "with_rules",
]
