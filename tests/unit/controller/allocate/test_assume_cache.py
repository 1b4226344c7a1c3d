"""Devices are taken from the decision until the informer shows the allocation, without a gap."""

import asyncio
from collections.abc import Callable

import msgspec
from builders import DRIVER, allocation, claim, result
from builders import NAMESPACE as NS
from fake_client import FakeClient

from controller.allocate.answers.journal import Journal
from controller.allocate.decide import Change, ClaimAssumed, ClaimSeen, ClaimView, PoolChanged
from controller.allocate.signal import Signal
from controller.allocate.state.assume_cache import AssumeCache
from controller.allocate.state.pool_states import PoolStates
from dra_driver.api import codec
from dra_driver.api.meta import ObjectKey, PoolName, Uid
from dra_driver.api.resource import RESOURCE_CLAIMS, AllocationResult, ResourceClaim
from dra_driver.kube import Informer
from dra_driver.ownership import PoolID
from dra_driver.structured import NodePolicy, PoolPolicy, Strategy

POOL = PoolID(DRIVER, PoolName("n1"))
KEY = ObjectKey(NS, "c")
ALLOCATION = codec.convert(AllocationResult, allocation(result("n1", "gpu-0"))["allocation"])


def as_written(found: ResourceClaim) -> ResourceClaim:
    """Return the answer of the API server to the write of the allocation."""
    later = str(int(found.metadata.resource_version) + 1)
    meta = msgspec.structs.replace(found.metadata, resource_version=later)
    status = msgspec.structs.replace(found.status, allocation=ALLOCATION)
    return msgspec.structs.replace(found, metadata=meta, status=status)


def test_what_is_assumed_stays_taken_through_the_write_and_is_free_after_the_release() -> None:
    async def scenario() -> None:
        cluster = FakeClient()
        cluster.put(RESOURCE_CLAIMS, claim("c"))
        informer = Informer(cluster, RESOURCE_CLAIMS)
        changes: list[Change] = []
        freed: list[dict[str, str]] = []
        signal: Signal[[]] = Signal()
        signal.listen(lambda: freed.append(dict(cache.taken(POOL).devices)))
        journal = Journal()
        journal.send_to(lambda _, change: changes.append(change))
        cache = AssumeCache(informer, journal, signal)
        task = asyncio.create_task(informer.run())
        try:
            await asyncio.wait_for(informer.synced.wait(), 60)
            found = cache.get(KEY)
            assert found is not None
            assert not cache.is_assumed(found)
            cache.assume(found, ALLOCATION)
            assert cache.is_assumed(found)
            assert cache.assumed_in(POOL)
            assert dict(cache.taken(POOL).devices) == {"gpu-0": "default/c"}
            cache.release(found)
            assert freed == [{}]
            assert cache.taken(POOL).devices == {}
            cache.assume(found, ALLOCATION)
            cache.confirm(as_written(found))
            assert not cache.is_assumed(found)
            assert cache.get(KEY) == as_written(found)
            assert dict(cache.taken(POOL).devices) == {"gpu-0": "default/c"}
            assert freed == [{}]
        finally:
            task.cancel()
        # A view that is fed with the changes never sees a gap either.
        view, taken = ClaimView(), []
        for change in changes:
            match change:
                case ClaimSeen(seen):
                    view.put(seen)
                case ClaimAssumed(key, uid, assumed):
                    view.assume(key, uid, assumed)
                case _:
                    raise AssertionError(change)
            taken.append(bool(view.allocated.pool(POOL).devices))
        assert taken == [False, True, False, True, True, True]

    asyncio.run(scenario())


def version_of(claim_: ResourceClaim, version: str, uid: str = "") -> ResourceClaim:
    meta = msgspec.structs.replace(
        claim_.metadata, resource_version=version, uid=Uid(uid or claim_.metadata.uid)
    )
    return msgspec.structs.replace(claim_, metadata=meta)


def with_cache(scenario: Callable[[AssumeCache, Journal, ResourceClaim], None]) -> None:
    """Play with a cache that has seen one claim."""

    async def main() -> None:
        cluster = FakeClient()
        cluster.put(RESOURCE_CLAIMS, claim("c"))
        informer, journal = Informer(cluster, RESOURCE_CLAIMS), Journal()
        cache = AssumeCache(informer, journal, Signal())
        task = asyncio.create_task(informer.run())
        await asyncio.wait_for(informer.synced.wait(), 60)
        found = cache.get(KEY)
        assert found is not None
        scenario(cache, journal, version_of(found, found.metadata.resource_version))
        task.cancel()

    asyncio.run(main())


