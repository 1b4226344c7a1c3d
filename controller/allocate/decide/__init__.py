"""Everything that decides which pods get which devices, as one piece that could run in another process.

The face is ``Decisions``: changes come in, questions are answered. All that crosses the border is in
``messages``, plain values that can be pickled. There is no I/O here, no event loop, no API client, no clock
but the times in the messages, and no way to call the rest of the controller. The sender knows what is
allocated and assumed, and which pools are blocked; an answer says how many of its changes it has seen.
"""

from __future__ import annotations

from controller.allocate.decide.decisions import Decisions
from controller.allocate.decide.groups.group_members import Gang, GroupFinder, Standing
from controller.allocate.decide.learned import (
    LONGEST_LEARNED,
    GroupHeld,
    Learned,
    NamespaceStruck,
    QuestionHeavy,
)
from controller.allocate.decide.messages import (
    Change,
    ClaimAssumed,
    ClaimGone,
    ClaimSeen,
    Decision,
    DecisionOverran,
    DevicesSetAside,
    GroupMembers,
    GroupWrite,
    Hard,
    Lane,
    Lend,
    LentNode,
    NodeTurnedDown,
    NotYet,
    ObjectGone,
    ObjectSeen,
    PodAnswer,
    PodExpected,
    PodGroupsUnknown,
    PodID,
    PodPlacement,
    PodQuestion,
    PoolChanged,
    Proceed,
    Refuse,
    SetAside,
    Settings,
    VolumesKnown,
    Wait,
    Watched,
    Write,
)
from controller.allocate.decide.nodes.beside import attracts, repels_less
from controller.allocate.decide.nodes.node_backoff import EVERYWHERE, changed_node
from controller.allocate.decide.nodes.placement import same_for_pods
from controller.allocate.decide.nodes.reports import (
    Report,
    has_no_node,
    has_node,
    misses_only_claims,
    report_of,
    suitable_nodes,
)
from controller.allocate.decide.nodes.signatures import signature_of
from controller.allocate.decide.order import Rank, rank_of, rank_of_group
from controller.allocate.decide.pods.earlier_users import kept_others_back
from controller.allocate.decide.state.claims import ClaimView, node_of, same_devices
from controller.allocate.decide.state.objects import (
    CLAIM_INDEX,
    GROUP_INDEX,
    NODE_INDEX,
    GroupKey,
    GroupsOf,
    called,
    claims_of,
    group_of_claim,
    groups_by,
    is_finished,
    nodes_of,
    pod_group_key,
    same_but_reason,
)
from controller.allocate.decide.state.pod_groups import MISSING, PodGroupView
from controller.allocate.decide.state.pool_owners import Owner, PoolOwners
from controller.allocate.decide.view import StateView

__all__ = [
    "CLAIM_INDEX",
    "EVERYWHERE",
    "GROUP_INDEX",
    "LONGEST_LEARNED",
    "MISSING",
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
    "Gang",
    "GroupFinder",
    "GroupHeld",
    "GroupKey",
    "GroupMembers",
    "GroupWrite",
    "GroupsOf",
    "Hard",
    "Lane",
    "Learned",
    "Lend",
    "LentNode",
    "NamespaceStruck",
    "NodeTurnedDown",
    "NotYet",
    "ObjectGone",
    "ObjectSeen",
    "Owner",
    "PodAnswer",
    "PodExpected",
    "PodGroupView",
    "PodGroupsUnknown",
    "PodID",
    "PodPlacement",
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
    "Standing",
    "StateView",
    "VolumesKnown",
    "Wait",
    "Watched",
    "Write",
    "attracts",
    "called",
    "changed_node",
    "claims_of",
    "group_of_claim",
    "groups_by",
    "has_no_node",
    "has_node",
    "is_finished",
    "kept_others_back",
    "misses_only_claims",
    "node_of",
    "nodes_of",
    "pod_group_key",
    "rank_of",
    "rank_of_group",
    "repels_less",
    "report_of",
    "same_but_reason",
    "same_devices",
    "same_for_pods",
    "signature_of",
    "suitable_nodes",
]
