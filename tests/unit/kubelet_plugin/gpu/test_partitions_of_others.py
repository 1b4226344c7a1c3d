"""A GPU with partitions that this driver did not make: what is published of it, and what claims are told."""

from __future__ import annotations

import asyncio
import dataclasses
import tempfile
import threading
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest
from fake_client import FakeClient
from kubelet_calls import prepare, unprepare
from node_agent import IMPATIENT, NODE, SOON_GONE, Node, add_claim, claim, eventually, running

from dra_driver.api.own.inventory import DEVICE_INVENTORIES, DeviceHealth, OccupiedPlace
from dra_driver.discovery import open_backend
from dra_driver.errors import PrepareError

GPU, OTHER = "gpu-0000-1b-00-0", "gpu-0000-43-00-0"
REASON = "UnmanagedPartitions"
OFTEN = dataclasses.replace(SOON_GONE, occupied=0.05)


@pytest.fixture
def state() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="dra") as folder:
        yield Path(folder)


def agent(root: Path, state: Path, kube: FakeClient, **more: Any) -> AbstractAsyncContextManager[Node]:
    roots = {"sysfs_root": root / "sys", "dev_root": root / "dev"}
    backend = open_backend("simulated=dgx-h100", **roots, node_name=NODE)
    settings = {"state_dir": state, **more.pop("settings", {})}
    more.setdefault("timings", OFTEN)
    return running(root, kube, backend=backend, settings=settings, timing=IMPATIENT, **more)


def control(node: Node) -> Any:
    return next(c for c in node.plugin._setup.controls if c is not None)


def uuid_of(node: Node, name: str) -> str:
    return next(d.uuid for d in node.plugin._table.devices if d.device.name == name)


def make(node: Node, name: str, start: int = 0) -> Any:
    """What an administrator makes, by NVIDIA's tool."""
    control(node).set_partitioning(uuid_of(node, name), True)
    return control(node).create_instance(uuid_of(node, name), 9, start, 4)


def published(kube: FakeClient) -> dict[str, DeviceHealth]:
    """The condition of each device that has it, in the inventory that the API server has."""
    (inventory,) = kube.all(DEVICE_INVENTORIES)
    return {d.name: h for d in inventory.spec.devices for h in d.health if h.reason == REASON}


def test_a_device_says_what_is_taken_of_it_and_what_to_do(tmp_path: Path, state: Path) -> None:
    async def life() -> None:
        kube = FakeClient()
        async with agent(tmp_path, state, kube) as node:
            made = make(node, GPU, 4)
            await eventually(lambda: published(kube))
            ((name, condition),) = published(kube).items()
            assert name == GPU
            assert condition.severity == "degraded"
            assert condition.places == (OccupiedPlace(profile_id=9, start=4, size=4),)
            assert made.uuid in condition.message
            assert f"nvidia-smi mig -i {uuid_of(node, GPU)} -gi 4 -dgi" in condition.message
            control(node).destroy_instance(uuid_of(node, GPU), 4)
            await eventually(lambda: not published(kube))

    asyncio.run(life())


def test_partitions_of_claims_are_no_others_while_they_come_and_go(tmp_path: Path, state: Path) -> None:
    async def life() -> None:
        kube = FakeClient()
        bodies = [add_claim(kube, claim(f"c{i}", f"{OTHER}-mig-1g-10gb-{i}")) for i in range(2)]
        async with agent(tmp_path, state, kube) as node:
            seen: set[str] = set()
            make(node, GPU)

            async def observe() -> None:
                while True:
                    await node.plugin._leftovers.occupy()
                    await asyncio.sleep(0.01)
                    seen.update(
                        d.device.name
                        for d in node.plugin._table.devices
                        if any(h.reason == REASON for h in d.device.health)
                    )

            watching = asyncio.create_task(observe())
            for _ in range(2):
                for body in bodies:
                    assert not (await prepare(node, body))[body["metadata"]["uid"]].error
                for body in bodies:
                    assert not (await unprepare(node, body))[body["metadata"]["uid"]].error
            watching.cancel()
            assert seen == {GPU}

    asyncio.run(life())


def test_a_claim_is_refused_with_the_name_of_what_is_in_its_way(tmp_path: Path, state: Path) -> None:
    async def life() -> None:
        kube = FakeClient()
        overlapping = add_claim(kube, claim("one", f"{GPU}-mig-1g-10gb-2"))
        beside = add_claim(kube, claim("two", f"{GPU}-mig-3g-40gb-4"))
        async with agent(tmp_path, state, kube) as node:
            made = make(node, GPU)
            error = (await prepare(node, overlapping))[overlapping["metadata"]["uid"]].error
            assert f"its place 2:1 on {GPU} is taken: partition {made.uuid} (number 0 at 0:4)" in error
            assert "-gi 0 -dgi" in error
            assert not (await prepare(node, beside))[beside["metadata"]["uid"]].error

    asyncio.run(life())


