"""Backends, files and GPUs that fail in ways that nobody foresaw cost one claim, never the plugin."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from crashing_stores import Disk, DiskCheckpoints, DiskSpecs
from fake_client import FakeClient
from kubelet_calls import checkpointed, prepare
from node_agent import DRIVER, NODE, add_claim, claim, device, eventually, running
from npu_backend import Npu, given, node, run

from dra_driver import cdi
from dra_driver.api.meta import PoolName
from dra_driver.errors import PrepareError
from dra_driver.hardware import DiscoveredDevice
from dra_driver.preparation import Checkpoint, Holdings, NodeDevice, PreparedClaim
from dra_driver.wire import dra_v1_pb2
from kubelet_plugin.claims.planning import ClaimReference, Timing
from kubelet_plugin.claims.preparer import Preparer
from kubelet_plugin.claims.reservations import DeviceReservations
from kubelet_plugin.gpu.no_hardware import NoHardware
from kubelet_plugin.grpc.services import Calls, DraV1

SLICE = {
    "apiVersion": "dra-driver.dev/v1alpha1",
    "kind": "GpuConfig",
    "sharing": {"strategy": "TimeSlicing", "timeSlicing": {"interval": "Long"}},
}


class Buggy(NoHardware):
    """Raises what no contract allows."""

    def __init__(self) -> None:
        self.broken = True
        self.restored = 0

    async def look(self, record: PreparedClaim, holdings: Holdings) -> PreparedClaim:
        return record

    async def configure(self, record: PreparedClaim) -> None:
        if self.broken:
            raise ZeroDivisionError("of a third party")

    async def restore(self, record: PreparedClaim, holdings: Holdings) -> None:
        self.restored += 1


def preparer(disk: Disk, kube: FakeClient, hardware: Buggy, boot_id: str = "") -> Preparer:
    devices = {"gpu-0": NodeDevice("gpu-0", "U", "U", controllable=True)}
    return Preparer(
        driver=DRIVER,
        pool=PoolName(NODE),
        client=kube,
        reservations=DeviceReservations(DiskCheckpoints(disk), boot_id=boot_id),
        specs=DiskSpecs(disk),
        devices=lambda: devices,
        hardware=hardware,
    )


def sliced(kube: FakeClient) -> ClaimReference:
    body = claim("one", "gpu-0")
    opaque = {"source": "FromClaim", "opaque": {"driver": DRIVER, "parameters": SLICE}}
    body["status"]["allocation"]["devices"]["config"] = [opaque]
    uid = add_claim(kube, body)["metadata"]["uid"]
    return ClaimReference("ns", "one", uid)


def test_a_bug_in_the_middle_of_prepare_leaves_nothing_half_made() -> None:
    kube, disk, hardware = FakeClient(), Disk(), Buggy()
    reference = sliced(kube)

    async def main() -> None:
        node = preparer(disk, kube, hardware)
        await node.restore()
        with pytest.raises(ZeroDivisionError):
            await node.prepare(reference)
        assert hardware.restored == 1
        assert not node.claims
        hardware.broken = False
        assert len(await node.prepare(reference)) == 1

    asyncio.run(main())


def test_a_bug_at_the_start_does_not_end_the_plugin() -> None:
    kube, disk, hardware = FakeClient(), Disk(), Buggy()
    reference = sliced(kube)

    async def main() -> None:
        hardware.broken = False
        await preparer(disk, kube, hardware).prepare(reference)
        hardware.broken = True
        again = preparer(disk, kube, hardware)
        await again.restore()
        assert len(again.claims) == 1
        await again.unprepare(reference)
        assert not again.claims

    asyncio.run(main())


def test_a_boot_that_could_not_be_noted_at_once_does_not_look_like_another_one() -> None:
    """The disk was full at the start: what is prepared afterwards must not be undone under its pods."""
    kube, disk, hardware = FakeClient(), Disk(), Buggy()
    reference = sliced(kube)
    hardware.broken = False

    async def main() -> None:
        await preparer(disk, kube, hardware, "one").restore()
        disk.trouble_at, disk.error = disk.effects, True
        node = preparer(disk, kube, hardware, "two")
        await node.restore()
        assert disk.trouble_at is None, "the boot was to be noted"
        await node.prepare(reference)
        again = preparer(disk, kube, hardware, "two")
        await again.restore()
        assert len(again.claims) == 1
        assert hardware.restored == 0

    asyncio.run(main())


class Moody:
    """A backend that raises what no contract allows, once."""

    name = "moody"

    def __init__(self) -> None:
        self.looks = 0

    def discover(self) -> Sequence[DiscoveredDevice]:
        self.looks += 1
        if self.looks == 2:
            raise KeyError("of a third party")
        return [device(0)]

    def close(self) -> None:
        """Nothing is held."""


def test_a_bug_in_discovery_keeps_what_was_found_before(tmp_path: Path) -> None:
    async def main() -> None:
        async with running(tmp_path, FakeClient(), backend=Moody()) as node:
            await node.plugin._table.scan()
            assert [d.device.name for d in node.plugin._table.devices] == ["gpu-0"]

    asyncio.run(main())


def test_an_unreadable_cdi_file_costs_no_other_claim(tmp_path: Path, monkeypatch: Any) -> None:
    kube = FakeClient()
    one, two = (add_claim(kube, claim(f"c{i}", f"gpu-{i}")) for i in range(2))
    real = Path.read_bytes

    def read(path: Path) -> bytes:
        if path.parent.name == "cdi" and one["metadata"]["uid"] in path.name:
            raise OSError(5, "Input/output error")
        return real(path)

    async def main() -> None:
        async with running(tmp_path, kube, [device(0), device(1)]) as node:
            await prepare(node, one, two)
        with monkeypatch.context() as patch:
            patch.setattr(Path, "read_bytes", read)
            async with running(tmp_path, kube, [device(0), device(1)]) as node:
                await eventually(lambda: len(checkpointed(node)) == 2)
                answer = (await prepare(node, two))[two["metadata"]["uid"]]
                assert not answer.error

    asyncio.run(main())


class DamagedCheckpoints(DiskCheckpoints):
    """Nothing readable at the start, on a disk that can be full."""

    full = False

    async def load(self) -> str:
        return "damaged"

    async def save(self, *claims: PreparedClaim) -> None:
        if self.full:
            raise OSError(errno.ENOSPC, "No space left on device")
        await super().save(*claims)


def test_claims_recovered_on_a_full_disk_keep_their_devices_and_files_until_they_are_recorded() -> None:
    kube, disk = FakeClient(), Disk()
    one, two = (add_claim(kube, claim(name, "gpu-0"))["metadata"]["uid"] for name in ("one", "two"))

    def node(checkpoints: DamagedCheckpoints) -> Preparer:
        return Preparer(
            driver=DRIVER,
            pool=PoolName(NODE),
            client=kube,
            reservations=DeviceReservations(checkpoints),
            specs=DiskSpecs(disk),
            devices=lambda: {"gpu-0": NodeDevice("gpu-0", "U", "U", edits=cdi.ContainerEdits(env=("A=b",)))},
            timing=Timing(budget=1.0, patience=0.0),
        )

    async def main() -> None:
        await node(DamagedCheckpoints(disk)).prepare(ClaimReference("ns", "one", one))
        disk.checkpoint = Checkpoint().encode()
        checkpoints = DamagedCheckpoints(disk)
        checkpoints.full = True
        restarted = node(checkpoints)
        await restarted.restore()
        assert [c.uid for c in restarted.claims] == [one]
        with pytest.raises(PrepareError, match="held by another claim"):
            await restarted.prepare(ClaimReference("ns", "two", two))
        await restarted.tidy()
        assert disk.specs.keys() == {one}
        with pytest.raises(OSError, match="No space"):
            await restarted.unprepare(ClaimReference("ns", "one", one))
        checkpoints.full = False
        await restarted.tidy()
        assert disk.specs.keys() == disk.claims().keys() == {one}
        await restarted.unprepare(ClaimReference("ns", "one", one))
        assert len(await restarted.prepare(ClaimReference("ns", "two", two))) == 1
        assert disk.specs.keys() == disk.claims().keys() == {two}

    asyncio.run(main())


@pytest.mark.parametrize("error", [PrepareError, FileNotFoundError, ZeroDivisionError])
def test_an_error_whose_text_is_no_utf_8_is_told_as_any_other(error: type[Exception]) -> None:
    """Python reads a file's name of other bytes into text that cannot be sent."""
    npu = Npu()

    def fails(use: object) -> None:
        raise error("/sys/bus/acme/\udcff")

    npu.plan = fails

    async def scenario(kube: FakeClient, disk: Disk) -> None:
        calls = Calls(node(disk, kube, npu))
        running = asyncio.create_task(calls.run())
        await asyncio.sleep(0)
        claims = [given(kube, "one", "acme-0"), given(kube, "two", "gpu-0")]
        request = dra_v1_pb2.NodePrepareResourcesRequest()
        request.claims.extend(dra_v1_pb2.Claim(namespace=c.namespace, name=c.name, uid=c.uid) for c in claims)
        answer = await DraV1(calls).NodePrepareResources(request, None)
        running.cancel()
        assert "/sys/bus/acme/\\udcff" in answer.claims[claims[0].uid].error
        assert not answer.claims[claims[1].uid].error

    run(scenario)
