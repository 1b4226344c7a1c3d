"""Sharing through the plugin: partitions, time slices, MPS, shares; and what containers are told."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from fake_client import FakeClient
from kubelet_calls import prepare, unprepare
from node_agent import DRIVER, IMPATIENT, Backend, add_claim, claim, eventually, running
from nvidia_tools import Tools

from dra_driver.api.resource import DeviceAttribute
from dra_driver.discovery.core.control import ToolPaths
from dra_driver.discovery.nvidia.mig_mode import mig_mode
from dra_driver.discovery.nvidia.smi import set_time_slice
from dra_driver.discovery.simulated.backend import SimulatedBackend
from dra_driver.discovery.simulated.control import SimulatedControl
from dra_driver.errors import PrepareError
from dra_driver.hardware import DiscoveredDevice
from kubelet_plugin.claims.leftovers import Leftovers

GPU, OTHER, THIRD = "gpu-0000-07-00-0", "gpu-0000-0f-00-0", "gpu-0000-47-00-0"
SHARE = "10000000-0000-4000-8000-000000000000"


class Control(SimulatedControl):
    """Simulated GPUs with NVIDIA's tools."""

    runs_daemons = True
    smi = ""

    def set_time_slice(self, gpu: str, interval: str) -> None:
        set_time_slice(self.smi, gpu, interval)


class Machine(Backend):
    """A DGX whose GPUs can be changed."""

    def __init__(self) -> None:
        super().__init__(SimulatedBackend("dgx-a100-40", seed="n").discover())
        self.made: Control

    def control(self, places: ToolPaths) -> Control:
        assert places.state_dir is not None
        self.made = Control(self._by_uuid, places.state_dir / "gpus.json")
        self.made.smi = places.nvidia_smi
        return self.made

    def _by_uuid(self) -> dict[str, DiscoveredDevice]:
        return {d.uuid: d for d in self.devices}

    def uuid(self, name: str) -> str:
        return next(d.uuid for d in self.devices if d.device.name == name)


def config(
    kind: str, source: str = "FromClaim", requests: Sequence[str] = (), **fields: Any
) -> dict[str, Any]:
    parameters = {"apiVersion": "dra-driver.dev/v1alpha1", "kind": kind, **fields}
    entry: dict[str, Any] = {"source": source, "opaque": {"driver": DRIVER, "parameters": parameters}}
    return {**entry, "requests": list(requests)} if requests else entry


def with_config(body: dict[str, Any], *configs: dict[str, Any]) -> dict[str, Any]:
    body["status"]["allocation"]["devices"]["config"] = list(configs)
    return body


def container(node: Any, body: dict[str, Any]) -> dict[str, Any]:
    """The CDI document of a claim: all variables, nodes and mounts of its devices."""
    file = node.config.cdi_dir / f"k8s.{DRIVER}-claim_{body['metadata']['uid']}.json"
    spec = json.loads(file.read_bytes())
    edits = [spec.get("containerEdits", {}), *(d["containerEdits"] for d in spec["devices"])]
    return {
        "env": dict(v.split("=", 1) for e in edits for v in e.get("env", ())),
        "nodes": [n["path"] for e in edits for n in e.get("deviceNodes", ())],
        "mounts": {m["containerPath"]: m["hostPath"] for e in edits for m in e.get("mounts", ())},
    }


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """Never in memory: an MPS daemon gets a /dev/shm of its own, in which its program would not be."""
    with tempfile.TemporaryDirectory(prefix="dra", dir="/tmp") as folder:
        yield Path(folder)


@pytest.fixture
def state() -> Iterator[Path]:
    """A state directory whose path leaves room for the names of sockets, as the kubelet's does."""
    with tempfile.TemporaryDirectory(prefix="dra", dir="/tmp") as folder:
        yield Path(folder)


def settings(tools: Tools, state: Path) -> dict[str, Any]:
    return {
        "state_dir": state,
        "nvidia_smi": str(tools.nvidia_smi),
        "mps_control": str(tools.mps_control),
        "mps_launcher": "session",
    }


