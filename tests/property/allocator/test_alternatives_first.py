"""Best fit takes no later alternative than it must, and then leaves least unused, against all answers."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import pytest
from allocator_world import snapshot
from brute_force import Best, SmallCluster, Wish, best_answer, random_pod, random_world
from builders import DRIVER
from examples import share

from dra_driver.api.meta import PoolName
from dra_driver.structured import Allocated, AllocatedState, DeviceID, DoesNotFit, Outcome, allocate

_PODS_PER_CLUSTER = 10


def answered(world: SmallCluster, pod: Sequence[Wish], outcome: Outcome) -> Best | None:
    """What the allocator's answer is worth."""
    if isinstance(outcome, DoesNotFit):
        return None
    assert isinstance(outcome, Allocated), outcome
    things = {(t.node, t.name): t for t in world.things}
    ranks: list[int] = []
    waste = 0
    for wish, result in zip(pod, outcome.results, strict=True):
        for number, request in enumerate(wish.requests):
            got = [r for r in result.devices.results if r.request.partition("/")[0] == f"req-{number}"]
            (served,) = {r.request for r in got}
            rank = int(served.rpartition("/s")[2]) if len(request) > 1 else 0
            want = request[rank]
            assert len({r.device for r in got}) == want.count
            for r in got:
                thing = things[outcome.node, r.device]
                assert want.suits(thing)
                waste += want.unused(thing)
            ranks.append(rank)
    return Best(tuple(ranks), waste)


def differences(seed: int, cases: int) -> list[str]:
    """The cases in which the allocator's answer is not the best one."""
    random = Random(seed)
    found: list[str] = []
    for _ in range(cases // _PODS_PER_CLUSTER):
        world = random_world(random)
        held = [(DeviceID(DRIVER, PoolName(t.node), t.name), "default/holder") for t in world.taken]
        now = snapshot(*world.slices).with_allocated(AllocatedState().with_devices(held))
        for number in range(_PODS_PER_CLUSTER):
            pod = random_pod(random)
            claims = [wish.made(f"c{number}-{i}") for i, wish in enumerate(pod)]
            want, have = best_answer(world, pod), answered(world, pod, allocate(now, claims))
            if want != have:
                found.append(f"best {want}, answered {have}: {pod} on {world.things}")
    return found


@pytest.mark.parametrize("seed", share(range(4), 1))
def test_no_later_alternative_than_necessary_and_then_the_least_unused(seed: int) -> None:
    assert differences(seed, 200) == []


@pytest.mark.long
@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(100, 120))
def test_no_later_alternative_than_necessary_in_100_000_cases(seed: int) -> None:
    assert differences(seed, 5_000) == []