def test_a_claim_is_known_that_is_seen_as_it_is_or_later() -> None:
    """A pool is drained when every claim that the API server has is known: not one too early."""

    def scenario(cache: AssumeCache, _: Journal, found: ResourceClaim) -> None:
        now = int(found.metadata.resource_version)
        assert cache.knows(found)
        assert cache.knows(version_of(found, str(now - 1)))
        assert not cache.knows(version_of(found, str(now + 1)))
        assert not cache.knows(version_of(found, str(now), uid="another"))
        unknown = codec.convert(ResourceClaim, claim("unknown"))
        assert not cache.knows(version_of(unknown, "1"))

    with_cache(scenario)


def test_the_answer_to_a_write_counts_unless_the_informer_shows_something_newer_or_another() -> None:
    def scenario(cache: AssumeCache, _: Journal, found: ResourceClaim) -> None:
        now = int(found.metadata.resource_version)
        later = as_written(found)
        for other in (version_of(later, str(now - 1)), version_of(later, str(now + 1), uid="another")):
            cache.note(other)
            assert cache.get(KEY) == found
        cache.note(
            version_of(
                codec.convert(ResourceClaim, claim("gone", status=allocation(result("n1", "gpu-1")))), "9"
            )
        )
        assert cache.taken(POOL).devices == {}, "a claim that has gone takes nothing"
        cache.note(later)
        assert cache.get(KEY) == later

    with_cache(scenario)


def test_what_is_written_stays_taken_while_the_informer_shows_what_was_before() -> None:
    async def main() -> None:
        cluster = FakeClient()
        cluster.put(RESOURCE_CLAIMS, claim("c"))
        informer = Informer(cluster, RESOURCE_CLAIMS)
        cache = AssumeCache(informer, Journal(), Signal())
        task = asyncio.create_task(informer.run())
        await asyncio.wait_for(informer.synced.wait(), 60)

        async def shown(label: str) -> int:
            """Change the claim as another writer does; return its version when the informer has it."""
            cluster.edit(RESOURCE_CLAIMS, "c", {"metadata": {"labels": {"l": label}}}, NS)
            version = cluster.obj(RESOURCE_CLAIMS, "c", NS).metadata.resource_version
            async with asyncio.timeout(60):
                while (known := informer.get(KEY)) is None or known.metadata.resource_version != version:
                    await asyncio.sleep(0)
            return int(version)

        found = cache.get(KEY)
        assert found is not None
        written = version_of(as_written(found), str(int(found.metadata.resource_version) + 10))
        cache.note(written)
        await shown("older")
        assert cache.get(KEY) == written
        assert dict(cache.taken(POOL).devices) == {"gpu-0": "default/c"}
        while await shown("newer") < int(written.metadata.resource_version):
            pass
        assert cache.taken(POOL).devices == {}, "what the API server has by now counts"
        task.cancel()

    asyncio.run(main())


def test_a_pool_is_decided_on_while_an_answer_is_awaited_that_does_not_know_its_last_change() -> None:
    def scenario(cache: AssumeCache, journal: Journal, found: ResourceClaim) -> None:
        assert not cache.assumed_in(POOL)
        with journal.freshness.awaiting(journal.version):
            journal.apply(PoolChanged(POOL, True, PoolPolicy()))
            assert cache.assumed_in(POOL)
        assert not cache.assumed_in(POOL)
        cache.assume(found, ALLOCATION)
        assert cache.assumed_in(POOL)
        assert cache.being_written(POOL) == {"gpu-0"}
        cache.release(found)
        assert cache.being_written(POOL) == set()

    with_cache(scenario)


def test_each_change_of_what_the_allocator_must_know_about_a_pool_is_reported_once() -> None:
    default, spread = PoolPolicy(), PoolPolicy(Strategy.BEST_FIT, NodePolicy.SPREAD)
    changes: list[Change] = []
    sent: list[PoolID] = []
    signal: Signal[[PoolID]] = Signal()
    signal.listen(sent.append)
    pools = PoolStates(default, changes.append, signal, lambda _: ())
    pools.set_blocked(POOL, False)
    pools.set_policy(POOL, default)
    assert changes == []
    pools.set_blocked(POOL, True)
    pools.set_blocked(POOL, True)
    pools.set_policy(POOL, spread)
    pools.set_blocked(POOL, False)
    pools.set_policy(POOL, default)
    assert changes == [
        PoolChanged(POOL, True, default),
        PoolChanged(POOL, True, spread),
        PoolChanged(POOL, False, spread),
        PoolChanged(POOL, False, default),
    ]
    assert sent == [POOL] * 4
