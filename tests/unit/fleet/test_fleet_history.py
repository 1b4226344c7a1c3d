"""What is remembered of a fleet: what it says, and that it stays within its bounds whoever writes it."""

from __future__ import annotations

import tracemalloc
from typing import Any

import builders
import pytest
from builders import DRIVER
from hypothesis import given
from hypothesis import strategies as st

from dra_driver.api import codec
from dra_driver.api.core import Node, Pod
from dra_driver.api.own.inventory import DeviceInventory
from dra_driver.api.resource import ResourceClaim
from dra_driver.fleet import FleetSample, History, Observer, Subject, Trend

GPU = Subject("device", f"{DRIVER}/n1/gpu-0")


class Watched:
    """An observer with a clock that is turned by hand."""

    def __init__(self) -> None:
        self.time = 1000.0
        self.history = History()
        self.observer = Observer((DRIVER,), self.history, lambda: self.time)

    def texts(self, kind: str, name: str) -> list[str]:
        return [e.text for e in self.history.of(Subject(kind, name), self.time)]


def claim(name: str = "c", *devices: str, uid: str = "") -> ResourceClaim:
    status = builders.allocation(*(builders.result("n1", d) for d in devices)) if devices else {}
    return codec.convert(ResourceClaim, builders.claim(name, namespace="ns", uid=uid or name, status=status))


def pod(name: str = "p", *, phase: str = "Pending", why: str = "", **spec: Any) -> Pod:
    body = builders.pod(name, "c", namespace="ns", uid=name, **spec)
    condition = {
        "type": "dra-driver.dev/Allocated",
        "status": "False",
        "reason": "FailedAllocation",
        "message": why,
    }
    body["status"] = {"phase": phase, "conditions": [condition] if why else []}
    return codec.convert(Pod, body)


def inventory(*health: dict[str, Any], busy: tuple[str, ...] = ()) -> DeviceInventory:
    body = builders.inventory("n1", {"name": "gpu-0", "health": list(health)})
    body["status"] = {**body.get("status", {}), "activity": {"busy": list(busy)}}
    return codec.convert(DeviceInventory, body)


def test_what_was_there_before_is_no_news() -> None:
    seen = Watched()
    seen.observer.put_claim(claim("c", "gpu-0"))
    seen.observer.put_pod(pod())
    seen.observer.put_node(codec.convert(Node, builders.node("n1")))
    seen.observer.settle()
    assert len(seen.history) == 0


def test_a_device_tells_who_had_it() -> None:
    seen = Watched()
    seen.observer.settle()
    seen.observer.put_claim(claim())
    seen.observer.put_claim(claim("c", "gpu-0", "gpu-1"))
    seen.observer.put_claim(claim("c", "gpu-0", "gpu-1"))
    seen.observer.put_claim(claim())
    seen.observer.put_claim(claim("c", "gpu-0"))
    seen.observer.put_claim(claim("c", uid="another"))
    assert seen.texts(*GPU) == ["allocated to claim ns/c", "freed by claim ns/c"] * 2
    assert seen.texts("claim", "ns/c") == [
        "created",
        "allocated: gpu-0 of n1, gpu-1 of n1",
        "deallocated: gpu-0 of n1, gpu-1 of n1",
        "allocated: gpu-0 of n1",
        "deleted",
        "created",
    ]


def test_who_only_looks_at_a_device_does_not_hold_it() -> None:
    seen = Watched()
    seen.observer.settle()
    status = builders.allocation(builders.result("n1", "gpu-0", adminAccess=True))
    looks = builders.claim("looks", namespace="ns", uid="looks", status=status)
    seen.observer.put_claim(codec.convert(ResourceClaim, looks))
    seen.observer.put_claim(claim("c", "gpu-0"))
    seen.observer.remove_claim(codec.convert(ResourceClaim, looks))
    assert [(e.kind, e.text) for e in seen.history.of(GPU, seen.time)] == [
        ("admin", "admin access for claim ns/looks"),
        ("allocated", "allocated to claim ns/c"),
        ("admin", "no more admin access for claim ns/looks"),
    ]


def test_a_pod_tells_why_it_waited_and_where_it_went() -> None:
    seen = Watched()
    seen.observer.settle()
    seen.observer.put_pod(pod(priority=7))
    seen.observer.put_pod(pod(why="3 of 9 devices"))
    seen.observer.put_pod(pod(why="4 of 9 devices"))  # other figures alone are no news
    seen.observer.put_pod(pod(why="no class"))
    seen.observer.put_pod(pod(phase="Running", nodeName="n1"))
    seen.observer.remove_pod(pod())
    assert seen.texts("pod", "ns/p") == [
        "created with priority 7",
        "waits: FailedAllocation: 3 of 9 devices",
        "waits: FailedAllocation: no class",
        "bound to node n1",
        "is Running now",
        "deleted",
    ]


def test_pods_without_claims_leave_nothing_behind() -> None:
    seen = Watched()
    seen.observer.settle()
    seen.observer.put_pod(codec.convert(Pod, builders.pod("plain")))
    assert len(seen.history) == 0
    assert seen.observer._pods == {}


