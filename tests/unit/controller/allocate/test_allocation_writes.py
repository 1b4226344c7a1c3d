"""An allocation is written beside what others write, and its devices stay taken until that is known.

Also where the answer is lost.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import virtual_time
from builders import DRIVER, allocation, claim, reserved, result
from builders import NAMESPACE as NS
from fake_client import FakeClient, unreachable

from controller.allocate.answers.journal import Journal
from controller.allocate.signal import Signal
from controller.allocate.state.assume_cache import AssumeCache
from controller.allocate.writer import WRITE_SECONDS, Writer
from dra_driver.api import codec
from dra_driver.api.meta import ObjectKey, PoolName
from dra_driver.api.names import CLAIM_FINALIZER
from dra_driver.api.resource import RESOURCE_CLAIMS, AllocationResult, ResourceClaim
from dra_driver.errors import ApiUnavailable, Conflict
from dra_driver.kube import Informer
from dra_driver.ownership import PoolID

POOL = PoolID(DRIVER, PoolName("n1"))
KEY = ObjectKey(NS, "c")
HELD = {"gpu-0": "default/c"}
OURS = codec.convert(AllocationResult, allocation(result("n1", "gpu-0"))["allocation"])
STATUS = ("patch", "ResourceClaim", "c", "status")


class World:
    """A claim that is to be allocated, whose changes the informer does not show until it is told to.

    Attributes:
        cluster: the API server.
        cache: of the controller.
        writer: under test.
        found: the claim as the decision saw it; its allocation is assumed.
        gaps: whether the device has been free at any time since.
    """

    def __init__(self, cluster: FakeClient) -> None:
        self.cluster = cluster
        self.informer = Informer(cluster, RESOURCE_CLAIMS)
        journal = Journal()
        self.cache = AssumeCache(self.informer, journal, Signal())
        self.writer = Writer(cluster, self.cache, virtual_time.LoopClock())
        self.found: ResourceClaim
        self.gaps = False
        journal.send_to(lambda *_: self._look())

    def held(self) -> dict[str, str]:
        return dict(self.cache.taken(POOL).devices)

    async def allocate(self) -> None:
        await self.writer.allocate(self.found, OURS, None)

    def status_writes(self) -> int:
        return sum(w.subresource == "status" for w in self.cluster.writes)

    def _look(self) -> None:
        self.gaps = self.gaps or not self.held()


def run(scenario: Callable[[World], Awaitable[None]], cluster: FakeClient | None = None) -> None:
    async def main() -> None:
        client = cluster or FakeClient()
        client.put(RESOURCE_CLAIMS, claim("c"))
        world = World(client)
        async with asyncio.timeout(600):
            following = asyncio.create_task(world.informer.run())
            await world.informer.synced.wait()
            found = world.cache.get(KEY)
            assert found is not None
            world.found = found
            world.cache.assume(found, OURS)
            client.quiet.add("ResourceClaim")
            world.gaps = False
            await scenario(world)
            following.cancel()

    virtual_time.run(main())


def once(cluster: FakeClient, change: Callable[[], None], *, done: bool = False) -> None:
    """Lose the first write of a status, after it was done or before; others change the claim meanwhile."""

    def lose(*call: str) -> None:
        if call == STATUS:
            cluster.before = cluster.after = lambda *_: None
            change()
            unreachable()

    if done:
        cluster.after = lose
    else:
        cluster.before = lose


def nothing() -> None:
    """What others do while a write is under way."""


@pytest.mark.parametrize("done", [True, False])
def test_a_write_without_an_answer_is_looked_up_and_written_again_only_if_it_was_not_done(done: bool) -> None:
    async def scenario(w: World) -> None:
        once(w.cluster, nothing, done=done)
        await w.allocate()
        assert w.status_writes() == 1
        assert (w.held(), w.gaps) == (HELD, False)
        assert not w.cache.is_assumed(w.found)
        known = w.cache.get(KEY)
        assert known is not None
        assert known.status.allocation is not None

    run(scenario)


def test_an_allocation_that_was_written_counts_although_the_claim_is_being_deleted() -> None:
    async def scenario(w: World) -> None:
        deleting = {"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}
        once(w.cluster, lambda: w.cluster.edit(RESOURCE_CLAIMS, "c", deleting, NS), done=True)
        await w.allocate()
        assert (w.held(), w.gaps) == (HELD, False)

    run(scenario)


def others_take(w: World) -> None:
    other = allocation(result("n1", "gpu-1"))
    w.cluster.edit(RESOURCE_CLAIMS, "c", {"status": other}, NS)


def deleted(w: World) -> None:
    w.cluster.remove(RESOURCE_CLAIMS, "c", NS)


def being_deleted(w: World) -> None:
    meta = {"deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": [CLAIM_FINALIZER]}
    w.cluster.edit(RESOURCE_CLAIMS, "c", {"metadata": meta}, NS)


def made_anew(w: World) -> None:
    deleted(w)
    w.cluster.put(RESOURCE_CLAIMS, claim("c", uid="another"))


@pytest.mark.parametrize(
    ("change", "message", "held"),
    [
        (others_take, "allocated by another", {"gpu-1": "default/c"}),
        (deleted, "is gone", {}),
        (being_deleted, "is gone", {}),
        (made_anew, "is gone", {}),
    ],
)
def test_what_others_have_done_to_the_claim_ends_the_assumption(
    change: Callable[[World], None], message: str, held: dict[str, str]
) -> None:
    async def scenario(w: World) -> None:
        once(w.cluster, lambda: change(w))
        with pytest.raises(Conflict, match=message):
            await w.allocate()
        assert not w.cache.is_assumed(w.found)
        assert w.held() == held
        assert w.status_writes() == 0

    run(scenario)


def test_what_the_server_refuses_at_once_was_not_written() -> None:
    async def scenario(w: World) -> None:
        w.cluster.edit(RESOURCE_CLAIMS, "c", {"metadata": {"labels": {"l": "x"}}}, NS)
        with pytest.raises(Conflict):
            await w.allocate()
        assert not w.cache.is_assumed(w.found)
        assert w.held() == {}

    run(scenario)


def test_a_refusal_after_a_write_without_an_answer_is_not_believed() -> None:
    """The write that hung has been done between the look and the second write, which is a conflict then."""

    async def scenario(w: World) -> None:
        tries = 0

        def hold_up(*call: str) -> None:
            nonlocal tries
            if call == STATUS:
                tries += 1
                if tries == 1:
                    unreachable()
                w.cluster.edit(RESOURCE_CLAIMS, "c", {"status": allocation(result("n1", "gpu-0"))}, NS)

        w.cluster.before = hold_up
        await w.allocate()
        assert tries == 2
        assert (w.held(), w.gaps) == (HELD, False)

    run(scenario)


class Hanging(FakeClient):
    """Answers no write of a status for a while."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.until = seconds

    async def merge_patch(self, *args: Any, **kwargs: Any) -> Any:
        if kwargs.get("subresource"):
            await asyncio.sleep(max(0.0, self.until - asyncio.get_running_loop().time()))
        return await super().merge_patch(*args, **kwargs)


