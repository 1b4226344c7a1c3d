"""What goes wrong around an agent while it works and is killed: one module for each kind of fault.

A scenario is an async function of a world and of chance. It plays a script to its end, however often that
takes; what must hold is looked at after every start of an agent, and at the end nothing may be left.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from crash_world import CrashedNode
from machines import Machine
from machines.acme import AcmeMachine
from machines.nvml import NvmlMachine
from machines.rdma import RdmaMachine
from machines.simulated import SimulatedMachine
from machines.slow import SlowMachine

from scenarios import clocks, daemons, disks, hangs, kills, reboots, slow, storms, watches

Play = Callable[[CrashedNode, random.Random], Awaitable[None]]
Hardware = Callable[[Path, str], Machine]


@dataclass(frozen=True)
class Scenario:
    """A kind of fault.

    Attributes:
        hardware: what it is played on, one after the other.
        skipped: why it cannot be played on this computer; empty if it can.
        flags: for the agents.
    """

    name: str
    play: Play
    hardware: tuple[Hardware, ...] = (SimulatedMachine, NvmlMachine)
    skipped: Callable[[], str] = str
    flags: tuple[str, ...] = ()


SCENARIOS = (
    Scenario("kills-on-nvml", kills.at_steps, (NvmlMachine,)),
    Scenario("kills-on-rdma", kills.at_steps, (RdmaMachine,)),
    Scenario("kills-on-third-party", kills.at_steps, (AcmeMachine,)),
    Scenario("slow-third-party", slow.one_agent, (SlowMachine,)),
    Scenario("slow-rolling", slow.two_agents, (SlowMachine,)),
    Scenario("reboot", reboots.with_other_numbers, (SimulatedMachine, NvmlMachine, RdmaMachine, AcmeMachine)),
    Scenario("clock-jumps", clocks.jump),
    Scenario("hung-hardware", hangs.while_calls_come, flags=("--rescan-interval=1",)),
    Scenario("sigterm-while-hung", hangs.until_the_end, flags=("--rescan-interval=1",)),
    Scenario("xid-storm", storms.of_xids, (NvmlMachine,)),
    Scenario("expired-watches", watches.expire, (SimulatedMachine,)),
    Scenario("mps-daemons", daemons.die_too, (NvmlMachine,)),
    Scenario("mps-daemons-real", daemons.of_nvidia, (daemons.RealGpus,), skipped=daemons.why_not),
    Scenario("read-only-state", disks.read_only),
    Scenario("no-inodes", disks.without_inodes),
)
