"""``status --devices``, ``explain node/…`` and ``explain device/…``: which device is sick, and what to do."""

from __future__ import annotations

import asyncio
from typing import Any

import builders
import pytest
from fake_client import FakeClient

from dra_driver.api.core import NODES
from dra_driver.api.names import CONTROLLER_LEASE
from dra_driver.api.own.inventory import DEVICE_INVENTORIES
from dra_driver.api.resource import RESOURCE_CLAIMS, RESOURCE_SLICES
from dra_driver.cli.display.report import plain
from dra_driver.cli.explaining.parts import of_target, part_blocks, part_data
from dra_driver.cli.explaining.targets import DEVICE, NODE, Target, parse_target, parse_targets
from dra_driver.cli.live.reading import Lister
from dra_driver.cli.overview.report import Overview, overview_data, overview_report
from dra_driver.cli.status import overview_of
from dra_driver.errors import InvalidInput
from dra_driver.kube import LEASES, SystemClock
from dra_driver.kube.clock import micro_time, rfc3339


def cluster() -> FakeClient:
    """A node with a sick device that a claim holds, a free one, and one that is not published."""
    fake = FakeClient()
    fake.put(NODES, builders.node("n5", uid="uid-n5"))
    hour_ago = rfc3339(SystemClock().now() - 3700)
    health = {"reason": "RowRemapPending", "severity": "degraded", "message": "rows", "since": hour_ago}
    more: dict[str, Any] = {"attributes": {"type": {"string": "gpu"}, "model": {"string": "A100"}}}
    devices = [builders.device(f"gpu-{i}", "40Gi") | more for i in range(3)]
    sick = devices[0] | {"health": [health]}
    found = builders.inventory("n5", sick, *devices[1:])
    found["status"]["publication"] = {"epoch": 1, "slices": ["n5"]}
    fake.put(DEVICE_INVENTORIES, found)
    published = builders.resource_slice("n5", *devices[:2])
    published["metadata"]["name"] = "n5"
    fake.put(RESOURCE_SLICES, published)
    status = builders.allocation(builders.result("n5", "gpu-0")) | builders.reserved("p")
    fake.put(RESOURCE_CLAIMS, builders.claim("any-t4", status=status))
    spec = {"holderIdentity": "c_1", "leaseDurationSeconds": 15, "renewTime": micro_time(SystemClock().now())}
    metadata = {"name": CONTROLLER_LEASE, "namespace": "dra-driver"}
    fake.put(
        LEASES, {"apiVersion": LEASES.api_version, "kind": LEASES.kind, "metadata": metadata, "spec": spec}
    )
    return fake


def overview(fake: FakeClient) -> Overview:
    return asyncio.run(overview_of(Lister(fake), fake, nodes=["n5"]))


def said(fake: FakeClient, text: str) -> str:
    seen, target = overview(fake), parse_target(text)
    return plain([list(part_blocks(target, *of_target(target, seen), seen.now))])


def test_a_sick_device_is_explained() -> None:
    assert said(cluster(), "device/n5/gpu-0") == (
        "device n5/gpu-0 (A100, 40Gi): allocated\n"
        "  RowRemapPending: rows (for 1 h)\n"
        "  held by default/any-t4 (p)\n"
        "  what to do: end the pods that use it, then reset the GPU"
    )


def test_a_device_that_is_well_and_one_that_is_not_published() -> None:
    assert said(cluster(), "device/n5/gpu-1") == "device n5/gpu-1 (A100, 40Gi): free\n  held by no claim"
    assert said(cluster(), "device/n5/gpu-2").startswith("device n5/gpu-2 (A100, 40Gi): not published\n")


def test_a_node_is_explained_with_all_its_devices() -> None:
    lines = said(cluster(), "node/n5").splitlines()
    assert lines[0] == "1 problem"
    assert lines[1].startswith("n5/gpu-0: RowRemapPending: rows; held by default/any-t4")
    assert lines[3].split()[:4] == ["NODE", "DEVICE", "MODEL", "STATE"]
    assert [line.split()[1] for line in lines[4:]] == ["gpu-0", "gpu-1", "gpu-2"]
    assert "then reset the GPU" in lines[4]


def test_a_device_of_a_node_whose_agent_is_gone_says_so() -> None:
    fake = cluster()
    fake.remove(RESOURCE_SLICES, "n5")
    text = said(fake, "device/n5/gpu-1")
    assert text.startswith("1 problem\nn5: its agent is gone: 3 devices withdrawn, 1 claim still there")
    assert "device n5/gpu-1 (A100, 40Gi): not published" in text
    held = said(fake, "device/n5/gpu-0")
    assert "held by default/any-t4 (p)" in held


def test_the_data_say_the_same() -> None:
    seen, target = overview(cluster()), Target(DEVICE, "n5/gpu-0")
    data = part_data(target, *of_target(target, seen))
    assert data["device"] == "n5/gpu-0"
    assert [p["kind"] for p in data["problems"]] == ["DeviceUnhealthy"]
    assert [(d["device"], d["action"]) for d in data["devices"]] == [
        ("gpu-0", "end the pods that use it, then reset the GPU")
    ]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("node/n6", "there are no devices on a node n6"),
        ("device/n5/gpu-9", "there is no device gpu-9 on node n5"),
    ],
)
def test_what_is_not_there_is_said(text: str, says: str) -> None:
    with pytest.raises(InvalidInput, match=says):
        said(cluster(), text)


def test_how_they_are_named() -> None:
    assert parse_target("node/n5") == Target(NODE, "n5")
    assert parse_target("device/n5/gpu-0") == Target(DEVICE, "n5/gpu-0")
    assert parse_targets(["device", "n5/gpu-0", "n5/gpu-1"])[1] == Target(DEVICE, "n5/gpu-1")
    for wrong in ("device/n5", "device/n5/", "device//gpu-0", "node/a/b", "device/a/b/c"):
        with pytest.raises(InvalidInput, match="device/NODE/NAME"):
            parse_target(wrong)


def test_status_lists_devices_one_by_one() -> None:
    seen = overview(cluster())
    text = plain(overview_report(seen))
    assert "PROBLEM, AND WHAT TO DO" in text
    assert "DEVICES   ALLOCATED" not in text
    assert "2 devices on 1 of 1 nodes: 1 allocated, 1 free" in text
    assert [d["state"] for d in overview_data(seen)["deviceList"]] == ["allocated", "free", "not published"]
