"""The state directory is removed while agents run: they still exclude each other, and give nothing twice."""

from __future__ import annotations

import asyncio
import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import pytest
from fake_client import FakeClient
from kubelet_calls import checkpointed, prepare, unprepare
from node_agent import IMPATIENT, add_claim, claim, device, eventually, running

from dra_driver.api.meta import PoolName, Uid
from dra_driver.preparation import Checkpoint, ClaimState, PreparedClaim, PreparedDevice, gathered
from kubelet_plugin.claims.checkpoint_file import CheckpointFile, read_checkpoint
from kubelet_plugin.claims.locks import StateLock
from kubelet_plugin.claims.reservations import DeviceReservations
from kubelet_plugin.core.instances import Instances
from kubelet_plugin.core.notices import CHECKPOINT_DAMAGED

OLD, NEW = {"instance_id": "pod-old"}, {"instance_id": "pod-new"}
UIDS = [Uid(f"00000000-0000-4000-8000-00000000000{i}") for i in range(4)]


def record(
    i: int, name: str, state: ClaimState = ClaimState.STARTED, share_id: str | None = None
) -> PreparedClaim:
    given = PreparedDevice(requests=("gpu",), pool=PoolName("node-a"), device=name, share_id=share_id)
    return PreparedClaim(uid=UIDS[i], namespace="ns", name=f"c{i}", state=state, devices=(given,))


def deadline(seconds: float = 5.0) -> float:
    return asyncio.get_running_loop().time() + seconds


# --- agents -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("first", ["the one that prepared", "the other one"])
def test_what_one_agent_has_prepared_the_other_does_not_give_away(tmp_path: Path, first: str) -> None:
    async def main() -> None:
        kube = FakeClient()
        devices = [device(i) for i in range(3)]
        one, thief = add_claim(kube, claim("one", "gpu-0")), add_claim(kube, claim("thief", "gpu-0"))
        two = add_claim(kube, claim("two", "gpu-1"))
        async with (
            running(tmp_path, kube, devices, settings=OLD, timing=IMPATIENT) as old,
            running(tmp_path, kube, devices, settings=NEW, timing=IMPATIENT) as new,
        ):
            # The new agent has not looked since.
            assert not (await prepare(old, one))[one["metadata"]["uid"]].error
            shutil.rmtree(old.config.state)
            # By gRPC it could be called only after its socket is back; this is what it does then.
            agents = (old, new) if first == "the one that prepared" else (new, old)
            for agent in agents:
                answers = await agent.plugin._calls.prepare([reference(thief)])
                assert "gpu-0 is held by another claim" in str(answers[thief["metadata"]["uid"]])
            assert not isinstance(
                (await new.plugin._calls.prepare([reference(two)]))[reference(two).uid], str
            )
            assert {c["name"] for c in checkpointed(new).values()} == {"one", "two"}
            for agent in agents:
                assert {r.name for r in await agent.plugin._preparer.prepared()} == {"one", "two"}
            assert agents[0].plugin.notices.counts[CHECKPOINT_DAMAGED] == 1
            # Both are there again, and the claims end as ever.
            await eventually(lambda: old.plugin._dra.present and new.plugin._registrar.present)
            ended = await unprepare(old, one, two)
            assert {a.error for a in ended.values()} == {""}
            assert checkpointed(new) == {}
            assert new.specs() == []

    asyncio.run(main())


def reference(body: dict[str, dict[str, str]]) -> Reference:
    return Reference(body["metadata"]["namespace"], body["metadata"]["name"], body["metadata"]["uid"])


class Reference:
    """A claim as a request of the kubelet has it."""

    def __init__(self, namespace: str, name: str, uid: str) -> None:
        self.namespace, self.name, self.uid = namespace, name, uid


def test_an_agent_alone_goes_on_with_what_it_has(tmp_path: Path) -> None:
    async def main() -> None:
        kube = FakeClient()
        one, two = add_claim(kube, claim("one", "gpu-0")), add_claim(kube, claim("two", "gpu-1"))
        async with running(tmp_path, kube, [device(0), device(1)]) as node:
            await prepare(node, one)
            shutil.rmtree(node.config.state)
            answers = await node.plugin._calls.prepare([reference(one), reference(two)])
            assert not any(isinstance(answer, str) for answer in answers.values())
            assert {c["name"] for c in checkpointed(node).values()} == {"one", "two"}
        async with running(tmp_path, kube, [device(0), device(1)]) as node:
            assert {c.name for c in node.plugin._preparer.claims} == {"one", "two"}

    asyncio.run(main())


