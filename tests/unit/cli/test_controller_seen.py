"""Whether the controller works, as commands see it: by its Lease, and not by our clock."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
import virtual_time
from fake_client import FakeClient
from virtual_time import LoopClock

from dra_driver.api.names import CONTROLLER_LEASE
from dra_driver.cli.live.controller import Unreadable, see_controller
from dra_driver.errors import Forbidden
from dra_driver.fleet import ControllerSeen
from dra_driver.kube import LEASES, Heartbeat, LeaderConfig

NS = "system"


class Ahead(LoopClock):
    """The clock of a machine that is ahead of, or behind, that of the cluster."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def now(self) -> float:
        return super().now() + self._seconds


def see(
    cluster: FakeClient, clock: Callable[[], LoopClock] = LoopClock, *, alive: bool, after: float = 1.0
) -> ControllerSeen | Unreadable:
    """See a controller that has worked, and works on or was killed ``after`` seconds before."""

    async def main() -> ControllerSeen | Unreadable:
        beat = Heartbeat(cluster, LeaderConfig(NS, CONTROLLER_LEASE, "c_1"), LoopClock())
        async with beat.beating():
            await asyncio.sleep(1)
            if alive:
                return await see_controller(cluster, NS, clock())
            left = cluster.raw(LEASES, CONTROLLER_LEASE, NS)["spec"]
        cluster.edit(LEASES, CONTROLLER_LEASE, {"spec": left}, NS)
        await asyncio.sleep(after)
        return await see_controller(cluster, NS, clock())

    return virtual_time.run(main())


@pytest.mark.parametrize("ahead", [0, -3600, 3600, 10.0, -10.0])
def test_a_controller_that_renews_its_lease_works_whatever_our_clock_says(ahead: float) -> None:
    seen = see(FakeClient(), lambda: Ahead(ahead), alive=True)
    assert isinstance(seen, ControllerSeen)
    assert seen.answers
    assert seen.holder == "c_1"


@pytest.mark.parametrize("ahead", [0, -3600, 3600])
def test_a_killed_controller_does_not_whatever_our_clock_says(ahead: float) -> None:
    seen = see(FakeClient(), lambda: Ahead(ahead), alive=False, after=40)
    assert isinstance(seen, ControllerSeen)
    assert (seen.found, seen.answers, seen.holder) == (True, False, "c_1")


def test_a_controller_that_has_just_been_killed_is_not_known_to_be() -> None:
    seen = see(FakeClient(), alive=False, after=5)
    assert isinstance(seen, ControllerSeen)
    assert seen.answers


def test_an_orderly_end_is_seen_at_once() -> None:
    cluster = FakeClient()

    async def main() -> ControllerSeen | Unreadable:
        async with Heartbeat(cluster, LeaderConfig(NS, CONTROLLER_LEASE, "c_1"), LoopClock()).beating():
            await asyncio.sleep(1)
        return await see_controller(cluster, NS, LoopClock())

    seen = virtual_time.run(main())
    assert isinstance(seen, ControllerSeen)
    assert (seen.found, seen.answers, seen.holder) == (True, False, "")


def test_a_controller_that_never_ran() -> None:
    async def main() -> ControllerSeen | Unreadable:
        return await see_controller(FakeClient(), NS, LoopClock())

    assert virtual_time.run(main()) == ControllerSeen(f"{NS}/{CONTROLLER_LEASE}")


def test_without_the_right_to_read_it_that_is_said() -> None:
    cluster = FakeClient()

    def forbid(verb: str, kind: str, name: str, subresource: str) -> None:
        if kind == "Lease":
            raise Forbidden("no", code=403)

    cluster.before = forbid

    async def main() -> ControllerSeen | Unreadable:
        return await see_controller(cluster, NS, LoopClock())

    assert virtual_time.run(main()) == (
        "may not get leases.coordination.k8s.io in namespace system: whether the controller works is unknown"
    )