def test_health_and_what_runs_are_told_of_the_device_and_its_node() -> None:
    xid = {"reason": "XidError", "severity": "degraded", "message": "Xid 79"}
    seen = Watched()
    seen.observer.put_inventory(inventory())
    seen.observer.settle()
    seen.observer.put_inventory(inventory(xid))
    seen.observer.put_inventory(inventory(xid, busy=("gpu-0",)))
    seen.observer.put_inventory(inventory({**xid, "severity": "failed"}, busy=("gpu-0",)))
    seen.observer.put_inventory(inventory())
    assert seen.texts(*GPU) == [
        "XidError (degraded): Xid 79",
        "something runs on it",
        "XidError (failed): Xid 79",
        "XidError is over",
    ]
    assert "gpu-0: XidError is over" in seen.texts("node", "n1")


def test_nothing_is_told_of_devices_that_a_node_does_not_have() -> None:
    seen = Watched()
    seen.observer.put_inventory(inventory())
    seen.observer.settle()
    seen.observer.put_inventory(inventory(busy=("gpu-0", "gpu-99")))
    assert len(seen.history) == 1
    assert seen.texts(*GPU) == ["something runs on it"]


def test_a_node_tells_when_it_took_no_pods() -> None:
    seen = Watched()
    seen.observer.put_node(codec.convert(Node, builders.node("n1")))
    seen.observer.settle()
    seen.observer.put_node(codec.convert(Node, builders.node("n1", unschedulable=True)))
    seen.observer.put_node(codec.convert(Node, builders.node("n1")))
    seen.observer.remove_node(codec.convert(Node, builders.node("n1")))
    assert seen.texts("node", "n1") == ["cordoned", "ready, and takes pods", "left the cluster"]


def test_another_source_tells_what_happened_in_between_and_nothing_twice() -> None:
    seen = Watched()
    seen.observer.put_claim(claim("stays", "gpu-0"))
    seen.observer.put_claim(claim("goes", "gpu-1"))
    seen.observer.settle()
    seen.observer.begin()
    seen.observer.put_claim(claim("stays", "gpu-0"))
    seen.observer.put_claim(claim("comes"))
    seen.observer.settle()
    assert seen.texts(*GPU) == []
    assert seen.texts("claim", "ns/stays") == []
    assert seen.texts("claim", "ns/goes") == ["deleted"]
    assert seen.texts("claim", "ns/comes") == ["created"]


def test_what_is_old_is_forgotten() -> None:
    history = History(seconds=100.0)
    history.note(GPU, 0.0, "health", "old")
    history.note(GPU, 90.0, "health", "new")
    assert [e.text for e in history.of(GPU, 150.0)] == ["new"]
    history.expire(150.0)
    assert len(history) == 1
    history.expire(300.0)
    assert (len(history), history.bytes) == (0, 0)


def test_one_namespace_takes_no_place_of_others() -> None:
    history = History(entries=100)
    history.note(Subject("claim", "quiet/c"), 0.0, "created", "created")
    history.note(GPU, 0.0, "allocated", "allocated")
    for i in range(1000):
        history.note(Subject("claim", f"loud/c-{i}"), 1.0, "created", "x" * 1000)
    assert len(history) == 100
    assert history.of(Subject("claim", "quiet/c"), 1.0)
    assert history.of(GPU, 1.0)


@pytest.mark.long
def test_memory_stays_within_the_bound() -> None:
    bound = 4 << 20
    tracemalloc.start()
    history = History(size=bound)
    before = tracemalloc.get_traced_memory()[0]
    for i in range(20_000):
        for kind in ("claim", "pod"):
            # Longest texts, and a subject of its own for each entry: what costs most.
            subject = Subject(kind, f"ns-{i % 40}/{i:0>200}")
            history.note(subject, float(i), "waits", f"{i}" + "\N{EURO SIGN}" * 400)
    used = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert history.bytes <= bound
    assert used <= 1.1 * bound, f"{used} bytes are used, {history.bytes} are counted"
    assert used >= 0.4 * bound, "the bound would be far from what is used"


SUBJECTS = st.builds(Subject, st.sampled_from(["claim", "device"]), st.sampled_from(["a/b", "a/c", "d/e"]))


@given(st.lists(st.tuples(SUBJECTS, st.text(max_size=3), st.integers(0, 3)), max_size=60))
def test_bounds_hold_and_the_newest_is_kept(notes: list[tuple[Subject, str, int]]) -> None:
    history = History(entries=10, per_subject=3, seconds=8.0)
    now = 0.0
    for subject, text, step in notes:
        now += step
        history.note(subject, now, "phase", text)
        history.expire(now)
        mine = history.of(subject, now)
        assert mine[-1].text == text
        assert len(mine) <= 3
        assert len(history) <= 10
        assert history.bytes > 0
    history.expire(now + 100.0)
    assert (len(history), history.bytes, history._subjects, history._tenants) == (0, 0, {}, {})


def test_the_trend_keeps_the_latest_samples() -> None:
    trend = Trend(most=3)
    for i in range(5):
        trend.add(FleetSample(float(i), (0, 0, 0, 0, i), 0, 0))
    assert [s.at for s in trend.samples()] == [2.0, 3.0, 4.0]
