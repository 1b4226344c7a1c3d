"""The fleet as people see it: devices with their states and holders, and the claims that wait.

``Fleet`` keeps it up to date from API objects, a pool at a time; ``dra-driver status`` fills one once, the
controller's page keeps one current. ``count_shapes`` says how often requests still fit. ``Observer``
writes what changes into a bounded ``History``. Pure: no I/O, no clock.
"""

from __future__ import annotations

from dra_driver.fleet.fleet import Fleet
from dra_driver.fleet.fragmentation import ShapeCount, count_shapes
from dra_driver.fleet.grants import (
    GRANTS_HELP,
    MOST_NAMED_NAMESPACES,
    GrantedToPod,
    GrantsShown,
    grants_data,
    shown_grants,
)
from dra_driver.fleet.history import FleetSample, History, HistoryEntry, Subject, Trend
from dra_driver.fleet.observing import Observer, device_subject, node_trouble
from dra_driver.fleet.preempting import (
    CLOSED,
    MOST_PREEMPTED,
    NOT_PREEMPTING,
    OPEN,
    WOULD_PREEMPT,
    PreemptionRecord,
    PreemptionRow,
    PreemptionShown,
    preemptions_of,
    shown_preemption,
)
from dra_driver.fleet.request_shapes import RequestShape, parse_shapes
from dra_driver.fleet.views import SEVERITIES, STATES, DeviceView, Holder, PoolView, holders_of, pool_view
from dra_driver.fleet.waiting import (
    REFUSALS,
    WaitingClaim,
    latest_reasons,
    set_aside_condition,
    waiting_condition,
)
from dra_driver.fleet.withheld import withheld_notes

__all__ = [
    "CLOSED",
    "GRANTS_HELP",
    "MOST_NAMED_NAMESPACES",
    "MOST_PREEMPTED",
    "NOT_PREEMPTING",
    "OPEN",
    "REFUSALS",
    "SEVERITIES",
    "STATES",
    "WOULD_PREEMPT",
    "DeviceView",
    "Fleet",
    "FleetSample",
    "GrantedToPod",
    "GrantsShown",
    "History",
    "HistoryEntry",
    "Holder",
    "Observer",
    "PoolView",
    "PreemptionRecord",
    "PreemptionRow",
    "PreemptionShown",
    "RequestShape",
    "ShapeCount",
    "Subject",
    "Trend",
    "WaitingClaim",
    "count_shapes",
    "device_subject",
    "grants_data",
    "holders_of",
    "latest_reasons",
    "node_trouble",
    "parse_shapes",
    "pool_view",
    "preemptions_of",
    "set_aside_condition",
    "shown_grants",
    "shown_preemption",
    "waiting_condition",
    "withheld_notes",
]
