"""Which devices are busy: decided slowly on the node, told in the inventory, used by the allocator alone."""

from __future__ import annotations

import asyncio
import itertools
from pathlib import Path

import pytest
from fake_client import FakeClient
from hypothesis import given
from hypothesis import strategies as st
from node_agent import DRIVER, NODE, configuration, device, eventually, inventory, running

from controller.allocate.decide.state.activity import BUSY_ATTRIBUTE, BusyDevices
from dra_driver.api import codec
from dra_driver.api.core import NODES
from dra_driver.api.meta import DriverName, PoolName
from dra_driver.api.own.inventory import Activity
from dra_driver.api.resource import ResourceSlice
from dra_driver.hardware import DeviceSample
from dra_driver.ownership import PoolID
from kubelet_plugin.app import open_backends
from kubelet_plugin.devices.activity import ActivityWatch, DeviceActivity


def uses(*phases: tuple[int, float | None], every: float = 15.0) -> list[tuple[float, str | None]]:
    """When a device became what: (seconds, use), for phases of so many seconds with a load."""
    told: list[tuple[float, str | None]] = []
    one, now = DeviceActivity(0.05, 60.0), 0.0
    for seconds, load in phases:
        end = now + seconds
        while now < end:
            before = one.use
            one.observe(now, load)
            if one.use != before:
                told.append((now, one.use))
            now += every
    return told


def test_a_device_is_judged_after_two_minutes_of_the_same() -> None:
    assert uses((300, 0.0)) == [(120.0, "idle")]
    assert uses((300, 0.9)) == [(120.0, "busy")]


def test_it_changes_a_minute_after_its_load_has_and_not_before() -> None:
    ((_, idle), (at, busy)) = uses((300, 0.0), (300, 0.9))
    assert (idle, busy) == ("idle", "busy")
    assert 360 <= at <= 390
    ((_, _), (at, idle)) = uses((300, 0.9), (300, 0.0))
    assert idle == "idle"
    # The minute before must have emptied of load, and then another one pass.
    assert 405 <= at <= 435


@pytest.mark.parametrize("told", ["much", float("nan"), float("inf"), 10**400, b"1", [0.5]])
def test_what_is_no_load_is_not_told(told: object) -> None:
    """A backend of a third party must not end the agent."""
    clock = Clock()
    watch = ActivityWatch(clock, threshold=0.05, seconds=60.0)
    for _ in range(20):
        watch.take([DeviceSample(device="a", utilization=told), DeviceSample(device="b", utilization=0.9)])  # type: ignore[arg-type]
        clock.time += 15
    assert watch.current == Activity(busy=("b",))


def test_bursts_are_no_change() -> None:
    assert uses((300, 0.0), (15, 1.0), (300, 0.0)) == [(120.0, "idle")]
    assert uses((300, 0.9), (45, 0.0), (300, 0.9)) == [(120.0, "busy")]


def test_load_that_comes_and_goes_is_use() -> None:
    phases = [(15, load) for _ in range(20) for load in (0.0, 0.5)]
    assert uses(*phases) == [(120.0, "busy")]


def test_between_the_two_thresholds_nothing_changes() -> None:
    assert uses((300, 0.9), (600, 0.04)) == [(120.0, "busy")]
    assert uses((300, 0.0), (600, 0.04)) == [(120.0, "idle")]
    assert uses((600, 0.04)) == []


def test_what_does_not_tell_for_a_minute_is_neither() -> None:
    assert uses((300, 0.9), (45, None), (300, 0.9)) == [(120.0, "busy")]
    told = uses((300, 0.9), (300, None), (300, 0.9))
    assert [use for _, use in told] == ["busy", None, "busy"]
    # It is judged anew, as if it had just come.
    assert told[2][0] == 600 + 120
    assert uses((600, None)) == []


LOADS = st.none() | st.sampled_from([0.0, 0.9]) | st.floats(0, 1)


@given(st.lists(st.tuples(st.integers(1, 300), LOADS), max_size=12))
def test_changes_of_mind_are_a_minute_apart(phases: list[tuple[int, float | None]]) -> None:
    for (earlier, _), (later, use) in itertools.pairwise(uses(*phases, every=5)):
        assert use is None or later - earlier >= 60


class Clock:
    def __init__(self) -> None:
        self.time = 0.0

    def now(self) -> float:
        return self.time

    def monotonic(self) -> float:
        return self.time


def watch(clock: Clock) -> ActivityWatch:
    return ActivityWatch(clock, threshold=0.05, seconds=60.0)


def let_pass(one: ActivityWatch, clock: Clock, seconds: float, **loads: float | None) -> None:
    end = clock.time + seconds
    while clock.time < end:
        one.take([DeviceSample(name, utilization=load) for name, load in loads.items()])
        clock.time += 15


