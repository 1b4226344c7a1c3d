"""Faults on demand: a small language for faults and their times.

``parse`` reads it strictly, ``str`` writes it, ``random_plan`` makes seeded plans. The API server carries out
faults of requests, watches, its clock and itself; the embedded cluster those of its processes and disks.
``docs/faults.md`` is the reference. Nothing here does I/O or has a clock.
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
