"""How many copies of a claim fit: compared with everything that can be tried on small clusters."""

from __future__ import annotations

from random import Random

import allocator_world as world_of
import brute_force
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from dra_driver.structured import Allocated, AllocatedState, DeviceID, Snapshot, allocate, count_copies


def snapshot_of(world: brute_force.SmallCluster) -> Snapshot:
    """The cluster, with the devices that are taken."""
    slices = world.slices
    made = world_of.snapshot(slices)
    names = {(t.node, t.name) for t in world.taken}
    taken = [
        (DeviceID(s.spec.driver, s.spec.pool.name, d.name), "default/other")
        for s in slices
        for d in s.spec.devices
        if (s.spec.node_name, d.name) in names
    ]
    return made.with_allocated(AllocatedState().with_devices(taken))


@given(st.integers(0, 2**32))
@settings(max_examples=examples(400), deadline=None)
def test_as_many_copies_fit_as_by_trying_everything(seed: int) -> None:
    random = Random(seed)
    world = brute_force.random_world(random)
    wish = brute_force.random_wish(random)
    found = count_copies(snapshot_of(world), wish.made("c"))
    most = brute_force.most_copies(world, wish)
    assert found.fits <= most <= found.suggested
    assert found.exact
    assert found.fits == most


@given(st.integers(0, 2**32))
@settings(max_examples=examples(150), deadline=None)
def test_what_is_allocated_one_by_one_is_never_more(seed: int) -> None:
    random = Random(seed)
    world = brute_force.random_world(random)
    wish = brute_force.random_wish(random)
    snapshot = snapshot_of(world)
    counted = count_copies(snapshot, wish.made("c")).fits
    placed = 0
    while isinstance(outcome := allocate(snapshot, [wish.made(f"c{placed}")]), Allocated):
        made = [(f"c{placed}", outcome.results[0])]
        snapshot = snapshot.with_allocated(snapshot.allocated.with_allocations(made))
        # The count follows: it is of what is left, and one copy less or more than one less.
        placed += 1
        left = count_copies(snapshot, wish.made("c")).fits
        assert left <= counted - placed
    assert placed <= counted
    assert count_copies(snapshot, wish.made("c")).fits == 0
