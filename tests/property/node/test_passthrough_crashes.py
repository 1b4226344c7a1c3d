"""A crash or an error at any write for passthrough, then restart and repetition: nothing leaks or is lost."""

from __future__ import annotations

import asyncio
import contextlib
import json
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import structlog.testing
from crashing_stores import Crash, Disk, DiskCheckpoints, DiskSpecs
from fake_client import FakeClient
from fake_pci import FakePci
from node_agent import DRIVER, NODE, claim

from dra_driver.api.meta import PoolName
from dra_driver.api.own.inventory import InventoryDevice
from dra_driver.api.resource import RESOURCE_CLAIMS
from dra_driver.discovery.core.bus.pci_binding import VFIO, PciFunctions
from dra_driver.errors import PrepareError
from dra_driver.preparation import Checkpoint, ClaimState, NodeDevice
from kubelet_plugin.claims.planning import ClaimReference, Timing
from kubelet_plugin.claims.preparer import Preparer
from kubelet_plugin.claims.reservations import DeviceReservations
from kubelet_plugin.gpu.bindings import Bindings
from kubelet_plugin.gpu.hardware import GpuHardware
from kubelet_plugin.gpu.mps import NoDaemons

ONE, SOUND, TWO, THREE = "0000:3b:00.0", "0000:3b:00.1", "0000:86:00.0", "0000:af:00.0"
ADDRESSES = {"gpu-0": ONE, "gpu-1": TWO, "gpu-2": THREE}
FUNCTIONS = {
    ONE: ("nvidia", "12"),
    SOUND: ("snd_hda_intel", "12"),
    TWO: ("nvidia", "40"),
    THREE: (VFIO, "41"),  # set aside by an administrator
}
UIDS = [f"00000000-0000-4000-8000-00000000000{i}" for i in range(3)]
DEVICES = {
    name: NodeDevice(name, f"U-{name}", f"U-{name}", address=address, found=InventoryDevice(name=name))
    for name, address in ADDRESSES.items()
}
Call = tuple[str, int]
LIFE: list[Call] = [
    ("prepare", 0),
    ("prepare", 1),
    ("prepare", 0),
    ("rebind", 0),
    ("prepare", 1),
    ("prepare", 2),
    ("unprepare", 0),
    ("prepare", 2),
    ("unprepare", 1),
    ("unprepare", 2),
    ("unprepare", 2),
]


def _claim(i: int, *devices: str, policy: str) -> dict[str, Any]:
    body = claim(f"c{i}", *devices, uid=UIDS[i])
    parameters = {
        "apiVersion": "dra-driver.dev/v1alpha1",
        "kind": "GpuConfig",
        "driver": VFIO,
        "iommu": {"backendPolicy": policy},
    }
    opaque = {"driver": DRIVER, "parameters": parameters}
    config = [{"source": "FromClass", "requests": ["gpu"], "opaque": opaque}]
    body["status"]["allocation"]["devices"]["config"] = config
    return body


@dataclass
class MortalDisk(Disk):
    """A disk that does nothing more for a process that has crashed, whatever that does about it."""

    gone: bool = False

    def effect(self, *, done: bool) -> None:
        if self.gone:
            raise Crash
        try:
            super().effect(done=done)
        except Crash:
            self.gone = True
            raise


