"""The owner of reservations: no device for two claims, nothing held without need, nothing lost."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import pytest
from crashing_stores import Disk, DiskCheckpoints
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from dra_driver.api.meta import PoolName, Uid
from dra_driver.errors import PrepareError
from dra_driver.preparation import Checkpoint, ClaimState, PreparedClaim, PreparedDevice
from kubelet_plugin.claims.checkpoint_file import CheckpointFile
from kubelet_plugin.claims.locks import StateLock
from kubelet_plugin.claims.reservations import DeviceReservations

UIDS = [Uid(f"00000000-0000-4000-8000-00000000000{i}") for i in range(3)]
SOON = 3.0


def planned(i: int, *devices: str) -> PreparedClaim:
    return PreparedClaim(
        uid=UIDS[i],
        namespace="ns",
        name=f"c{i}",
        state=ClaimState.STARTED,
        devices=tuple(device(name) for name in devices or ("gpu-0",)),
    )


def device(name: str) -> PreparedDevice:
    return PreparedDevice(requests=("gpu",), pool=PoolName("node-a"), device=name)


def deadline(seconds: float = SOON) -> float:
    return asyncio.get_running_loop().time() + seconds


async def started(disk: Disk) -> DeviceReservations:
    owner = DeviceReservations(DiskCheckpoints(disk))
    async with owner.starting(deadline()):
        pass
    return owner


async def prepare(owner: DeviceReservations, record: PreparedClaim) -> str:
    """Reserve and record; return what is in the way."""
    async with owner.claim(record.uid, deadline()) as locked, locked.transaction(deadline()) as claim:
        conflict = claim.reserve(record)
        if conflict is not None:
            return str(conflict)
        await claim.save(record)
        return ""


async def unprepare(owner: DeviceReservations, i: int) -> None:
    async with owner.claim(UIDS[i], deadline()) as locked, locked.transaction(deadline()) as claim:
        await claim.forget()


def test_a_device_is_reserved_until_its_record_is_removed() -> None:
    async def main() -> None:
        owner = await started(Disk())
        assert await prepare(owner, planned(0)) == ""
        assert "gpu-0 is held by another claim" in await prepare(owner, planned(1))
        assert await prepare(owner, planned(2, "gpu-1")) == ""
        await unprepare(owner, 0)
        assert await prepare(owner, planned(1)) == ""
        assert {r.uid for r in owner.records} == {UIDS[1], UIDS[2]}

    asyncio.run(main())


def test_who_waits_for_a_device_is_woken_when_its_claim_releases_it() -> None:
    async def main() -> None:
        owner = await started(Disk())
        await prepare(owner, planned(0))
        async with owner.claim(UIDS[1], deadline()) as locked, locked.transaction(deadline()) as claim:
            conflict = claim.reserve(planned(1))
        assert conflict is not None
        async with asyncio.timeout(SOON), asyncio.TaskGroup() as tasks:
            tasks.create_task(owner.wait_released(conflict, 3600.0))
            await asyncio.sleep(0)
            await unprepare(owner, 0)

    asyncio.run(main())


class Bug(Exception):
    """Something fails between the reservation and the record."""


@pytest.mark.parametrize("how", ["an exception", "cancellation", "the end of the block", "a full disk"])
def test_what_is_reserved_and_not_recorded_is_released_with_the_transaction(how: str) -> None:
    async def transaction(owner: DeviceReservations) -> None:
        async with owner.claim(UIDS[0], deadline()) as locked, locked.transaction(deadline()) as claim:
            assert claim.reserve(planned(0)) is None
            if how == "an exception":
                raise Bug
            if how == "cancellation":
                await asyncio.get_running_loop().create_future()
            if how == "a full disk":
                await claim.save(planned(0))

    async def main() -> None:
        owner = await started(Disk(trouble_at=0 if how == "a full disk" else None, error=True))
        task = asyncio.get_running_loop().create_task(transaction(owner))
        await asyncio.sleep(0)
        if how == "cancellation":
            task.cancel()
        await asyncio.wait([task])
        assert not owner.records
        assert task.cancelled() or (task.exception() is None) == (how == "the end of the block")
        assert await prepare(owner, planned(1)) == ""

    asyncio.run(main())


class SlowCheckpoints(DiskCheckpoints):
    """Writes go on when their caller is cancelled, as they do in a thread."""

    def __init__(self, disk: Disk) -> None:
        super().__init__(disk)
        self.reached = asyncio.Event()
        self.go = asyncio.Event()
        self.writes: list[asyncio.Task[None]] = []

    async def save(self, *claims: PreparedClaim) -> None:
        self.writes.append(asyncio.get_running_loop().create_task(self._late(*claims)))
        await asyncio.shield(self.writes[-1])

    async def _late(self, *claims: PreparedClaim) -> None:
        self.reached.set()
        await self.go.wait()
        await super().save(*claims)


def test_a_write_that_outlives_its_transaction_keeps_the_device() -> None:
    async def main() -> None:
        checkpoints = SlowCheckpoints(Disk())
        owner = DeviceReservations(checkpoints)
        async with owner.starting(deadline()):
            pass
        task = asyncio.get_running_loop().create_task(prepare(owner, planned(0)))
        await checkpoints.reached.wait()
        task.cancel()
        await asyncio.wait([task])
        assert "held by another claim" in await prepare(owner, planned(1))
        checkpoints.go.set()
        await asyncio.wait(checkpoints.writes)
        assert [r.uid for r in owner.records] == [UIDS[0]]
        await unprepare(owner, 0)
        assert await prepare(owner, planned(1)) == ""

    asyncio.run(main())


def test_a_record_that_cannot_be_removed_keeps_its_device() -> None:
    async def main() -> None:
        disk = Disk()
        owner = await started(disk)
        await prepare(owner, planned(0))
        disk.trouble_at, disk.error = disk.effects, True
        with pytest.raises(OSError, match="No space"):
            await unprepare(owner, 0)
        assert "held by another claim" in await prepare(owner, planned(1))
        await unprepare(owner, 0)
        assert await prepare(owner, planned(1)) == ""

    asyncio.run(main())


def test_nothing_is_changed_outside_of_a_transaction_or_for_another_claim() -> None:
    async def main() -> None:
        owner = await started(Disk())
        async with owner.claim(UIDS[0], deadline()) as locked, locked.transaction(deadline()) as claim:
            with pytest.raises(AssertionError, match="in a transaction of"):
                claim.reserve(planned(1))
        with pytest.raises(AssertionError, match="inside its transaction only"):
            claim.reserve(planned(0))
        with pytest.raises(AssertionError, match="inside its transaction only"):
            await claim.forget()

    asyncio.run(main())


def test_one_call_at_a_time_for_one_claim() -> None:
    async def main() -> None:
        owner = await started(Disk())
        async with owner.claim(UIDS[0], deadline()), owner.claim(UIDS[1], deadline()):
            with pytest.raises(PrepareError, match="another call for this claim"):
                async with owner.claim(UIDS[0], deadline(0.05)):
                    pass

    asyncio.run(main())


def test_reservations_of_another_instance_count(tmp_path: Path) -> None:
    async def main(executor: ThreadPoolExecutor) -> None:
        def instance() -> tuple[DeviceReservations, StateLock]:
            lock = StateLock(tmp_path / "state.lock")
            file = CheckpointFile(tmp_path / "checkpoint.json", executor)
            return DeviceReservations(file, node_lock=lock), lock

        (old, old_lock), (new, new_lock) = instance(), instance()
        for owner in (old, new):
            async with owner.starting(deadline()):
                pass
        assert await prepare(old, planned(0)) == ""
        assert "held by another claim" in await prepare(new, planned(1))
        await unprepare(new, 0)
        assert await prepare(new, planned(1)) == ""
        assert "held by another claim" in await prepare(old, planned(0))
        assert [r.uid for r in await old.read(deadline())] == [UIDS[1]]
        old_lock.close()
        new_lock.close()

    with ThreadPoolExecutor(1) as executor:
        asyncio.run(main(executor))


def test_what_was_recovered_is_not_written_over_what_replaces_it(tmp_path: Path) -> None:
    async def main(executor: ThreadPoolExecutor) -> None:
        file = CheckpointFile(tmp_path / "state/checkpoint.json", executor)
        owner = DeviceReservations(file)
        recovered = msgspec.structs.replace(planned(0), state=ClaimState.COMPLETED)
        async with owner.starting(deadline()) as start:
            (tmp_path / "state").touch()  # in the way of the directory
            with pytest.raises(OSError, match="checkpoint"):
                await start.adopt([recovered])
            (tmp_path / "state").unlink()

        async def end() -> None:
            async with owner.claim(UIDS[0], deadline()) as locked, locked.transaction(deadline()) as claim:
                await claim.end(recovered)

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(end())
            tasks.create_task(prepare(owner, planned(1, "gpu-1")))
        assert [(r.uid, r.ended) for r in owner.records] == [(UIDS[0], True), (UIDS[1], False)]

    with ThreadPoolExecutor(1) as executor:
        asyncio.run(main(executor))


def test_what_was_recovered_of_an_earlier_boot_never_looks_like_one_of_this() -> None:
    async def main() -> None:
        disk = Disk(Checkpoint().with_boot_id("boot-1").encode())
        owner = DeviceReservations(DiskCheckpoints(disk), boot_id="boot-2")
        recovered = msgspec.structs.replace(planned(0), state=ClaimState.COMPLETED)
        async with owner.starting(deadline()) as start:
            disk.trouble_at, disk.error = disk.effects, True
            with pytest.raises(OSError, match="No space"):
                await start.adopt([recovered])
            await start.note_boot()
        (found,) = owner.records
        assert owner.is_outdated(found)

    asyncio.run(main())


@pytest.mark.parametrize("steps", range(12))
@pytest.mark.parametrize("verb", ["prepare", "unprepare"])
def test_a_call_that_is_cancelled_at_any_point_comes_back_in_no_later_write(
    tmp_path: Path, verb: str, steps: int
) -> None:
    async def main(executor: ThreadPoolExecutor) -> None:
        owner = DeviceReservations(CheckpointFile(tmp_path / "checkpoint.json", executor))
        async with owner.starting(deadline()):
            pass
        if verb == "unprepare":
            await prepare(owner, planned(0))
        loop = asyncio.get_running_loop()
        other = loop.create_task(prepare(owner, planned(2, "gpu-2")))
        await asyncio.sleep(0)  # its write is under way, and the next one waits
        task = loop.create_task(prepare(owner, planned(0)) if verb == "prepare" else unprepare(owner, 0))
        for _ in range(steps):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task, other])
        await unprepare(owner, 0)
        assert await prepare(owner, planned(1)) == ""
        found = Checkpoint.decode((tmp_path / "checkpoint.json").read_bytes())
        assert {r.uid for r in found} == {r.uid for r in owner.records} == {UIDS[1], UIDS[2]}

    with ThreadPoolExecutor(1) as executor:
        asyncio.run(main(executor))


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["prepare", "unprepare", "end", "restart"]),
        st.integers(0, 2),
        st.sampled_from([("gpu-0",), ("gpu-1",), ("gpu-0", "gpu-1")]),
        st.booleans(),
    ),
    max_size=12,
)


@settings(max_examples=examples(100), deadline=None)
@given(steps=STEPS)
def test_memory_and_checkpoint_agree_whatever_fails(
    steps: list[tuple[str, int, tuple[str, ...], bool]],
) -> None:
    async def one(owner: DeviceReservations, verb: str, i: int, devices: tuple[str, ...]) -> None:
        async with owner.claim(UIDS[i], deadline()) as locked, locked.transaction(deadline()) as claim:
            if verb == "unprepare":
                await claim.forget()
            elif verb == "end" and claim.record is not None:
                await claim.end(claim.record)
            elif verb == "prepare" and not claim.has_begun and claim.reserve(planned(i, *devices)) is None:
                await claim.save(planned(i, *devices))

    async def main() -> None:
        disk = Disk()
        owner = await started(disk)
        for verb, i, devices, fails in steps:
            if fails:
                disk.trouble_at, disk.error = disk.effects, True
            if verb == "restart":
                owner = await started(disk)
            else:
                try:
                    await one(owner, verb, i, devices)
                except OSError:
                    assert fails
            disk.trouble_at = None
            live = [r for r in Checkpoint.decode(disk.checkpoint) if not r.ended]
            assert {r.uid for r in live} == {r.uid for r in owner.records if not r.ended}
            held = [d.device for r in live for d in r.devices]
            assert len(held) == len(set(held))
            # Memory holds what is recorded, and nothing else.
            async with (
                owner.claim(Uid("probe"), deadline()) as locked,
                locked.transaction(deadline()) as claim,
            ):
                for name in ("gpu-0", "gpu-1"):
                    conflict = claim.holdings.conflict(Uid("probe"), "ns", (device(name),))
                    assert (conflict is not None) == (name in held)

    asyncio.run(main())
