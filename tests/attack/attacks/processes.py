"""Processes that are stopped, resumed and killed: the leader, the standby, worker and reviewer."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from pathlib import Path

import attack_objects as objects
from attack_cluster import Replica, children, until
from attack_objects import one
from attack_world import TENANT, AttackedCluster, attack


async def _crowd(world: AttackedCluster, number: int = 150) -> None:
    """Give the controller something to do."""
    made = [m for i in range(number) for m in one(f"crowd-{i}", TENANT, objects.devices())]
    await world.create(m for m in made if m["kind"] != "Pod")
    await world.create(m for m in made if m["kind"] == "Pod")


WORKER, REVIEWER = "controller.allocate.worker", "controller.admission"
# A process that reviews and does not answer five looks, one a second, is replaced; the API server itself lets
# pods pass after three. Until the next one is there, reviews are not judged.
_REPLACED_SECONDS = 8.0


def _below(world: AttackedCluster, leader: Replica, module: str = WORKER) -> list[int]:
    """Return the processes of a module below a controller, with copies of them.

    That there is none is a problem: nothing is attacked.
    """
    found = []
    for pid in children(leader.pid):
        with contextlib.suppress(OSError):
            if module in Path(f"/proc/{pid}/cmdline").read_text().split("\0"):
                found.append(pid)
    if not found:
        world.problems.append(f"the controller has no process of {module} that could be attacked")
    return found


def _kill(pids: list[int], number: int) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


@attack
async def worker_killed(world: AttackedCluster) -> None:
    """Kill the leader's worker and its copies, while it decides."""
    leader = await world.controllers.leader()
    await _crowd(world)
    found = _below(world, leader)
    world.strike()
    _kill(found, signal.SIGKILL)


@attack
async def worker_killed_again_and_again(world: AttackedCluster) -> None:
    """Kill the leader's worker and its copies every two seconds."""
    leader = await world.controllers.leader()
    _below(world, leader)
    world.strike()
    async for _ in world.ticks(0.5):
        _kill(_below(world, leader), signal.SIGKILL)


@attack
async def worker_stopped(world: AttackedCluster) -> None:
    """Stop the leader's worker and its copies: they live, and answer nothing."""
    leader = await world.controllers.leader()
    await _crowd(world)
    found = _below(world, leader)
    world.strike()
    _kill(found, signal.SIGSTOP)
    try:
        await asyncio.Event().wait()
    finally:
        _kill(found, signal.SIGCONT)


@attack
async def worker_stutters(world: AttackedCluster) -> None:
    """Stop and resume the leader's worker and its copies, a fifth of a second each."""
    leader = await world.controllers.leader()
    _below(world, leader)
    world.strike()
    found: list[int] = []
    try:
        async for i in world.ticks(5):
            found = _below(world, leader) if i % 2 == 0 else found
            _kill(found, signal.SIGCONT if i % 2 else signal.SIGSTOP)
    finally:
        _kill(found, signal.SIGCONT)


@attack
async def worker_overwhelmed(world: AttackedCluster) -> None:
    """Take away the worker's time: many hard claims at once, while its processes are stopped for a moment."""
    leader = await world.controllers.leader()
    found = _below(world, leader)
    hard = [m for i in range(30) for m in one(f"hard-{i}", TENANT, objects.alternatives(9, [f'"{i}" != ""']))]
    await world.create(m for m in hard if m["kind"] != "Pod")
    world.strike()
    _kill(found, signal.SIGSTOP)
    await world.create(m for m in hard if m["kind"] == "Pod")
    _kill(found, signal.SIGCONT)


@attack
async def reviewer_killed(world: AttackedCluster) -> None:
    """Kill the leader's process that reviews: the next one answers."""
    leader = await world.controllers.leader()
    found = _below(world, leader, REVIEWER)
    world.strike()
    _kill(found, signal.SIGKILL)


