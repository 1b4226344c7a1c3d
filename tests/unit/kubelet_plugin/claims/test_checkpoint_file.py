"""The checkpoint's file: writes are grouped, an error leaves all as it was, cancelling loses nothing."""

from __future__ import annotations

import asyncio
import contextlib
import os
import stat
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dra_driver.api.meta import PoolName, Uid
from dra_driver.preparation import (
    Checkpoint,
    ClaimState,
    DeviceSetting,
    EffectRecord,
    PreparedClaim,
    PreparedDevice,
)
from kubelet_plugin.claims.checkpoint_file import CheckpointFile
from kubelet_plugin.claims.reservations import NO_CHECKPOINT

SETTING = DeviceSetting(device="gpu-0", uuid="GPU-0", time_slice="Short")
EFFECT = PreparedDevice(
    requests=("npu",),
    pool=PoolName("n"),
    device="npu-0",
    uuid="U",
    cdi_device_ids=(),
    effect=EffectRecord(backend="acme", settings="{}"),
)


def record(i: int) -> PreparedClaim:
    return PreparedClaim(uid=Uid(f"uid-{i}"), namespace="ns", name=f"c{i}", state=ClaimState.STARTED)


class Counting(ThreadPoolExecutor):
    """Counts what is done in threads."""

    submitted = 0

    def submit(self, *args: Any, **kwargs: Any) -> Any:
        self.submitted += 1
        return super().submit(*args, **kwargs)


@contextlib.contextmanager
def opened(path: Path) -> Iterator[CheckpointFile]:
    with ThreadPoolExecutor(2) as executor:
        yield CheckpointFile(path, executor)


def on_disk(path: Path) -> set[str]:
    return {c.uid for c in Checkpoint.decode(path.read_bytes())}


def test_changes_that_come_during_a_write_are_written_together(tmp_path: Path) -> None:
    async def main() -> None:
        with Counting(1) as executor:
            store = CheckpointFile(tmp_path / "c.json", executor)
            assert await store.load() == NO_CHECKPOINT
            executor.submitted = 0
            async with asyncio.TaskGroup() as tasks:
                for i in range(16):
                    tasks.create_task(store.save(record(i)))
            assert executor.submitted == 2
            assert on_disk(tmp_path / "c.json") == {f"uid-{i}" for i in range(16)}
            await store.forget(Uid("unknown"))
            assert executor.submitted == 2

    asyncio.run(main())


@pytest.mark.parametrize(
    ("claim", "expected"),
    [
        (record(0), 0),
        (msgspec.structs.replace(record(0), settings=(SETTING,)), 1),
        (msgspec.structs.replace(record(0), settings=(SETTING,), state=ClaimState.COMPLETED), 0),
        (msgspec.structs.replace(record(0), devices=(EFFECT,)), 1),
        (msgspec.structs.replace(record(0), devices=(EFFECT,), state=ClaimState.COMPLETED), 0),
        (msgspec.structs.replace(record(0), ended=True), 1),
    ],
    ids=["files", "hardware", "completion", "backend", "completion of a backend", "ended"],
)
def test_only_a_beginning_on_hardware_costs_a_sync_of_the_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, claim: PreparedClaim, expected: int
) -> None:
    synced: list[bool] = []
    real = os.fsync

    def fsync(descriptor: int) -> None:
        synced.append(stat.S_ISDIR(os.fstat(descriptor).st_mode))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    with opened(tmp_path / "c.json") as store:
        asyncio.run(store.save(claim))
    assert synced == [False] + [True] * expected


def test_an_error_is_everybodys_and_changes_nothing(tmp_path: Path) -> None:
    async def main() -> None:
        path = tmp_path / "state" / "c.json"
        with opened(path) as store:
            await store.save(record(0))
            path.unlink()
            path.mkdir()  # rename onto a directory fails

            async def fails(i: int) -> None:
                with pytest.raises(OSError, match=f"checkpoint {path}"):
                    await store.save(record(i))

            async with asyncio.TaskGroup() as tasks:
                for i in (1, 2):
                    tasks.create_task(fails(i))
            assert {c.uid for c in store.current} == {"uid-0"}
            path.rmdir()
            await store.save(record(3))
            assert on_disk(path) == {"uid-0", "uid-3"}
            assert [p.name for p in path.parent.iterdir() if p.suffix == ".tmp"] == []

    asyncio.run(main())


def test_a_cancelled_caller_does_not_tear_a_write(tmp_path: Path) -> None:
    async def main() -> None:
        with opened(tmp_path / "c.json") as store:
            async with asyncio.TaskGroup() as tasks:
                first = tasks.create_task(store.save(record(1)))
                await asyncio.sleep(0)
                tasks.create_task(store.save(record(2)))
                await asyncio.sleep(0)
                first.cancel()
            assert first.cancelled()
            assert {c.uid for c in store.current} == on_disk(tmp_path / "c.json") == {"uid-1", "uid-2"}

    asyncio.run(main())