def test_a_write_that_hangs_is_looked_up() -> None:
    async def scenario(w: World) -> None:
        await w.allocate()
        assert asyncio.get_running_loop().time() < 3 * WRITE_SECONDS
        assert (w.held(), w.gaps) == (HELD, False)

    run(scenario, Hanging(2 * WRITE_SECONDS))


def test_a_server_that_does_not_answer_is_asked_ever_more_rarely() -> None:
    async def scenario(w: World) -> None:
        asked: list[tuple[str, ...]] = []

        def refuse(*call: str) -> None:
            if call == STATUS:
                asked.append(call)
                raise ApiUnavailable("no answer")

        w.cluster.before = refuse
        writing = asyncio.create_task(w.allocate())
        await asyncio.sleep(60.0)
        assert 5 < len(asked) < 40
        assert (w.held(), w.gaps) == (HELD, False)
        w.cluster.before = lambda *_: None
        await writing

    run(scenario)


def test_what_is_refused_of_several_claims_stops_no_other() -> None:
    async def scenario(w: World) -> None:
        w.cluster.put(RESOURCE_CLAIMS, claim("other", status=reserved("p")))
        other = w.cluster.obj(RESOURCE_CLAIMS, "other", NS)
        w.cluster.edit(RESOURCE_CLAIMS, "c", {"metadata": {"labels": {"l": "x"}}}, NS)
        theirs = codec.convert(AllocationResult, allocation(result("n1", "gpu-1"))["allocation"])
        (problem,) = await w.writer.allocate_all([(w.found, OURS, None), (other, theirs, None)])
        assert isinstance(problem, Conflict)
        assert w.cluster.obj(RESOURCE_CLAIMS, "other", NS).status.allocation is not None

    run(scenario)


def test_the_finalizers_of_others_stay() -> None:
    async def scenario(w: World) -> None:
        w.cluster.edit(RESOURCE_CLAIMS, "c", {"metadata": {"finalizers": ["another.dev/f"]}}, NS)
        found = w.cluster.obj(RESOURCE_CLAIMS, "c", NS)
        await w.writer.allocate(found, OURS, None)
        written = w.cluster.obj(RESOURCE_CLAIMS, "c", NS)
        assert written.metadata.finalizers == ("another.dev/f", CLAIM_FINALIZER)
        assert [x.subresource for x in w.cluster.writes] == ["", "status"]

    run(scenario)


def test_a_claim_that_has_the_finalizer_is_written_once() -> None:
    async def scenario(w: World) -> None:
        w.cluster.edit(RESOURCE_CLAIMS, "c", {"metadata": {"finalizers": [CLAIM_FINALIZER]}}, NS)
        await w.writer.allocate(w.cluster.obj(RESOURCE_CLAIMS, "c", NS), OURS, None)
        assert [x.subresource for x in w.cluster.writes] == ["status"]

    run(scenario)
