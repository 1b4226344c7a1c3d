"""The process that reviews: what a judgement may take, and what the controller believes of it."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from controller.admission.process import ReviewProcess, waited_for_processor
from controller.admission.review import Judgement
from controller.admission.reviewer import Reviewer
from controller.admission.wire import Capacity, Certificate, Ping, Pong, Refused, Start, line, pong_of, told
from dra_driver.api.server.admission import AdmissionRequest, AdmissionResponse

START = Start(
    listening=(),
    drivers=("gpu.dra-driver.dev",),
    others=(),
    resources=False,
    client_authorities="",
    client_names=(),
    receive_seconds=3.0,
    cpu_seconds=0.05,
    memory=1 << 30,
)
REVIEW = msgspec.json.encode(
    {
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "request": {"uid": "u", "kind": {"group": "", "version": "v1", "kind": "Pod"}, "operation": "CREATE"},
    }
)


def test_a_judgement_ends_with_its_cpu_time_and_others_go_on() -> None:
    reviewer = Reviewer(START)

    def stubborn(_: AdmissionRequest) -> Judgement:
        while True:
            try:
                sum(range(1000))
            except Exception:
                continue

    def quick(request: AdmissionRequest) -> Judgement:
        return Judgement(AdmissionResponse(uid=request.uid, allowed=True), "allowed")

    answered = [reviewer.answer(REVIEW, decide).status for decide in (stubborn, quick, stubborn, quick)]
    assert answered == [503, 200, 503, 200]
    assert reviewer.pong(1).reviews == {"/stopped": 2, "Pod/allowed": 2}
    assert reviewer.pong(2).reviews == {}


def test_requests_for_capacity_are_refused_until_the_api_server_is_known_to_keep_them() -> None:
    reviewer = Reviewer(START)

    def answered() -> tuple[bool, int]:
        text = reviewer.answer(REVIEW, reviewer.judge_capacity).text
        response = msgspec.json.decode(text or "")["response"]
        return response["allowed"], response.get("status", {}).get("code", 0)

    assert answered() == (False, 503)
    reviewer.keeps_capacity = True
    assert answered() == (True, 0)
    reviewer.keeps_capacity = False
    assert answered() == (False, 422)


@pytest.mark.parametrize(
    "message",
    [START, Certificate(certificate="c", key="k"), Capacity(kept=True), Ping(number=3)],
)
def test_what_the_controller_says_arrives(message: Any) -> None:
    assert told(line(message)) == message


@pytest.mark.parametrize(
    "change",
    [
        lambda p: p.update(number="1"),
        lambda p: p.update(more=1),
        lambda p: p.pop("reviews"),
        lambda p: p["reviews"].update({"Pod/allowed": -1}),
        lambda p: p["reviews"].update({"x" * 1001: 1}),
        lambda p: p.update(refused=p["refused"] * 17),
        lambda p: p["refused"][0].update(reason="x" * 1001),
    ],
)
def test_what_the_process_says_is_bounded(change: Callable[[dict[str, Any]], object]) -> None:
    refused = (Refused(kind="Pod", object="a/b", reason="x"),)
    good = Pong(number=1, reviews={"Pod/refused": 1}, refused=refused)
    assert pong_of(line(good)) == good
    bad = msgspec.json.decode(line(good))
    change(bad)
    with pytest.raises(msgspec.DecodeError):
        pong_of(msgspec.json.encode(bad))


# --- whether it answers -------------------------------------------------------------------------------------


@pytest.mark.parametrize("starved", [False, pytest.param(True, marks=pytest.mark.long)])
def test_a_process_that_got_no_processor_is_not_taken_for_one_that_hangs(starved: bool) -> None:
    """On a machine with other work a new one would wait as well; each start costs more than an answer."""
    looks = 0

    def waited(_: int) -> float:
        nonlocal looks
        looks += 1
        return looks * 0.1 if starved else 0.0

    async def looks_until_the_end() -> int:
        ended = asyncio.Event()
        process = ReviewProcess(
            START, lambda _: None, lambda why: ended.set() if why == "hangs" else None, 0.1, waited
        )
        running = asyncio.create_task(process.run())
        await asyncio.wait_for(process.answers.wait(), 60)
        os.kill(process.pid, signal.SIGSTOP)
        before = looks
        await asyncio.wait_for(ended.wait(), 60)
        running.cancel()
        return looks - before

    needed = asyncio.run(looks_until_the_end())
    assert needed >= 40 if starved else needed <= 10


def test_a_process_that_was_long_in_starting_goes_on_when_it_answers() -> None:
    """Its start may take more looks than a later answer."""
    looks = 0

    def waited(_: int) -> float:
        nonlocal looks
        looks += 1
        return 0.0

    async def ends() -> list[str]:
        found: list[str] = []
        # Sixty looks are long enough for a start on a busy machine, which no wait for a processor excuses.
        process = ReviewProcess(START, lambda _: None, found.append, 0.3, waited)
        running = asyncio.create_task(process.run())
        while not process.pid:
            await asyncio.sleep(0)
        # For ten looks, of the sixty that a start may take.
        os.kill(process.pid, signal.SIGSTOP)
        while looks < 10:
            await asyncio.sleep(0.01)
        os.kill(process.pid, signal.SIGCONT)
        await asyncio.wait_for(process.answers.wait(), 60)
        before = looks
        while looks < before + 5:
            await asyncio.sleep(0.01)
        running.cancel()
        await asyncio.wait([running])
        return found

    assert asyncio.run(ends()) == []


def test_the_kernel_says_how_long_a_process_has_waited_for_a_processor() -> None:
    processor = min(os.sched_getaffinity(0))
    busy = f"import os\nos.sched_setaffinity(0, [{processor}])\nwhile True: pass"
    running = [subprocess.Popen([sys.executable, "-c", busy]) for _ in range(2)]
    running.append(subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]))
    try:
        deadline = time.monotonic() + 60
        while min(waited_for_processor(p.pid) for p in running[:2]) < 0.3 and time.monotonic() < deadline:
            time.sleep(0.05)
        before = [waited_for_processor(p.pid) for p in running]
        time.sleep(0.5)
        one, other, sleeping = (waited_for_processor(p.pid) - b for p, b in zip(running, before, strict=True))
        assert one + other > 0.2
        assert sleeping < 0.1
    finally:
        for process in running:
            process.kill()
            process.wait()
    assert waited_for_processor(running[0].pid) == 0.0
