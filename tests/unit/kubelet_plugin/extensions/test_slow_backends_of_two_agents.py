"""Two agents, as during a rolling update, while a backend of one works on a device for long."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import threading
from pathlib import Path

import pytest
from crashing_stores import Disk
from fake_client import FakeClient
from npu_backend import Npu, given, node, run
from slow_npu import WAIT, SlowNpu, prepared, still

from dra_driver import sdk
from dra_driver.errors import PrepareError
from kubelet_plugin.claims.locks import StateLock
from kubelet_plugin.claims.preparer import Preparer
from kubelet_plugin.extensions.effects import BackendEffects


def agents(
    tmp_path: Path, disk: Disk, kube: FakeClient, old: Npu, new: Npu, seconds: float = WAIT
) -> tuple[Preparer, Preparer]:
    """Return two agents of one node; what their backends set is the same. The new one waits for so long."""
    new.set = old.set

    def agent(backend: Npu, seconds: float = WAIT) -> Preparer:
        effects = BackendEffects([backend], locks=tmp_path / "backends", seconds=seconds)
        return node(disk, kube, backend, effects=effects, node_lock=StateLock(tmp_path / "state.lock"))

    return agent(old), agent(new, seconds)


async def unprepared(preparer: Preparer, disk: Disk) -> None:
    async with asyncio.timeout(30):
        while disk.claims():
            await preparer.tidy()
            await asyncio.sleep(0.02)


def test_the_new_one_undoes_nothing_after_the_old_one_has_finished(tmp_path: Path) -> None:
    old, new = SlowNpu(), Npu()

    async def scenario(kube: FakeClient, disk: Disk) -> None:
        first, second = agents(tmp_path, disk, kube, old, new)
        await first.restore()
        reference = given(kube, "one", "acme-0")
        await still(first, reference)
        await second.restore()
        old.finish.set()
        await prepared(first, reference)
        await asyncio.sleep(WAIT)
        assert set(disk.claims().values()) == {"PrepareCompleted"}
        assert old.set == {"acme-0": 100}
        assert new.calls == []

    run(scenario)


def test_the_old_one_does_not_finish_what_the_new_one_has_undone_in_part(tmp_path: Path) -> None:
    """Undoing fails there, so that nothing is written; the work ended between two calls of the kubelet."""
    old, new = SlowNpu(), Npu()

    def fails() -> None:
        old.set.clear()
        raise sdk.PrepareError("the network is away", retryable=True)

    new.in_unprepare = fails

    async def scenario(kube: FakeClient, disk: Disk) -> None:
        first, second = agents(tmp_path, disk, kube, old, new)
        await first.restore()
        reference = given(kube, "one", "acme-0")
        await still(first, reference)
        old.finish.set()
        async with asyncio.timeout(30):
            await second.restore()
            while not new.calls:
                await second.tidy()
                await asyncio.sleep(0.02)
        assert new.calls == ["unprepare acme-0"]
        assert set(disk.claims().values()) == {"PrepareStarted"}
        await prepared(first, reference, PrepareError)
        assert old.set == {"acme-0": 100}
        twice = ["plan acme-0", "prepare acme-0"]
        assert old.calls == [*twice, "unprepare acme-0", *twice]

    run(scenario)


def test_the_start_of_the_new_one_waits_for_no_work_of_the_old_one(tmp_path: Path) -> None:
    """It would wait for each device, and the old one could serve no call meanwhile."""
    old, new = SlowNpu(), Npu()

    async def scenario(kube: FakeClient, disk: Disk) -> None:
        first, second = agents(tmp_path, disk, kube, old, new, seconds=60)
        await first.restore()
        for i in range(2):
            await still(first, given(kube, f"claim-{i}", f"acme-{i}"))
        async with asyncio.timeout(30):
            await second.restore()
        assert new.calls == []
        old.finish.set()
        await unprepared(second, disk)
        assert not old.set

    run(scenario)


@pytest.mark.parametrize("call", ["prepare", "unprepare"])
def test_what_has_not_begun_when_its_call_ends_is_never_done(
    tmp_path: Path, call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By then another agent may have given the device to another claim: a thread starves on a busy node."""
    npu, starved = Npu(), threading.Event()
    npu.plan = lambda use: sdk.DevicePlan({"watts": 100}, seconds=60)
    real = fcntl.flock

    def late(descriptor: int, how: int) -> None:
        if threading.current_thread() is not threading.main_thread():
            assert starved.wait(30)
        real(descriptor, how)

    async def scenario(kube: FakeClient, disk: Disk) -> None:
        first, _ = agents(tmp_path, disk, kube, npu, Npu())
        reference = given(kube, "one", "acme-0")
        if call == "unprepare":
            await prepared(first, reference)
        monkeypatch.setattr(fcntl, "flock", late)
        with pytest.raises(PrepareError):
            await getattr(first, call)(reference)
        starved.set()
        if call == "unprepare":
            await prepared(first, reference, PrepareError)
            assert "unprepare acme-0" not in npu.calls
            return
        async with asyncio.timeout(30):
            while disk.claims():
                with contextlib.suppress(PrepareError):
                    await first.unprepare(reference)
                await asyncio.sleep(0.02)
        assert "prepare acme-0" not in npu.calls

    run(scenario)


@pytest.mark.parametrize("change", ["removed", "exchanged"])
def test_a_lock_that_is_not_the_same_any_more_ends_what_was_begun(tmp_path: Path, change: str) -> None:
    npu = SlowNpu()

    async def scenario(kube: FakeClient, disk: Disk) -> None:
        first, _ = agents(tmp_path, disk, kube, npu, Npu())
        reference = given(kube, "one", "acme-0")
        await still(first, reference)
        lock = tmp_path / "backends/acme-0.lock"
        lock.rename(tmp_path / "elsewhere")
        if change == "exchanged":
            lock.touch()
        npu.finish.set()
        await prepared(first, reference, PrepareError)
        assert npu.calls.count("prepare acme-0") == 2
        assert npu.set == {"acme-0": 100}

    run(scenario)


def test_shares_of_a_device_do_not_end_each_others_work(tmp_path: Path) -> None:
    npu = SlowNpu()

    async def scenario(kube: FakeClient, disk: Disk) -> None:
        first, _ = agents(tmp_path, disk, kube, npu, Npu())
        one, two = (given(kube, f"claim-{s}", "acme-0", shareID=s) for s in ("a", "b"))
        await still(first, one)
        npu.finish.set()
        await prepared(first, two, PrepareError)
        await first.prepare(one)
        assert [c for c in npu.calls if c.startswith("prepare")] == ["prepare acme-0"] * 2
        assert "unprepare acme-0" not in npu.calls

    run(scenario)
