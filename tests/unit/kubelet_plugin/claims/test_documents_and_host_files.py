"""CDI documents name only what is on the host: device nodes, libraries, hook programs."""

from __future__ import annotations

import asyncio
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import hardware_support as hw
import msgspec
import pytest
from fake_client import FakeClient
from kubelet_calls import prepare, unprepare
from node_agent import DRIVER, add_claim, claim, eventually, running

from dra_driver import cdi
from dra_driver.api.meta import PoolName, Uid
from dra_driver.api.own.inventory import InventoryDevice
from dra_driver.cdi import ContainerEdits, DeviceNode, Hook, read_only_mount
from dra_driver.discovery import open_backend
from dra_driver.errors import PrepareError
from dra_driver.hardware import DiscoveredDevice
from dra_driver.preparation import ClaimState, PreparedClaim, PreparedDevice
from kubelet_plugin.claims.host_files import HostFiles
from kubelet_plugin.claims.planning import Timing

UID = Uid("00000000-0000-4000-8000-000000000000")
NAME = f"k8s.{DRIVER}/claim=claim-{UID}_gpu_gpu-0"


def record(edits: cdi.ContainerEdits, own: cdi.ContainerEdits | None = None, **more: Any) -> PreparedClaim:
    """Of a claim whose one device has these edits, some of them for the claim's sake."""
    own = own or cdi.ContainerEdits(env=("DRA_C__GPU__0_DEVICE=gpu-0",))
    device = PreparedDevice(
        requests=("gpu",), pool=PoolName("n"), device="gpu-0", cdi_device_ids=(NAME,), own=own, **more
    )
    named = cdi.Device(name=NAME.partition("=")[2], container_edits=cdi.merge(edits, own))
    spec = cdi.Spec(cdi_version="0.3.0", kind=f"k8s.{DRIVER}/claim", devices=(named,))
    return PreparedClaim(
        uid=UID, namespace="ns", name="c", state=ClaimState.COMPLETED, devices=(device,), spec=spec
    )


class Host:
    """A host below ``root``, of which the agent sees ``/dev`` and what is mounted."""

    def __init__(self, root: Path, *mounted: str) -> None:
        self.root = root / "host"
        self.dev = root / "dev"
        self.dev.mkdir()
        (root / "mountinfo").write_text(
            "21 1 0:2 / / rw - overlay overlay rw\n"
            + "".join(f"{i} 21 8:1 /{m} {self.root}/{m} ro - ext4 x ro\n" for i, m in enumerate(mounted, 30))
        )
        self.mounts = root / "mountinfo"

    def file(self, path: str) -> Path:
        file = self.root / path.strip("/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
        return file

    def document(self, of: PreparedClaim, host_root: Path | None = None) -> cdi.ContainerEdits:
        with ThreadPoolExecutor(1) as executor:
            files = HostFiles(
                dev_root=self.dev, host_root=host_root or self.root, mounts=self.mounts, executor=executor
            )
            return asyncio.run(files.document(of)).devices[0].container_edits


def nodes(*paths: str) -> cdi.ContainerEdits:
    return cdi.ContainerEdits(device_nodes=tuple(cdi.DeviceNode(path=p) for p in paths))


def mounts(*paths: str) -> cdi.ContainerEdits:
    return cdi.ContainerEdits(mounts=tuple(cdi.Mount(host_path=p, container_path=p) for p in paths))


# --- nodes --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path",
    ["/dev/nvidia0", "/dev/dri/card0", "/dev/dri/renderD128", "/dev/infiniband/uverbs0", "/dev/vfio/12"],
)
def test_a_devices_own_node_that_is_not_there_is_named(tmp_path: Path, path: str) -> None:
    host = Host(tmp_path)
    with pytest.raises(PrepareError, match=f"device gpu-0: its device node {path} is not there") as refused:
        host.document(record(nodes(path)))
    assert refused.value.retryable
    (host.dev / path.removeprefix("/dev/")).parent.mkdir(exist_ok=True)
    (host.dev / path.removeprefix("/dev/")).touch()
    assert host.document(record(nodes(path))).device_nodes == nodes(path).device_nodes


