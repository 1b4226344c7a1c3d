"""``dra-driver status``: what it counts and what it says about claims that wait."""

import asyncio
import json

from support.fake_cluster import FakeCluster

from dra_driver.api.core import EVENTS, NODES, PODS
from dra_driver.api.inventory import DEVICE_INVENTORIES
from dra_driver.api.resource import RESOURCE_CLAIMS, RESOURCE_SLICES
from dra_driver.cli import status

DRIVER = "gpu.example.com"


def device(name, memory_slices=(), model="A", **more):
    consumes = [
        {"counterSet": "gpu-0", "counters": {f"memory-slice-{i}": {"value": "1"} for i in memory_slices}}
    ]
    return {
        "name": name,
        "attributes": {"model": {"string": model}, "type": {"string": "mig" if "mig" in name else "gpu"}},
        **({"consumesCounters": consumes} if memory_slices else {}),
        **more,
    }


def put_slice(cluster, name, *devices, generation=1, driver=DRIVER):
    spec = {
        "driver": driver,
        "nodeName": "n1",
        "pool": {"name": "n1", "generation": generation, "resourceSliceCount": 1},
        "devices": list(devices),
    }
    cluster.put(RESOURCE_SLICES, {"metadata": {"name": name}, "spec": spec})


def put_counters(cluster, name, memory_slices):
    counters = {f"memory-slice-{i}": {"value": "1"} for i in range(memory_slices)}
    spec = {
        "driver": DRIVER,
        "nodeName": "n1",
        "pool": {"name": "n1", "generation": 2, "resourceSliceCount": 4},
        "sharedCounters": [{"name": "gpu-0", "counters": counters}],
    }
    cluster.put(RESOURCE_SLICES, {"metadata": {"name": name}, "spec": spec})


def put_claim(cluster, name, device_name="", **result):
    found = {"request": "r", "driver": DRIVER, "pool": "n1", "device": device_name, **result}
    state = {"allocation": {"devices": {"results": [found]}}} if device_name else {}
    cluster.put(RESOURCE_CLAIMS, {"metadata": {"name": name, "namespace": "ns"}, "spec": {}, "status": state})


def cluster() -> FakeCluster:
    fake = FakeCluster()
    fake.put(NODES, {"metadata": {"name": "n1"}})
    sick = [{"key": "dra-driver.dev/unhealthy", "effect": "NoSchedule"}]
    put_slice(fake, "s0", device("old"), generation=1)
    put_slice(fake, "s1", device("gpu-0", (0, 1)), device("gpu-0-mig-1", (1,)), generation=2)
    put_slice(fake, "s2", device("gpu-0-mig-0", (0,)), device("gpu-1", taints=sick), generation=2)
    put_slice(fake, "s3", device("gpu-2", allowMultipleAllocations=True), device("gpu-3"), generation=2)
    put_counters(fake, "s4", 2)
    put_slice(fake, "other", device("x"), driver="other.io")
    put_claim(fake, "part", "gpu-0-mig-0")
    put_claim(fake, "share", "gpu-2", shareID="5c9b7f0e-0000-4000-8000-000000000000")
    put_claim(fake, "admin", "gpu-3", adminAccess=True)
    put_claim(fake, "waits")
    put_claim(fake, "unused")
    fake.put(
        PODS,
        {
            "metadata": {"name": "p", "namespace": "ns"},
            "spec": {"resourceClaims": [{"name": "r", "resourceClaimName": "waits"}]},
        },
    )
    uid = fake.raw(RESOURCE_CLAIMS, "waits", "ns")["metadata"]["uid"]
    for number, text in ((1, "old reason"), (2, "too little memory")):
        fake.put(
            EVENTS,
            {
                "metadata": {"name": f"e{number}", "namespace": "ns"},
                "involvedObject": {"uid": uid, "kind": "ResourceClaim"},
                "reason": "FailedAllocation",
                "message": text,
                "lastTimestamp": f"2026-01-01T00:00:0{number}Z",
            },
        )
    condition = {
        "type": "Published",
        "status": "True",
        "reason": "PublishedInPart",
        "message": "left out: x",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }
    fake.put(
        DEVICE_INVENTORIES,
        {
            "metadata": {"name": f"n1.{DRIVER}"},
            "spec": {"nodeName": "n1", "driver": DRIVER},
            "status": {"registration": {"registered": True, "epoch": 1}, "conditions": [condition]},
        },
    )
    return fake


def test_every_device_of_the_newest_generation_counts_once():
    fleet = asyncio.run(status.look(cluster(), [DRIVER]))
    rows = {r.type: (r.total, {s: n for s, n in r.states.items() if n}) for r in fleet.rows}
    assert rows == {
        "gpu": (4, {"blocked": 1, "unhealthy": 1, "shared": 1, "free": 1}),
        "mig": (2, {"allocated": 1, "free": 1}),
    }


def test_claims_that_wait_say_why():
    fleet = asyncio.run(status.look(cluster(), [DRIVER]))
    assert [(w.claim, w.pods, w.reason) for w in fleet.waiting] == [
        ("ns/unused", (), "no pod uses it"),
        ("ns/waits", ("p",), "too little memory"),
    ]


def test_the_table_and_the_data_say_the_same():
    fleet = asyncio.run(status.look(cluster(), [DRIVER]))
    table = status._text(fleet, "table")
    assert "6 devices on 1 of 1 nodes: 1 unhealthy, 1 shared, 1 allocated, 1 blocked, 2 free" in table
    assert "PublishedInPart: left out: x" in table
    data = json.loads(status._text(fleet, "json"))
    assert sum(r["total"] for r in data["devices"]) == 6
    assert data["waiting"][1]["reason"] == "too little memory"


def test_models_can_be_summed_over_nodes():
    fleet = asyncio.run(status.look(cluster(), [DRIVER], by="model"))
    found = [(r.node, r.model, r.type, r.total) for r in fleet.rows]
    assert found == [("", "A", "gpu", 4), ("", "A", "mig", 2)]
    assert status._text(fleet, "table").startswith("MODEL   TYPE")
