"""Two plugins of one driver on one node, as during a rolling update; and what a killed one leaves."""

from __future__ import annotations

import asyncio
import fcntl
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
import virtual_time
from fake_client import FakeClient
from kubelet_calls import checkpointed, prepare, unprepare
from node_agent import (
    DRIVER,
    IMPATIENT,
    NODE,
    add_claim,
    claim,
    configuration,
    device,
    eventually,
    inventory,
    running,
)

from dra_driver.errors import PrepareError
from kubelet_plugin.claims.locks import StateLock
from kubelet_plugin.config import MAX_SOCKET_PATH, Configuration, Timings
from kubelet_plugin.core.instances import Instances

OLD, NEW = {"instance_id": "pod-old"}, {"instance_id": "pod-new"}


class Settled:
    """Implements ``locks.Unsettled`` with nothing to do."""

    is_settled = True

    async def settle(self) -> None:
        raise AssertionError


class Ticks:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.seconds = 100.0

    def now(self) -> float:
        return self.seconds

    def monotonic(self) -> float:
        return self.seconds


def registered(kube: FakeClient) -> bool:
    found: Any = inventory(kube)
    return bool(found and found.get("status", {}).get("registration", {}).get("registered"))


def test_two_instances_share_claims_and_devices(tmp_path: Path) -> None:
    async def main() -> None:
        kube = FakeClient()
        one, two = add_claim(kube, claim("one", "gpu-0")), add_claim(kube, claim("two", "gpu-0"))
        three = add_claim(kube, claim("three", "gpu-1"))
        uid = one["metadata"]["uid"]
        devices = [device(0), device(1)]
        async with running(tmp_path, kube, devices, settings=OLD) as old:
            before = (await prepare(old, one))[uid]
            assert not before.error
            async with running(tmp_path, kube, devices, settings=NEW, timing=IMPATIENT) as new:
                assert new.config.dra_socket != old.config.dra_socket
                assert (await prepare(new, one))[uid] == before
                # What one holds the other one does not give away.
                refused = (await prepare(new, two))[two["metadata"]["uid"]].error
                assert "device gpu-0 is held by another claim" in refused
            async with running(tmp_path, kube, devices, settings=NEW) as new:
                assert not (await prepare(new, three))[three["metadata"]["uid"]].error
                # A claim waits in one instance for what is unprepared through the other one.
                async with asyncio.TaskGroup() as tasks:
                    waiting = tasks.create_task(prepare(new, two))
                    await asyncio.sleep(0.1)
                    assert not (await unprepare(old, one))[uid].error
                assert not waiting.result()[two["metadata"]["uid"]].error
                assert {c["name"] for c in checkpointed(old).values()} == {"two", "three"}
                assert (await unprepare(old, two, three)).keys()
                assert old.specs() == []
                assert checkpointed(new) == {}

    asyncio.run(main())


def test_both_prepare_the_same_claim_at_once(tmp_path: Path) -> None:
    async def main() -> None:
        kube = FakeClient()
        claims = [add_claim(kube, claim(f"c{i}", f"gpu-{i}")) for i in range(6)]
        devices = [device(i) for i in range(6)]
        async with (
            running(tmp_path, kube, devices, settings=OLD) as old,
            running(tmp_path, kube, devices, settings=NEW) as new,
        ):
            async with asyncio.TaskGroup() as tasks:
                first = tasks.create_task(prepare(old, *claims))
                second = tasks.create_task(prepare(new, *claims))
            for body in claims:
                uid = body["metadata"]["uid"]
                assert not first.result()[uid].error
                assert first.result()[uid] == second.result()[uid]
            assert len(old.specs()) == len(checkpointed(new)) == 6

    asyncio.run(main())


def test_the_ending_instance_leaves_the_registration_to_the_other(tmp_path: Path) -> None:
    quick = Timings(handover=0.01)

    async def main() -> None:
        kube = FakeClient()
        seen: list[bool] = []
        kube.before = lambda *_: seen.append(registered(kube))
        async with running(tmp_path, kube, [device(0)], settings=NEW) as new:
            async with running(tmp_path, kube, [device(0)], settings=OLD, timings=quick) as old:
                await old.register()
                await eventually(lambda: registered(kube))
                seen.clear()
                await new.register()
                await eventually(lambda: (inventory(kube) or {})["status"]["registration"]["epoch"] == 2)
            assert not old.config.registrar_socket.exists()
            assert not old.config.dra_socket.exists()
            await asyncio.sleep(0.1)
            assert all(seen)
            assert registered(kube)
        # The last one says that it goes.
        assert not registered(kube)

    asyncio.run(main())


def test_an_instance_that_was_killed_is_cleared_away() -> None:
    # A short path: sockets are bound without the fallback for long ones.
    with tempfile.TemporaryDirectory(prefix="dra-") as folder:
        clear_away(Path(folder))