# --- the lock -----------------------------------------------------------------------------------------------


def test_the_lock_is_that_of_the_file_that_has_its_name(tmp_path: Path) -> None:
    async def main() -> None:
        path = tmp_path / "state" / "state.lock"
        one, two = StateLock(path), StateLock(path)
        inside: list[str] = []

        async def work(lock: StateLock, name: str) -> None:
            async with lock.held(deadline()):
                inside.append(name)
                assert set(inside) == {name}
                await asyncio.sleep(0.02)
                inside.remove(name)

        for lock, name in ((one, "one"), (two, "two")):
            await work(lock, name)
        async with asyncio.TaskGroup() as tasks, one.held(deadline()):
            one.check()
            waiting = tasks.create_task(work(two, "two"))
            await asyncio.sleep(0.03)
            assert not waiting.done()
            shutil.rmtree(path.parent)
            with pytest.raises(OSError, match=r"state\.lock was removed"):
                one.check()
            # The other one does not wait for a file that has no name.
            await waiting
            # One that comes in beside the first one waits until that has ended, and locks anew.
            later = tasks.create_task(work(one, "one"))
            await asyncio.sleep(0.03)
            assert not later.done()
        assert os.path.samestat(path.stat(), os.fstat(one._files[0]))  # type: ignore[index]
        async with asyncio.TaskGroup() as tasks:
            for _ in range(5):
                tasks.create_task(work(two, "two"))
                await asyncio.sleep(0.001)
                tasks.create_task(work(one, "one"))
        one.close()
        two.close()

    asyncio.run(main())


def test_a_transaction_that_was_under_way_gives_nothing(tmp_path: Path) -> None:
    """It has reserved a device; the directory is removed; another agent gives the device to another claim."""

    async def main(executor: ThreadPoolExecutor) -> None:
        state = tmp_path / "state"

        def instance() -> tuple[DeviceReservations, StateLock]:
            lock = StateLock(state / "state.lock")
            file = CheckpointFile(state / "checkpoint.json", executor, check=lock.check)
            return DeviceReservations(file, node_lock=lock), lock

        (one, one_lock), (two, two_lock) = instance(), instance()
        for owner in (one, two):
            async with owner.starting(deadline()):
                pass
        mine = record(0, "gpu-0")
        async with one.claim(UIDS[0], deadline()) as locked, locked.transaction(deadline()) as claim:
            assert claim.reserve(mine) is None
            shutil.rmtree(state)
            async with two.claim(UIDS[1], deadline()) as other, other.transaction(deadline()) as theirs:
                assert theirs.reserve(record(1, "gpu-0")) is None
                await theirs.save(record(1, "gpu-0"))
            with pytest.raises(OSError, match="was removed while it kept two instances"):
                await claim.save(mine)
        # What it had written over the other one's record is not what counts.
        async with two.claim(UIDS[1], deadline()) as other, other.transaction(deadline()) as theirs:
            await theirs.save(record(1, "gpu-0", ClaimState.COMPLETED))
        assert {r.uid for r in await one.read(deadline())} == {UIDS[1]}
        one_lock.close()
        two_lock.close()

    with ThreadPoolExecutor(1) as executor:
        asyncio.run(main(executor))


def test_an_agent_makes_its_own_file_anew(tmp_path: Path) -> None:
    class Clock:
        def now(self) -> float:
            return 1.0

        def monotonic(self) -> float:
            return 5.0

    async def main() -> None:
        state = tmp_path / "state"
        state.mkdir()
        old, new = Instances(state, "old", Clock()), Instances(state, "new", Clock())
        async with old.entered(0), new.entered(0):
            new.registered(True)
            assert (old.leads(), new.leads()) == (False, True)
            shutil.rmtree(state)
            new.leads()
            assert (old.leads(), new.leads()) == (False, True)
            assert not old.alone()
            assert not new.alone()
        assert list(state.iterdir()) == []

    asyncio.run(main())


# --- what counts --------------------------------------------------------------------------------------------