@attack
async def reviewer_stopped(world: AttackedCluster) -> None:
    """Stop the leader's process that reviews: it lives, answers nothing, and is replaced."""
    leader = await world.controllers.leader()
    found = _below(world, leader, REVIEWER)
    _kill(found, signal.SIGSTOP)
    try:
        await asyncio.sleep(_REPLACED_SECONDS)
        world.measure_from_strike = True
        world.strike()
        if left := [pid for pid in found if Path(f"/proc/{pid}/stat").exists()]:
            world.problems.append(f"a process that answers no review was not replaced: {left}")
    finally:
        _kill(found, signal.SIGCONT)


@attack
async def standby_stopped(world: AttackedCluster) -> None:
    """Stop the replica that stands by."""
    leader = await world.controllers.leader()
    other = next(r for r in world.controllers.replicas if r is not leader)
    other.signal(signal.SIGSTOP)
    world.strike()
    try:
        await asyncio.Event().wait()
    finally:
        other.signal(signal.SIGCONT)
        other.excused = False


@attack
async def leader_stopped_for_a_moment(world: AttackedCluster) -> None:
    """Stop the leader for three seconds, three times: it keeps the lease and goes on."""
    leader = await world.controllers.leader()
    for i in range(3):
        leader.signal(signal.SIGSTOP)
        made = [m for k in range(30) for m in one(f"late-{i}-{k}", TENANT, objects.devices())]
        await world.create(m for m in made if m["kind"] != "Pod")
        await world.create(m for m in made if m["kind"] == "Pod")
        await asyncio.sleep(3)
        leader.signal(signal.SIGCONT)
        await asyncio.sleep(1)
    leader.excused = False  # from now on it is judged again
    world.measure_from_strike = True
    world.strike()


async def _next_leader(world: AttackedCluster, stopped: int) -> None:
    """Wait for a leader that is another process: the honest pods that come then are what counts."""
    await world.controllers.leader(after=stopped)
    world.measure_from_strike = True
    world.strike()
    await asyncio.sleep(0.5)


async def _ends(world: AttackedCluster, stopped: Replica, began: int) -> None:
    """Resume a leader that was stopped, and wait for its end: it must neither lead nor write any more."""
    stopped.signal(signal.SIGCONT)
    try:
        await until(lambda: stopped.began > began, 20, "the end of the old leader")
    except TimeoutError:
        world.problems.append("the leader that was stopped goes on beside the next one")


@attack
async def leader_stopped(world: AttackedCluster) -> None:
    """Stop the leader in the middle of its work, and let it run again when the next one leads."""
    leader = await world.controllers.leader()
    began, pid = leader.began, leader.pid
    busy = asyncio.create_task(_crowd(world))
    await asyncio.sleep(0.3)
    leader.signal(signal.SIGSTOP)
    await busy
    await _next_leader(world, pid)
    await _ends(world, leader, began)


@attack
async def leader_and_worker_stopped(world: AttackedCluster) -> None:
    """Stop the leader and every process below it, and let first the one, then the others run again."""
    leader = await world.controllers.leader()
    began, pid, below = leader.began, leader.pid, children(leader.pid)
    busy = asyncio.create_task(_crowd(world))
    await asyncio.sleep(0.3)
    leader.signal(signal.SIGSTOP)
    _kill(below, signal.SIGSTOP)
    await busy
    await _next_leader(world, pid)
    _kill(below, signal.SIGCONT)
    await _ends(world, leader, began)


@attack
async def leader_killed(world: AttackedCluster) -> None:
    """Kill the leader in the middle of its work; what is left of it must not hold up the next one."""
    leader = await world.controllers.leader()
    pid, below = leader.pid, children(leader.pid)
    busy = asyncio.create_task(_crowd(world))
    await asyncio.sleep(0.3)
    leader.signal(signal.SIGKILL)
    await busy
    await _next_leader(world, pid)
    if left := [pid for pid in below if Path(f"/proc/{pid}/stat").exists()]:
        world.problems.append(f"{len(left)} processes of the leader that was killed go on")


@attack
async def leader_told_to_end(world: AttackedCluster) -> None:
    """End the leader as an update does, while pods come."""
    leader = await world.controllers.leader()
    pid = leader.pid
    busy = asyncio.create_task(_crowd(world))
    leader.signal(signal.SIGTERM)
    await busy
    await _next_leader(world, pid)
