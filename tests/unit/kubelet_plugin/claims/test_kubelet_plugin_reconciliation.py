"""The node's memory against the API server, the CDI directory and a reboot; and what it costs."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from crashing_stores import Disk, DiskCheckpoints, DiskSpecs
from fake_client import FakeClient
from kubelet_calls import checkpointed, prepare, unprepare
from listing_kubelet import ListingKubelet, cgroup, listing, process
from node_agent import DRIVER, NODE, add_claim, claim, device, eventually, running

from dra_driver.api.core import EVENTS
from dra_driver.api.meta import PoolName, Uid
from dra_driver.api.own.inventory import DEVICE_INVENTORIES, inventory_name
from dra_driver.api.resource import RESOURCE_CLAIMS
from dra_driver.errors import Forbidden, NotFound
from dra_driver.preparation import Checkpoint, ClaimState, DeviceSetting, PreparedClaim, PreparedDevice
from kubelet_plugin.claims.checkpoint_file import read_checkpoint
from kubelet_plugin.claims.preparer import Preparer
from kubelet_plugin.claims.reconciliation import Intervals
from kubelet_plugin.claims.reservations import DeviceReservations
from kubelet_plugin.grpc.services import Calls

OFTEN = Intervals(first=0.02, every=0.05, confirm=0.15)
POD, OTHER = "11111111-2222-4333-8444-555555555555", "66666666-7777-4888-9999-aaaaaaaaaaaa"


def reserved(name: str, *devices: str, pod: str = POD) -> dict[str, Any]:
    """A claim with a pod that uses it."""
    body = claim(name, *devices)
    body["status"]["reservedFor"] = [{"resource": "pods", "name": "pod", "uid": pod}]
    return body


def change(body: dict[str, Any], kind: str) -> dict[str, Any] | None:
    """The claim as the API server has it later; None: it is gone."""
    match kind:
        case "gone":
            return None
        case "created anew":
            return {**body, "metadata": {**body["metadata"], "uid": "11111111-2222-3333-4444-555555555555"}}
        case "deallocated":
            return {**body, "status": {}}
        case "allocated elsewhere":
            results = [{"request": "gpu", "driver": DRIVER, "pool": "node-b", "device": "gpu-0"}]
            return {**body, "status": {"allocation": {"devices": {"results": results}}}}
        case _:
            return body


@pytest.mark.parametrize("kind", ["gone", "created anew", "deallocated", "allocated elsewhere", "the same"])
def test_a_claim_that_nobody_can_be_using_is_unprepared(tmp_path: Path, kind: str) -> None:
    async def main() -> None:
        kube = FakeClient()
        body, kept = add_claim(kube, reserved("one", "gpu-0")), add_claim(kube, claim("two", "gpu-1"))
        cgroup(tmp_path / "cgroup")
        async with (
            listing(tmp_path / "pod-resources.sock") as kubelet,
            running(tmp_path, kube, [device(0), device(1)], intervals=OFTEN) as node,
        ):
            await prepare(node, body, kept)
            await node.register()
            kubelet.pods = {("ns", "pod"): ("two", DRIVER, cdi_names(node, kept))}
            later = change(body, kind)
            if later is None:
                kube.remove(RESOURCE_CLAIMS, "one", "ns")
            else:
                kube.put(RESOURCE_CLAIMS, later)
            reconciler = node.plugin._reconciler
            if kind == "the same":
                seen = reconciler.rounds
                await eventually(lambda: reconciler.rounds >= seen + 6)
                assert len(checkpointed(node)) == 2
                return
            await eventually(lambda: reconciler.unprepared == 1)
            assert {c["name"] for c in checkpointed(node).values()} == {"two"}
            assert len(node.specs()) == 1

    asyncio.run(main())


def cdi_names(node: Any, body: dict[str, Any]) -> list[str]:
    """What the plugin has answered for the claim."""
    records = {r.uid: r for r in node.plugin._preparer.claims}
    return [name for d in records[body["metadata"]["uid"]].devices for name in d.cdi_device_ids]


@contextlib.asynccontextmanager
async def gone_claim(
    root: Path, *, pod_claim: str = "", settings: dict[str, Any] | None = None
) -> AsyncIterator[tuple[Any, ListingKubelet, dict[str, Any]]]:
    """A node with a claim that the API server has no more, and a kubelet that lists what the test says."""
    kube = FakeClient()
    body = reserved("one", "gpu-0")
    if pod_claim:
        body["metadata"]["annotations"] = {"resource.kubernetes.io/pod-claim-name": pod_claim}
    add_claim(kube, body)
    procfs = root / "proc"
    process(procfs, 1)
    more = {"procfs_root": procfs, **(settings or {})}
    async with (
        listing(root / "pod-resources.sock") as kubelet,
        running(root, kube, [device(0)], intervals=OFTEN, settings=more) as node,
    ):
        await prepare(node, body)
        await node.register()
        kubelet.pods = {("ns", "pod"): ("one", DRIVER, cdi_names(node, body))}
        kube.remove(RESOURCE_CLAIMS, "one", "ns")
        yield node, kubelet, body


async def some_rounds(node: Any) -> None:
    seen = node.plugin._reconciler.rounds
    await eventually(lambda: node.plugin._reconciler.rounds >= seen + 6)


def listed_gone(node: Any) -> list[str]:
    """UIDs of the claims that the inventory lists because they are gone."""
    found = node.kube.obj(DEVICE_INVENTORIES, inventory_name(NODE, DRIVER))
    return [c.uid for c in found.status.gone_claims]


def test_a_claim_of_a_running_pod_is_seldom_asked_for(tmp_path: Path) -> None:
    async def main() -> None:
        async with gone_claim(tmp_path) as (node, _, body):
            cgroup(tmp_path / "cgroup")
            add_claim(node.kube, body)
            await some_rounds(node)
            seen = node.plugin._reconciler.rounds
            node.kube.calls.clear()
            await eventually(lambda: node.plugin._reconciler.rounds >= seen + 12)
            rounds = node.plugin._reconciler.rounds - seen
            assert 1 <= node.kube.calls.count(("get", "ResourceClaim", "one", "")) <= rounds / 6 + 1
            assert listed_gone(node) == []

    asyncio.run(main())


def test_a_claim_that_the_kubelet_lists_is_kept_and_its_devices_stay_taken(tmp_path: Path) -> None:
    async def main() -> None:
        async with gone_claim(tmp_path) as (node, kubelet, body):
            cgroup(tmp_path / "cgroup")
            await eventually(lambda: listed_gone(node) == [body["metadata"]["uid"]])
            await some_rounds(node)
            assert listed_gone(node) == [body["metadata"]["uid"]]
            assert node.plugin.notices.counts["ClaimGoneInUse"] == 1
            assert len(checkpointed(node)) == 1
            # The same name, another UID.
            other = cdi_names(node, body)[0].replace(body["metadata"]["uid"], POD)
            kubelet.pods = {("ns", "pod"): ("one", DRIVER, [other])}
            await eventually(lambda: node.plugin._reconciler.unprepared == 1)
            await eventually(lambda: listed_gone(node) == [])

    asyncio.run(main())


def test_a_claim_whose_pod_has_processes_is_kept_and_reported_once(tmp_path: Path) -> None:
    async def main() -> None:
        async with gone_claim(tmp_path) as (node, kubelet, _):
            process(tmp_path / "proc", 20, pod=POD)
            process(tmp_path / "proc", 30, pod=OTHER)
            # Deleted by force: the kubelet does not list it, and cannot end it.
            kubelet.pods = {}
            await eventually(lambda: node.plugin._use.kept == 1)
            await some_rounds(node)
            assert node.plugin.notices.counts["ClaimGoneInUse"] == 1
            assert len(checkpointed(node)) == len(node.specs()) == 1
            metrics = node.plugin.observation.metrics.render(()).decode()
            assert "dra_driver_claims_gone_in_use 1.0" in metrics
            (event,) = await eventually(
                lambda: [e for e in node.kube.all(EVENTS) if e.reason == "ClaimGoneInUse"]
            )
            assert "its pod still has processes (PID 20)" in event.message
            shutil.rmtree(tmp_path / "proc/20")
            await eventually(lambda: node.plugin._reconciler.unprepared == 1)
            assert node.plugin._use.kept == 0

    asyncio.run(main())


def test_where_neither_the_kubelet_nor_processes_are_seen_a_claim_is_kept(tmp_path: Path) -> None:
    async def main() -> None:
        missing = {"pod_resources_socket": tmp_path / "none.sock"}
        async with gone_claim(tmp_path, settings=missing) as (node, _, _):
            await eventually(lambda: node.plugin._use.kept == 1)
            await some_rounds(node)
            assert node.plugin.notices.counts["ClaimGoneInUse"] == 1
            assert len(checkpointed(node)) == 1
            # Processes of pods come into view, and none of them has the device.
            process(tmp_path / "proc", 20, pod=OTHER)
            await eventually(lambda: node.plugin._reconciler.unprepared == 1)

    asyncio.run(main())


def test_a_kubelet_that_lists_no_claims_at_all_is_not_believed(tmp_path: Path) -> None:
    async def main() -> None:
        async with gone_claim(tmp_path) as (node, kubelet, _):
            cgroup(tmp_path / "cgroup")
            kubelet.pods = {}
            alive = add_claim(node.kube, claim("two", "gpu-0", adminAccess=True))
            await prepare(node, alive)
            await eventually(lambda: node.plugin._use.kept == 1)
            await some_rounds(node)
            assert len(checkpointed(node)) == 2
            kubelet.pods = {("ns", "pod"): ("two", DRIVER, cdi_names(node, alive))}
            await eventually(lambda: node.plugin._reconciler.unprepared == 1)
            assert {c["name"] for c in checkpointed(node).values()} == {"two"}

    asyncio.run(main())


@pytest.mark.parametrize("trouble", ["away", "forbidden", "no such path", "no kubelet"])
def test_trouble_removes_nothing(tmp_path: Path, trouble: str) -> None:
    def refuse(verb: str, kind: str, *_: str) -> None:
        if kind == "ResourceClaim" and trouble == "forbidden":
            raise Forbidden("no", code=403, reason="Forbidden")
        if kind == "ResourceClaim" and trouble == "no such path":
            raise NotFound("404 page not found", code=404)

    async def main() -> None:
        kube = FakeClient()
        body = add_claim(kube, claim("one", "gpu-0"))
        async with running(tmp_path, kube, [device(0)], intervals=OFTEN) as node:
            await prepare(node, body)
            if trouble != "no kubelet":
                await node.register()
            kube.remove(RESOURCE_CLAIMS, "one", "ns")
            kube.before = refuse
            kube.down = trouble == "away"
            seen = node.plugin._reconciler.rounds
            await eventually(lambda: node.plugin._reconciler.rounds >= seen + 6)
            assert len(checkpointed(node)) == len(node.specs()) == 1

    asyncio.run(main())


def test_cdi_files_are_repaired_while_the_plugin_runs(tmp_path: Path) -> None:
    async def main() -> None:
        kube = FakeClient()
        one, two = add_claim(kube, claim("one", "gpu-0")), add_claim(kube, claim("two", "gpu-1"))
        async with running(tmp_path, kube, [device(0), device(1)], intervals=OFTEN) as node:
            await prepare(node, one, two)
            files = {p: p.read_bytes() for p in node.config.cdi_dir.iterdir()}
            first, second = files
            first.unlink()
            second.write_bytes(b"{}")
            empty = node.config.cdi_dir / f"k8s.{DRIVER}-claim_0000.json"
            empty.write_bytes(b"\0" * 4096)  # a power failure on some file systems
            stranger = node.config.cdi_dir / "k8s.other.example.com-claim_0000.json"
            stranger.write_bytes(b"")
            await eventually(lambda: not empty.exists())
            await eventually(lambda: all(p.exists() and p.read_bytes() == b for p, b in files.items()))
            assert stranger.exists()

    asyncio.run(main())


def test_a_reboot_ends_claims_until_they_are_prepared_again(tmp_path: Path) -> None:
    boot = tmp_path / "proc/sys/kernel/random/boot_id"
    boot.parent.mkdir(parents=True)
    boot.write_text("0a0a\n")
    settings = {"procfs_root": tmp_path / "proc"}

    async def main() -> None:
        kube = FakeClient()
        body = add_claim(kube, claim("one", "gpu-0"))
        async with running(tmp_path, kube, [device(0)], settings=settings) as node:
            await prepare(node, body)
            content = {p.name: p.read_bytes() for p in node.config.cdi_dir.iterdir()}
            assert read_checkpoint(node.config.checkpoint).boot_id == "0a0a"
        boot.write_text("0b0b\n")
        async with running(tmp_path, kube, [device(0)], settings=settings) as node:
            assert read_checkpoint(node.config.checkpoint).boot_id == "0b0b"
            assert node.specs() == []
            assert list(node.config.metadata_dir.iterdir()) == []
            assert node.plugin._preparer.claims == ()
            await prepare(node, body)
            again = {p.name: p.read_bytes() for p in node.config.cdi_dir.iterdir()}
            assert {n: b.replace(b"0b0b", b"0a0a") for n, b in again.items()} == content
            assert len(checkpointed(node)) == 1
        boot.write_text("0c0c\n")
        async with running(tmp_path, kube, [device(0)], settings=settings) as node:
            kube.down = True
            await unprepare(node, body)
            assert checkpointed(node) == {}

    asyncio.run(main())


@pytest.mark.parametrize("lost", ["the last version", "both versions"])
def test_a_reboot_ends_claims_whose_records_come_from_files(tmp_path: Path, lost: str) -> None:
    """The checkpoint is damaged, and the CDI directory is on a disk: its files are of the boot before."""
    boot = tmp_path / "proc/sys/kernel/random/boot_id"
    boot.parent.mkdir(parents=True)
    boot.write_text("0a0a\n")
    settings = {"procfs_root": tmp_path / "proc"}

    async def main() -> None:
        kube = FakeClient()
        bodies = [add_claim(kube, claim(f"c{i}", f"gpu-{i}")) for i in (0, 1)]
        async with running(tmp_path, kube, [device(0), device(1)], settings=settings) as node:
            for body in bodies:
                await prepare(node, body)
        boot.write_text("0b0b\n")
        node.config.checkpoint.write_bytes(b"")
        if lost == "both versions":
            node.config.checkpoint.with_name("checkpoint.json.previous").write_bytes(b"")
        async with running(tmp_path, kube, [device(1), device(0)], settings=settings) as node:
            assert node.specs() == []
            assert node.plugin._preparer.claims == ()
            for body in bodies:
                assert not (await prepare(node, body))[body["metadata"]["uid"]].error
            assert len(node.specs()) == 2

    asyncio.run(main())


def test_a_prepare_of_files_costs_two_fsyncs_and_an_unprepare_two(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted: Counter[str] = Counter()
    real = os.fsync

    def fsync(descriptor: int) -> None:
        counted["fsync"] += 1
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)

    async def main() -> None:
        kube = FakeClient()
        claims = [add_claim(kube, claim(f"c{i}", f"gpu-{i}")) for i in range(16)]
        async with running(tmp_path, kube, [device(i) for i in range(16)]) as node:
            counted.clear()
            await prepare(node, claims[0])
            assert counted.pop("fsync") == 2  # intent and completion: the file
            await prepare(node, claims[0])
            assert counted["fsync"] == 0
            await unprepare(node, claims[0])
            assert counted.pop("fsync") == 2
            # Sixteen at once share them.
            await prepare(node, *claims)
            assert counted["fsync"] < 16 * 2 / 2

    asyncio.run(main())


def test_a_call_is_answered_before_the_kubelet_gives_up() -> None:
    class Slow:
        def __init__(self) -> None:
            self.done = asyncio.Event()

        async def prepare(self, reference: Any) -> tuple[()]:
            await self.done.wait()
            return ()

    async def main() -> None:
        slow: Any = Slow()
        calls = Calls(slow, seconds=0.05)
        reference: Any = type("Reference", (), {"namespace": "ns", "name": "one", "uid": "u"})()
        async with asyncio.TaskGroup() as tasks:
            running_calls = tasks.create_task(calls.run())
            await asyncio.sleep(0)
            assert await calls.prepare([reference]) == {
                "u": "prepare has not ended after 0.05 s; it continues, and the next call returns its result"
            }
            slow.done.set()
            await calls.drain(60)
            assert await calls.prepare([reference]) == {"u": ()}
            assert await calls.prepare([]) == {}
            running_calls.cancel()

    asyncio.run(main())


def test_a_reboot_ends_what_was_set_on_gpus() -> None:
    uid = Uid("0a0a0a0a-0000-0000-0000-000000000000")
    record = PreparedClaim(
        uid=uid,
        namespace="ns",
        name="one",
        state=ClaimState.COMPLETED,
        devices=(PreparedDevice(requests=("gpu",), pool=PoolName("node-a"), device="gpu-0", uuid="GPU-0"),),
        settings=(DeviceSetting(device="gpu-0", uuid="GPU-0", time_slice="Long", daemon=False),),
    )
    before = Checkpoint().changed({record.uid: record}).with_boot_id("0a0a").encode()

    async def after(boot_id: str) -> dict[str, str]:
        disk = Disk(checkpoint=before, specs={uid: b"{}"})
        restarted = Preparer(
            driver=DRIVER,
            pool=PoolName("node-a"),
            client=FakeClient(),
            reservations=DeviceReservations(DiskCheckpoints(disk), boot_id=boot_id),
            specs=DiskSpecs(disk),
            devices=dict,
        )
        await restarted.restore()
        return disk.claims()

    assert asyncio.run(after("0a0a")) == {uid: "PrepareCompleted"}
    assert asyncio.run(after("")) == {uid: "PrepareCompleted"}
    # Only which device it was is remembered; see the tests of documents that follow devices.
    assert asyncio.run(after("0b0b")) == {uid: "PrepareStarted"}
