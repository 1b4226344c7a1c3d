"""Faults on demand: a small language for what goes wrong, and when.

``parse`` reads it, strictly; ``str`` gives it back; ``random_plan`` makes seeded schedules. The API
server carries out what concerns requests, watches, its clock and itself; the embedded cluster what concerns
its processes and disks. ``docs/faults.md`` is the reference. Nothing here does I/O or has a clock.
"""

from dra_driver.sim.faults.language import parse
from dra_driver.sim.faults.plan import (
    Drop,
    Error,
    Expire,
    Fault,
    FaultPlan,
    FullDisk,
    Jump,
    Kill,
    Latency,
    Lose,
    Reset,
    Stall,
    Target,
    Timing,
    Traffic,
)
from dra_driver.sim.faults.random_plans import random_plan

__all__ = [
    "Drop",
    "Error",
    "Expire",
    "Fault",
    "FaultPlan",
    "FullDisk",
    "Jump",
    "Kill",
    "Latency",
    "Lose",
    "Reset",
    "Stall",
    "Target",
    "Timing",
    "Traffic",
    "parse",
    "random_plan",
]