def clear_away(root: Path) -> None:
    config = configuration(root, instance_id="pod-dead")
    other = root / "registry" / "other.example.com-reg.sock"
    for folder in (config.plugin_dir, config.registry_dir, config.state):
        folder.mkdir(parents=True, exist_ok=True)
    for path in (config.dra_socket, config.registrar_socket, other):
        with socket.socket(socket.AF_UNIX) as left:
            left.bind(str(path))
    (config.state / "instance-pod-dead.lock").write_text("1")

    async def main() -> None:
        async with running(root, FakeClient(), [device(0)], settings=NEW) as node:
            left = {p.name for p in node.config.registry_dir.iterdir()}
            assert left == {other.name, f"{DRIVER}-pod-new-reg.sock"}
            assert {p.name for p in node.config.plugin_dir.glob("*.sock")} == {"dra-pod-new.sock"}
            assert [p.name for p in node.config.state.glob("instance*")] == ["instance-pod-new.lock"]

    asyncio.run(main())


def test_the_instance_that_was_registered_last_leads(tmp_path: Path) -> None:
    async def main() -> None:
        clock = Ticks()
        old, new = Instances(tmp_path, "old", clock), Instances(tmp_path, "new", clock)
        async with old.entered(0):
            assert old.leads()
            async with new.entered(0):
                old.registered(True)
                assert (old.leads(), new.leads()) == (True, False)
                clock.seconds += 1
                new.registered(True)
                assert (old.leads(), new.leads()) == (False, True)
                new.registered(False)
                assert (old.leads(), new.leads()) == (True, False)
                assert list(old.dead()) == []
            assert old.leads()

    asyncio.run(main())


def test_a_long_instance_id_is_shortened_and_a_bad_one_refused() -> None:
    pod = "0f8fad5b-d9cb-469f-a165-70867728950e"
    deep = Path("/" + "d" * 60)
    config = Configuration(node_name=NODE, plugins_dir=Path("/p"), registry_dir=deep, instance_id=pod)
    assert len(config.instance) == 10
    assert len(str(config.registrar_socket)) <= MAX_SOCKET_PATH
    assert config.dra_socket.name == f"dra-{config.instance}.sock"
    short = Configuration(node_name=NODE, plugins_dir=Path("/p"), registry_dir=Path("/r"), instance_id=pod)
    assert str(short.dra_socket) == f"/p/{DRIVER}/dra-{pod}.sock"
    assert str(short.registrar_socket) == f"/r/{DRIVER}-{pod}-reg.sock"
    bad = Configuration(node_name=NODE, instance_id="../x").findings()
    assert [f.split()[0] for f in bad] == ["--instance-id"]


def test_the_state_lock_is_shared_within_a_process_and_waited_for_between(tmp_path: Path) -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        path = tmp_path / "state.lock"
        lock = StateLock(path)
        taken: list[int] = []

        async def on_taken(was_removed: bool) -> None:
            assert not was_removed
            taken.append(1)

        lock.serve(on_taken, Settled())
        async with lock.held(loop.time() + 1), lock.held(loop.time() + 1):
            assert len(taken) == 1
            with path.open("r+") as stranger, pytest.raises(BlockingIOError):
                fcntl.flock(stranger, fcntl.LOCK_EX | fcntl.LOCK_NB)
        with path.open("r+") as stranger:
            fcntl.flock(stranger, fcntl.LOCK_EX | fcntl.LOCK_NB)
            with pytest.raises(PrepareError, match="another instance of the plugin has not released"):
                async with lock.held(loop.time() + 0.05):
                    pass
            loop.call_later(0.05, lambda: fcntl.flock(stranger, fcntl.LOCK_UN))
            async with lock.held(loop.time() + 5):
                assert len(taken) == 2
        lock.close()

    virtual_time.run(main())


def test_a_busy_instance_makes_way_for_one_that_waits(tmp_path: Path) -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        busy, waiting = StateLock(tmp_path / "state.lock"), StateLock(tmp_path / "state.lock")
        stop = asyncio.Event()

        async def work(offset: float) -> None:
            await asyncio.sleep(offset)
            while not stop.is_set():
                async with busy.held(loop.time() + 5):
                    await asyncio.sleep(0.02)

        async with asyncio.TaskGroup() as tasks:
            # Overlapping all the time: without fairness the lock would never be released.
            for i in range(3):
                tasks.create_task(work(i * 0.007))
            await asyncio.sleep(0.05)
            started = loop.time()
            async with waiting.held(loop.time() + 5):
                assert loop.time() - started < 2.5
            stop.set()
        busy.close()
        waiting.close()

    virtual_time.run(main())


def test_the_lock_ends_with_its_process(tmp_path: Path) -> None:
    path = tmp_path / "state.lock"
    # Not os.fork: gRPC's threads of earlier tests do not survive one.
    script = "import fcntl, os, sys; fcntl.flock(os.open(sys.argv[1], os.O_RDWR | os.O_CREAT), fcntl.LOCK_EX)"
    subprocess.run([sys.executable, "-c", script, str(path)], check=True)

    async def main() -> None:
        lock = StateLock(path)
        async with lock.held(asyncio.get_running_loop().time() + 0.1):
            pass
        lock.close()

    asyncio.run(main())