def test_the_node_tells_nothing_before_it_knows_anything() -> None:
    clock = Clock()
    one = watch(clock)
    let_pass(one, clock, 120, a=0.9, b=0.0, c=None)
    assert one.current is None
    let_pass(one, clock, 120, a=0.9, b=0.0, c=None)
    assert one.current == Activity(busy=("a",), idle=("b",))
    assert one.changes.count == 1
    let_pass(one, clock, 600, a=0.8, b=0.01, c=None)
    assert one.changes.count == 1
    # A device that is gone, and one that does not tell any more, are in neither.
    let_pass(one, clock, 300, a=None)
    assert one.current == Activity()


def test_a_node_without_loads_says_that_it_has_none() -> None:
    clock = Clock()
    one = watch(clock)
    let_pass(one, clock, 300)
    assert one.current == Activity()


@pytest.mark.parametrize(
    ("settings", "finding"),
    [
        ({"busy_seconds": 59.0}, "--busy-seconds 59: expected 60 or more"),
        ({"busy_seconds": float("nan")}, "--busy-seconds nan: expected 60 or more"),
        ({"busy_percent": 0.0}, "--busy-threshold 0: expected more than 0 and at most 100 percent"),
        ({"busy_percent": 101.0}, "--busy-threshold 101: expected more than 0 and at most 100 percent"),
        ({"busy_seconds": 0.5, "backends": ("simulated=t4x2",)}, "--busy-seconds 0.5: expected 1 or more"),
        ({"busy_seconds": 5.0, "backends": ("simulated=t4x2", "nvml")}, "expected 60 or more"),
    ],
)
def test_settings_that_would_write_too_often_are_refused(
    tmp_path: Path, settings: dict[str, object], finding: str
) -> None:
    config = configuration(tmp_path, **settings)
    (found,) = config.findings(open_backends(config))
    assert finding in found


def test_simulated_devices_may_be_written_about_more_often(tmp_path: Path) -> None:
    config = configuration(tmp_path, busy_seconds=2.0, backends=("simulated=t4x2",))
    assert config.findings(open_backends(config)) == ()


class Loaded:
    """Devices with a load."""

    name = "test"

    def __init__(self, **loads: float) -> None:
        self.loads = loads
        self.devices = tuple(device(i) for i in range(len(loads)))

    def discover(self):  # type: ignore[no-untyped-def]
        return self.devices

    def sample(self) -> list[DeviceSample]:
        return [DeviceSample(name.replace("_", "-"), utilization=u) for name, u in self.loads.items()]

    def close(self) -> None:
        pass


def activity(kube: FakeClient) -> object:
    return (inventory(kube) or {}).get("status", {}).get("activity")


@pytest.mark.long
def test_the_inventory_tells_it_and_keeps_it_over_a_restart(tmp_path: Path) -> None:
    async def lives() -> None:
        kube = FakeClient()
        kube.put(NODES, {"metadata": {"name": NODE}})
        backend = Loaded(gpu_0=0.9, gpu_1=0.0)
        busy = {"busy": ["gpu-0"], "idle": ["gpu-1"]}
        quick = {"busy_seconds": 1.0, "backends": ("simulated=t4x2",)}
        async with running(tmp_path, kube, backend=backend, settings=quick):
            await eventually(lambda: activity(kube) == busy, 20)
        # A new agent knows nothing for two minutes; meanwhile what the old one said holds.
        async with running(tmp_path, kube, backend=backend, settings={}) as node:
            await node.plugin._keeper.reconcile()
            assert activity(kube) == busy

    asyncio.run(lives())


def slice_of(node: str, *devices: str) -> ResourceSlice:
    spec = {
        "driver": DRIVER,
        "nodeName": node,
        "pool": {"name": node, "generation": 1, "resourceSliceCount": 1},
        "devices": [{"name": d, "attributes": {"model": {"string": "T4"}}} for d in devices],
    }
    return codec.convert(ResourceSlice, {"metadata": {"name": node}, "spec": spec})


def test_the_allocators_view_of_a_slice_has_it() -> None:
    busy = BusyDevices()
    pool = PoolID(DriverName(DRIVER), PoolName("a"))
    busy.put(pool, frozenset({"gpu-1"}))
    assert busy
    assert busy.take() == {pool}
    assert not busy
    plain = slice_of("a", "gpu-0", "gpu-1")
    marked = busy.marked(plain)
    assert [BUSY_ATTRIBUTE in d.attributes for d in marked.spec.devices] == [False, True]
    assert [BUSY_ATTRIBUTE in d.attributes for d in plain.spec.devices] == [False, False]
    # Nothing to say: not even a copy.
    for other in (slice_of("b", "gpu-1"), slice_of("a", "gpu-0")):
        assert busy.marked(other) is other
    busy.put(pool, frozenset({"gpu-1"}))
    assert busy.take() == set()
    busy.put(pool, frozenset())
    assert busy.take() == {pool}
    assert busy.marked(plain) is plain
