"""Everything that decides which pods get which devices, as one piece that could run in another process.

The face is ``Decisions``: changes come in, questions are answered. All that crosses the border is in
``messages``, plain values that can be pickled. There is no I/O here, no event loop, no API client, no clock
but the times in the messages, and no way to call the rest of the controller. The sender knows what is
allocated and assumed, and which pools are blocked; an answer says how many of its changes it has seen.
"""

from __future__ import annotations

from controller.allocate.decide.claims import ClaimView, node_of, same_devices
from controller.allocate.decide.decisions import Decisions
from controller.allocate.decide.group_levels import levels_of
from controller.allocate.decide.messages import (
    LONGEST_LEARNED,
    Change,
    ClaimAssumed,
    ClaimGone,
    ClaimSeen,
    Decision,
    DecisionOverran,
    DevicesSetAside,
    GroupHeld,
    GroupMembers,
    GroupWrite,
    Hard,
    Lane,
    Learned,
    NamespaceStruck,
    NodeTurnedDown,
    ObjectGone,
    ObjectSeen,
    Place,
    PodAnswer,
    PodExpected,
    PodID,
    PodQuestion,
    PoolChanged,
    Proceed,
    QuestionHeavy,
    Refuse,
    SetAside,
    Settings,
    Wait,
    Watched,
    Write,
)
from controller.allocate.decide.node_backoff import EVERYWHERE, changed_node
from controller.allocate.decide.objects import (
    CLAIM_INDEX,
    GROUP_INDEX,
    NODE_INDEX,
    claims_of,
    groups_of,
    is_finished,
    nodes_of,
    same_but_reason,
)
from controller.allocate.decide.order import Rank, rank_of, rank_of_group
from controller.allocate.decide.placement import same_for_pods
from controller.allocate.decide.pool_owners import Owner, PoolOwners
from controller.allocate.decide.reports import Report, has_node, misses_only_claims, report_of

__all__ = [
    "CLAIM_INDEX",
    "EVERYWHERE",
    "GROUP_INDEX",
    "LONGEST_LEARNED",
    "NODE_INDEX",
    "Change",
    "ClaimAssumed",
    "ClaimGone",
    "ClaimSeen",
    "ClaimView",
    "Decision",
    "DecisionOverran",
    "Decisions",
    "DevicesSetAside",
    "GroupHeld",
    "GroupMembers",
    "GroupWrite",
    "Hard",
    "Lane",
    "Learned",
    "NamespaceStruck",
    "NodeTurnedDown",
    "ObjectGone",
    "ObjectSeen",
    "Owner",
    "Place",
    "PodAnswer",
    "PodExpected",
    "PodID",
    "PodQuestion",
    "PoolChanged",
    "PoolOwners",
    "Proceed",
    "QuestionHeavy",
    "Rank",
    "Refuse",
    "Report",
    "SetAside",
    "Settings",
    "Wait",
    "Watched",
    "Write",
    "changed_node",
    "claims_of",
    "groups_of",
    "has_node",
    "is_finished",
    "levels_of",
    "misses_only_claims",
    "node_of",
    "nodes_of",
    "rank_of",
    "rank_of_group",
    "report_of",
    "same_but_reason",
    "same_devices",
    "same_for_pods",
]