def test_a_partition_lives_as_long_as_its_claim(tmp_path: Path) -> None:
    async def main() -> None:
        kube, machine = FakeClient(), Machine()
        one = add_claim(kube, claim("one", f"{GPU}-mig-3g-20gb-4"))
        whole = add_claim(kube, claim("whole", GPU))
        uid = one["metadata"]["uid"]
        async with running(tmp_path, kube, backend=machine, timing=IMPATIENT) as node:
            first = (await prepare(node, one))[uid]
            assert not first.error
            assert (await prepare(node, one))[uid] == first
            (instance,) = machine.made.instances(machine.uuid(GPU))
            got = container(node, one)
            assert got["env"]["DRA_ONE__GPU__0_UUID"] == instance.uuid
            assert got["env"]["DRA_ONE__GPU__0_PARENT"] == machine.uuid(GPU)
            assert got["env"]["DRA_ONE__GPU__0_PROFILE"] == "3g.20gb"
            assert got["env"]["DRA_ONE__GPU__0_MEMORY"] == "19968Mi"
            error = (await prepare(node, whole))[whole["metadata"]["uid"]].error
            assert f"device {GPU} is held by another claim" in error
        async with running(tmp_path, kube, backend=machine) as node:
            assert (await prepare(node, one))[uid] == first
            assert not (await unprepare(node, one))[uid].error
            assert not machine.made.instances(machine.uuid(GPU))
            assert not machine.made.partitioning(machine.uuid(GPU))
            assert not (await prepare(node, whole))[whole["metadata"]["uid"]].error

    asyncio.run(main())


def test_a_whole_gpu_leaves_mig_mode(tmp_path: Path) -> None:
    async def main() -> None:
        kube, machine = FakeClient(), Machine()
        mode = mig_mode(needs_reset=False)
        machine.devices = tuple(
            dataclasses.replace(
                d, device=msgspec.structs.replace(d.device, health=(mode.condition,)), partitioning=mode
            )
            for d in machine.devices
        )
        whole = add_claim(kube, claim("whole", GPU))
        cut = add_claim(kube, claim("cut", OTHER))
        uid = whole["metadata"]["uid"]
        async with running(tmp_path, kube, backend=machine) as node:
            control = machine.made
            for name in (GPU, OTHER):
                control.set_partitioning(machine.uuid(name), True)
            made = control.create_instance(machine.uuid(OTHER), 9, 0, 4)
            assert not (await prepare(node, whole))[uid].error
            assert not control.partitioning(machine.uuid(GPU))
            error = (await prepare(node, cut))[cut["metadata"]["uid"]].error
            assert f"device {OTHER}: it cannot be used as a whole: partition {made.uuid} (number 0" in error
            assert f"nvidia-smi mig -i {machine.uuid(OTHER)} -gi 0 -dgi" in error
            assert not (await unprepare(node, whole))[uid].error
            assert control.partitioning(machine.uuid(GPU))

    asyncio.run(main())


def test_class_before_claim_and_by_request(tmp_path: Path, state: Path) -> None:
    tools = Tools(tmp_path / "bin")

    async def main() -> None:
        kube, machine = FakeClient(), Machine()
        slicing = {"strategy": "TimeSlicing", "timeSlicing": {"interval": "Long"}}
        short = {"strategy": "TimeSlicing", "timeSlicing": {"interval": "Short"}}
        body = with_config(
            claim("one", GPU),
            config("GpuConfig", sharing=short),
            config("MigConfig"),  # for all requests: there is no partition, so it is skipped
            config("GpuConfig", "FromClass", sharing=slicing),
        )
        add_claim(kube, body)
        named = with_config(
            claim("two", OTHER), config("MigConfig", requests=["gpu"]), config("GpuConfig", x=1)
        )
        add_claim(kube, named)
        async with running(tmp_path, kube, backend=machine, settings=settings(tools, state)) as node:
            assert not (await prepare(node, body))[body["metadata"]["uid"]].error
            assert tools.asked("nvidia-smi")[-1][-1] == "1"
            error = (await prepare(node, named))[named["metadata"]["uid"]].error
            assert "request gpu was given a whole GPU" in error
            assert "GpuConfig: x: unknown field" in error
            assert not (await unprepare(node, body))[body["metadata"]["uid"]].error
            assert [call[-1] for call in tools.asked("nvidia-smi")] == ["1", "0"]

    asyncio.run(main())


def test_a_time_slice_without_the_tool(tmp_path: Path) -> None:
    async def main() -> None:
        kube, machine = FakeClient(), Machine()
        slicing = {"strategy": "TimeSlicing"}
        body = add_claim(kube, with_config(claim("one", GPU), config("GpuConfig", sharing=slicing)))
        more = {"nvidia_smi": str(tmp_path / "none")}
        async with running(tmp_path, kube, backend=machine, settings=more) as node:
            error = (await prepare(node, body))[body["metadata"]["uid"]].error
            assert "--nvidia-smi says where it is" in error
            assert node.specs() == []
            # Undoing would need the tool as well; nothing stays of the claim all the same.
            other = add_claim(kube, claim("two", GPU))
            assert not (await prepare(node, other))[other["metadata"]["uid"]].error

    asyncio.run(main())


