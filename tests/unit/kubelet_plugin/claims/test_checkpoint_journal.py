"""The checkpoint's journal: what a change costs, and what is read after a crash or an error."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import os
import stat
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from work_counter import calls

from dra_driver.api.meta import PoolName, Uid
from dra_driver.preparation import Checkpoint, ClaimState, DeviceSetting, PreparedClaim, PreparedDevice
from kubelet_plugin.claims.checkpoint_file import CheckpointFile, read_checkpoint
from kubelet_plugin.claims.locks import StateLock
from kubelet_plugin.claims.reservations import DeviceReservations

SETTING = DeviceSetting(device="gpu-0", uuid="GPU-0", time_slice="Short")


def record(i: int, state: ClaimState = ClaimState.COMPLETED, *, hardware: bool = False) -> PreparedClaim:
    device = PreparedDevice(requests=("gpu",), pool=PoolName("n"), device=f"gpu-{i}", uuid=f"U{i}")
    return PreparedClaim(
        uid=Uid(f"uid-{i:04}"),
        namespace="ns",
        name=f"c{i}",
        state=state,
        devices=(device,),
        settings=(SETTING,) if hardware else (),
    )


@contextlib.contextmanager
def opened(path: Path, *, alone: Callable[[], bool] = lambda: True) -> Iterator[CheckpointFile]:
    with ThreadPoolExecutor(1) as executor:
        yield CheckpointFile(path, executor, alone)


async def held(store: CheckpointFile, count: int) -> None:
    """A document with so many claims."""
    await store.load()
    await store.save(*(record(i) for i in range(count)))
    assert store.is_folded


def states(checkpoint: Checkpoint) -> dict[str, str]:
    return {c.uid: c.state.value for c in checkpoint}


# --- what a change costs ------------------------------------------------------------------------------------


class Written:
    """Counts the bytes that files get."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.bytes = 0
        real = os.write

        def write(descriptor: int, data: Any) -> int:
            done = real(descriptor, data)
            self.bytes += done
            return done

        monkeypatch.setattr(os, "write", write)


