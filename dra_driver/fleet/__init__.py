"""The fleet as people see it: devices with their states and holders, and the claims that wait.

``Fleet`` keeps it up to date from API objects, a pool at a time; ``dra-driver status`` fills one once, the
controller's page keeps one current. ``count_shapes`` says how often requests still fit. Pure: no I/O, no
clock.
"""

from __future__ import annotations

from dra_driver.fleet.fleet import Fleet
from dra_driver.fleet.fragmentation import ShapeCount, count_shapes
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
from dra_driver.fleet.views import STATES, DeviceView, Holder, PoolView, holders_of, pool_view
from dra_driver.fleet.waiting import (
    REFUSALS,
    WaitingClaim,
    latest_reasons,
    set_aside_condition,
    waiting_condition,
)

__all__ = [
    "CLOSED",
    "MOST_PREEMPTED",
    "NOT_PREEMPTING",
    "OPEN",
    "REFUSALS",
    "STATES",
    "WOULD_PREEMPT",
    "DeviceView",
    "Fleet",
    "Holder",
    "PoolView",
    "PreemptionRecord",
    "PreemptionRow",
    "PreemptionShown",
    "RequestShape",
    "ShapeCount",
    "WaitingClaim",
    "count_shapes",
    "holders_of",
    "latest_reasons",
    "parse_shapes",
    "pool_view",
    "preemptions_of",
    "set_aside_condition",
    "shown_preemption",
    "waiting_condition",
]
