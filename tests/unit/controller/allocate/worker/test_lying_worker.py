"""A worker that lies, breaks the protocol or does not work: the controller beside it, in virtual time."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import builders
import pytest
import virtual_time
from controller_harness import NS, GoingClock, Harness, claim, cluster_of, controlling, pod, pool
from examples import one_of, seeds, share
from fake_client import FakeClient
from fake_worker import HIGH_WATER, FakeWorker, FakeWorkers, changed, whole
from worker_audit import Bench, audited

from controller.allocate.worker.wire import LARGEST, Code, Frame
from dra_driver.api.core import PODS
from dra_driver.api.resource import RESOURCE_CLAIMS


class FakeBench(Bench):
    """The same with workers that the test plays."""

    def __init__(self) -> None:
        self.workers = FakeWorkers()
        super().__init__(self.workers.start)


Spoil = Callable[[Frame], bytes]
Body = dict[str, Any]


def write_of(body: Body) -> Body | None:
    """The first allocation of an answer: the claim and the result."""
    if body["decision"]["type"] != "write":
        return None
    found: Body = body["decision"]["writes"][0]["allocations"][0]
    return found


def on_writes(change: Callable[[Any, Any], None]) -> Spoil:
    def spoil(message: Frame) -> bytes:
        def spoiled(body: Body) -> None:
            found = write_of(body)
            if found is not None:
                change(*found)

        return changed(message, spoiled)

    return spoil


def on_answers(**fields: Any) -> Spoil:
    return lambda message: changed(message, lambda body: body.update(fields))


def set_result(**fields: Any) -> Spoil:
    return on_writes(lambda _, allocation: allocation["devices"]["results"][0].update(fields))


def other_claims() -> Spoil:
    """Each answer allocates the claim of the answer before, as far as there is one."""
    refs: list[Any] = []

    def change(ref: Any, _: Any) -> None:
        refs.append(list(ref))
        if len(refs) > 1:
            ref[:] = refs[-2]

    return on_writes(change)


def twice_the_same() -> Spoil:
    def spoil(message: Frame) -> bytes:
        def spoiled(body: Body) -> None:
            if write_of(body) is not None:
                body["decision"]["writes"] *= 2

        return changed(message, spoiled)

    return spoil


def in_text(old: bytes, new: bytes) -> Spoil:
    def spoil(message: Frame) -> bytes:
        if message.code != Code.ANSWER:
            return whole(message)
        return whole(message._replace(body=message.body.replace(old, new)))

    return spoil


def only(code: int, spoil: Spoil) -> Spoil:
    return lambda message: spoil(message) if message.code == code else whole(message)


REFUSAL: Body = {
    "type": "refuse",
    "message": "no",
    "claims": [],
    "undo": [],
    "elsewhere": False,
    "signature": "",
}
LIES: dict[str, Callable[[], Spoil]] = {
    "noise": lambda: lambda m: b"\x00\x00\x00\x05" + bytes(range(60)),
    "half a message and no more": lambda: only(Code.ANSWER, lambda m: whole(m)[:-5]),
    "an endless message": lambda: lambda m: (LARGEST + 1).to_bytes(4, "big") + whole(m)[4:],
    "a message of no kind": lambda: lambda m: whole(m._replace(code=77)),
    "everything twice": lambda: lambda m: whole(m) * 2,
    "answers to what was not asked": lambda: lambda m: whole(m._replace(number=m.number + 1000)),
    "it begins what was not asked": lambda: only(Code.BEGUN, lambda m: whole(m._replace(number=77))),
    "no answers": lambda: only(Code.ANSWER, lambda m: b""),
    "answers in another order": lambda: only(Code.ANSWER, in_another_order()),
    "it knows what has not happened": lambda: on_answers(version=1 << 40),
    "it knows less than before": lambda: on_answers(version=-1),
    "it has given more": lambda: on_answers(answers=99),
    "the other lane": lambda: on_answers(slow=True),
    "an endless pause": lambda: on_answers(pause=1e300),
    "a pause that is over": lambda: on_answers(pause=-1e300),
    "an endless node": lambda: on_answers(avoided=[["n1", 1e300]]),
    "a number that is none": lambda: in_text(b'"pause":0.0', b'"pause":NaN'),
    "a character that is none": lambda: in_text(b'"n1"', b'"\\ud800"'),
    "bytes that are no text": lambda: in_text(b'"n1"', b'"\xff\xfe"'),
    "lists in lists": lambda: only(Code.ANSWER, lambda m: whole(m._replace(body=b"[" * 90_000))),
    "unknown fields in each other": lambda: in_text(
        b'"pause"', b'"x":' + b"[" * 900 + b"]" * 900 + b',"pause"'
    ),
    "a group of nobody": lambda: on_answers(group={"namespace": "x", "name": "g", "size": 1, "pods": []}),
    "one device for all": lambda: set_result(pool="n1", device="gpu-0"),
    "devices of pools that are not there": lambda: set_result(pool="n9"),
    "devices of others": lambda: set_result(driver="nic.example.com"),
    "the claims of others": other_claims,
    "allocations twice": twice_the_same,
    "claims as they are not": lambda: on_writes(lambda ref, _: ref.__setitem__(2, "0")),
    "everything is hard": lambda: on_answers(decision={"type": "hard"}),
    "a wait that is over at once": lambda: on_answers(decision={"type": "wait", "reason": "", "poll": 1e-9}),
    "a pause that is over at once": lambda: on_answers(decision=REFUSAL, pause=1e-9, avoided=[["n1", 1e-9]]),
    "no allocations": lambda: lambda m: changed(m, lambda b: b["decision"].get("writes", []).clear()),
    "something learned about others": lambda: on_answers(
        learned={"question": None, "namespace": {"namespace": "x", "number": 9, "since": 0}, "group": None}
    ),
}


def in_another_order() -> Spoil:
    kept: list[bytes] = []

    def spoil(message: Frame) -> bytes:
        kept.append(whole(message))
        if len(kept) < 2:
            return b""
        return kept.pop() + kept.pop()

    return spoil


def pods_with_claims(cluster: FakeClient, names: Iterator[str] | list[str]) -> None:
    for name in names:
        claim(cluster, name)
        pod(cluster, name, name)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(3_600):
        while not condition():
            await asyncio.sleep(0.1)


def served(h: Harness, names: list[str]) -> bool:
    return all(h.devices(name) and not h.gates(name) for name in names)


def nothing(_: FakeWorker) -> None:
    pass


def lying(lie: Spoil, seconds: float, mood: Callable[[FakeWorker], None] = nothing) -> None:
    """Play a lie for a while; in the end all devices are in use, by one claim each, and nothing is left."""
    cluster, bench = audited(cluster_of(n1=(40, 40), n2=(40, 40))), FakeBench()
    names = [f"p{i}" for i in range(4)]

    async def scenario(h: Harness) -> None:
        bench.workers.spoil, bench.workers.mood = lie, mood
        bench.workers.last.spoil = lie
        mood(bench.workers.last)
        pods_with_claims(cluster, names)
        await asyncio.sleep(seconds)
        # It is no endless loop: neither of workers nor of questions.
        assert bench.restarts <= 20 + seconds / 4
        bench.workers.spoil, bench.workers.mood = whole, nothing
        bench.workers.last.kill()
        await until(lambda: served(h, names))
        cluster.remove(PODS, "p0", NS)
        cluster.remove(RESOURCE_CLAIMS, "p0", NS)
        pods_with_claims(cluster, ["last"])
        await until(lambda: served(h, ["last"]))
        await until(bench.is_clean)

    play(cluster, bench, scenario)


def play(cluster: FakeClient, bench: FakeBench, scenario: Callable[[Harness], Awaitable[None]]) -> None:
    async def main() -> None:
        async with asyncio.timeout(10_000), controlling(cluster, bench.answers_of(), GoingClock()) as harness:
            await scenario(harness)

    virtual_time.run(main())


@pytest.mark.parametrize("lie", list(LIES))
def test_a_worker_that_lies_allocates_no_device_twice_and_loses_no_pod(lie: str) -> None:
    lying(LIES[lie](), 5.0)


@pytest.mark.parametrize("seconds", [40.0, pytest.param(600.0, marks=pytest.mark.long)])
@pytest.mark.parametrize("lie", one_of(12, LIES))
def test_workers_that_all_lie_keep_the_controller_waiting_and_no_more(lie: str, seconds: float) -> None:
    lying(LIES[lie](), seconds)


def does_nothing(worker: FakeWorker) -> None:
    worker.works = False


def takes_nothing(worker: FakeWorker) -> None:
    worker.reads = False


def is_stopped(worker: FakeWorker) -> None:
    worker.is_stopped = True


def dies(worker: FakeWorker) -> None:
    asyncio.get_running_loop().call_later(0.5, worker.kill)


MOODS = (does_nothing, takes_nothing, is_stopped, dies)


@pytest.mark.parametrize("seconds", share([120.0, 600.0], 1))
@pytest.mark.parametrize("mood", MOODS)
def test_workers_that_do_not_work_are_replaced(mood: Callable[[FakeWorker], None], seconds: float) -> None:
    lying(whole, seconds, mood)


def test_a_worker_that_takes_nothing_while_it_is_told_is_replaced() -> None:
    cluster, bench = audited(cluster_of(n1=(40,))), FakeBench()

    async def scenario(h: Harness) -> None:
        for i in range(400):
            claim(cluster, f"c{i}")
        bench.workers.mood = takes_nothing
        bench.workers.last.kill()
        await asyncio.sleep(10.0)
        # More than is written without waiting: the replay hangs.
        assert bench.workers.last.unread > HIGH_WATER
        bench.workers.mood = nothing
        pods_with_claims(cluster, ["p"])
        await until(lambda: served(h, ["p"]))

    play(cluster, bench, scenario)


def test_what_a_worker_does_not_take_is_not_kept_without_bound() -> None:
    cluster, bench = audited(cluster_of(n1=(40,))), FakeBench()

    async def scenario(h: Harness) -> None:
        worker = bench.workers.last
        worker.reads = False
        size = 1 << 20
        text = {"annotations": {"a": "x" * size}}
        for i in range(200):
            cluster.put(PODS, builders.pod("large", metadata={**text, "labels": {"i": str(i)}}))
            await asyncio.sleep(0)
            while not worker.has_ended and worker.unread < min(i, 100) * size:
                await asyncio.sleep(0.001)
            if worker.has_ended:
                break
        assert worker.has_ended
        pods_with_claims(cluster, ["p"])
        await until(lambda: served(h, ["p"]))

    play(cluster, bench, scenario)


@pytest.mark.parametrize("seed", seeds("DRA_WORKER_SCHEDULES", 15, first=1))
def test_random_schedules_of_lies_delays_ends_and_changes(seed: int) -> None:
    rng = random.Random(seed)
    cluster, bench = audited(cluster_of(n1=(40, 40), n2=(40, 40))), FakeBench()
    alive: list[str] = []

    def new_pod() -> None:
        alive.append(f"p{rng.randrange(1 << 30)}")
        pods_with_claims(cluster, alive[-1:])

    def pod_ends() -> None:
        if alive:
            name = alive.pop(rng.randrange(len(alive)))
            cluster.remove(PODS, name, NS)
            cluster.remove(RESOURCE_CLAIMS, name, NS)

    def same_name_again() -> None:
        if alive:
            name = rng.choice(alive)
            cluster.remove(PODS, name, NS)
            cluster.remove(RESOURCE_CLAIMS, name, NS)
            pods_with_claims(cluster, [name])

    def claim_changes() -> None:
        if alive:
            labels = {"metadata": {"labels": {"x": str(rng.random())}}}
            cluster.edit(RESOURCE_CLAIMS, rng.choice(alive), labels, NS)

    def pool_changes() -> None:
        pool(cluster, rng.choice(["n1", "n2"]), 40, rng.choice([40, 80]))

    def worker_changes() -> None:
        bench.workers.spoil = rng.choice([whole, whole, LIES[rng.choice(list(LIES))]()])
        bench.workers.mood = rng.choice([nothing, nothing, nothing, *MOODS])
        late = rng.choice([0.0, 0.0, 0.5, 3.0])
        bench.workers.delay = lambda: rng.uniform(0.0, late)
        if rng.random() < 0.5:
            bench.workers.last.kill()

    steps = [new_pod, new_pod, pod_ends, same_name_again, claim_changes, pool_changes, worker_changes]

    async def scenario(h: Harness) -> None:
        for _ in range(80):
            rng.choice(steps)()
            await asyncio.sleep(rng.choice([0.0, 0.01, 0.3, 2.0]))
            while len(alive) > 6:
                pod_ends()
        bench.workers.spoil, bench.workers.mood, bench.workers.delay = whole, nothing, lambda: 0.0
        bench.workers.last.kill()
        while len(alive) > 4:
            pod_ends()
        while len(alive) < 4:
            new_pod()
        await until(lambda: served(h, alive))
        await until(bench.is_clean)

    play(cluster, bench, scenario)


def test_a_worker_that_has_answered_is_soon_replaced_however_often_it_ends() -> None:
    cluster, bench = audited(cluster_of(n1=(40,) * 8, n2=(40,) * 8)), FakeBench()

    async def scenario(h: Harness) -> None:
        loop = asyncio.get_running_loop()
        for i in range(12):
            pods_with_claims(cluster, [f"p{i}"])
            began = loop.time()
            await until(lambda name=f"p{i}": served(h, [name]))  # type: ignore[misc]
            assert loop.time() - began < 2.0  # of virtual time
            bench.workers.last.kill()

    play(cluster, bench, scenario)
