"""Publishing a pool: when its slices may be written and by which program, and what is noted of that.

``dra_driver.resourceslice`` says what the slices of a pool should be. Here a publisher, the controller or
the agent of a node, computes what it does about a pool from what it has seen (``plan_publication``). The
rules are tables: registration epochs (``epochs``), pools that change hands (``handover``), and pools that
the allocator leaves alone while devices change their form (``freeze``). Pure: no I/O, and no clock but the
one passed in; ``dra_driver.kube.slices`` carries a plan out.
"""

from __future__ import annotations

from dra_driver.publishing.device_plugins import LEAVING_SECONDS, CountedResources, count_resources
from dra_driver.publishing.other_drivers import Elsewhere
from dra_driver.publishing.plan import is_due, plan_publication
from dra_driver.publishing.seen import PublicationPlan, Seen, Verdict
from dra_driver.publishing.steps import Announce, DeleteSlice, NoteAttempt, NoteStatus, Step, WriteSlice

__all__ = [
    "LEAVING_SECONDS",
    "Announce",
    "CountedResources",
    "DeleteSlice",
    "Elsewhere",
    "NoteAttempt",
    "NoteStatus",
    "PublicationPlan",
    "Seen",
    "Step",
    "Verdict",
    "WriteSlice",
    "count_resources",
    "is_due",
    "plan_publication",
]