def test_what_is_gathered_holds_no_device_twice() -> None:
    completed = ClaimState.COMPLETED
    theirs, stale, mine = record(0, "gpu-0"), record(1, "gpu-0", completed), record(2, "gpu-1", completed)
    newer = msgspec.structs.replace(theirs, state=completed)
    ended = msgspec.structs.replace(record(3, "gpu-0"), ended=True)
    kept, dropped = gathered([newer], [], [theirs, stale, mine, ended])
    assert list(kept) == [newer, mine, ended]
    assert list(dropped) == [stale]
    shares = [record(0, "gpu-0", share_id="a"), record(1, "gpu-0", share_id="b")]
    assert gathered(shares[:1], shares) == (tuple(shares), ())
    assert gathered([], []) == ((), ())


def test_what_only_memory_has_counts_where_nothing_speaks_against_it(tmp_path: Path) -> None:
    """The other agent was the first to write after the removal; it did not know of this one's last claims."""

    async def main(executor: ThreadPoolExecutor) -> None:
        state = tmp_path / "state"
        lock = StateLock(state / "state.lock")
        store = CheckpointFile(state / "checkpoint.json", executor, check=lock.check)
        owner = DeviceReservations(store, node_lock=lock)
        async with owner.starting(deadline()):
            pass
        completed = ClaimState.COMPLETED
        for mine in (record(0, "gpu-0", completed), record(1, "gpu-1", completed)):
            async with owner.claim(mine.uid, deadline()) as locked, locked.transaction(deadline()) as claim:
                assert claim.reserve(mine) is None
                await claim.save(mine)
        shutil.rmtree(state)
        state.mkdir()
        theirs = Checkpoint().changed({UIDS[2]: record(2, "gpu-1", completed)})
        store._path.write_bytes(theirs.encode())
        assert {r.uid for r in await owner.read(deadline())} == {UIDS[0], UIDS[2]}
        assert {r.uid for r in read_checkpoint(store._path)} == {UIDS[0], UIDS[2]}
        lock.close()

    with ThreadPoolExecutor(1) as executor:
        asyncio.run(main(executor))


def test_what_is_removed_during_a_write_fails_it(tmp_path: Path) -> None:
    """The file may be back then, and the record in it; another agent may not have seen it."""

    class Removing(ThreadPoolExecutor):
        armed = False

        def submit(self, function: Any, /, *arguments: Any, **named: Any) -> Any:
            future = super().submit(function, *arguments, **named)
            future.exception()
            if self.armed:
                shutil.rmtree(tmp_path / "state")
            return future

    async def main(executor: Removing) -> None:
        state = tmp_path / "state"
        lock = StateLock(state / "state.lock")
        owner = DeviceReservations(
            CheckpointFile(state / "checkpoint.json", executor, check=lock.check), node_lock=lock
        )
        async with owner.starting(deadline()):
            pass
        async with owner.claim(UIDS[0], deadline()) as locked, locked.transaction(deadline()) as claim:
            assert claim.reserve(record(0, "gpu-0")) is None
            executor.armed = True
            with pytest.raises(OSError, match="was removed while it kept two instances"):
                await claim.save(record(0, "gpu-0"))
            executor.armed = False
        lock.close()

    with Removing(1) as executor:
        asyncio.run(main(executor))


def test_what_was_lost_is_gathered_although_the_first_call_for_it_is_cancelled(tmp_path: Path) -> None:
    """Its time may be over while the CDI directory is read; the files then look as they were left."""

    async def main(executor: ThreadPoolExecutor) -> None:
        lock = StateLock(tmp_path / "state.lock")
        store = CheckpointFile(tmp_path / "checkpoint.json", executor, check=lock.check)
        owner = DeviceReservations(store, node_lock=lock)
        async with owner.starting(deadline()):
            pass
        asked: list[str] = []

        async def found(problem: str) -> tuple[PreparedClaim, ...]:
            asked.append(problem)
            if len(asked) == 1:
                await asyncio.get_running_loop().create_future()
            return (record(0, "gpu-0", ClaimState.COMPLETED),)

        owner.on_lost(found)
        store._path.write_bytes(b"{")
        first = asyncio.create_task(owner.read(deadline()))
        while not asked:
            await asyncio.sleep(0)
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        assert [r.uid for r in await owner.read(deadline())] == [UIDS[0]]
        assert len(asked) == 2
        async with owner.claim(UIDS[1], deadline()) as locked, locked.transaction(deadline()) as claim:
            assert claim.reserve(record(1, "gpu-0")) is not None
        lock.close()

    with ThreadPoolExecutor(1) as executor:
        asyncio.run(main(executor))