def test_a_refused_claim_has_the_devices_looked_at(tmp_path: Path, state: Path) -> None:
    """Without it the next claim would be allocated the same device until the next look, a minute later."""

    async def life() -> None:
        kube = FakeClient()
        body = add_claim(kube, claim("one", f"{GPU}-mig-1g-10gb-2"))
        async with agent(tmp_path, state, kube, timings=SOON_GONE) as node:
            await eventually(lambda: node.plugin._table.occupied_known)
            make(node, GPU)
            assert (await prepare(node, body))[body["metadata"]["uid"]].error
            await eventually(lambda: published(kube).keys() == {GPU})

    asyncio.run(life())


def test_a_restart_offers_nothing_that_was_taken(tmp_path: Path, state: Path) -> None:
    """The condition stays in the inventory until the new agent has looked, and goes when it finds nothing."""

    async def life() -> None:
        kube = FakeClient()
        async with agent(tmp_path, state, kube) as node:
            make(node, GPU)
            await eventually(lambda: published(kube))
        async with agent(tmp_path, state, kube) as node:
            node.plugin._leftovers._leads = lambda: False
            node.plugin._table.occupied_known = False
            node.plugin._table._occupied = {}
            node.plugin._table.changes.notify()
            control(node).destroy_instance(uuid_of(node, GPU), 0)
            await node.plugin._keeper.reconcile()
            assert published(kube).keys() == {GPU}, "nothing was looked at yet"
            node.plugin._leftovers._leads = lambda: True
            await eventually(lambda: not published(kube))

    asyncio.run(life())


def test_a_device_that_cannot_be_asked_keeps_what_is_known(tmp_path: Path, state: Path) -> None:
    async def life() -> None:
        kube = FakeClient()
        async with agent(tmp_path, state, kube) as node:
            make(node, GPU)
            await eventually(lambda: published(kube))
            found = control(node).instances

            def instances(gpu: str) -> Any:
                if gpu == uuid_of(node, GPU):
                    raise PrepareError("not now", retryable=True)
                return found(gpu)

            control(node).instances = instances
            make(node, OTHER)
            await eventually(lambda: published(kube).keys() == {GPU, OTHER})

    asyncio.run(life())


def test_what_is_at_the_place_of_a_claim_that_a_reboot_ended_is_not_its(tmp_path: Path, state: Path) -> None:
    boot = tmp_path / "proc/sys/kernel/random/boot_id"
    boot.parent.mkdir(parents=True)
    boot.write_text("one\n")
    settings = {"procfs_root": tmp_path / "proc"}

    async def life() -> None:
        kube = FakeClient()
        body = add_claim(kube, claim("one", f"{GPU}-mig-3g-40gb-0"))
        async with agent(tmp_path, state, kube, settings=settings) as node:
            assert not (await prepare(node, body))[body["metadata"]["uid"]].error
        boot.write_text("two\n")
        # Somebody makes the same partition after the boot: it has the same identity.
        async with agent(tmp_path, state, kube, settings=settings) as node:
            await eventually(lambda: published(kube).keys() == {GPU})
            assert len(control(node).instances(uuid_of(node, GPU))) == 1
            assert not (await unprepare(node, body))[body["metadata"]["uid"]].error
            assert len(control(node).instances(uuid_of(node, GPU))) == 1

    asyncio.run(life())


def test_what_a_hanging_call_begins_too_late_is_destroyed_and_what_others_make_is_not(
    tmp_path: Path, state: Path
) -> None:
    async def life(*, late: bool) -> list[str]:
        kube, held = FakeClient(), threading.Event()
        body = add_claim(kube, claim("one", f"{GPU}-mig-3g-40gb-0"))
        async with agent(tmp_path, state, kube) as node:
            node.plugin._setup.hardware.calls._seconds = 0.3
            begin = control(node).begin_instance

            def hanging(*args: Any) -> Any:
                assert held.wait(30)
                if not late:
                    raise PrepareError("the driver was loaded anew")
                return begin(*args)

            control(node).begin_instance = hanging
            gpu = uuid_of(node, GPU)
            assert "does not answer" in (await prepare(node, body))[body["metadata"]["uid"]].error
            if not late:
                begin(gpu, 9, 0, 4)
                control(node).create_instance(gpu, 9, 0, 4)
            held.set()
            await eventually(lambda: len(control(node).instances(gpu)) == 1)
            del control(node).begin_instance
            await eventually(lambda: not node.plugin._setup.hardware.calls._stuck)
            assert not (await unprepare(node, body))[body["metadata"]["uid"]].error
            return [i.uuid for i in control(node).instances(gpu)]

    assert asyncio.run(life(late=True)) == []
    assert len(asyncio.run(life(late=False))) == 1