def test_another_name_of_a_node_stands_for_the_node_itself(tmp_path: Path) -> None:
    host = Host(tmp_path)
    other = cdi.DeviceNode(path="/dev/dri/by-path/pci-0000:05:00.0-card", host_path="/dev/dri/card0")
    with pytest.raises(PrepareError, match="/dev/dri/card0 is not there"):
        host.document(record(cdi.ContainerEdits(device_nodes=(other,))))


def test_nodes_of_a_driver_are_left_out_while_they_are_not_there(tmp_path: Path) -> None:
    host = Host(tmp_path)
    (host.dev / "nvidia0").touch()
    (host.dev / "nvidiactl").touch()
    given = host.document(record(nodes("/dev/nvidia0", "/dev/nvidiactl", "/dev/nvidia-uvm")))
    assert [n.path for n in given.device_nodes] == ["/dev/nvidia0", "/dev/nvidiactl"]


def test_an_only_node_is_the_devices_own_whatever_its_name(tmp_path: Path) -> None:
    with pytest.raises(PrepareError, match="/dev/npu is not there"):
        Host(tmp_path).document(record(nodes("/dev/npu")))


def test_a_node_that_is_given_by_its_numbers_need_not_be_there(tmp_path: Path) -> None:
    node = cdi.DeviceNode(path="/dev/nvidia-caps/nvidia-cap7", type="c", major=236, minor=7)
    edits = cdi.ContainerEdits(device_nodes=(node,))
    assert Host(tmp_path).document(record(edits)).device_nodes == (node,)


def test_simulated_devices_have_nothing_on_the_host(tmp_path: Path) -> None:
    host = Host(tmp_path, "usr")
    edits = cdi.merge(nodes("/dev/nvidia0", "/dev/nvidiactl"), mounts("/usr/lib/x.so"))
    assert host.document(record(edits, simulated=True)).device_nodes == edits.device_nodes


# --- files --------------------------------------------------------------------------------------------------


def test_files_are_left_out_where_the_host_is_seen_and_has_none(tmp_path: Path) -> None:
    host = Host(tmp_path, "usr", "run/nvidia/driver")
    host.file("/usr/lib64/libcuda.so.1")
    (host.root / "etc").mkdir()  # only a way to something else
    (host.root / "run/nvidia/driver").mkdir(parents=True)  # nothing is mounted there on the host now
    edits = mounts(
        "/usr/lib64/libcuda.so.1",
        "/usr/lib64/gone.so.1",
        "/run/nvidia/driver/usr/lib/gone.so",
        "/etc/vulkan/nvidia.json",
        "/run/nvidia-persistenced/socket",
        "/lib64/unseen.so",
    )
    hooks = (
        cdi.Hook(hook_name="createContainer", path="/usr/bin/gone-hook"),
        cdi.Hook(hook_name="createContainer", path="/usr/lib64/libcuda.so.1"),
    )
    given = host.document(record(msgspec.structs.replace(edits, hooks=hooks)))
    assert [m.host_path for m in given.mounts] == [
        "/usr/lib64/libcuda.so.1",
        "/etc/vulkan/nvidia.json",
        "/run/nvidia-persistenced/socket",
        "/lib64/unseen.so",
    ]
    assert given.hooks == hooks[1:]
    # Nobody has told where the host is.
    assert host.document(record(edits), Path("/")).mounts == edits.mounts