class Scenario:
    """A node whose plugin dies and comes back."""

    def __init__(self, root: Path, disk: MortalDisk, policy: str) -> None:
        self.disk = disk
        self.pci = FakePci(root).build(FUNCTIONS, sound={SOUND}, iommufd=policy != "LegacyOnly")
        (root / f"sys/bus/pci/devices/{THREE}/modalias").write_text("nvidia")
        self.pci.write(root / f"sys/bus/pci/devices/{SOUND}/driver_override", "snd_hda_intel")
        self.claims = [
            _claim(0, "gpu-0", policy=policy),
            _claim(1, "gpu-1", "gpu-2", policy=policy),
            _claim(2, "gpu-0", policy="LegacyOnly"),
        ]
        self.executor = ThreadPoolExecutor(1)
        self.calm = self.state()

    def state(self) -> dict[str, tuple[str, str]]:
        """Driver and override of every function."""
        return {a: (self.pci.driver(a), self.pci.override(a)) for a in FUNCTIONS}

    def write(self, path: Path, text: str) -> None:
        self.disk.effect(done=False)
        self.pci.write(path, text)
        self.disk.effect(done=True)

    def preparer(self) -> Preparer:
        kube = FakeClient()
        for body in self.claims:
            kube.put(RESOURCE_CLAIMS, body)
        functions = PciFunctions(self.pci.sysfs, self.pci.dev, self.pci.proc, write=self.write)
        return Preparer(
            driver=DRIVER,
            pool=PoolName(NODE),
            client=kube,
            reservations=DeviceReservations(DiskCheckpoints(self.disk)),
            specs=DiskSpecs(self.disk),
            devices=lambda: DEVICES,
            hardware=GpuHardware([], NoDaemons(), self.executor, bindings=Bindings(functions)),
            timing=Timing(budget=5.0, patience=0.0),
        )

    async def call(self, to: Preparer, what: Call) -> object:
        verb, i = what
        reference = ClaimReference("ns", f"c{i}", UIDS[i])
        if verb == "unprepare":
            await to.unprepare(reference)
            return None
        try:
            return [d.device for d in await to.prepare(reference)]
        except PrepareError as e:
            return str(e)

    def rebind(self) -> None:
        """Somebody binds functions anew: character devices change their numbers."""
        bus = self.pci.sysfs / "bus/pci"
        bound = [a for a in (ONE, TWO) if self.pci.driver(a) == VFIO]
        for address in bound:
            self.pci.write(bus / "drivers" / VFIO / "unbind", address)
        for address in reversed(bound):
            self.pci.write(bus / "drivers_probe", address)

    async def play(self, script: Sequence[Call]) -> list[object]:
        answers: list[object] = []
        alive: Preparer | None = None
        for what in script:
            if what[0] == "rebind":
                self.rebind()
                alive = None
                continue
            while True:
                try:
                    if alive is None:
                        alive = await self.started()
                    answers.append(await self.call(alive, what))
                    break
                except Crash:
                    alive = None
                except (OSError, PrepareError):
                    pass  # the kubelet asks again
        while True:
            with contextlib.suppress(Crash):
                await self.started()
                return answers

    async def started(self) -> Preparer:
        self.disk.gone = False
        fresh = self.preparer()
        await fresh.restore()
        if self.disk.gone:
            raise Crash
        await fresh.renew()  # what an error kept from being made
        self.check()
        return fresh

    def check(self) -> None:
        """After a start: what is bound is bound for a claim, and documents name the nodes that it has."""
        records = list(Checkpoint.decode(self.disk.checkpoint))
        assert {r.state for r in records} <= {ClaimState.COMPLETED}
        wanted = dict(self.calm)
        for record in records:
            for device, made in zip(
                record.devices, json.loads(self.disk.specs[record.uid])["devices"], strict=True
            ):
                assert device.binding is not None
                for function in device.binding.functions:
                    if function.driver_before != VFIO:
                        wanted[function.address] = (VFIO, VFIO)
                nodes = [n["path"] for n in made["containerEdits"]["deviceNodes"]]
                assert nodes == self.nodes(device.binding.address, device.binding.iommu)
        assert self.state() == wanted

    def nodes(self, address: str, policy: str) -> list[str]:
        folder = self.pci.sysfs / "bus/pci/devices" / address
        if policy == "LegacyOnly":
            return ["/dev/vfio/vfio", f"/dev/vfio/{(folder / 'iommu_group').readlink().name}"]
        (entry,) = (folder / "vfio-dev").iterdir()
        return ["/dev/iommu", f"/dev/vfio/devices/{entry.name}"]


def play(policy: str, **trouble: Any) -> tuple[Scenario, list[object]]:
    with tempfile.TemporaryDirectory() as root:
        world = Scenario(Path(root), MortalDisk(**trouble), policy)
        try:
            with structlog.testing.capture_logs():  # printing each crash would take most of the time
                answers = asyncio.run(world.play(LIFE))
            assert world.state() == world.calm
            assert (world.disk.claims(), world.disk.specs) == ({}, {})
            return world, answers
        finally:
            world.executor.shutdown()


@pytest.mark.parametrize("policy", ["LegacyOnly", "PreferIommuFD", "IommuFDOnly"])
def test_a_life(policy: str) -> None:
    _, answers = play(policy)
    assert answers[:3] == [["gpu-0"], ["gpu-1", "gpu-2"], ["gpu-0"]]
    assert "gpu-0 is held by another claim" in str(answers[4])
    assert answers[6] == ["gpu-0"]


@pytest.mark.parametrize(
    ("policy", "error", "each"),
    [
        ("PreferIommuFD", False, 7),
        ("LegacyOnly", True, 5),
        *(
            pytest.param(policy, error, 1, marks=pytest.mark.long)
            for policy in ("PreferIommuFD", "LegacyOnly")
            for error in (False, True)
        ),
    ],
)
def test_every_write_of_a_life(policy: str, error: bool, each: int) -> None:
    calm, expected = play(policy)
    for trouble_at in range(0, calm.disk.effects, each):
        # A crash before a write is one after the write before it.
        world, answers = play(policy, trouble_at=trouble_at, after=not error, error=error)
        assert world.disk.trouble_at is None
        if not error:
            assert answers == expected
