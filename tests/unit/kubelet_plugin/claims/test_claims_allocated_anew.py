"""A claim that is deallocated and allocated to another device while the node still holds the first one."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from crashing_stores import Crash, Disk, DiskCheckpoints, DiskSpecs
from fake_client import FakeClient
from kubelet_calls import checkpointed, prepare, unprepare
from listing_kubelet import cgroup, listing, process
from node_agent import DRIVER, NODE, PATIENT, add_claim, claim, device, running
from npu_backend import given, node, run
from slow_npu import WAIT, SlowNpu, prepared, still

from dra_driver import cdi
from dra_driver.api.meta import PoolName
from dra_driver.errors import PrepareError
from dra_driver.preparation import NodeDevice, PreparedClaim, Use, Verdict
from kubelet_plugin.claims.planning import ClaimReference, Timing
from kubelet_plugin.claims.preparer import Preparer
from kubelet_plugin.claims.reallocation import NothingInUse
from kubelet_plugin.claims.reservations import DeviceReservations

UID = "00000000-0000-4000-8000-000000000001"
POD = "11111111-2222-4333-8444-555555555555"
IMPATIENT = Timing(budget=PATIENT.budget, patience=0.6)
DEVICES = [device(0), device(1)]


def allocated(kube: FakeClient, *devices: str, uid: str = UID, **more: Any) -> dict[str, Any]:
    """Store the claim with another allocation; its pod is the one that runs first."""
    body = claim("one", *devices, uid=uid, **more)
    body["status"]["reservedFor"] = [{"resource": "pods", "name": "pod", "uid": POD}]
    return add_claim(kube, body)


@pytest.fixture(autouse=True)
def pods_are_seen(tmp_path: Path) -> None:
    """Have agents see the cgroups of pods, of which there are none."""
    cgroup(tmp_path / "cgroup")


def edits(node: Any, body: dict[str, Any]) -> str:
    """The CDI file of a claim, as text."""
    text: str = (node.config.cdi_dir / f"k8s.{DRIVER}-claim_{body['metadata']['uid']}.json").read_text()
    return text


@pytest.mark.parametrize("version", ["v1", "v1beta1"])
def test_it_is_prepared_with_the_device_that_it_has_now(tmp_path: Path, version: str) -> None:
    async def main() -> None:
        kube = FakeClient()
        body = allocated(kube, "gpu-0")
        async with (
            listing(tmp_path / "pod-resources.sock"),
            running(tmp_path, kube, DEVICES) as node,
        ):
            (before,) = (await prepare(node, body, version=version))[UID].devices
            allocated(kube, "gpu-1")
            (now,) = (await prepare(node, body, version=version))[UID].devices
            assert (before.device_name, now.device_name) == ("gpu-0", "gpu-1")
            (name,) = now.cdi_device_ids
            assert "gpu-1" in name
            assert name != before.cdi_device_ids[0]
            document = edits(node, body)
            assert name.partition("=")[2] in document
            assert "/dev/gpu1" in document
            assert "/dev/gpu0" not in document
            # What it had is free, and asking again changes nothing.
            other = add_claim(kube, claim("other", "gpu-0"))
            assert not (await prepare(node, other, version=version))[other["metadata"]["uid"]].error
            assert (await prepare(node, body, version=version))[UID].devices == [now]
            assert len(checkpointed(node)) == 2

    asyncio.run(main())


@pytest.mark.parametrize("witness", ["kubelet", "process"])
def test_it_is_refused_while_a_pod_may_use_what_it_had(tmp_path: Path, witness: str) -> None:
    procfs = tmp_path / "proc"
    process(procfs, 1)
    if witness == "process":
        process(procfs, 77, pod=POD)

    async def main() -> None:
        kube = FakeClient()
        body = allocated(kube, "gpu-0")
        async with (
            listing(tmp_path / "pod-resources.sock") as kubelet,
            running(tmp_path, kube, DEVICES, timing=IMPATIENT, settings={"procfs_root": procfs}) as node,
        ):
            answer = (await prepare(node, body))[UID]
            if witness == "kubelet":
                kubelet.pods = {("ns", "pod"): ("one", DRIVER, answer.devices[0].cdi_device_ids)}
            allocated(kube, "gpu-1")
            error = (await prepare(node, body))[UID].error
            assert error.startswith(
                "the claim is allocated to gpu-1 now, but was prepared with gpu-0, "
                "which a pod may still use: "
            )
            why = "the kubelet still lists a pod" if witness == "kubelet" else "PID 77"
            assert why in error
            assert "/dev/gpu0" in edits(node, body)
            thief = add_claim(kube, claim("thief", "gpu-0"))
            assert "is held" in (await prepare(node, thief))[thief["metadata"]["uid"]].error
            # It ends while the next call waits.
            async with asyncio.TaskGroup() as tasks:
                waiting = tasks.create_task(prepare(node, body))
                await asyncio.sleep(0.05)
                kubelet.pods = {}
                if witness == "process":
                    (procfs / "77" / "cgroup").write_text("0::/system.slice/containerd.service\n")
            assert [d.device_name for d in waiting.result()[UID].devices] == ["gpu-1"]

    asyncio.run(main())


@pytest.mark.parametrize(
    ("change", "devices"),
    [
        ({"uid": "22222222-0000-4000-8000-000000000001"}, ("gpu-1",)),
        ({"driver": "other.example.com"}, ("gpu-1",)),
        ({"request": "gpu/large"}, ("gpu-0",)),
    ],
    ids=["another claim of the name", "nothing of ours", "another subrequest"],
)
def test_what_is_compared_is_this_claim_and_our_devices(
    tmp_path: Path, change: dict[str, Any], devices: tuple[str, ...]
) -> None:
    """Another claim says nothing of this one, and another subrequest is no other device."""
    expected = ["gpu-0"] if "driver" not in change else []

    async def main() -> None:
        kube = FakeClient()
        body = allocated(kube, "gpu-0")
        async with (
            listing(tmp_path / "pod-resources.sock"),
            running(tmp_path, kube, DEVICES) as node,
        ):
            assert not (await prepare(node, body))[UID].error
            allocated(kube, *devices, **change)
            answer = (await prepare(node, body))[UID]
            assert not answer.error
            assert [d.device_name for d in answer.devices] == expected

    asyncio.run(main())


def test_an_agent_that_has_not_prepared_it_compares_as_well(tmp_path: Path) -> None:
    """During a rolling update the other agent has the record, and prepares while this one waits."""

    async def main() -> None:
        kube = FakeClient()
        body = allocated(kube, "gpu-0")
        async with (
            listing(tmp_path / "pod-resources.sock"),
            running(tmp_path, kube, DEVICES, settings={"instance_id": "old"}) as old,
            running(tmp_path, kube, DEVICES, settings={"instance_id": "new"}) as new,
        ):
            assert [d.device_name for d in (await prepare(old, body))[UID].devices] == ["gpu-0"]
            allocated(kube, "gpu-1")
            async with asyncio.TaskGroup() as tasks:
                both = [tasks.create_task(prepare(agent, body)) for agent in (new, old)]
            for task in both:
                assert [d.device_name for d in task.result()[UID].devices] == ["gpu-1"]
            assert not (await unprepare(old, body))[UID].error
            assert checkpointed(new) == {}
            assert new.specs() == []

    asyncio.run(main())


# --- crashes ------------------------------------------------------------------------------------------------

NODE_DEVICES = {
    f"gpu-{i}": NodeDevice(
        name=f"gpu-{i}", uuid=f"U{i}", published_uuid=f"U{i}", edits=cdi.ContainerEdits(env=(f"G={i}",))
    )
    for i in range(2)
}


class Seen(NothingInUse):
    """What the node says of devices that were given before."""

    def __init__(self, use: Use) -> None:
        self._use = use

    async def of_reallocated(self, record: PreparedClaim) -> Verdict:
        return Verdict(self._use, "nothing can be seen")


def preparer(disk: Disk, kube: FakeClient, use: Use = Use.FREE) -> Preparer:
    return Preparer(
        driver=DRIVER,
        pool=PoolName(NODE),
        client=kube,
        reservations=DeviceReservations(DiskCheckpoints(disk)),
        specs=DiskSpecs(disk),
        devices=lambda: NODE_DEVICES,
        timing=Timing(budget=5.0, patience=0.0),
        in_use=Seen(use),
    )


def anew(disk: Disk, trouble_at: int | None, *, after: bool, error: bool) -> int:
    """Allocate the claim anew, prepare it with trouble at one effect, and again; return the effects."""

    async def main() -> int:
        kube = FakeClient()
        allocated(kube, "gpu-0")
        reference = ClaimReference("ns", "one", UID)
        first = preparer(disk, kube)
        await first.restore()
        await first.prepare(reference)
        allocated(kube, "gpu-1")
        began = disk.effects
        disk.after, disk.error = after, error
        disk.trouble_at = None if trouble_at is None else began + trouble_at
        for _ in range(2):
            try:
                (now,) = await first.prepare(reference)
                break
            except Crash:
                first = preparer(disk, kube)
                await first.restore()
            except OSError:
                pass  # the kubelet calls again
        assert disk.trouble_at is None
        assert now.device == "gpu-1"
        assert "gpu-1" in now.cdi_device_ids[0]
        assert disk.claims() == {UID: "PrepareCompleted"}
        assert b"G=1" in disk.specs[UID]  # type: ignore[index]
        assert b"G=0" not in disk.specs[UID]  # type: ignore[index]
        assert [d.device for c in first.claims for d in c.devices] == ["gpu-1"]
        return disk.effects - began

    return asyncio.run(main())


def test_a_crash_or_an_error_at_any_step_ends_as_none() -> None:
    effects = anew(Disk(), None, after=False, error=False)
    assert effects == 5  # file and record of the old device; intent, file and completion of the new one
    for trouble_at in range(effects):
        for after, error in ((False, False), (True, False), (False, True)):
            anew(Disk(), trouble_at, after=after, error=error)


def test_it_is_refused_where_nothing_can_be_known() -> None:
    async def main() -> None:
        kube, disk = FakeClient(), Disk()
        allocated(kube, "gpu-0")
        reference = ClaimReference("ns", "one", UID)
        asked = preparer(disk, kube, Use.UNKNOWN)
        await asked.prepare(reference)
        allocated(kube, "gpu-1")
        with pytest.raises(PrepareError, match="which a pod may still use: nothing can be seen"):
            await asked.prepare(reference)
        assert [d.device for c in asked.claims for d in c.devices] == ["gpu-0"]

    asyncio.run(main())


def test_a_backend_that_is_still_at_work_for_the_old_device_is_not_gone_on_with() -> None:
    npu = SlowNpu()

    async def scenario(kube: FakeClient, disk: Disk) -> None:
        agent = node(disk, kube, npu, seconds=WAIT)
        reference = given(kube, "one", "acme-0", uid=UID)
        await still(agent, reference)
        assert given(kube, "one", "acme-1", uid=UID) == reference
        npu.finish.set()
        await prepared(agent, reference)
        (record,) = agent.claims
        assert [d.device for d in record.devices] == ["acme-1"]
        assert npu.set.keys() == {"acme-1"}

    run(scenario)