def test_what_a_claim_writes_does_not_grow_with_the_claims_held(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = Written(monkeypatch)

    def cost(count: int) -> int:
        async def main() -> int:
            with opened(tmp_path / f"{count}.json") as store:
                await held(store, count)
                before = written.bytes
                for i in range(3):
                    new = 5000 + i
                    await store.save(record(new, ClaimState.STARTED))
                    await store.save(record(new))
                    await store.forget(record(new).uid)
                assert not store.is_folded
                return written.bytes - before

        return asyncio.run(main())

    few, many = cost(1), cost(500)
    assert few > 1000
    assert many == few


def test_what_a_claim_encodes_does_not_grow_with_the_claims_held(tmp_path: Path) -> None:
    def cost(count: int) -> int:
        async def main() -> int:
            with opened(tmp_path / f"{count}.json") as store:
                await held(store, count)
                await store.save(record(5000))
                # The work of a thread, in this one.
                candidate = store.current.changed({record(5001).uid: record(5001)})
                return calls(lambda: store._write(candidate, (record(5001).uid,), lasting=False))

        return asyncio.run(main())

    few, many = cost(1), cost(500)
    assert few > 5
    assert many == few


def test_a_journal_that_is_longer_than_the_document_is_folded(tmp_path: Path) -> None:
    async def main() -> None:
        with opened(tmp_path / "c.json") as store:
            await held(store, 1)
            sizes = []
            for _ in range(1500):
                await store.save(record(1))
                sizes.append(0 if store.is_folded else (tmp_path / "c.json.journal").stat().st_size)
            assert 0 in sizes
            assert 200_000 < max(sizes) <= 256 * 1024
            assert states(read_checkpoint(tmp_path / "c.json")) == states(store.current)

    asyncio.run(main())


# --- crashes and errors -------------------------------------------------------------------------------------


class Gone(BaseException):
    """The process is gone; what follows in it does not happen."""


class Trouble:
    """A crash or an error at one of the steps by which files are written."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.steps = 0
        self.at: int | None = None
        self.error: int | None = None
        self.after = False
        self.torn = False
        for name in ("open", "write", "fsync", "rename", "link", "unlink", "ftruncate"):
            monkeypatch.setattr(os, name, self._wrapped(name, getattr(os, name)))

    def _wrapped(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def step(*arguments: Any, **named: Any) -> Any:
            number, self.steps = self.steps, self.steps + 1
            if number != self.at:
                return real(*arguments, **named)
            if self.torn and name == "write":
                real(arguments[0], arguments[1][: len(arguments[1]) // 2])
            elif self.after:
                real(*arguments, **named)
            if self.error is not None:
                raise OSError(self.error, os.strerror(self.error))
            raise Gone

        return step


class Inline(ThreadPoolExecutor):
    """Does at once what is to be done in a thread, so that a crash ends it."""

    def submit(self, function: Callable[..., Any], /, *arguments: Any, **named: Any) -> Any:
        future = super().submit(lambda: None)
        future.result()
        done: Any = type(future)()
        try:
            done.set_result(function(*arguments, **named))
        except BaseException as e:
            done.set_exception(e)
        return done


Step = Callable[[CheckpointFile], Any]
STEPS: list[Step] = [
    lambda store: store.save(record(1, ClaimState.STARTED, hardware=True)),
    lambda store: store.save(record(1, hardware=True)),
    lambda store: store.save(record(2, ClaimState.STARTED)),
    lambda store: store.fold(),
    lambda store: store.save(record(2)),
    lambda store: store.forget(record(1).uid),
    lambda store: store.fold(),
    lambda store: store.forget(record(2).uid),
]


def history() -> list[dict[str, str]]:
    """What is recorded after each of the steps."""
    done, started = "PrepareCompleted", "PrepareStarted"
    zero, one, two = "uid-0000", "uid-0001", "uid-0002"
    return [
        {zero: done, one: started},
        {zero: done, one: done},
        {zero: done, one: done, two: started},
        {zero: done, one: done, two: started},
        {zero: done, one: done, two: done},
        {zero: done, two: done},
        {zero: done, two: done},
        {zero: done},
    ]


@pytest.fixture
def trouble(monkeypatch: pytest.MonkeyPatch) -> Trouble:
    return Trouble(monkeypatch)


async def _played(path: Path, trouble: Trouble, at: int | None, *, alone: bool = True) -> int:
    """Play the steps with trouble at one of them; return how many ended well before it."""
    with Inline(1) as executor:
        store = CheckpointFile(path, executor, lambda: alone)
        await store.load()
        await store.save(record(0))
        trouble.steps, trouble.at = 0, at
        for number, step in enumerate(STEPS):
            try:
                await step(store)
            except (Gone, OSError):
                return number
            assert states(store.current) == history()[number]
        return len(STEPS)


async def _read(path: Path) -> tuple[dict[str, str], str]:
    with Inline(1) as executor:
        store = CheckpointFile(path, executor, lambda: True)
        problem = await store.load()
        # And what is added then is read back too.
        found = states(store.current)
        await store.save(record(9))
        assert states(read_checkpoint(path)) == found | {"uid-0009": "PrepareCompleted"}
        return found, problem


@pytest.mark.parametrize("alone", [True, False], ids=["alone", "beside another instance"])
@pytest.mark.parametrize("how", ["before", "after", "torn"])
def test_a_crash_at_any_step_leaves_what_was_or_what_is_to_be(
    tmp_path: Path, trouble: Trouble, how: str, alone: bool
) -> None:
    trouble.after, trouble.torn = how == "after", how == "torn"
    asyncio.run(_played(tmp_path / "whole.json", trouble, None, alone=alone))
    steps = trouble.steps
    assert steps > 30
    begin = {"uid-0000": "PrepareCompleted"}
    for at in range(steps):
        path = tmp_path / f"{at}.json"
        done = asyncio.run(_played(path, trouble, at, alone=alone))
        trouble.at = None
        found, problem = asyncio.run(_read(path))
        before = history()[done - 1] if done else begin
        assert found in (before, history()[min(done, len(STEPS) - 1)]), at
        assert problem == "", at


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO], ids=["ENOSPC", "EIO"])
def test_an_error_at_any_step_changes_nothing(tmp_path: Path, trouble: Trouble, error: int) -> None:
    asyncio.run(_played(tmp_path / "whole.json", trouble, None))
    steps = trouble.steps

    async def main(path: Path, at: int) -> None:
        with Inline(1) as executor:
            store = CheckpointFile(path, executor, lambda: True)
            await store.load()
            await store.save(record(0))
            trouble.steps, trouble.at, failures = 0, at, 0
            for number, step in enumerate(STEPS):
                before = states(store.current)
                try:
                    await step(store)
                except OSError:
                    failures += 1
                    assert states(store.current) == before
                    await step(store)
                assert states(store.current) == history()[number]
                assert states(read_checkpoint(path)) == history()[number]
            assert failures == 1

    trouble.error = error
    for at in range(steps):
        asyncio.run(main(tmp_path / f"{error}-{at}.json", at))


# --- what is read -------------------------------------------------------------------------------------------


def journalled(path: Path) -> None:
    """Three claims in a document, and a journal that completes one, forgets one and begins one."""

    async def main() -> None:
        with opened(path) as store:
            await held(store, 3)
            await store.save(record(5, ClaimState.STARTED))
            await store.forget(record(1).uid)
            await store.save(record(5))

    asyncio.run(main())
    assert not path.exists()


def loaded(path: Path) -> tuple[dict[str, str], str]:
    async def main() -> tuple[dict[str, str], str]:
        with opened(path) as store:
            problem = await store.load()
            return states(store.current), problem

    return asyncio.run(main())


DONE = "PrepareCompleted"
WHOLE = {"uid-0000": DONE, "uid-0002": DONE, "uid-0005": DONE}
THREE = {"uid-0000": DONE, "uid-0001": DONE, "uid-0002": DONE}


def test_the_version_before_finds_a_document_that_is_whole_or_none(tmp_path: Path) -> None:
    """It knows no journals: it must not take an outdated document for what there is."""
    path = tmp_path / "c.json"
    journalled(path)
    assert states(Checkpoint.decode(path.with_name("c.json.previous").read_bytes())) == THREE

    async def main() -> None:
        with opened(path) as store:
            assert await store.load() == ""
            assert not store.is_folded
            await store.fold()
            assert store.is_folded

    asyncio.run(main())
    assert states(Checkpoint.decode(path.read_bytes())) == WHOLE


def test_beside_another_instance_the_document_is_written_whole(tmp_path: Path) -> None:
    path, beside = tmp_path / "c.json", [False]

    async def main() -> None:
        with opened(path, alone=lambda: not beside[0]) as store:
            await held(store, 1)
            beside[0] = True
            await store.save(record(1))
            assert states(Checkpoint.decode(path.read_bytes())) == states(store.current)

    asyncio.run(main())


@pytest.mark.parametrize(
    ("damage", "expected", "told"),
    [
        (lambda data: data[:-10], {"uid-0000", "uid-0002", "uid-0005"}, ""),
        (lambda data: data + b"0123", {"uid-0000", "uid-0002", "uid-0005"}, ""),
        (
            lambda data: data.replace(b"null", b"nul1"),
            {"uid-0000", "uid-0001", "uid-0002", "uid-0005"},
            "line 2",
        ),
        (lambda data: b"f" + data[1:], {"uid-0000", "uid-0001", "uid-0002"}, "is used"),
        (lambda data: b"", {"uid-0000", "uid-0001", "uid-0002"}, "is used"),
        (lambda data: b"\r\n\0" * 500, {"uid-0000", "uid-0001", "uid-0002"}, "is used"),
    ],
    ids=["torn", "half a line more", "in the middle", "of another document", "empty", "garbage"],
)
def test_a_damaged_journal_is_read_as_far_as_it_is_right(
    tmp_path: Path, damage: Callable[[bytes], bytes], expected: set[str], told: str
) -> None:
    path = tmp_path / "c.json"
    journalled(path)
    journal = path.with_name("c.json.journal")
    journal.write_bytes(damage(journal.read_bytes()))
    found, problem = loaded(path)
    assert found.keys() == expected
    assert told in problem
    assert bool(problem) == bool(told)


def test_a_journal_that_was_folded_counts_for_nothing(tmp_path: Path) -> None:
    path = tmp_path / "c.json"
    journalled(path)

    async def main() -> None:
        with opened(path) as store:
            await store.load()
            await store.fold()
            await store.forget(record(5).uid)
            await store.fold()

    asyncio.run(main())
    assert loaded(path) == ({k: v for k, v in WHOLE.items() if k != "uid-0005"}, "")


# --- the lock -----------------------------------------------------------------------------------------------


def test_another_instance_gets_the_lock_when_every_version_can_read_the_checkpoint(tmp_path: Path) -> None:
    """As the version before waits: for the lock's file, while it holds the second one."""
    path = tmp_path / "c.json"

    async def prepare(owner: DeviceReservations, i: int) -> None:
        deadline = asyncio.get_running_loop().time() + 5
        async with owner.claim(record(i).uid, deadline) as locked, locked.transaction(deadline) as claim:
            assert claim.reserve(record(i)) is None
            await claim.save(record(i))

    async def main() -> None:
        lock = StateLock(tmp_path / "state.lock")
        with opened(path) as store:
            owner = DeviceReservations(store, node_lock=lock)
            async with owner.starting(asyncio.get_running_loop().time() + 5):
                pass
            await prepare(owner, 0)
            await prepare(owner, 1)
            assert not store.is_folded
            with (tmp_path / "state.lock").open() as file, (tmp_path / "state.wanted").open() as wanted:
                with pytest.raises(BlockingIOError):
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                fcntl.flock(wanted, fcntl.LOCK_SH | fcntl.LOCK_NB)
                async with asyncio.timeout(0.9):
                    while True:
                        try:
                            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                            break
                        except BlockingIOError:
                            await asyncio.sleep(0.005)
                assert states(Checkpoint.decode(path.read_bytes())).keys() == {"uid-0000", "uid-0001"}
            await prepare(owner, 2)
            assert not path.exists()
            await lock.end()
            assert len(Checkpoint.decode(path.read_bytes())) == 3

    asyncio.run(main())


def test_the_lock_is_released_after_a_while_without_transactions(tmp_path: Path) -> None:
    path = tmp_path / "c.json"

    async def main() -> None:
        lock = StateLock(tmp_path / "state.lock")
        with opened(path) as store:
            owner = DeviceReservations(store, node_lock=lock)
            deadline = asyncio.get_running_loop().time() + 5
            async with owner.starting(deadline):
                pass
            for i in (0, 1):
                async with (
                    owner.claim(record(i).uid, deadline) as locked,
                    locked.transaction(deadline) as claim,
                ):
                    assert claim.reserve(record(i)) is None
                    await claim.save(record(i))
            assert not store.is_folded
            async with asyncio.timeout(5):
                while lock._is_locked:
                    await asyncio.sleep(0.02)
            assert store.is_folded
            with (tmp_path / "state.lock").open() as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        lock.close()

    asyncio.run(main())


def test_what_a_killed_instance_left_in_its_journal_is_read_by_the_other(tmp_path: Path) -> None:
    path = tmp_path / "c.json"

    async def main() -> None:
        with opened(path) as other:
            await held(other, 2)
            with opened(path) as killed:
                await killed.load()
                await killed.save(record(5))
                await killed.save(record(6))
            assert await other.refresh() == ""
            assert {c.uid for c in other.current} == {"uid-0000", "uid-0001", "uid-0005", "uid-0006"}
            assert await other.refresh() is None

    asyncio.run(main())


def test_a_journal_whose_name_is_not_durable_is_made_so_where_that_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[bool] = []
    real = os.fsync

    def fsync(descriptor: int) -> None:
        synced.append(stat.S_ISDIR(os.fstat(descriptor).st_mode))
        real(descriptor)

    async def main() -> None:
        with opened(tmp_path / "c.json") as store:
            await held(store, 1)
            monkeypatch.setattr(os, "fsync", fsync)
            await store.save(record(1, ClaimState.STARTED))
            await store.save(record(1))
            assert synced == [False, False]
            await store.forget(record(1).uid)
            assert synced == [False, False, False, True]
            # It stays so.
            await store.forget(record(0).uid)
            assert synced == [False, False, False, True, False]

    asyncio.run(main())


def test_after_a_disk_has_failed_the_document_is_written_and_a_full_disk_only_needs_room(
    tmp_path: Path, trouble: Trouble
) -> None:
    """What a failing disk has of the journal is not known; nothing was lost of one that was cut back."""

    async def folded_after(error: int) -> bool:
        path = tmp_path / f"{error}.json"
        trouble.at = None
        with Inline(1) as executor:
            store = CheckpointFile(path, executor, lambda: True)
            await store.load()
            await store.save(record(0))
            await store.save(record(1))
            # Open, write, fsync of the next line.
            trouble.steps, trouble.at, trouble.error = 0, 2, error
            with pytest.raises(OSError, match="checkpoint"):
                await store.save(record(2))
            await store.save(record(3))
            assert states(read_checkpoint(path)).keys() == {"uid-0000", "uid-0001", "uid-0003"}
            return store.is_folded

    assert asyncio.run(folded_after(errno.EIO))
    assert not asyncio.run(folded_after(errno.ENOSPC))


@pytest.mark.parametrize("change", ["removed", "replaced"])
def test_files_that_somebody_has_changed_are_written_whole(tmp_path: Path, change: str) -> None:
    path = tmp_path / "c.json"

    async def main() -> None:
        with opened(path) as store:
            await held(store, 1)
            await store.save(record(1))
            journal = path.with_name("c.json.journal")
            data = journal.read_bytes()
            journal.unlink()
            if change == "replaced":
                journal.write_bytes(data[:20])
            await store.save(record(2))
            assert store.is_folded
            assert states(Checkpoint.decode(path.read_bytes())) == states(store.current)
            assert len(store.current) == 3

    asyncio.run(main())


def test_what_a_cancelled_look_did_not_take_over_is_read_again(tmp_path: Path) -> None:
    """A call whose time is over while it gets the lock: the next one must not go by old records."""
    path = tmp_path / "c.json"

    async def main() -> None:
        with opened(path) as mine, opened(path) as other:
            await held(mine, 1)
            await other.load()
            await other.save(record(5))
            look = asyncio.create_task(mine.refresh())
            await asyncio.sleep(0)
            look.cancel()
            await asyncio.wait([look])
            # The thread has done its part.
            await asyncio.get_running_loop().run_in_executor(mine._executor, lambda: None)
            assert look.cancelled()
            assert await mine.refresh() == ""
            assert {c.uid for c in mine.current} == {"uid-0000", "uid-0005"}

    asyncio.run(main())
