"""Labels that nodes get from their inventories."""

from __future__ import annotations

import asyncio

from builders import DRIVER
from test_controller_policies import Harness, cluster_with, run

from controller.observe.node_labels import KEYS, annotation_of, labels_of
from dra_driver.api.core import NODES
from dra_driver.api.meta import DriverName
from dra_driver.api.own.inventory import (
    DEVICE_INVENTORIES,
    DeviceInventory,
    DeviceInventorySpec,
    InventoryDevice,
)
from dra_driver.api.quantity import Quantity
from dra_driver.api.resource import DeviceAttribute, DeviceCapacity


def gpu(name: str = "gpu-0", memory: str = "81559Mi", **facts: str) -> InventoryDevice:
    facts = {
        "type": "gpu",
        "vendor": "nvidia",
        "model": "H100",
        "productName": "NVIDIA H100 80GB HBM3",
        **facts,
    }
    return InventoryDevice(
        name=name,
        attributes={
            **{k: DeviceAttribute(string_value=v) for k, v in facts.items()},
            "driverVersion": DeviceAttribute(version_value="580.105.8"),
        },
        capacity={"memory": DeviceCapacity(value=Quantity.parse(memory))},
    )


def labels(*devices: InventoryDevice, which: str = "own") -> dict[str, str]:
    spec = DeviceInventorySpec(node_name="n", driver=DriverName("d.io"), devices=devices)
    return labels_of(DeviceInventory(spec=spec), which)


def test_what_all_gpus_have_in_common() -> None:
    assert labels(gpu(), gpu("gpu-1", model="A100")) == {
        "dra-driver.dev/gpu.count": "2",
        "dra-driver.dev/gpu.vendor": "nvidia",
        "dra-driver.dev/gpu.memory": "81559",
        "dra-driver.dev/gpu.driver-version": "580.105.8",
    }


def test_names_of_gpu_feature_discovery_on_request() -> None:
    found = labels(gpu(architecture="Hopper"), which="nvidia")
    assert found["nvidia.com/gpu.product"] == "NVIDIA-H100-80GB-HBM3"
    assert found["nvidia.com/gpu.family"] == "hopper"
    assert not any(k.startswith("nvidia") for k in labels(gpu(vendor="amd"), which="nvidia"))


def test_the_clique_of_an_nvlink_fabric() -> None:
    clique = "0a9d5c1e-7f53-4a53-9d0b-3c3f6f0f8a11.7"
    own, theirs = "dra-driver.dev/gpu.clique", "nvidia.com/gpu.clique"
    both = [gpu(fabricClique=clique), gpu("gpu-1", fabricClique=clique)]
    assert labels(*both)[own] == clique
    assert theirs not in labels(*both)
    assert labels(*both, which="nvidia")[theirs] == clique
    # Where not all are in one, a pod that is kept in it could get a GPU that is not.
    for other in (gpu("gpu-1"), gpu("gpu-1", fabricClique=clique[:-1] + "8")):
        assert own not in labels(gpu(fabricClique=clique), other, which="nvidia")
    assert own not in labels(gpu(fabricClique="x/" * 40))


def test_values_are_checked_and_keys_are_from_the_list() -> None:
    found = labels(gpu(model="no label!", vendor="x" * 64))
    assert set(found) <= KEYS
    assert not {"dra-driver.dev/gpu.model", "dra-driver.dev/gpu.vendor"} & set(found)
    assert labels(gpu(type="nic")) == {}
    assert labels(gpu(), which="none") == {}


def test_labels_come_and_go_with_the_facts_and_those_of_others_stay() -> None:
    cluster = cluster_with("n1")
    theirs = {"metadata": {"labels": {"nvidia.com/gpu.count": "9"}}}
    cluster.edit(NODES, "n1", theirs)

    async def scenario(h: Harness) -> None:
        node = cluster.raw(NODES, "n1")["metadata"]
        assert node["labels"]["dra-driver.dev/gpu.count"] == "2"
        assert node["annotations"][annotation_of(DRIVER)].split(",")[0] == "dra-driver.dev/gpu.count"
        count = len(cluster.writes)
        await asyncio.sleep(0.3)
        assert len(cluster.writes) == count
        cluster.remove(DEVICE_INVENTORIES, f"n1.{DRIVER}")
        await h.quiet()
        node = cluster.raw(NODES, "n1")["metadata"]
        assert not any(k.startswith("dra-driver.dev/gpu.") for k in node["labels"])
        assert node["labels"]["nvidia.com/gpu.count"] == "9"
        assert annotation_of(DRIVER) not in node.get("annotations", {})

    run(cluster, scenario, node_labels="own")


def test_labels_follow_who_owns_the_inventory() -> None:
    cluster = cluster_with("n1")
    name = f"n1.{DRIVER}"
    owners = cluster.raw(DEVICE_INVENTORIES, name)["metadata"]["ownerReferences"]

    def labelled() -> bool:
        labels = cluster.raw(NODES, "n1")["metadata"].get("labels", {})
        return "dra-driver.dev/gpu.count" in labels

    async def scenario(h: Harness) -> None:
        assert labelled()
        stranger = [{**owners[0], "uid": "of-a-node-that-was"}]
        cluster.edit(DEVICE_INVENTORIES, name, {"metadata": {"ownerReferences": stranger}})
        await h.quiet()
        assert not labelled()
        cluster.edit(DEVICE_INVENTORIES, name, {"metadata": {"ownerReferences": owners}})
        await h.quiet()
        assert labelled()

    run(cluster, scenario, node_labels="own")
