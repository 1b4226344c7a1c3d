"""What is taken from the toolkit's CDI document: never a capability node, never what another GPU has."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from dra_driver.api.names import PCI_BUS_ID
from dra_driver.api.own.inventory import InventoryDevice
from dra_driver.api.resource import DeviceAttribute
from dra_driver.cdi import ContainerEdits, DeviceNode, character_device
from dra_driver.discovery.nvidia.injection.material import NvidiaMaterial
from dra_driver.hardware import DiscoveredDevice

HOOK = "/usr/bin/nvidia-cdi-hook"
ADDRESSES = ("0000:07:00.0", "0000:0f:00.0")
CAPABILITIES = [f"/dev/nvidia-caps/nvidia-cap{n}" for n in (12, 13, 21, 22)]


def device(index: int = 0, *, uuid: str = "", nodes: tuple[DeviceNode, ...] = ()) -> DiscoveredDevice:
    """A GPU, or a MIG device of it, as discovery reports it."""
    return DiscoveredDevice(
        device=InventoryDevice(
            name=f"gpu-{index}",
            attributes={PCI_BUS_ID: DeviceAttribute(string_value=ADDRESSES[index])},
        ),
        uuid=uuid or f"GPU-{index}",
        material=ContainerEdits(
            device_nodes=(DeviceNode(f"/dev/nvidia{index}"), *nodes),
            env=("NVIDIA_VISIBLE_DEVICES=void",),
        ),
    )


class Node:
    """The file system of a node with two GPUs: card1 and renderD128 are of the first one."""

    def __init__(self, root: Path) -> None:
        self.root = root
        for index, address in enumerate(ADDRESSES):
            for name in (f"card{index + 1}", f"renderD{128 + index}"):
                (root / "sys/bus/pci/devices" / address / "drm" / name).mkdir(parents=True)
        (root / HOOK.strip("/")).parent.mkdir(parents=True)
        (root / HOOK.strip("/")).touch()

    def document(self, devices: dict[str, dict[str, Any]], **common: Any) -> None:
        """Edits by the name of the CDI device, and those of the whole document."""
        (self.root / "etc/cdi").mkdir(parents=True, exist_ok=True)
        document = {
            "cdiVersion": "0.5.0",
            "kind": "nvidia.com/gpu",
            "devices": [{"name": n, "containerEdits": e} for n, e in devices.items()],
            "containerEdits": {
                "env": ["FROM=toolkit", *common.pop("env", [])],
                "deviceNodes": [*nodes("/dev/nvidiactl", "/dev/nvidia-uvm"), *common.pop("deviceNodes", [])],
                **common,
            },
        }
        (self.root / "etc/cdi/nvidia.json").write_text(json.dumps(document))

    def completed(self, found: DiscoveredDevice) -> DiscoveredDevice:
        """The device with all that a container needs."""
        material = NvidiaMaterial(
            host_root=self.root,
            sysfs_root=self.root / "sys",
            dev_root=self.root / "dev",
            proc_root=self.root / "proc",
        )
        return material.complete([found])[0]

    def material(self, found: DiscoveredDevice) -> ContainerEdits:
        """What containers get for the device."""
        return self.completed(found).material


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def nodes(*paths: str) -> list[dict[str, str]]:
    return [{"path": p} for p in paths]


def edits(*paths: str, **more: Any) -> dict[str, Any]:
    return {"deviceNodes": nodes(*paths), **more}


def links(*pairs: str) -> dict[str, Any]:
    """The hook that makes links in the container."""
    arguments = [a for p in pairs for a in ("--link", p)]
    return {
        "hookName": "createContainer",
        "path": HOOK,
        "args": ["nvidia-cdi-hook", "create-symlinks", *arguments],
    }


def paths(material: ContainerEdits) -> set[str]:
    return {n.path for n in material.device_nodes}


SHARED = {"/dev/nvidiactl", "/dev/nvidia-uvm"}


@pytest.mark.parametrize("names", [("0:0", "0:1"), ("mig0:0", "mig0:1"), ("MIG-a", "MIG-b")])
def test_mig_devices_below_the_node_of_a_gpu_are_not_the_gpus(node: Node, names: tuple[str, str]) -> None:
    node.document(
        {
            names[0]: edits("/dev/nvidia0", *CAPABILITIES[:2]),
            names[1]: edits("/dev/nvidia0", *CAPABILITIES[2:]),
            "all": edits("/dev/nvidia0", *CAPABILITIES),
        }
    )
    material = node.material(device(0))
    assert paths(material) == {"/dev/nvidia0", *SHARED}
    assert "FROM=toolkit" in material.env


@pytest.mark.parametrize("name", ["MIG-mine", "0:1", "mig0:1"])
def test_a_mig_device_has_the_capabilities_that_discovery_knows(node: Node, name: str) -> None:
    own = tuple(character_device(p, 237, int(p[-2:]), 0o444) for p in CAPABILITIES[2:])
    node.document(
        {
            "MIG-other": edits("/dev/nvidia0", *CAPABILITIES[:2]),
            # The document is older than the instance, or somebody's idea of it is wrong.
            name: edits("/dev/nvidia0", *CAPABILITIES),
        }
    )
    material = node.material(device(0, uuid="MIG-mine", nodes=own))
    assert paths(material) == {"/dev/nvidia0", *CAPABILITIES[2:], *SHARED}
    assert set(own) < set(material.device_nodes)


def test_nodes_that_were_moved_to_the_common_edits(node: Node) -> None:
    """What all devices of a document need may stand there once: with a single GPU its node, or more."""
    everything = [*CAPABILITIES, "/dev/nvidia0", "/dev/nvidia1", "/dev/dri/card1", "/dev/dri/card2"]
    everything += ["/dev/nvidia-caps-imex-channels/channel0", "/dev/dri/renderD129"]
    node.document({"0:0": {"env": ["A=1"]}, "0:1": {"env": ["A=2"]}}, deviceNodes=nodes(*everything))
    assert paths(node.material(device(0))) == {"/dev/nvidia0", "/dev/dri/card1", *SHARED}
    assert paths(node.material(device(1))) == {
        "/dev/nvidia1",
        "/dev/dri/card2",
        "/dev/dri/renderD129",
        *SHARED,
    }
    # The DRM nodes of the whole GPU are not a MIG device's.
    assert paths(node.material(device(0, uuid="MIG-a"))) == {"/dev/nvidia0", *SHARED}


def test_a_gpu_that_is_known_by_uuid_keeps_its_drm_nodes(node: Node) -> None:
    hook = links("../card1::/dev/dri/by-path/pci-0000:07:00.0-card")
    own = edits("/dev/nvidia0", "/dev/dri/card1", "/dev/dri/renderD128", hooks=[hook])
    node.document({"GPU-0": own})
    material = node.material(device(0))
    assert paths(material) == {"/dev/nvidia0", "/dev/dri/card1", "/dev/dri/renderD128", *SHARED}
    assert [list(h.args) for h in material.hooks] == [hook["args"]]


def test_a_mig_device_with_graphics_has_the_drm_nodes_that_its_entry_names(node: Node) -> None:
    node.document({"MIG-a": edits("/dev/nvidia0", "/dev/dri/renderD128", "/dev/dri/renderD129")})
    material = node.material(device(0, uuid="MIG-a"))
    assert paths(material) == {"/dev/nvidia0", "/dev/dri/renderD128", *SHARED}


def test_a_document_of_another_numbering_gives_no_other_gpus_nodes(node: Node) -> None:
    """Written before the GPUs changed places: the UUID is ours, and the nodes are not."""
    node.document({"GPU-0": edits("/dev/nvidia1", "/dev/dri/card2", "/dev/dri/renderD129")})
    assert paths(node.material(device(0))) == {"/dev/nvidia0", *SHARED}


@pytest.mark.parametrize(
    ("path", "host_path"),
    [
        ("/dev/nvidia1", ""),
        ("/dev//nvidia1", ""),
        ("dev/nvidia1", ""),
        ("/dev/dri/../nvidia1", ""),
        ("/dev/mine", "/dev/nvidia1"),
        ("/dev/nvidia0", "/dev/nvidia1"),
        ("/dev/nvidia0", "/run/nvidia/driver/dev/nvidia1"),
        ("/dev/nvidia-uvm", "/dev/nvidia-caps/nvidia-cap1"),
        ("/dev/x", "/run/nvidia/driver/dev/nvidia-caps/./nvidia-cap3"),
        ("/dev/dri/by-path/pci-0000:0f:00.0-render", "/dev/dri/renderD129"),
    ],
)
def test_other_names_for_a_foreign_node_do_not_help(node: Node, path: str, host_path: str) -> None:
    foreign = {"path": path, **({"hostPath": host_path} if host_path else {})}
    node.document({"GPU-0": {"deviceNodes": [foreign]}}, deviceNodes=[foreign])
    found = node.material(device(0)).device_nodes
    assert {(n.path, n.host_path) for n in found} == {(p, "") for p in ("/dev/nvidia0", *SHARED)}


def test_the_node_of_a_driver_in_a_root_of_its_own(node: Node) -> None:
    place = "/run/nvidia/driver/dev/nvidia0"
    node.document({"GPU-0": {"deviceNodes": [{"path": "/dev/nvidia0", "hostPath": place}]}})
    completed = node.completed(device(0))
    assert DeviceNode("/dev/nvidia0", place) in completed.material.device_nodes
    assert completed.own_nodes == ("/dev/nvidia0",)


def test_numbered_nodes_that_belong_to_no_gpu_are_the_drivers(node: Node) -> None:
    node.document(
        {"GPU-0": edits("/dev/nvidia0", "/dev/dri/renderD128")}, deviceNodes=nodes("/dev/nvidia-fs0")
    )
    completed = node.completed(device(0))
    assert paths(completed.material) == {"/dev/nvidia0", "/dev/dri/renderD128", "/dev/nvidia-fs0", *SHARED}
    assert completed.own_nodes == ("/dev/nvidia0", "/dev/dri/renderD128")


def test_links_to_other_gpus_are_left_out(node: Node) -> None:
    library = "libcuda.so.1::/usr/lib/libcuda.so"
    own = "../card1::/dev/dri/by-path/pci-0000:07:00.0-card"
    other = "../card2::/dev/dri/by-path/pci-0000:0f:00.0-card"
    joined = links()
    joined["args"] += [f"--link={other}", f"--link={own}"]
    node.document({"GPU-0": edits("/dev/nvidia0")}, hooks=[links(library, own, other), joined, links(other)])
    hooks = [h.args[2:] for h in node.material(device(0)).hooks]
    assert hooks == [("--link", library, "--link", own), (f"--link={own}",)]


def test_folders_of_devices_are_not_mounted(node: Node) -> None:
    mounts = [
        {"hostPath": p, "containerPath": p}
        for p in ("/dev", "/dev/dri", "/dev/nvidia-caps", "/run/nvidia/driver/dev/nvidia1", "/lib/libcuda.so")
    ]
    node.document({"GPU-0": edits("/dev/nvidia0", mounts=mounts)}, mounts=mounts)
    assert [m.host_path for m in node.material(device(0)).mounts] == ["/lib/libcuda.so"]


def test_variables_that_ask_the_runtime_for_devices_are_left_out(node: Node) -> None:
    asking = ["NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_MIG_CONFIG_DEVICES=all", "NVIDIA_IMEX_CHANNELS=0"]
    node.document({"GPU-0": edits("/dev/nvidia0", env=asking)}, env=asking)
    assert node.material(device(0)).env == ("FROM=toolkit", "NVIDIA_VISIBLE_DEVICES=void")


def test_a_gpu_whose_place_is_unknown_has_no_drm_nodes_of_the_document(node: Node) -> None:
    node.document({"GPU-0": edits("/dev/nvidia0", "/dev/dri/card1")})
    nowhere = dataclasses.replace(device(0), device=InventoryDevice(name="gpu-0"))
    assert paths(node.material(nowhere)) == {"/dev/nvidia0", *SHARED}
