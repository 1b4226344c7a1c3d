"""How workers end and what they leave behind, as real processes."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import signal
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path

import builders
import pytest
from builders import DRIVER
from worker_world import WorkerCluster, copies_of, facts_of, hard_claim, run, world

from controller.allocate.decide import Decisions, Lane, NeedsSlowLane, PodID, PodQuestion, Settings
from controller.allocate.worker.child import WorkerChild
from controller.allocate.worker.slow_lane import Outcome, SlowLane
from controller.allocate.worker.wire import Code, Frames, Start, frame
from dra_driver.api.meta import ObjectKey, Uid

FIRST_BEYOND_SELECT = 1024


def files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.mark.long
def test_workers_leave_no_files_and_no_processes_behind() -> None:
    async def scenario() -> None:
        others = set(copies_of(os.getpid()))  # of tests before
        async with world(worker=WorkerChild) as w:
            w.node("n1", 1)
            w.pod("a")
            w.decider.release((await w.ask("a"))[1])
            before = files()
            for _ in range(6):
                await w.kill()
                w.decider.release((await w.ask("a"))[1])
            assert files() <= before
            assert set(copies_of(os.getpid())) - others == {w.child.pid}

    run(scenario)


def test_a_burst_of_changes_is_sent_at_once() -> None:
    async def scenario() -> None:
        here, there = socket.socketpair()
        reader, writer = await asyncio.open_connection(sock=here)
        process = await asyncio.create_subprocess_exec(sys.executable, "-c", "")
        await process.wait()
        child = WorkerChild(process, reader, writer)
        with there:
            there.setblocking(False)
            for part in (b"one ", b"two ", b"three"):
                child.write(part)
            assert child.unread == 13
            with pytest.raises(BlockingIOError):
                there.recv(100)
            await asyncio.sleep(0)
            assert (there.recv(100), child.unread) == (b"one two three", 0)
            child.write(b"four")
            await child.drain()
            assert there.recv(100) == b"four"
            child.write(b"never sent")
            child.abort()
            await asyncio.sleep(0.01)
            assert there.recv(100) == b""

    asyncio.run(scenario())


@pytest.mark.skipif(
    resource.getrlimit(resource.RLIMIT_NOFILE)[1] <= FIRST_BEYOND_SELECT, reason="too few files are allowed"
)
def test_a_worker_works_whatever_the_number_of_its_connection() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, FIRST_BEYOND_SELECT + 8), hard))
    here, there = socket.socketpair()
    high = FIRST_BEYOND_SELECT + 4
    os.dup2(there.fileno(), high)
    command = [sys.executable, "-P", "-m", "controller.allocate.worker", str(high), str(os.getpid())]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    process = subprocess.Popen(command, pass_fds=[high], env=env)
    try:
        os.close(high)
        there.close()
        question = PodQuestion(PodID(ObjectKey("ns", "p"), Uid("u")), 0.0)
        start = Start(Settings(drivers=(DRIVER,)), 1, 1 << 40)
        here.sendall(frame(Code.START, 0, start) + frame(Code.READY, 0) + frame(Code.QUESTION, 1, question))
        here.settimeout(30)
        frames = Frames()
        (answer,) = frames.feed(here.recv(1 << 16))
        assert (answer.code, answer.number) == (Code.ANSWER, 1)
    finally:
        process.kill()
        process.wait()
        here.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_where_no_copy_can_be_made_the_question_waits_and_the_worker_goes_on() -> None:
    decisions = Decisions(Settings(drivers=(DRIVER,)), time.thread_time)
    outcomes: list[Outcome] = []
    lane = SlowLane(
        decisions,
        seconds=1.0,
        most=1,
        memory=1 << 30,
        state=lambda: (1, 0),
        done=outcomes.append,
        connection=-1,
    )
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
    try:
        for number in (1, 2):
            lane.add(number, PodQuestion(PodID(ObjectKey("ns", "p"), Uid("u")), 0.0, Lane.SLOW))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert [(o.number, o.answer) for o in outcomes] == [(1, None), (2, None)]
    assert all("files" in o.limit for o in outcomes)
    answer = decisions.stopped(outcomes[0].question, outcomes[0].limit, outcomes[0].seconds)
    assert answer.gave_up


async def in_the_slow_lane(w: WorkerCluster) -> tuple[asyncio.Task[object], int]:
    """Ask a question that a copy of the worker works on for long; return it, and the copy."""
    w.hard_nodes()
    w.pod("hard", hard_claim("hard"))
    assert isinstance((await w.ask("hard"))[0].decision, NeedsSlowLane)
    slow: asyncio.Task[object] = asyncio.create_task(w.ask("hard", Lane.SLOW))
    while not copies_of(w.child.pid):
        await asyncio.sleep(0.01)
    return slow, copies_of(w.child.pid)[0]


@pytest.mark.long
def test_a_worker_ends_with_its_controller_whatever_it_is_doing() -> None:
    text = """
        import asyncio, os, signal, sys
        sys.path[:0] = {path!r}
        from worker_world import world
        from controller.allocate.worker.child import WorkerChild
        async def main():
            async with world(worker=WorkerChild) as w:
                w.node("n1", 1)
                w.pod("a")
                await w.ask("a")
                os.kill(w.child.pid, signal.SIGSTOP)
                print(w.child.pid, flush=True)
                os.kill(os.getpid(), signal.SIGKILL)
        asyncio.run(main())
    """
    program = textwrap.dedent(text).format(path=sys.path)
    done = subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE, timeout=60)
    worker = int(done.stdout.split()[-1])
    ends(lambda: not facts_of(worker))


@pytest.mark.long
def test_copies_that_outlive_their_worker_are_no_zombies_of_the_first_process() -> None:
    # As the first process of a container, the parent of all whose own has ended.
    text = """
        import asyncio, ctypes, os, sys
        sys.path[:0] = {path!r}
        from test_worker_end import in_the_slow_lane
        from worker_world import world
        from controller.allocate.worker.child import WorkerChild
        async def main():
            ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)
            async with world(worker=WorkerChild, decision_seconds=30.0) as w:
                for _ in range(3):
                    slow, copy = await in_the_slow_lane(w)
                    await w.kill()
                    slow.cancel()
                    await asyncio.wait([slow])
                    await w.worker._ready.wait()
                    await asyncio.sleep(0.1)
                    assert not os.path.exists(f"/proc/{{copy}}"), open(f"/proc/{{copy}}/stat").read()
        asyncio.run(main())
    """
    program = textwrap.dedent(text).format(path=sys.path)
    subprocess.run([sys.executable, "-c", program], timeout=60, check=True)


def test_the_end_of_the_controller_ends_everything_while_questions_are_worked_on() -> None:
    async def scenario() -> None:
        async with contextlib.AsyncExitStack() as stack:
            w = await stack.enter_async_context(world(worker=WorkerChild, decision_seconds=30.0))
            slow, copy = await in_the_slow_lane(w)
            w.pod("easy")
            os.kill(w.child.pid, signal.SIGSTOP)
            fast = asyncio.create_task(w.ask("easy"))
            await asyncio.sleep(0)
            worker = w.child.pid
            for task in (slow, fast):
                task.cancel()
            await asyncio.wait([slow, fast])
        ends(lambda: not facts_of(worker) and not facts_of(copy))

    run(scenario)


def test_how_long_a_part_of_a_group_holds_devices_is_known_in_the_slow_lane_too() -> None:
    async def scenario() -> None:
        async with world(group_seconds=0.5) as w:
            w.node("n1", 2)
            held = builders.allocation(builders.result("n1", "gpu-0"))
            labels = {"labels": {"dra-driver.dev/group": "g", "dra-driver.dev/group-size": "2"}}
            w.pod("a", builders.claim("a", uid="claim-a", status=held, metadata=labels))
            first, _ = await w.ask("a", Lane.SLOW)
            await asyncio.sleep(0.6)
            second, _ = await w.ask("a", Lane.SLOW)
            assert [type(x.decision).__name__ for x in (first, second)] == ["Wait", "Refuse"], second

    run(scenario)


def ends(condition: Callable[[], bool]) -> None:
    until = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.01)