def test_shares_under_mps(tmp_path: Path, state: Path) -> None:
    tools = Tools(tmp_path / "bin")

    async def main() -> None:
        kube, machine = FakeClient(), Machine()
        bodies = [
            add_claim(
                kube,
                with_config(
                    claim(f"c{i}", GPU, shareID=f"{SHARE[:-1]}{i}", consumedCapacity={"memory": "8Gi"}),
                    config("ShareConfig", mps={"activeThreadPercentage": 20 + i}),
                ),
            )
            for i in range(2)
        ]
        open_ = with_config(
            claim("open", GPU, shareID=SHARE[:-1] + "9"), config("ShareConfig", enforcement="None")
        )
        add_claim(kube, open_)
        uids = [b["metadata"]["uid"] for b in bodies]
        places = settings(tools, state)
        async with running(tmp_path, kube, backend=machine, settings=places, timing=IMPATIENT) as node:
            answers = await prepare(node, *bodies)
            assert [answers[uid].error for uid in uids] == ["", ""]
            assert machine.made.compute_mode(machine.uuid(GPU)) == "exclusive-process"
            got = container(node, bodies[0])
            assert got["env"]["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] == "0=8192M"
            assert got["env"]["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == "20"
            assert got["env"]["DRA_C0__GPU__0_ENFORCED"] == "mps"
            assert got["env"]["DRA_C0__GPU__0_MEMORY"] == "8Gi"
            pipes = got["env"]["CUDA_MPS_PIPE_DIRECTORY"]
            assert got["mounts"][pipes] == str(node.config.state / "mps" / GPU / "pipe")
            assert got["mounts"]["/dev/shm"] == str(node.config.state / "mps" / GPU / "shm")
            error = (await prepare(node, open_))[open_["metadata"]["uid"]].error
            assert f"device {GPU} is held under MPS by another claim" in error
            assert not (await unprepare(node, bodies[0]))[uids[0]].error
        # The daemon outlives the plugin, and the next one finds it.
        async with running(tmp_path, kube, backend=machine, settings=settings(tools, state)) as node:
            assert not (await prepare(node, bodies[1]))[uids[1]].error
            assert [c for c in tools.asked("mps") if c[-1] == "-d"] == [[machine.uuid(GPU), "-d"]]
            assert not (await unprepare(node, bodies[1]))[uids[1]].error
            assert tools.asked("mps")[-1][1] == "ended"
            assert machine.made.compute_mode(machine.uuid(GPU)) == "default"
            assert not (await prepare(node, open_))[open_["metadata"]["uid"]].error
            assert container(node, open_)["env"]["DRA_OPEN__GPU__0_ENFORCED"] == "none"

    asyncio.run(main())


def test_shares_without_mps_say_so(tmp_path: Path) -> None:
    async def main() -> None:
        kube, machine = FakeClient(), Machine()
        body = add_claim(kube, claim("one", GPU, shareID=SHARE, consumedCapacity={"memory": "8Gi"}))
        more = {"mps_control": str(tmp_path / "none")}
        async with running(tmp_path, kube, backend=machine, settings=more) as node:
            assert not (await prepare(node, body))[body["metadata"]["uid"]].error
            assert container(node, body)["env"]["DRA_ONE__GPU__0_ENFORCED"] == "none"

    asyncio.run(main())


def test_mps_on_two_devices_of_a_claim_is_refused(tmp_path: Path, state: Path) -> None:
    tools = Tools(tmp_path / "bin")

    async def main() -> None:
        kube, machine = FakeClient(), Machine()
        body = with_config(claim("one", GPU, OTHER), config("GpuConfig", sharing={"strategy": "MPS"}))
        add_claim(kube, body)
        async with running(tmp_path, kube, backend=machine, settings=settings(tools, state)) as node:
            error = (await prepare(node, body))[body["metadata"]["uid"]].error
            assert "MPS on 2 devices of one claim" in error

    asyncio.run(main())


def test_mps_on_a_partition(tmp_path: Path, state: Path) -> None:
    tools = Tools(tmp_path / "bin")

    async def main() -> None:
        kube, machine = FakeClient(), Machine()
        device = f"{GPU}-mig-3g-20gb-4"
        mps = {"strategy": "MPS", "mps": {"activeThreadPercentage": 50}}
        body = add_claim(kube, with_config(claim("one", device), config("MigConfig", sharing=mps)))
        beside = add_claim(kube, claim("two", f"{GPU}-mig-3g-20gb-0"))
        uid = body["metadata"]["uid"]
        async with running(tmp_path, kube, backend=machine, settings=settings(tools, state)) as node:
            assert not (await prepare(node, body))[uid].error
            assert not (await prepare(node, beside))[beside["metadata"]["uid"]].error
            got = container(node, body)
            assert tools.asked("mps") == [[got["env"]["DRA_ONE__GPU__0_UUID"], "-d"]]
            assert got["mounts"]["/dev/shm"] == str(node.config.state / "mps" / device / "shm")
            assert got["env"]["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == "50"
            assert "CUDA_MPS_PIPE_DIRECTORY" not in container(node, beside)["env"]
            assert not (await unprepare(node, body))[uid].error
            assert tools.asked("mps")[-1][1] == "ended"
            assert len(machine.made.instances(machine.uuid(GPU))) == 1

    asyncio.run(main())


def test_other_vendors_devices_are_left_alone(tmp_path: Path, state: Path) -> None:
    tools = Tools(tmp_path / "bin")

    async def main() -> None:
        kube, machine = FakeClient(), Machine()
        attributes = {"vendor": DeviceAttribute(string_value="amd")}
        machine.devices = tuple(
            dataclasses.replace(d, device=msgspec.structs.replace(d.device, attributes=attributes))
            for d in machine.devices
        )
        slicing = config("GpuConfig", sharing={"strategy": "TimeSlicing"})
        body = add_claim(kube, with_config(claim("one", GPU), slicing))
        share = add_claim(kube, claim("two", OTHER, shareID=SHARE))
        async with running(tmp_path, kube, backend=machine, settings=settings(tools, state)) as node:
            error = (await prepare(node, body))[body["metadata"]["uid"]].error
            assert "time slicing needs an NVIDIA GPU that NVML controls" in error
            assert not (await prepare(node, share))[share["metadata"]["uid"]].error
            assert container(node, share)["env"]["DRA_TWO__GPU__0_ENFORCED"] == "none"
            assert not any(d.partition for d in node.plugin._table.for_prepare.values())

    asyncio.run(main())


def test_leftovers_are_found_twice_before_they_count(tmp_path: Path, state: Path) -> None:
    tools = Tools(tmp_path / "bin")

    async def main() -> None:
        kube, machine = FakeClient(), Machine()
        body = add_claim(kube, claim("one", f"{OTHER}-mig-3g-20gb-0"))
        async with running(tmp_path, kube, backend=machine, settings=settings(tools, state)) as node:
            assert not (await prepare(node, body))[body["metadata"]["uid"]].error
            control, setup = machine.made, node.plugin._setup
            control.set_partitioning(machine.uuid(GPU), True)
            control.create_instance(machine.uuid(GPU), 9, 0, 4)
            setup.daemons.start(THIRD, machine.uuid(THIRD))
            leftovers = Leftovers(
                preparer=node.plugin._preparer, hardware=setup.hardware, table=node.plugin._table
            )
            await leftovers.look()
            assert leftovers.unmanaged == 0
            assert setup.daemons.present() == [THIRD]
            await leftovers.look()
            assert leftovers.unmanaged == 1
            assert setup.daemons.present() == []
            assert len(control.instances(machine.uuid(GPU))) == 1
            assert len(control.instances(machine.uuid(OTHER))) == 1

    asyncio.run(main())


@pytest.mark.long
def test_what_tenants_wrote_is_removed_beside_the_calls(tmp_path: Path, state: Path) -> None:
    tools = Tools(tmp_path / "bin")

    async def main() -> None:
        kube, machine = FakeClient(), Machine()
        body = add_claim(kube, claim("one", GPU, shareID=SHARE))
        folder = state / "mps" / GPU
        async with running(tmp_path, kube, backend=machine, settings=settings(tools, state)) as node:
            assert not (await prepare(node, body))[body["metadata"]["uid"]].error
            # On plain directories, as versions before had them.
            (folder / "left").mkdir()
            for i in range(3000):
                (folder / "left" / str(i)).touch()
            # A GPU that does not answer any more keeps nothing from being removed.
            machine.made.instances = broken  # type: ignore[assignment, method-assign]
            assert not (await unprepare(node, body))[body["metadata"]["uid"]].error
            assert not folder.exists()
            # At once, not at the next look at the hardware.
            await eventually(lambda: not any((state / "mps").iterdir()), 30)

    asyncio.run(main())


def broken(_: str) -> Any:
    raise PrepareError("the GPU is lost")


def test_leftovers_of_before_the_start_are_found_soon_after_it(tmp_path: Path, state: Path) -> None:
    tools = Tools(tmp_path / "bin")

    async def main() -> None:
        kube, machine = FakeClient(), Machine()
        async with running(tmp_path, kube, backend=machine, settings=settings(tools, state)) as node:
            setup = node.plugin._setup
            setup.daemons.start(THIRD, machine.uuid(THIRD))
            leftovers = Leftovers(
                preparer=node.plugin._preparer, hardware=setup.hardware, table=node.plugin._table
            )
            looking = asyncio.create_task(leftovers.run(first=0, every=3600, confirm=0.05))
            await eventually(lambda: setup.daemons.present() == [], 30)
            looking.cancel()

    asyncio.run(main())
