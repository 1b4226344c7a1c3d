"""Preparing claims on a node, without the node: planning, state machine, checkpoint, CDI document.

Pure: no I/O, no clock. ``kubelet_plugin`` carries the effects out.
"""

from __future__ import annotations

from dra_driver.preparation.allocation import GivenDevice, devices_of_claim, devices_of_record
from dra_driver.preparation.claim import (
    BindingRecord,
    ClaimState,
    DeviceSetting,
    EffectRecord,
    FunctionRecord,
    PartitionRecord,
    PodReference,
    PreparedClaim,
    PreparedDevice,
)
from dra_driver.preparation.effects import PlannedEffect, planned
from dra_driver.preparation.files.checkpoint import Checkpoint, Journal
from dra_driver.preparation.files.document import RECORD_ANNOTATION, annotated, named_on_host, without_absent
from dra_driver.preparation.files.metadata import METADATA_FILE, metadata_files
from dra_driver.preparation.files.names import (
    check_uid,
    spec_file_name,
    spec_file_prefix,
    uid_of_spec_file,
)
from dra_driver.preparation.holdings import Conflict, Holdings, gathered
from dra_driver.preparation.machine import TRANSITIONS, Effect, Event, Transition, transition
from dra_driver.preparation.node_device import NodeDevice
from dra_driver.preparation.partition_nodes import check_nodes
from dra_driver.preparation.passthrough import EVERY_NAMESPACE, FunctionFacts, PassthroughPolicy, bound
from dra_driver.preparation.plan import (
    complete,
    plan,
    recover,
    reserving_pods,
    with_begun,
    without_instances,
)
from dra_driver.preparation.renewal import check_identity, ended, renewed
from dra_driver.preparation.usage import (
    NodeProcess,
    ProcessView,
    Use,
    Verdict,
    cdi_ids,
    exclusive_nodes,
    judge,
    judge_unprepare,
)

__all__ = [
    "EVERY_NAMESPACE",
    "METADATA_FILE",
    "RECORD_ANNOTATION",
    "TRANSITIONS",
    "BindingRecord",
    "Checkpoint",
    "ClaimState",
    "Conflict",
    "DeviceSetting",
    "Effect",
    "EffectRecord",
    "Event",
    "FunctionFacts",
    "FunctionRecord",
    "GivenDevice",
    "Holdings",
    "Journal",
    "NodeDevice",
    "NodeProcess",
    "PartitionRecord",
    "PassthroughPolicy",
    "PlannedEffect",
    "PodReference",
    "PreparedClaim",
    "PreparedDevice",
    "ProcessView",
    "Transition",
    "Use",
    "Verdict",
    "annotated",
    "bound",
    "cdi_ids",
    "check_identity",
    "check_nodes",
    "check_uid",
    "complete",
    "devices_of_claim",
    "devices_of_record",
    "ended",
    "exclusive_nodes",
    "gathered",
    "judge",
    "judge_unprepare",
    "metadata_files",
    "named_on_host",
    "plan",
    "planned",
    "recover",
    "renewed",
    "reserving_pods",
    "spec_file_name",
    "spec_file_prefix",
    "transition",
    "uid_of_spec_file",
    "with_begun",
    "without_absent",
    "without_instances",
]
