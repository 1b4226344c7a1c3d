"""Planning: would a workload fit, and what would make it fit.

``make_plan`` answers for one workload. Every answer comes from the allocator, on the cluster as it would be
after the change; where the time did not suffice for a proof, the answer says so. ``preemption`` builds on
the same holdings, areas and sets.

Pure: no I/O, no clock but the one passed in, no logging.
"""

from __future__ import annotations

from dra_driver.planning.changes.adding import Added, with_nodes
from dra_driver.planning.changes.freeing import Freed, Freeing
from dra_driver.planning.changes.moving import Moved
from dra_driver.planning.changes.relaxing import Relaxed
from dra_driver.planning.checks import Checks, OutOfTime
from dra_driver.planning.counting import Count
from dra_driver.planning.holders.areas import Areas, devices_needed
from dra_driver.planning.holders.domains import Domain, domains_of
from dra_driver.planning.holders.sets import fewest, irreducible
from dra_driver.planning.holders.tables import HeldDevices, Memory, cheapest_of
from dra_driver.planning.holders.wanted import NodeTables, Wanted
from dra_driver.planning.holdings import HeldDevice, Holdings
from dra_driver.planning.plan import NewNodes, Plan, make_plan, reason_of, take_in
from dra_driver.planning.question import (
    Holder,
    LeftOut,
    PlannedCluster,
    Template,
    Unit,
    Workload,
    units_of,
    want_room,
)

__all__ = [
    "Added",
    "Areas",
    "Checks",
    "Count",
    "Domain",
    "Freed",
    "Freeing",
    "HeldDevice",
    "HeldDevices",
    "Holder",
    "Holdings",
    "LeftOut",
    "Memory",
    "Moved",
    "NewNodes",
    "NodeTables",
    "OutOfTime",
    "Plan",
    "PlannedCluster",
    "Relaxed",
    "Template",
    "Unit",
    "Wanted",
    "Workload",
    "cheapest_of",
    "devices_needed",
    "domains_of",
    "fewest",
    "irreducible",
    "make_plan",
    "reason_of",
    "take_in",
    "units_of",
    "want_room",
    "with_nodes",
]
