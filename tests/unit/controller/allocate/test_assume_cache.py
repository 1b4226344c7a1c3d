"""Devices are taken from the decision until the informer shows the allocation, without a gap."""

import asyncio

import msgspec
from support.fake_cluster import FakeCluster

from controller.allocate.assume_cache import AssumeCache
from controller.allocate.decide import ClaimAssumed, ClaimSeen, ClaimView
from controller.allocate.pool_states import PoolStates
from controller.allocate.signal import Signal
from dra_driver.api import codec
from dra_driver.api.meta import ObjectKey, PoolName
from dra_driver.api.resource import RESOURCE_CLAIMS, AllocationResult
from dra_driver.kube import Informer
from dra_driver.ownership import PoolID
from dra_driver.structured import NodePolicy, PoolPolicy, Strategy

DRIVER, NS = "gpu.example.com", "default"
POOL = PoolID(DRIVER, PoolName("n1"))
KEY = ObjectKey(NS, "c")
ALLOCATION = codec.convert(
    AllocationResult,
    {"devices": {"results": [{"request": "r", "driver": DRIVER, "pool": "n1", "device": "gpu-0"}]}},
)


def as_written(claim):
    """The answer of the API server to the write of the allocation."""
    meta = msgspec.structs.replace(claim.metadata, resource_version="1000")
    status = msgspec.structs.replace(claim.status, allocation=ALLOCATION)
    return msgspec.structs.replace(claim, metadata=meta, status=status)


def test_what_is_assumed_stays_taken_through_the_write_and_is_free_after_the_release():
    async def scenario():
        cluster = FakeCluster()
        cluster.put(RESOURCE_CLAIMS, {"metadata": {"name": "c", "namespace": NS}, "spec": {}, "status": {}})
        informer = Informer(cluster, RESOURCE_CLAIMS)
        changes, freed = [], []
        signal: Signal[[]] = Signal()
        signal.listen(lambda: freed.append(dict(cache.taken(POOL).devices)))
        cache = AssumeCache(informer, changes.append, signal)
        task = asyncio.create_task(informer.run())
        try:
            await asyncio.wait_for(informer.synced.wait(), 10)
            claim = cache.get(KEY)
            assert not cache.is_assumed(claim)
            cache.assume(claim, ALLOCATION)
            assert cache.is_assumed(claim)
            assert cache.assumed_in(POOL)
            assert dict(cache.taken(POOL).devices) == {"gpu-0": "default/c"}
            cache.release(claim)
            assert freed == [{}]
            assert cache.taken(POOL).devices == {}
            cache.assume(claim, ALLOCATION)
            cache.confirm(as_written(claim))
            assert not cache.is_assumed(claim)
            assert cache.get(KEY) == as_written(claim)
            assert dict(cache.taken(POOL).devices) == {"gpu-0": "default/c"}
            assert freed == [{}]
        finally:
            task.cancel()
        # A view that is fed with the changes never sees a gap either.
        view, taken = ClaimView(), []
        for change in changes:
            match change:
                case ClaimSeen(claim):
                    view.put(claim)
                case ClaimAssumed(key, uid, allocation):
                    view.assume(key, uid, allocation)
            taken.append(bool(view.allocated.pool(POOL).devices))
        assert taken == [False, True, False, True, True, True]

    asyncio.run(scenario())


def test_each_change_of_what_the_allocator_must_know_about_a_pool_is_reported_once():
    default, spread = PoolPolicy(), PoolPolicy(Strategy.BEST_FIT, NodePolicy.SPREAD)
    changes, sent = [], []
    signal: Signal[[PoolID]] = Signal()
    signal.listen(sent.append)
    pools = PoolStates(default, changes.append, signal)
    pools.set_blocked(POOL, False)
    pools.set_policy(POOL, default)
    assert changes == []
    pools.set_blocked(POOL, True)
    pools.set_blocked(POOL, True)
    pools.set_policy(POOL, spread)
    pools.set_blocked(POOL, False)
    pools.set_policy(POOL, default)
    assert [(c.blocked, c.policy) for c in changes] == [
        (True, default),
        (True, spread),
        (False, spread),
        (False, default),
    ]
    assert sent == [POOL] * 4
