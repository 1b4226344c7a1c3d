"""Request shapes that the worker counts beside its questions."""

from __future__ import annotations

import asyncio
import os
import select
import time

import builders
import pytest
from builders import DRIVER
from worker_world import POOL, run, world

from controller.allocate.decide import ClaimAssumed, Decisions, ObjectSeen, PoolChanged, Settings
from controller.allocate.worker.sent_answers import counts_of
from controller.allocate.worker.shape_lane import ShapeLane
from controller.allocate.worker.wire import Code, Frame
from controller.observe.metrics import Metrics
from dra_driver.api import codec
from dra_driver.api.core import Node
from dra_driver.api.meta import ObjectKey, Uid
from dra_driver.api.resource import AllocationResult, DeviceClass, ResourceSlice
from dra_driver.errors import DecodeError
from dra_driver.fleet import ShapeCount, parse_shapes
from dra_driver.structured import PoolPolicy

SHAPES = parse_shapes(
    [
        'one={"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": "gpu"}}]}}',
        'pair={"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": "gpu", "count": 2}}]}}',
        "none=missing.example.com",
    ],
    DRIVER,
)


def test_the_worker_counts_what_fits_beside_what_is_allocated() -> None:
    async def scenario() -> None:
        async with world(shapes=SHAPES) as w:
            w.node("n1", 3)
            w.node("n2", 1)
            w.pod("a")
            w.accept(await w.ask("a"))
            while not w.counts:
                await asyncio.sleep(0.01)
            one, pair, none = w.counts[0]
            # Counted before or after the pod got its device, which was the only one of its node.
            assert (one.fits, pair.fits, pair.suggested) in ((4, 1, 2), (3, 1, 1))
            assert "does not exist" in none.problem
            assert w.worker.restarts == 0

    run(scenario)


class Lane:
    """A lane with a time of its own, and decisions about one node with two devices."""

    def __init__(self, make: type[Decisions] = Decisions) -> None:
        self.now = 100.0
        self.counts: list[tuple[ShapeCount, ...]] = []
        self.decisions = make(Settings(drivers=(DRIVER,), shapes=SHAPES), time.thread_time)
        devices = [builders.device(f"gpu-{i}", "40Gi", taints=[builders.PROTECTED]) for i in range(2)]
        published = builders.resource_slice("n1", *devices, driver=DRIVER)
        self.decisions.apply(ObjectSeen(codec.convert(DeviceClass, builders.device_class("gpu"))))
        self.decisions.apply(ObjectSeen(codec.convert(Node, builders.node("n1"))))
        self.decisions.apply(ObjectSeen(codec.convert(ResourceSlice, published)))
        self.lane = ShapeLane(
            self.decisions,
            memory=1 << 30,
            done=self._done,
            connection=os.open(os.devnull, os.O_RDONLY),
            clock=lambda: self.now,
        )

    def _done(self, data: bytes) -> None:
        self.counts.append(counts_of(Frame(Code.SHAPES, 0, data), SHAPES))

    def look(self) -> bool:
        """Let it look, and wait for the count if it has begun one."""
        self.lane.look()
        began = bool(self.lane.pipes)
        while self.lane.pipes:
            (pipe,) = self.lane.pipes
            select.select([pipe], [], [])
            self.lane.read(pipe)
        return began

    def fits(self) -> list[int]:
        return [count.fits for count in self.counts[-1]]


def test_shapes_are_counted_again_when_something_has_changed_and_not_at_once() -> None:
    lane = Lane()
    assert lane.look()
    assert lane.fits() == [2, 1, 0]
    lane.now += 1000
    assert not lane.look()
    result = codec.convert(
        AllocationResult, builders.allocation(builders.result("n1", "gpu-0"))["allocation"]
    )
    lane.decisions.apply(ClaimAssumed(ObjectKey("ns", "c"), Uid("u"), result))
    lane.now += 1000
    assert lane.look()
    assert lane.fits() == [1, 0, 0]
    lane.decisions.apply(PoolChanged(POOL, True, PoolPolicy()))
    assert not lane.look()
    lane.now += 1000
    assert lane.look()
    assert lane.fits() == [0, 0, 0]


@pytest.mark.parametrize("ends", [True, False])
def test_what_a_count_needs_is_prepared_before_the_copy_is_made(ends: bool) -> None:
    ready = False

    class Unprepared(Decisions):
        def prepare_shapes(self) -> bool:
            return ready

    lane = Lane(make=Unprepared)
    for _ in range(5):
        assert not lane.look()
        lane.now += 1.0
    # Shapes that are never all ready are counted all the same.
    ready = ends
    lane.now += 1.0 if ends else 1000.0
    assert lane.look()
    assert lane.fits() == [2, 1, 0]


@pytest.mark.parametrize(
    "fields",
    [
        {"shape": "other"},
        {"fits": -1},
        {"fits": 3, "suggested": 2},
        {"suggested": 1 << 60},
        {"problem": "x" * 20_000},
        {"exact": "yes"},
    ],
)
def test_counts_that_no_worker_in_order_sends_end_it(fields: dict[str, object]) -> None:
    count = {"shape": "one", "fits": 1, "exact": True, "suggested": 2, "problem": "", **fields}
    with pytest.raises(DecodeError):
        counts_of(Frame(Code.SHAPES, 0, codec.encode([count])), SHAPES[:1])
    with pytest.raises(DecodeError):
        counts_of(Frame(Code.SHAPES, 0, codec.encode([count])), ())


def test_metrics_show_the_newest_counts_and_nothing_of_what_cannot_be_counted() -> None:
    metrics = Metrics()
    metrics.set_shape_counts([ShapeCount("one", 3, True, 4), ShapeCount("old", 1, True, 1)])
    metrics.set_shape_counts([ShapeCount("one", 2, True, 4), ShapeCount("old", 0, True, 0, "no class")])
    text = metrics.text().decode()
    assert 'dra_driver_controller_shape_fits{shape="one"} 2.0' in text
    assert 'dra_driver_controller_shape_suggested{shape="one"} 4.0' in text
    assert 'shape="old"' not in text
