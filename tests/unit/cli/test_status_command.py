"""``dra-driver status``: what it counts and what it says about claims that wait."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import io
import json
from typing import Any

import builders
import pytest
import virtual_time
from builders import DRIVER
from fake_client import FakeClient

from dra_driver.api.core import CONFIG_MAPS, EVENTS, NODES, PODS
from dra_driver.api.names import (
    ALLOCATED_CONDITION,
    GRANT_STATUS,
    PREEMPTING_CONDITION,
    SET_ASIDE_CONDITION,
    SYSTEM_NAMESPACE,
)
from dra_driver.api.own.inventory import DEVICE_INVENTORIES
from dra_driver.api.resource import DEVICE_CLASSES, RESOURCE_CLAIMS, RESOURCE_SLICES
from dra_driver.cli import explain, status
from dra_driver.cli.allocator.manifests import Manifests
from dra_driver.cli.display.report import Line
from dra_driver.cli.explaining.targets import parse_target
from dra_driver.cli.live import showing
from dra_driver.cli.live.reading import Informers, Lister, Source
from dra_driver.cli.overview.report import overview_data, overview_text
from dra_driver.cli.overview.rows import Memory, fold_notes
from dra_driver.errors import Forbidden, InvalidInput
from dra_driver.fleet import (
    DeviceView,
    Fleet,
    GrantedToPod,
    GrantsShown,
    Holder,
    PoolView,
    PreemptionRecord,
    grants_data,
    parse_shapes,
)


def device(name: str, memory_slices: tuple[int, ...] = (), model: str = "A", **more: Any) -> dict[str, Any]:
    consumes = [
        {"counterSet": "gpu-0", "counters": {f"memory-slice-{i}": {"value": "1"} for i in memory_slices}}
    ]
    return {
        "name": name,
        "attributes": {"model": {"string": model}, "type": {"string": "mig" if "mig" in name else "gpu"}},
        **({"consumesCounters": consumes} if memory_slices else {}),
        **more,
    }


def put_slice(
    cluster: FakeClient, name: str, *devices: dict[str, Any], generation: int = 1, driver: str = DRIVER
) -> None:
    body = builders.resource_slice("n1", *devices, name=name, generation=generation, driver=driver)
    cluster.put(RESOURCE_SLICES, body)


def put_counters(cluster: FakeClient, name: str, memory_slices: int) -> None:
    counters = {f"memory-slice-{i}": {"value": "1"} for i in range(memory_slices)}
    sets = [{"name": "gpu-0", "counters": counters}]
    body = builders.resource_slice("n1", name=name, generation=2, count=4, sharedCounters=sets)
    cluster.put(RESOURCE_SLICES, body)


def put_claim(cluster: FakeClient, name: str, device_name: str = "", **result: Any) -> None:
    found = builders.allocation(builders.result("n1", device_name, **result)) if device_name else {}
    cluster.put(RESOURCE_CLAIMS, builders.claim(name, namespace="ns", status=found))


def cluster() -> FakeClient:
    fake = FakeClient()
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
    fake.put(PODS, builders.pod("p", "waits", namespace="ns"))
    put_claim(fake, "told")
    fake.put(PODS, builders.pod("q", "told", namespace="ns"))
    waits = {
        "type": ALLOCATED_CONDITION,
        "status": "False",
        "reason": "FailedAllocation",
        "message": "no GPU",
    }
    fake.edit(PODS, "q", {"status": {"conditions": [waits]}}, "ns")
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


def test_every_device_of_the_newest_generation_counts_once() -> None:
    fleet = asyncio.run(status.look(cluster(), [DRIVER]))
    rows = {r.type: (r.total, {s: n for s, n in r.states.items() if n}) for r in fleet.rows}
    assert rows == {
        "gpu": (4, {"blocked": 1, "unhealthy": 1, "shared": 1, "free": 1}),
        "mig": (2, {"allocated": 1, "free": 1}),
    }


def test_devices_of_all_drivers_with_an_inventory_count_as_on_the_page() -> None:
    fake = cluster()
    put_slice(fake, "nic", device("nic-0"), driver="nic.example.com")
    of_nics = {"nodeName": "n1", "driver": "nic.example.com"}
    fake.put(DEVICE_INVENTORIES, {"metadata": {"name": "n1.nic.example.com"}, "spec": of_nics})

    def count(*drivers: str) -> int:
        return sum(row.total for row in asyncio.run(status.look(fake, drivers)).rows)

    # Those of other.io, which no node of ours has an inventory of, are another driver's.
    assert (count(), count(DRIVER), count("nic.example.com")) == (7, 6, 1)
    page = Fleet({DRIVER, "nic.example.com"})
    for slice_ in fake.all(RESOURCE_SLICES):
        page.put_slice(slice_)
    assert sum(len(view.devices) for view in page.views()) == count()


def test_claims_that_wait_say_why() -> None:
    fleet = asyncio.run(status.look(cluster(), [DRIVER]))
    assert [(w.claim, w.pods, w.reason) for w in fleet.waiting] == [
        ("ns/told", ("q",), "no GPU"),
        ("ns/unused", (), "no pod uses it"),
        ("ns/waits", ("p",), "too little memory"),
    ]


def test_the_table_and_the_data_say_the_same() -> None:
    fleet = asyncio.run(status.look(cluster(), [DRIVER]))
    table = overview_text(fleet, "table")
    assert "6 devices on 1 of 1 nodes: 1 unhealthy, 1 shared, 1 allocated, 1 blocked, 2 free" in table
    assert "PublishedInPart: left out: x" in table
    data = json.loads(overview_text(fleet, "json"))
    assert sum(r["total"] for r in data["devices"]) == 6
    assert data["waiting"][-1]["reason"] == "too little memory"


def test_it_is_said_for_which_pod_devices_are_set_aside() -> None:
    fake = cluster()
    since, text = "2026-01-01T00:00:00Z", "until 2026-01-01T00:10:00Z at the latest: n1: gpu-1, gpu-3"
    for name, status_ in (("p", "True"), ("q", "False")):
        condition = {"type": SET_ASIDE_CONDITION, "status": status_, "message": text}
        conditions = [{**condition, "lastTransitionTime": since}]
        fake.edit(PODS, name, {"status": {"conditions": conditions}}, "ns")
    fleet = asyncio.run(status.look(fake, [DRIVER]))
    lines = overview_text(fleet, "table").splitlines()
    header = next(i for i, line in enumerate(lines) if line.startswith("SET ASIDE FOR POD"))
    assert lines[header + 1].split(maxsplit=2) == ["ns/p", since, text]
    assert "ns/q" not in lines[header + 2 :]
    data = json.loads(overview_text(fleet, "json"))
    assert data["setAside"] == [{"pod": "ns/p", "since": since, "devices": text}]


def test_it_is_said_for_which_pods_others_are_preempted_and_would_be() -> None:
    fake = cluster()
    since, there = "2026-01-01T00:00:00Z", fake.raw(PODS, "q", "ns")["metadata"]["uid"]
    record = PreemptionRecord((there, "gone"))
    for name, status_, reason in (("p", "True", "Preempting"), ("q", "False", "WouldPreempt")):
        condition = {"type": PREEMPTING_CONDITION, "status": status_, "message": record.message}
        conditions = [{**condition, "reason": reason, "lastTransitionTime": since}]
        fake.edit(PODS, name, {"status": {"conditions": conditions}}, "ns")
    fleet = asyncio.run(status.look(fake, [DRIVER]))
    lines = overview_text(fleet, "table").splitlines()
    header = next(i for i, line in enumerate(lines) if line.startswith("PREEMPTOR"))
    assert lines[header + 1].split(maxsplit=3) == ["ns/p", "Preempting", since, "ns/q, 1 gone"]
    assert lines[header + 2].split(maxsplit=3)[:2] == ["ns/q", "WouldPreempt"]
    data = json.loads(overview_text(fleet, "json"))["preemptions"][0]
    wanted = {"pod": "ns/p", "state": "Preempting", "since": since, "victims": ["ns/q"], "gone": 1}
    assert data == wanted
    assert not asyncio.run(status.look(fake, [DRIVER], namespace="other")).preemptions
    assert len(asyncio.run(status.look(fake, [DRIVER], namespace="ns")).preemptions) == 2


def test_a_pod_is_explained_with_whom_it_would_preempt() -> None:
    fake = cluster()
    victim = fake.raw(PODS, "q", "ns")["metadata"]["uid"]
    condition = {
        "type": PREEMPTING_CONDITION,
        "status": "False",
        "reason": "WouldPreempt",
        "message": PreemptionRecord((victim,)).message,
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }
    fake.edit(PODS, "p", {"status": {"conditions": [condition]}}, "ns")
    found = Manifests(claims=fake.all(RESOURCE_CLAIMS), pods=fake.all(PODS), source="the cluster has")
    text = str(explain.explained(found, [parse_target("pod/p")], "ns"))
    assert text.startswith("pod ns/p\nwould preempt ns/q, since 2026-01-01T00:00:00Z\n\n")
    with pytest.raises(InvalidInput, match="no Pod x in namespace ns"):
        explain.explained(found, [parse_target("pod/x")], "ns")


def test_models_can_be_summed_over_nodes() -> None:
    fleet = asyncio.run(status.look(cluster(), [DRIVER], by="model"))
    found = [(r.node, r.model, r.type, r.total) for r in fleet.rows]
    assert found == [("", "A", "gpu", 4), ("", "A", "mig", 2)]
    assert "\n\nMODEL   TYPE" in overview_text(fleet, "table")


def test_shapes_are_counted_beside_what_the_free_devices_suggest() -> None:
    fake = FakeClient()
    fake.put(DEVICE_CLASSES, builders.device_class("gpu"))
    protected = [{"key": "dra-driver.dev/controller", "effect": "NoSchedule", "value": "allocates"}]
    for node in ("n1", "n2"):
        fake.put(NODES, {"metadata": {"name": node}})
        devices = [device(f"gpu-{i}", taints=protected) for i in range(2)]
        fake.put(RESOURCE_SLICES, builders.resource_slice(node, *devices, name=node))
    put_claim(fake, "held", "gpu-0")
    spec = {"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": "gpu", "count": 2}}]}}
    shapes = parse_shapes([f"pair={json.dumps(spec)}", "none=missing.example.com"], DRIVER)
    found = asyncio.run(status.look(fake, (DRIVER,), shapes=shapes))
    pair, none = overview_data(found)["shapes"]
    assert pair == {"shape": "pair", "fits": 1, "exact": True, "suggested": 1, "fragmentation": 0.0}
    assert "'missing.example.com' does not exist" in none["problem"]
    assert "SUM OF FREE SUGGESTS" in overview_text(found, "table")


def test_without_shapes_those_of_the_installation_are_counted() -> None:
    fake = cluster()
    assert asyncio.run(status.look(fake, (DRIVER,))).shapes == ()
    told = {"metadata": {"name": "dra-driver-request-shapes", "namespace": "sys"}, "data": {"pair": "2 gpu"}}
    fake.put(CONFIG_MAPS, told)
    (pair,) = asyncio.run(status.look(fake, (DRIVER,), system="sys")).shapes
    assert pair.shape == "pair"
    fake.put(CONFIG_MAPS, {**told, "data": {"pair": "2 gpus", "one": "1 gpu"}})
    found = asyncio.run(status.look(fake, (DRIVER,), system="sys"))
    assert found.shapes == ()
    assert "ConfigMap sys/dra-driver-request-shapes 'pair=2 gpus': KIND 'gpus'" in found.notes[-1]


def test_memory_and_its_use_are_told_and_states_without_devices_are_left_out() -> None:
    fake = FakeClient()
    for name, size in (("n1", "80Gi"), ("n2", "40Gi")):
        fake.put(NODES, builders.node(name))
        body = builders.resource_slice(
            name, *(builders.device(f"gpu-{i}", size) for i in range(2)), name=name
        )
        fake.put(RESOURCE_SLICES, body)
    put_claim(fake, "held", "gpu-0")
    fleet = asyncio.run(status.look(fake, [DRIVER]))
    table = overview_text(fleet, "table")
    assert "80/160Gi" in table
    assert "33% of the memory is allocated: 80Gi of 240Gi" in table
    assert "UNHEALTHY" not in table.split("\n", maxsplit=1)[0]
    (row,) = json.loads(overview_text(fleet, "json"))["namespaces"]
    assert (row["namespace"], row["devices"], row["memoryBytes"]) == ("ns", 1, 80 << 30)
    one = asyncio.run(status.look(fake, [DRIVER], nodes=["n2", "x*"]))
    assert "2 devices on 1 of 1 nodes: 2 free" in overview_text(one, "table")


def test_busy_devices_are_counted_where_nodes_report_activity() -> None:
    fake = cluster()
    assert "BUSY" not in overview_text(asyncio.run(status.look(fake, [DRIVER])), "table")
    fake.edit(
        DEVICE_INVENTORIES,
        f"n1.{DRIVER}",
        {"status": {"activity": {"busy": ["gpu-3"], "idle": ["gpu-1", "gpu-2"]}}},
    )
    fleet = asyncio.run(status.look(fake, [DRIVER], by="model"))
    table = overview_text(fleet, "table").splitlines()
    (header,) = (i for i, line in enumerate(table) if "BUSY" in line)
    at = table[header].index("BUSY")
    assert [line[at:].split()[0] for line in table[header + 1 : header + 3]] == ["1", "-"]
    assert "1 of the 3 devices that report activity are busy; 1 of the idle ones is allocated" in table
    row = json.loads(overview_text(fleet, "json"))["devices"][0]
    assert (row["busy"], row["idle"], row["idleAllocated"]) == (1, 2, 1)


@pytest.mark.parametrize(
    ("held", "size", "text"),
    [("", "80Gi", "0/80Gi"), ("80Gi", "80Gi", "80/80Gi"), ("512Mi", "512Mi", "512Mi/512Mi"), ("", "", "-")],
)
def test_memory_has_its_unit_once_where_it_is_the_same(held: str, size: str, text: str) -> None:
    holders = (Holder("ns/c", "gpu"),) if held else ()
    memory = Memory()
    memory.add(DeviceView("gpu-0", "A", "gpu", size, "allocated", holders))
    assert str(memory) == text


def test_equal_reasons_and_notes_are_said_once() -> None:
    fake = FakeClient()
    for i in range(5):
        put_claim(fake, f"c{i}")
    text = overview_text(asyncio.run(status.look(fake, [DRIVER])), "table")
    assert "ns/c0, ns/c1, ns/c2 and 2 more   -      no pod uses it" in text
    views = [PoolView(DRIVER, f"n{i}", f"n{i}", notes=("left out: x",)) for i in range(4)]
    assert fold_notes(views) == [f"n0, n1, n2 and 1 more ({DRIVER}): left out: x"]


def test_claims_of_other_namespaces_are_left_out() -> None:
    fake = cluster()
    fake.put(RESOURCE_CLAIMS, builders.claim("theirs", namespace="other"))
    fleet = asyncio.run(status.look(fake, [DRIVER], namespace="other"))
    assert [w.claim for w in fleet.waiting] == ["other/theirs"]
    assert [n.namespace for n in fleet.namespaces] == ["other"]
    assert not [note for note in fleet.notes if "namespace other" in note]


def test_a_namespace_without_claims_is_said_with_the_one_that_was_meant() -> None:
    fake = cluster()
    fake.put(RESOURCE_CLAIMS, builders.claim("theirs", namespace="other"))
    fleet = asyncio.run(status.look(fake, [DRIVER], namespace="othre"))
    assert "namespace othre has no claim and no pod; did you mean `other`?" in fleet.notes


def denying(fake: FakeClient, *kinds: str, once: bool = False) -> FakeClient:
    refused = list(kinds)

    def refuse(verb: str, kind: str, *_: str) -> None:
        if verb == "list" and kind in refused:
            if once:
                refused.remove(kind)
            raise Forbidden("no", code=403, reason="Forbidden")

    fake.before = refuse
    return fake


def test_the_right_that_is_missing_is_named() -> None:
    with pytest.raises(
        Forbidden, match=r"list resourceslices\.resource\.k8s\.io in the whole cluster is needed"
    ):
        asyncio.run(status.look(denying(cluster(), "ResourceSlice"), [DRIVER]))


def test_with_the_rights_of_a_namespace_its_claims_are_seen() -> None:
    lister = Lister(denying(cluster(), "ResourceClaim", once=True))
    claims = asyncio.run(lister.all(RESOURCE_CLAIMS, or_in="ns", in_part="others look free"))
    assert len(claims) == 6
    assert lister.notes == [
        "may not list resourceclaims.resource.k8s.io in the whole cluster: others look free"
    ]
    assert asyncio.run(Lister(denying(cluster(), "Node")).all(NODES, without="unknown")) == ()


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_missing_rights_stay_in_sight_on_a_terminal_that_is_cleared() -> None:
    async def looked(source: Source) -> showing.Shown:
        await source.all(NODES, without="nodes are unknown")
        return [[Line("picture")]]

    async def main() -> None:
        args = argparse.Namespace(watch=True, interval=0.1)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(showing.show(denying(cluster(), "Node"), looked, args), 0.2)

    with contextlib.redirect_stdout(Terminal()) as out, contextlib.redirect_stderr(Terminal()) as err:
        virtual_time.run(main())
    assert "nodes are unknown" in out.getvalue().rpartition("picture")[2]
    assert err.getvalue() == ""


def test_what_may_not_be_read_is_said_even_if_nothing_is_found(capsys: pytest.CaptureFixture[str]) -> None:
    async def looked(source: Source) -> showing.Shown:
        await source.all(PODS, without="pods are not looked at")
        raise InvalidInput("there is no Pod p in namespace ns")

    with pytest.raises(InvalidInput):
        asyncio.run(showing.show(denying(cluster(), "Pod"), looked, argparse.Namespace(watch=False)))
    assert capsys.readouterr().err == (
        "warning: may not list pods in the whole cluster: pods are not looked at\n"
    )


def test_informers_follow_what_could_be_read() -> None:
    async def main() -> None:
        fake = cluster()
        lister = Lister(fake)
        before = await lister.all(RESOURCE_CLAIMS)
        source = Informers(fake, lister.read)
        async with source.running():
            assert len(await source.all(RESOURCE_CLAIMS)) == len(before)
            await source.changed()
            put_claim(fake, "new")
            await source.changed()
            assert len(await source.all(RESOURCE_CLAIMS)) == len(before) + 1
            assert await source.all(PODS) == ()

    asyncio.run(main())


def test_it_is_said_whether_devices_are_granted_and_why_not() -> None:
    def looked(data: dict[str, str], namespace: str = "") -> tuple[str, dict[str, Any]]:
        fake = cluster()
        fake.put(
            CONFIG_MAPS, {"metadata": {"name": GRANT_STATUS, "namespace": SYSTEM_NAMESPACE}, "data": data}
        )
        found = asyncio.run(status.look(fake, [DRIVER], namespace=namespace))
        return overview_text(found, "table"), json.loads(overview_text(found, "json"))["grants"]

    def data(**changes: Any) -> dict[str, str]:
        return grants_data(GrantsShown(**changes))

    text, _ = looked(data(obstacle="no gate", ungated=("a", "b", "c", "d"), more_ungated=2))
    assert "nothing is granted to pods that only kube-scheduler can place: no gate" in text
    assert "namespaces without the gate: a, b, c and 3 more" in text
    granted = GrantedToPod("ns/p", "n1", "2027-01-15T08:00:00Z", "granted", ("gpu-0",))
    text, plain = looked(data(pods=(granted,)))
    assert "devices are granted to 1 pod that only kube-scheduler can place" in text
    assert "GRANTED TO POD" in text
    row = ["ns/p", "n1", "granted", "2027-01-15T08:00:00Z", "gpu-0"]
    assert row in [line.split() for line in text.splitlines()]
    assert plain["pods"][0]["devices"] == ["gpu-0"]
    assert looked(data(pods=(granted,)), namespace="other")[1]["pods"] == []
    for unreadable in ({}, {"grants": "{"}, {"grants": "[" * 100_000}):
        assert looked(unreadable)[1] is None
    without = asyncio.run(status.look(cluster(), [DRIVER]))
    assert json.loads(overview_text(without, "json"))["grants"]["enabled"] is False
    assert "granted" not in overview_text(without, "table")


def test_objects_that_cannot_be_read_are_named() -> None:
    fake = cluster()
    for number in range(7):
        fake.put(NODES, {"metadata": {"name": f"bad{number}"}})
        fake.edit(NODES, f"bad{number}", {"spec": {"taints": number}}, as_is=True)
    lister = Lister(fake)
    assert not [n for n in asyncio.run(lister.all(NODES)) if n.metadata.name.startswith("bad")]
    assert len(lister.notes) == 6
    problem = "Node: Expected `array`, got `int` - at `$.spec.taints`"
    assert lister.notes[0] == f"Node bad0 cannot be read: {problem}"
    assert lister.notes[-1] == "2 more of nodes cannot be read"