def test_links_lead_to_where_they_lead_on_the_host(tmp_path: Path) -> None:
    host = Host(tmp_path, "usr")
    host.file("/usr/lib/nvidia/libcuda.so.1")
    folder = host.root / "usr/lib64"
    folder.mkdir()
    (folder / "libcuda.so").symlink_to("/usr/lib/nvidia/libcuda.so.1")
    (folder / "up.so").symlink_to("../lib/nvidia/../nvidia/libcuda.so.1")
    (folder / "dangling.so").symlink_to("/usr/lib/nvidia/libcuda.so.2")
    (folder / "round.so").symlink_to("round.so")
    (folder / "out.so").symlink_to("../../../../../../../../usr/lib/nvidia/libcuda.so.1")
    names = ("libcuda", "up", "dangling", "round", "out")
    given = host.document(record(mounts(*(f"/usr/lib64/{n}.so" for n in names))))
    assert [m.host_path for m in given.mounts] == [f"/usr/lib64/{n}.so" for n in ("libcuda", "up", "out")]


def test_what_this_driver_makes_itself_is_not_looked_for(tmp_path: Path) -> None:
    host = Host(tmp_path, "var")
    (host.root / "var/lib").mkdir(parents=True)
    own = cdi.merge(mounts("/var/lib/kubelet/plugins/x/metadata.json"), cdi.ContainerEdits(env=("A=b",)))
    assert host.document(record(cdi.ContainerEdits(), own)).mounts == own.mounts


# --- the whole agent ----------------------------------------------------------------------------------------


class Gpus:
    """A backend of one GPU with files, as a test sets them."""

    name = "test"

    def __init__(self, *libraries: str) -> None:
        self.libraries = libraries

    def discover(self) -> list[DiscoveredDevice]:
        material = ContainerEdits(
            device_nodes=(DeviceNode("/dev/gpu0"), DeviceNode("/dev/gpuctl")),
            mounts=tuple(read_only_mount(path, path) for path in self.libraries),
            hooks=(Hook("createContainer", "/usr/bin/hook"),),
        )
        return [DiscoveredDevice(InventoryDevice(name="gpu-0"), "GPU-0", material)]

    def close(self) -> None:
        pass


def test_a_node_that_comes_back_is_waited_for_and_one_that_goes_takes_the_document_with_it(
    tmp_path: Path,
) -> None:
    host = Host(tmp_path, "usr")
    proc = tmp_path / "proc/self"
    proc.mkdir(parents=True)
    shutil.copy(host.mounts, proc / "mountinfo")
    library = host.file("/usr/lib/a.so")
    host.file("/usr/bin/hook")
    settings = {"dev_root": host.dev, "host_root": host.root, "procfs_root": tmp_path / "proc"}
    # Two looks are at most two seconds apart.
    patient = Timing(budget=5.0, patience=3.0)

    async def main() -> None:
        kube = FakeClient()
        body = add_claim(kube, claim("one", "gpu-0"))
        uid = body["metadata"]["uid"]
        async with running(
            tmp_path, kube, backend=Gpus("/usr/lib/a.so"), settings=settings, timing=patient
        ) as node:
            preparer = node.plugin._preparer
            answer = (await prepare(node, body))[uid]
            assert (
                answer.error
                == "device gpu-0: its device node /dev/gpu0 is not there; is its driver being reloaded?"
            )
            assert node.specs() == []
            async with asyncio.TaskGroup() as tasks:
                waiting = tasks.create_task(prepare(node, body))
                await asyncio.sleep(0.1)
                (host.dev / "gpu0").touch()
            assert waiting.result()[uid].error == ""
            text = (node.config.cdi_dir / node.specs()[0]).read_text()
            assert "/usr/lib/a.so" in text
            assert "/dev/gpuctl" not in text
            # A file that vanishes, and a node that comes, without a word from discovery.
            library.unlink()
            (host.dev / "gpuctl").touch()
            await preparer.tidy()
            text = (node.config.cdi_dir / node.specs()[0]).read_text()
            assert "/usr/lib/a.so" not in text
            assert "/dev/gpuctl" in text
            (host.dev / "gpu0").unlink()
            await preparer.tidy()
            assert node.specs() == []
            assert "CdiFileWithdrawn" in {kind for kind, n in node.plugin.notices.counts.items() if n}
            (host.dev / "gpu0").touch()
            await preparer.renew()
            assert len(node.specs()) == 1
            (host.dev / "gpu0").unlink()
            kube.down = True
            assert (await unprepare(node, body))[uid].error == ""
            assert node.specs() == []

    asyncio.run(main())


