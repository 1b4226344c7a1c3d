"""When a worker is not waited for any longer, and what is seen of a real one."""

from __future__ import annotations

import asyncio
import os
import signal
from dataclasses import replace

from controller.allocate.worker.child import WorkerChild
from controller.allocate.worker.watch import Facts, Watch

IDLE = Facts(begun=None, fast=None, slow=(), taken=0, unread=0, cpu_seconds=0.0, is_stopped=False, switches=7)
STOPPED = replace(IDLE, is_stopped=True, switches=8)


def findings(*looks: Facts) -> list[str | None]:
    watch = Watch(2.0, 10.0)
    found = [watch.look(facts, 0.5) for facts in looks]
    return [None if one is None else one.reason for one in found]


def test_a_worker_that_was_stopped_from_one_look_to_the_next_is_not_waited_for() -> None:
    assert findings(IDLE, STOPPED, STOPPED) == [None, None, "a signal has stopped it"]


def test_a_worker_that_was_resumed_between_two_looks_is_waited_for() -> None:
    looks = [replace(STOPPED, switches=8 + i) for i in range(100)]
    assert findings(*looks) == [None] * 100


ASKED = replace(IDLE, fast=1)


def silent(cpu_per_look: float) -> int:
    """Looks of half a second until a worker that says nothing is not waited for any longer."""
    looks = [replace(ASKED, cpu_seconds=i * cpu_per_look) for i in range(1_000)]
    return next(i for i, reason in enumerate(findings(*looks)) if reason is not None)


def test_a_worker_that_says_nothing_and_does_nothing_is_not_waited_for() -> None:
    assert {silent(0.0), silent(0.001)} <= {120, 121}


def test_a_worker_that_gets_little_of_a_busy_machine_for_much_work_is_waited_for() -> None:
    assert silent(0.05) == 600


def test_a_worker_that_works_for_a_minute_without_a_word_is_not_waited_for() -> None:
    assert silent(0.5) <= 122


def test_a_process_that_is_resumed_and_stopped_again_has_switched() -> None:
    async def scenario() -> None:
        child = await WorkerChild.start()

        async def stop() -> int:
            os.kill(child.pid, signal.SIGSTOP)
            while not child.is_stopped:
                await asyncio.sleep(0.001)
            return child.switches

        try:
            first = await stop()
            assert await stop() == first > 0
            os.kill(child.pid, signal.SIGCONT)
            while child.is_stopped:
                await asyncio.sleep(0.001)
            assert await stop() > first
        finally:
            await child.end()
        assert child.switches == 0

    asyncio.run(scenario())
