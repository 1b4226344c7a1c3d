"""A claim chooses the capabilities of its device's driver that a container gets."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from node_agent import DRIVER, NODE, claim

from dra_driver import cdi
from dra_driver.api import codec
from dra_driver.api.meta import PoolName, Uid
from dra_driver.api.resource import ResourceClaim
from dra_driver.errors import PrepareError
from dra_driver.preparation import NodeDevice, PartitionRecord, PreparedClaim, plan, renewed

UID = Uid("00000000-0000-4000-8000-000000000000")


def files(*paths: str, hooks: tuple[str, ...] = ()) -> cdi.ContainerEdits:
    return cdi.ContainerEdits(
        mounts=tuple(cdi.Mount(p, p) for p in paths),
        hooks=tuple(cdi.Hook("createContainer", "/hook", ("hook", h)) for h in hooks),
    )


def parts(version: str = "1") -> cdi.Parts:
    edits = {
        "compute": files(f"/cuda.{version}", hooks=("links-of-compute",)),
        "utility": files(f"/smi.{version}"),
        "graphics": files(f"/gl.{version}", hooks=("links-of-graphics",)),
    }
    return cdi.Parts(edits, ("compute", "utility"))


def gpu(name: str = "gpu-0", version: str = "1", **more: Any) -> NodeDevice:
    edits = msgspec.structs.replace(
        files("/firmware", hooks=("cache",)), device_nodes=(cdi.DeviceNode(f"/dev/{name.replace('-', '')}"),)
    )
    return NodeDevice(name, "U", "U", edits=edits, parts=parts(version), **more)


def config(*capabilities: str, kind: str = "GpuConfig", requests: tuple[str, ...] = ()) -> dict[str, Any]:
    parameters = {
        "apiVersion": "dra-driver.dev/v1alpha1",
        "kind": kind,
        "driverCapabilities": list(capabilities),
    }
    return {
        "source": "FromClaim",
        "requests": list(requests),
        "opaque": {"driver": DRIVER, "parameters": parameters},
    }


def planned(*configs: dict[str, Any], devices: tuple[NodeDevice, ...] = ()) -> PreparedClaim:
    devices = devices or (gpu(),)
    body = claim("c", *(d.name for d in devices), uid=UID)
    allocated = body["status"]["allocation"]["devices"]
    allocated["config"] = list(configs)
    for result in allocated["results"]:
        result["request"] = result["device"]
    named = {d.name: d for d in devices}
    return plan(codec.convert(ResourceClaim, body), UID, driver=DRIVER, pool=PoolName(NODE), devices=named)


def given(record: PreparedClaim, device: int = 0) -> list[str]:
    assert record.spec is not None
    common, own = record.spec.container_edits, record.spec.devices[device].container_edits
    return [m.host_path for m in (*common.mounts, *own.mounts)]


def hooks(record: PreparedClaim) -> list[list[str]]:
    assert record.spec is not None
    edits = [record.spec.container_edits, *(d.container_edits for d in record.spec.devices)]
    return [[h.args[1] for h in e.hooks] for e in edits]


def test_what_a_claim_gets_that_does_not_say() -> None:
    assert given(planned()) == ["/firmware", "/cuda.1", "/smi.1"]


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        (("graphics",), ["/firmware", "/gl.1"]),
        (("graphics", "compute"), ["/firmware", "/cuda.1", "/gl.1"]),
        ((), ["/firmware"]),
    ],
)
def test_a_claim_gets_the_capabilities_that_it_asks_for(asked: tuple[str, ...], expected: list[str]) -> None:
    record = planned(config(*asked))
    assert given(record) == expected
    assert record.devices[0].capabilities is not None
    assert set(record.devices[0].capabilities) == set(asked)


def test_hooks_of_capabilities_come_before_those_that_work_on_them() -> None:
    assert hooks(planned(config("graphics", "compute"))) == [
        [],
        ["links-of-compute", "links-of-graphics", "cache"],
    ]


def test_hooks_that_two_devices_share_do_not_come_before_those_that_they_follow() -> None:
    two = (gpu("gpu-0"), gpu("gpu-1"))
    assert hooks(planned(devices=two)) == [["links-of-compute", "cache"], [], []]
    # One of the two makes links that the other has not: before the cache is made, so it is made twice.
    asked = config("compute", "graphics", requests=("gpu-1",))
    assert hooks(planned(asked, devices=two)) == [
        [],
        ["links-of-compute", "cache"],
        ["links-of-compute", "links-of-graphics", "cache"],
    ]


def test_a_document_that_is_made_anew_has_the_same_capabilities_of_the_present_driver() -> None:
    now = {"gpu-0": gpu(version="2")}
    assert given(renewed(DRIVER, planned(config("graphics")), now)) == ["/firmware", "/gl.2"]
    assert given(renewed(DRIVER, planned(), now)) == ["/firmware", "/cuda.2", "/smi.2"]
    # A record of a version that kept nothing of it.
    raw = msgspec.json.decode(codec.encode(planned()))
    assert "capabilities" not in raw["devices"][0]


def test_a_capability_that_is_not_to_be_had_is_refused() -> None:
    with pytest.raises(PrepareError) as refused:
        planned(config("imex", "graphics"))
    assert str(refused.value) == (
        "device gpu-0: driverCapabilities imex: not available here; there are compute, utility, graphics"
    )
    undivided = NodeDevice("gpu-0", "U", "U", edits=files("/firmware"))
    with pytest.raises(PrepareError, match="its driver is not divided by capabilities"):
        planned(config("compute"), devices=(undivided,))
    simulated = NodeDevice("gpu-0", "U", "U", edits=files("/firmware"), simulated=True)
    assert given(planned(config("compute"), devices=(simulated,))) == ["/firmware"]


def test_partitions_and_shares_choose_as_well() -> None:
    where = PartitionRecord(gpu="gpu-0", profile="half", profile_id=1, start=0, size=2)
    assert given(
        planned(config("utility", kind="MigConfig"), devices=(gpu(partition=where, controllable=True),))
    ) == ["/firmware", "/smi.1"]
