"""The last look before allocations are assumed: no device for two, whoever has worked them out."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import builders
import pytest
import virtual_time
from builders import DRIVER
from fake_client import FakeClient

from controller.allocate.allocation_check import AllocationCheck
from controller.allocate.answers.journal import Journal
from controller.allocate.signal import Signal
from controller.allocate.state.assume_cache import AssumeCache
from controller.allocate.state.pool_owners import CurrentOwners
from controller.allocate.state.pool_states import PoolStates
from dra_driver.api import codec
from dra_driver.api.meta import PoolName
from dra_driver.api.names import CONTROLLER_TAINT
from dra_driver.api.resource import (
    DEVICE_CLASSES,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    AllocationResult,
    ResourceClaim,
)
from dra_driver.kube import Informer
from dra_driver.ownership import PoolID
from dra_driver.structured import PoolPolicy

TAINT = {"key": CONTROLLER_TAINT, "value": "allocates", "effect": "NoSchedule"}
N1 = PoolID(DRIVER, PoolName("n1"))


def gives(*devices: str, **more: Any) -> AllocationResult:
    """Return an allocation of devices, each named as ``POOL/DEVICE``."""
    results = [builders.result(*name.split("/"), **more) for name in devices]
    return codec.convert(AllocationResult, builders.allocation(*results)["allocation"])


class Known:
    """Two nodes of ours with two GPUs each and one of kube-scheduler; claims hold what is assumed."""

    def __init__(self, cluster: FakeClient) -> None:
        claims, classes = Informer(cluster, RESOURCE_CLAIMS), Informer(cluster, DEVICE_CLASSES)
        slices = Informer(cluster, RESOURCE_SLICES)
        of_pool = lambda pool: [s for s in slices.items() if s.spec.pool.name == pool.pool]  # noqa: E731
        self.informers: tuple[Informer[Any], ...] = (claims, slices, classes)
        self.cache = AssumeCache(claims, Journal(), Signal())
        self.states = PoolStates(PoolPolicy(), lambda _: None, Signal(), of_pool)
        owners = CurrentOwners([DRIVER], self.states, slices, classes)
        self.allows = AllocationCheck(self.cache, owners, of_pool).allows

    def hold(self, *devices: str, **more: Any) -> None:
        name = "-".join(devices).replace("/", "-")
        claim = codec.convert(ResourceClaim, builders.claim(name, uid=name))
        self.cache.assume(claim, gives(*devices, **more))


def looking(scenario: Callable[[Known], None]) -> None:
    async def main() -> None:
        cluster = FakeClient()
        for node in ("n1", "n2", "n3"):
            taints = [] if node == "n3" else [TAINT]
            gpus = [builders.device(f"gpu-{i}", taints=taints) for i in range(2)]
            cluster.put(RESOURCE_SLICES, builders.resource_slice(node, *gpus))
        known = Known(cluster)
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(i.run()) for i in known.informers]
            for informer in known.informers:
                await informer.synced.wait()
            scenario(known)
            for task in tasks:
                task.cancel()

    virtual_time.run(main())


def test_free_devices_of_ours_may_be_given_together() -> None:
    def scenario(known: Known) -> None:
        known.hold("n1/gpu-0")
        assert known.allows([])
        assert known.allows([gives("n1/gpu-1")])
        assert known.allows([gives("n1/gpu-1"), gives("n2/gpu-0"), gives("n2/gpu-1")])

    looking(scenario)


@pytest.mark.parametrize("others", [(), ("n1/gpu-1",), ("n2/gpu-0",)])
def test_a_device_that_is_taken_is_not_given_however_many_are_free(others: tuple[str, ...]) -> None:
    def scenario(known: Known) -> None:
        known.hold("n1/gpu-0")
        assert not known.allows([gives("n1/gpu-0", *others)])
        assert not known.allows([*map(gives, others), gives("n1/gpu-0")])
        assert not known.allows([gives("n1/gpu-0"), *map(gives, others)])

    looking(scenario)


def test_a_device_is_not_given_twice_by_one_answer() -> None:
    def scenario(known: Known) -> None:
        assert not known.allows([gives("n1/gpu-0"), gives("n1/gpu-0")])
        assert not known.allows([gives("n1/gpu-0", "n2/gpu-0"), gives("n2/gpu-1", "n1/gpu-0")])
        assert not known.allows([gives("n1/gpu-0", "n1/gpu-0")])

    looking(scenario)


def test_what_has_admin_access_takes_nothing() -> None:
    def scenario(known: Known) -> None:
        known.hold("n1/gpu-0")
        assert known.allows([gives("n1/gpu-0", adminAccess=True)])

    looking(scenario)


@pytest.mark.parametrize("also", [(), ("n1/gpu-0",)])
def test_nothing_is_given_of_a_pool_that_is_not_ours_or_is_blocked(also: tuple[str, ...]) -> None:
    def scenario(known: Known) -> None:
        for node in ("n3", "n4"):
            assert not known.allows([*map(gives, also), gives(f"{node}/gpu-0")])
        assert known.allows([*map(gives, also), gives("n2/gpu-0")])
        known.states.set_blocked(PoolID(DRIVER, PoolName("n2")), True)
        assert not known.allows([*map(gives, also), gives("n2/gpu-0")])
        known.states.set_blocked(N1, True)
        assert not known.allows([gives("n1/gpu-0"), gives("n2/gpu-0")])

    looking(scenario)