AMD = """processors: [8]
devices:
{}
"""
GPU = """- kind: amdgpu
  at: ["{}"]
  deviceID: "74a1"
  memory: 1Gi
  computeUnits: 304
  gfxTarget: 90402"""
INTEL = """- kind: intel
  at: ["{}"]
  deviceID: "56c0"
  memory: 1Gi"""
NIC = """- kind: rdma
  at: ["{}"]
  deviceID: "1021"
  rate: 400 Gb/sec (4X NDR)"""
ONE, TWO = "0000:05:00.0 pci0000:00 0", "0000:26:00.0 pci0000:20 0"


def _given(node: Any, body: dict[str, Any]) -> set[str]:
    file = node.config.cdi_dir / f"k8s.{DRIVER}-claim_{body['metadata']['uid']}.json"
    spec = cdi.decode(file.read_bytes())
    edits = (spec.container_edits, *(d.container_edits for d in spec.devices))
    return {n.host_path or n.path for e in edits for n in e.device_nodes}


@pytest.mark.parametrize("reboot", [True, False])
@pytest.mark.parametrize(
    ("kind", "backend", "prefix", "node"),
    [
        (GPU, "amdgpu", "gpu", "/dev/dri/card{}"),
        (INTEL, "intel", "gpu", "/dev/dri/renderD{}"),
        (NIC, "rdma", "nic", "/dev/infiniband/uverbs{}"),
    ],
    ids=["amd", "intel", "rdma"],
)
def test_machines_that_number_their_devices_otherwise(
    tmp_path: Path, kind: str, backend: str, prefix: str, node: str, *, reboot: bool
) -> None:
    """Two devices in a tree of sysfs and ``/dev``, which come the other way round at the next look."""

    def machine(boot_id: str, *places: str) -> Path:
        shutil.rmtree(tmp_path / "machine", ignore_errors=True)
        root = hw.machine(tmp_path, AMD.format("\n".join(kind.format(p) for p in places)))
        boot = root / "proc/sys/kernel/random/boot_id"
        boot.parent.mkdir(parents=True, exist_ok=True)
        boot.write_text(f"{boot_id}\n")
        return root

    root = machine("one", ONE, TWO)
    roots = {"sysfs_root": root / "sys", "dev_root": root / "dev", "procfs_root": root / "proc"}
    first, second = (128, 129) if "render" in node else (0, 1)

    async def main() -> None:
        kube = FakeClient()
        bodies = [
            add_claim(
                kube, claim(f"c{i}", f"{prefix}-{place.split()[0].replace(':', '-').replace('.', '-')}")
            )
            for i, place in enumerate((ONE, TWO))
        ]
        opened = open_backend(backend, **roots, node_name="node-a")
        async with running(tmp_path, kube, backend=opened, settings=roots) as agent:
            for body in bodies:
                assert (await prepare(agent, body))[body["metadata"]["uid"]].error == ""
            assert node.format(first) in _given(agent, bodies[0])
            assert node.format(second) in _given(agent, bodies[1])
            if not reboot:
                machine("one", TWO, ONE)
                await agent.plugin._table.scan()
                await eventually(lambda: node.format(second) in _given(agent, bodies[0]))
        machine("two" if reboot else "one", TWO, ONE)
        opened = open_backend(backend, **roots, node_name="node-a")
        async with running(tmp_path, kube, backend=opened, settings=roots) as agent:
            if reboot:
                assert agent.specs() == []
                for body in bodies:
                    assert (await prepare(agent, body))[body["metadata"]["uid"]].error == ""
            given = [_given(agent, body) for body in bodies]
            assert node.format(second) in given[0] - given[1]
            assert node.format(first) in given[1] - given[0]

    asyncio.run(main())
