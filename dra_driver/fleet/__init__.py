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
from dra_driver.fleet.problems import (
    LONG_WAIT_SECONDS,
    ControllerSeen,
    Problem,
    controller_problem,
    controller_sentence,
    duration,
    pool_problems,
    seconds_since,
    wait_problem,
)
from dra_driver.fleet.remedies import remedy
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
    "LONG_WAIT_SECONDS",
    "MOST_NAMED_NAMESPACES",
    "MOST_PREEMPTED",
    "NOT_PREEMPTING",
    "OPEN",
    "REFUSALS",
    "SEVERITIES",
    "STATES",
    "WOULD_PREEMPT",
    "ControllerSeen",
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
    "Problem",
    "RequestShape",
    "ShapeCount",
    "Subject",
    "Trend",
    "WaitingClaim",
    "controller_problem",
    "controller_sentence",
    "count_shapes",
    "device_subject",
    "duration",
    "grants_data",
    "holders_of",
    "latest_reasons",
    "node_trouble",
    "parse_shapes",
    "pool_problems",
    "pool_view",
    "preemptions_of",
    "remedy",
    "seconds_since",
    "set_aside_condition",
    "shown_grants",
    "shown_preemption",
    "wait_problem",
    "waiting_condition",
    "withheld_notes",
]
