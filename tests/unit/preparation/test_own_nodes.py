"""Device nodes of one device and of its driver: what depends on it, and records without that fact."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from node_agent import DRIVER, NODE, claim

from dra_driver import cdi
from dra_driver.api import codec
from dra_driver.api.meta import PoolName, Uid
from dra_driver.api.own.inventory import InventoryDevice
from dra_driver.api.resource import ResourceClaim
from dra_driver.errors import DeviceNodeAbsent, PrepareError
from dra_driver.preparation import (
    NodeDevice,
    PartitionRecord,
    PreparedClaim,
    complete,
    plan,
    renewed,
    without_absent,
)

UID = Uid("00000000-0000-4000-8000-000000000000")
PART = "npu-mig-half-0"


def edits(*nodes: str) -> cdi.ContainerEdits:
    return cdi.ContainerEdits(device_nodes=tuple(cdi.DeviceNode(path=n) for n in nodes))


def npu(*own: str, shared: tuple[str, ...] = ("/dev/npu/ctl0",), **more: Any) -> NodeDevice:
    """A device whose nodes have names that say nothing."""
    return NodeDevice("npu", "U", "U", edits=edits(*own, *shared), own_nodes=own, **more)


def part_of(gpu: NodeDevice) -> NodeDevice:
    where = PartitionRecord(gpu=gpu.name, profile="half", profile_id=1, start=0, size=2)
    shared = gpu.shared
    return NodeDevice(PART, "U", "U", edits=shared.edits, own_nodes=shared.own_nodes, partition=where)


def planned(*devices: NodeDevice, name: str = "npu") -> PreparedClaim:
    body = codec.convert(ResourceClaim, claim("c", name, uid=UID))
    return plan(body, UID, driver=DRIVER, pool=PoolName(NODE), devices={d.name: d for d in devices})


def nodes(record: PreparedClaim) -> list[str]:
    assert record.spec is not None
    return [n.path for n in record.spec.devices[0].container_edits.device_nodes]


def before_own_nodes(record: PreparedClaim) -> PreparedClaim:
    """The record as versions that did not keep its own nodes wrote it."""
    raw = msgspec.json.decode(codec.encode(record))
    for device in raw["devices"]:
        device.pop("ownNodes", None)
    return codec.convert(PreparedClaim, raw)


@pytest.mark.parametrize(
    ("node", "known", "own"),
    [
        (cdi.DeviceNode("/dev/npu/a"), ("/dev/npu/a",), True),
        (cdi.DeviceNode("/dev/npu/ctl0"), ("/dev/npu/a",), False),
        # Of a backend that does not say which ones are its device's.
        (cdi.DeviceNode("/dev/npu0"), None, True),
        (cdi.DeviceNode("/dev/npuctl"), None, False),
        (cdi.DeviceNode("/dev/dri/by-path/pci-0000:05:00.0-card", "/dev/dri/card0"), None, True),
    ],
)
def test_the_backend_says_whose_a_node_is_else_its_number_does(
    node: cdi.DeviceNode, known: tuple[str, ...] | None, *, own: bool
) -> None:
    assert cdi.own_nodes(cdi.ContainerEdits(device_nodes=(node,)), known) == ((node,) if own else ())


def test_only_what_belongs_to_the_device_has_to_be_there() -> None:
    record = planned(npu("/dev/npu/a"))
    spec = without_absent(record, {"/dev/npu/ctl0"})
    assert spec is not None
    assert [n.path for n in spec.devices[0].container_edits.device_nodes] == ["/dev/npu/a"]
    with pytest.raises(DeviceNodeAbsent, match="/dev/npu/a is not there"):
        without_absent(record, {"/dev/npu/a"})


def test_a_device_without_its_own_node_gets_no_document() -> None:
    record = planned(npu("/dev/npu/a"))
    assert renewed(DRIVER, record, {"npu": npu("/dev/npu/b")}).devices[0].own_nodes == ("/dev/npu/b",)
    with pytest.raises(PrepareError, match="its device node is not known now"):
        renewed(DRIVER, record, {"npu": npu()})


def test_a_partition_has_the_nodes_of_its_instance_and_the_drivers() -> None:
    gpu = npu("/dev/npu/a")
    here = {d.name: d for d in (gpu, part_of(gpu))}
    record = planned(*here.values(), name=PART)
    assert nodes(record) == ["/dev/npu/ctl0"]
    made = complete(record, {PART: ("I-1", edits("/dev/npu/a", "/dev/npu/caps/x"))})
    assert nodes(made) == ["/dev/npu/ctl0", "/dev/npu/a", "/dev/npu/caps/x"]
    assert renewed(DRIVER, made, here) == made
    with pytest.raises(DeviceNodeAbsent):
        without_absent(made, {"/dev/npu/caps/x"})
    # Another instance at its place: nothing of the earlier one is left.
    again = complete(made, {PART: ("I-2", edits("/dev/npu/a", "/dev/npu/caps/y"))})
    assert nodes(again) == ["/dev/npu/ctl0", "/dev/npu/a", "/dev/npu/caps/y"]


@pytest.mark.parametrize("seen", [True, False], ids=["profiles", "no profiles"])
def test_nodes_of_an_instance_are_asked_for_again_when_its_gpu_has_another(*, seen: bool) -> None:
    gpu = npu("/dev/npu/a")
    record = planned(gpu, part_of(gpu), name=PART)
    made = complete(record, {PART: ("I-1", edits("/dev/npu/a", "/dev/npu/caps/x"))})
    moved = npu("/dev/npu/b", "/dev/dri/b")
    here = {d.name: d for d in ((moved, part_of(moved)) if seen else (moved,))}
    assert nodes(renewed(DRIVER, made, here)) == ["/dev/npu/ctl0"]
    bare = npu()
    assert nodes(renewed(DRIVER, made, {bare.name: bare, PART: part_of(bare)})) == ["/dev/npu/ctl0"]


def test_records_without_own_nodes_are_read_by_the_numbers_of_nodes() -> None:
    gpu = npu("/dev/nvidia3", "/dev/dri/card3", shared=("/dev/nvidiactl",))
    here = {d.name: d for d in (gpu, part_of(gpu))}
    record = planned(*here.values(), name=PART)
    instance = edits("/dev/nvidia3", "/dev/nvidia-caps/nvidia-cap7")
    made = complete(record, {PART: ("MIG-1", instance)})
    old = before_own_nodes(made)
    assert old.devices[0].own_nodes is None
    assert renewed(DRIVER, old, here) == made
    moved = npu("/dev/nvidia0", "/dev/dri/card0", shared=("/dev/nvidiactl",))
    assert nodes(renewed(DRIVER, old, {moved.name: moved, PART: part_of(moved)})) == ["/dev/nvidiactl"]
    with pytest.raises(DeviceNodeAbsent):
        without_absent(before_own_nodes(planned(gpu)), {"/dev/nvidia3"})
    with pytest.raises(PrepareError, match="its device node is not known now"):
        renewed(DRIVER, before_own_nodes(planned(gpu)), {"npu": npu(shared=("/dev/nvidiactl",))})


def test_a_numbered_node_of_the_driver_stays_the_drivers() -> None:
    """Discovery gives it to partitions as well, and an earlier record does not say whose it is."""
    gpu = npu("/dev/nvidia3", shared=("/dev/nvidia-fs0",))
    here = {d.name: d for d in (gpu, part_of(gpu))}
    record = planned(*here.values(), name=PART)
    made = complete(record, {PART: ("MIG-1", edits("/dev/nvidia3"))})
    assert renewed(DRIVER, before_own_nodes(made), here) == made


def test_a_device_that_turns_out_to_have_no_node_of_its_own_keeps_its_document() -> None:
    """Its backend says so since it was prepared, and gives the same nodes as before."""
    record = planned(npu())
    assert renewed(DRIVER, before_own_nodes(record), {"npu": npu()}) == record


def test_a_node_that_a_process_has_open_counts_under_each_of_its_names() -> None:
    """Before a device is taken from its driver, nobody may have it open."""
    by_path = cdi.DeviceNode(path="/dev/dri/by-path/pci-0000:05:00.0-card", host_path="/dev/dri/card0")
    own = cdi.ContainerEdits(device_nodes=(cdi.DeviceNode(path="/dev/dri/card0"), by_path))
    body = claim("c", "npu", uid=UID)
    parameters = {"apiVersion": "dra-driver.dev/v1alpha1", "kind": "GpuConfig", "driver": "vfio-pci"}
    body["status"]["allocation"]["devices"]["config"] = [
        {"source": "FromClass", "requests": ["gpu"], "opaque": {"driver": DRIVER, "parameters": parameters}}
    ]
    gpu = NodeDevice(
        "npu",
        "U",
        "U",
        edits=cdi.merge(own, edits("/dev/kfd")),
        address="0000:05:00.0",
        found=InventoryDevice(name="npu"),
    )
    record = plan(
        codec.convert(ResourceClaim, body), UID, driver=DRIVER, pool=PoolName(NODE), devices={"npu": gpu}
    )
    assert record.devices[0].binding is not None
    assert record.devices[0].binding.nodes == ("/dev/dri/card0", "/dev/dri/by-path/pci-0000:05:00.0-card")
