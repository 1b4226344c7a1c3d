"""Planning: would a workload fit, and what would make it fit.

``make_plan`` answers for one workload. Every answer comes from the allocator, on the cluster as it would be
after the change; where the time did not suffice for a proof, the answer says so.

Pure: no I/O, no clock but the one passed in, no logging.
"""

from __future__ import annotations

from dra_driver.planning.adding import Added, with_nodes
from dra_driver.planning.checks import Checks, OutOfTime
from dra_driver.planning.counting import Count
from dra_driver.planning.freeing import Freed, Freeing
from dra_driver.planning.moving import Moved
from dra_driver.planning.plan import NewNodes, Plan, make_plan, take_in
from dra_driver.planning.question import Holder, PlannedCluster, Template, Workload
from dra_driver.planning.relaxing import Relaxed

__all__ = [
    "Added",
    "Checks",
    "Count",
    "Freed",
    "Freeing",
    "Holder",
    "Moved",
    "NewNodes",
    "OutOfTime",
    "Plan",
    "PlannedCluster",
    "Relaxed",
    "Template",
    "Workload",
    "make_plan",
    "take_in",
    "with_nodes",
]
