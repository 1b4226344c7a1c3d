"""No write leaves a leader whose lease may be another's: stalls, late renewals, the end of the work."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from typing import Any

import pytest
import virtual_time
from fake_client import FakeClient, unreachable

from dra_driver.api.core import NODES
from dra_driver.api.meta import Resource
from dra_driver.errors import ApiUnavailable, Forbidden, Invalid, NotLeading
from dra_driver.kube import FencedClient, LeaderConfig, LeaderElector
from dra_driver.kube.fence import LEADER_POLICY
from dra_driver.kube.leader import LEASES, LeadershipLost, LeaseSpec


def node(name: str) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}}


class Clock:
    def __init__(self) -> None:
        self.time = 0.0
        self.wall = 1_800_000_000.0

    def now(self) -> float:
        return self.wall + self.time

    def monotonic(self) -> float:
        return self.time


class Cluster(FakeClient):
    """Can hold calls back: those of a kind in ``held`` wait before they reach the store.

    Attributes:
        seen: every call that reached the store, by verb and kind.
    """

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[str, str]] = []
        self.held: set[str] = set()
        self.arrived = asyncio.Event()
        self.let = asyncio.Event()

    async def _enter(self, verb: str, resource: Resource[Any], name: str, subresource: str) -> None:
        if resource.kind in self.held:
            self.arrived.set()
            await self.let.wait()
        self.seen.append((verb, resource.kind))
        await super()._enter(verb, resource, name, subresource)

    def hold(self, kind: str) -> None:
        if kind not in self.held:
            self.held, self.arrived, self.let = {kind}, asyncio.Event(), asyncio.Event()

    def release(self) -> None:
        self.held = set()
        self.let.set()

    def written(self) -> list[str]:
        """Writes to nodes that arrived, by verb."""
        return [verb for verb, kind in self.seen if kind == "Node" and verb not in ("get", "list")]


WRITES: dict[str, Callable[[FencedClient], Coroutine[object, object, object]]] = {
    "create": lambda c: c.create(NODES, node("new")),
    "dry run": lambda c: c.create(NODES, node("new"), dry_run=True),
    "replace": lambda c: c.replace(NODES, node("n")),
    "patch": lambda c: c.merge_patch(NODES, "n", {"metadata": {"labels": {"a": "b"}}}),
    "status": lambda c: c.merge_patch(NODES, "n", {"status": {}}, subresource="status"),
    "apply": lambda c: c.apply(NODES, node("n"), field_manager="m", force=True),
    "delete": lambda c: c.delete(NODES, "n"),
}


class Leader:
    """An elector ``a`` with a lease of 15 s on a clock that stands still, and its fenced client."""

    def __init__(self, cluster: Cluster, clock: Clock, deadline: float = 10.0) -> None:
        self.cluster, self.clock = cluster, clock
        config = LeaderConfig("ns", "lease", "a", renew_deadline_seconds=deadline, retry_seconds=0.05)
        self.elector = LeaderElector(cluster, config, clock)
        self.client = FencedClient(cluster, self.elector.fence)
        self.tasks: list[asyncio.Task[object]] = []
        self.works = asyncio.Event()
        self.group: asyncio.TaskGroup | None = None

    async def work(self) -> None:
        async with asyncio.TaskGroup() as self.group:
            self.works.set()
            await asyncio.sleep(60)

    def do(self, *jobs: Coroutine[object, object, object]) -> None:
        """Begins these as parts of the work."""
        assert self.group is not None
        self.tasks += [self.group.create_task(job) for job in jobs]

    def lease(self) -> LeaseSpec:
        return self.cluster.obj(LEASES, "lease", "ns").spec

    def taken_by(self, holder: str, transitions: int) -> None:
        """Another has the lease, or had it."""
        spec = {"holderIdentity": holder, "leaseDurationSeconds": 15, "leaseTransitions": transitions}
        self.cluster.edit(LEASES, "lease", {"spec": spec}, "ns")


async def turns() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


@contextlib.asynccontextmanager
async def leading(deadline: float = 10.0) -> AsyncIterator[tuple[Leader, asyncio.Task[None]]]:
    cluster = Cluster()
    cluster.put(NODES, node("n"))
    leader = Leader(cluster, Clock(), deadline)
    running = asyncio.create_task(leader.elector.run(leader.work))
    await leader.works.wait()
    try:
        yield leader, running
    finally:
        cluster.release()
        running.cancel()
        await asyncio.wait({running})


def run(main: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(20):
            await main()

    virtual_time.run(bounded())


async def stalled(leader: Leader, seconds: float, *jobs: Coroutine[object, object, object]) -> None:
    """The process did not run for a while; now it has work, and its next renewal is under way."""
    leader.cluster.hold("Lease")
    leader.clock.time += seconds
    leader.do(*jobs)
    await leader.cluster.arrived.wait()
    await turns()


@pytest.mark.parametrize("write", WRITES)
def test_a_write_after_a_stall_waits_until_the_lease_is_renewed(write: str) -> None:
    async def main() -> None:
        async with leading() as (leader, running):
            await stalled(leader, 20.0, WRITES[write](leader.client))
            assert leader.cluster.written() == []
            assert not leader.tasks[0].done()
            leader.cluster.release()
            await leader.tasks[0]
            assert len(leader.cluster.written()) == 1
            assert not running.done()  # nobody else led: the work goes on

    run(main)


@pytest.mark.parametrize("write", WRITES)
def test_no_write_is_sent_after_a_stall_in_which_another_took_the_lease(write: str) -> None:
    async def main() -> None:
        async with leading() as (leader, running):
            leader.cluster.hold("Lease")
            leader.taken_by("b", 1)
            await stalled(leader, 20.0, WRITES[write](leader.client))
            leader.cluster.release()
            with pytest.raises(LeadershipLost, match="taken"):
                await running
            assert leader.cluster.written() == []
            assert leader.tasks[0].cancelled()
            assert leader.lease().holder_identity == "b"

    run(main)


@pytest.mark.parametrize("age", [9.9, 10.0])
def test_the_fence_closes_at_the_renew_deadline(age: float) -> None:
    async def main() -> None:
        async with leading() as (leader, _):
            leader.cluster.hold("Lease")
            await leader.cluster.arrived.wait()
            await stalled(leader, age, WRITES["delete"](leader.client))
            assert leader.cluster.written() == (["delete"] if age < 10 else [])

    run(main)


def test_reads_go_on_while_writes_wait() -> None:
    async def main() -> None:
        async with leading() as (leader, _):
            await stalled(leader, 20.0)
            assert (await leader.client.get(NODES, "n")).metadata.name == "n"
            assert len((await leader.client.list(NODES)).items) == 1

    run(main)


def test_steps_of_the_wall_clock_do_not_matter() -> None:
    async def main() -> None:
        async with leading() as (leader, _):
            leader.cluster.hold("Lease")
            for step in (1e6, -2e6):
                leader.clock.wall += step
                async with asyncio.timeout(1):
                    await leader.client.create(NODES, node(f"n{step:.0f}"))
            leader.clock.time += 20
            leader.clock.wall -= 20
            with pytest.raises(NotLeading):
                leader.elector.fence.check()

    run(main)


def test_the_age_counts_from_the_request_of_a_renewal_not_from_its_answer() -> None:
    async def main() -> None:
        async with leading() as (leader, _):

            def slow(verb: str, kind: str, *_: object) -> None:
                if (verb, kind) == ("replace", "Lease"):
                    leader.clock.time += 11  # on its way, or in the server
                    leader.cluster.hold("Lease")  # the next one waits

            leader.cluster.before = slow
            while not leader.cluster.arrived.is_set():
                await asyncio.sleep(0.01)
            leader.cluster.before = lambda *_: None
            leader.do(WRITES["delete"](leader.client))
            await turns()
            assert leader.cluster.written() == []
            leader.cluster.release()
            await leader.tasks[0]

    run(main)


def test_work_ends_when_the_lease_cannot_be_renewed_and_nothing_is_written_later() -> None:
    async def main() -> None:
        async with leading() as (leader, running):

            def down(_verb: str, kind: str, *_: object) -> None:
                if kind == "Lease":
                    raise ApiUnavailable("no route")

            leader.cluster.before = down
            leader.clock.time += 12
            leader.do(WRITES["delete"](leader.client))
            with pytest.raises(LeadershipLost, match="no route"):
                await running
            leader.cluster.before = lambda *_: None
            with pytest.raises(NotLeading):
                await leader.client.delete(NODES, "n")
            assert leader.cluster.written() == []

    run(main)


def test_a_renewal_that_was_cut_off_by_the_stall_is_tried_once_more() -> None:
    async def main() -> None:
        async with leading(deadline=0.2) as (leader, running):
            leader.cluster.hold("Lease")
            await leader.cluster.arrived.wait()
            waits = leader.cluster.let
            leader.clock.time += 12
            leader.cluster.held = set()  # this one times out, the next one is answered
            leader.do(WRITES["delete"](leader.client))
            await turns()
            await leader.tasks[0]
            assert leader.cluster.written() == ["delete"]
            assert not waits.is_set()
            assert not running.done()

    run(main)


@pytest.mark.parametrize(
    ("holder", "transitions"), [("", 1), ("a", 2)], ids=["released again", "taken back under our name"]
)
def test_a_lease_that_another_held_in_the_meantime_is_not_renewed(holder: str, transitions: int) -> None:
    async def main() -> None:
        async with leading() as (leader, running):
            leader.cluster.hold("Lease")
            leader.taken_by(holder, transitions)
            await stalled(leader, 60.0, WRITES["delete"](leader.client))
            leader.cluster.release()
            with pytest.raises(LeadershipLost, match="taken"):
                await running
            assert leader.cluster.written() == []

    run(main)


def test_a_lease_that_was_deleted_is_not_renewed() -> None:
    async def main() -> None:
        async with leading() as (leader, running):
            leader.cluster.remove(LEASES, "lease", "ns")
            with pytest.raises(LeadershipLost, match="deleted"):
                await running
            assert leader.cluster.all(LEASES) == []

    run(main)


def test_a_standby_waits_for_the_holder_of_a_lease_that_was_deleted() -> None:
    async def main() -> None:
        cluster, clock = Cluster(), Clock()
        spec = {"holderIdentity": "b", "leaseDurationSeconds": 15}
        cluster.put(LEASES, {"metadata": {"name": "lease", "namespace": "ns"}, "spec": spec})
        leader = Leader(cluster, clock)
        running = asyncio.create_task(leader.elector.run(leader.work))
        while len(cluster.seen) < 1:
            await asyncio.sleep(0.01)
        cluster.remove(LEASES, "lease", "ns")
        clock.time += 14.9
        while len(cluster.seen) < 4:
            await asyncio.sleep(0.01)
        assert set(cluster.seen) == {("get", "Lease")}
        clock.time += 0.2
        await leader.works.wait()
        running.cancel()
        await asyncio.wait({running})

    run(main)


def test_the_lease_is_released_only_after_writes_under_way_were_answered() -> None:
    async def main() -> None:
        async with leading() as (leader, running):
            leader.cluster.hold("Node")
            leader.do(WRITES["delete"](leader.client))
            await leader.cluster.arrived.wait()
            running.cancel()
            await turns()
            assert leader.lease().holder_identity == "a"
            leader.cluster.release()
            await asyncio.wait({running})
            assert leader.cluster.written() == ["delete"]
            assert [kind for _, kind, *_ in leader.cluster.writes][-2:] == ["Node", "Lease"]
            assert leader.lease().holder_identity == ""

    run(main)


@pytest.mark.slow
def test_a_lease_with_a_write_that_is_not_answered_is_left_to_run_out() -> None:
    async def main() -> None:
        async with leading() as (leader, running):
            leader.cluster.hold("Node")
            leader.do(WRITES["delete"](leader.client))
            await leader.cluster.arrived.wait()
            running.cancel()
            await asyncio.wait({running})
            assert leader.tasks[0].cancelled()
            assert leader.lease().holder_identity == "a"

    run(main)


def test_nothing_is_written_while_and_after_the_lease_is_released() -> None:
    async def main() -> None:
        async with leading() as (leader, running):
            late: list[asyncio.Task[object]] = []

            def releasing(verb: str, kind: str, *_: object) -> None:
                if (verb, kind) == ("replace", "Lease"):
                    late.append(asyncio.create_task(WRITES["delete"](leader.client)))

            await turns()
            leader.cluster.hold("Lease")  # no renewal meanwhile
            await leader.cluster.arrived.wait()
            leader.cluster.before = releasing
            running.cancel()
            await turns()
            leader.cluster.release()
            await asyncio.wait({running})
            late.append(asyncio.create_task(WRITES["create"](leader.client)))
            await asyncio.wait(late)
            assert [type(t.exception()) for t in late] == [NotLeading] * len(late)
            assert len(late) == 2
            assert leader.cluster.written() == []
            assert leader.lease().holder_identity == ""

    run(main)


def test_what_the_work_writes_when_it_is_cancelled_is_not_sent() -> None:
    """A task that writes as it ends must neither be heard nor hold up the end."""

    async def main() -> None:
        async with leading() as (leader, running):

            async def parting() -> None:
                try:
                    await asyncio.sleep(60)
                finally:
                    await leader.client.delete(NODES, "n")

            leader.do(parting())
            await turns()
            running.cancel()
            await asyncio.wait({running})
            assert isinstance(leader.tasks[0].exception(), NotLeading)
            assert leader.cluster.written() == []
            assert leader.lease().holder_identity == ""

    run(main)


def test_the_fence_is_closed_before_the_lease_is_held() -> None:
    async def main() -> None:
        leader = Leader(Cluster(), Clock())
        leader.cluster.before = unreachable
        with pytest.raises(NotLeading):
            await leader.client.create(NODES, node("n"))
        waiting = asyncio.create_task(leader.elector.run(leader.work))
        await turns()
        with pytest.raises(NotLeading):
            leader.elector.fence.check()
        waiting.cancel()
        await asyncio.wait({waiting})

    run(main)


# --- the API server has a fence of its own ------------------------------------------------------------------


def not_the_leader(said: str = "pod a does not hold the Lease", name: str = LEADER_POLICY) -> Forbidden:
    """The policy's refusal, in the words of the API server."""
    policy = f"ValidatingAdmissionPolicy '{name}' with binding '{name}'"
    return Forbidden(f'nodes "n" is forbidden: {policy} denied request: {said}', code=403, reason="Forbidden")


def not_the_leader_of_grants() -> Forbidden:
    return not_the_leader(name=f"{LEADER_POLICY}-grants")


def no_lease_known_yet() -> Invalid:
    return Invalid(str(not_the_leader("failed to configure binding: not yet synced")), code=422)


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("refusal", [not_the_leader, no_lease_known_yet, not_the_leader_of_grants])
def test_a_write_is_repeated_until_the_api_server_knows_the_lease(
    write: str, refusal: Callable[[], Exception]
) -> None:
    async def main() -> None:
        async with leading() as (leader, running):
            refused: list[str] = []

            def behind(verb: str, kind: str, *_: object) -> None:
                if kind == "Node" and len(refused) < 5:
                    refused.append(verb)
                    raise refusal()

            leader.cluster.before = behind
            began = asyncio.get_running_loop().time()
            await WRITES[write](leader.client)
            assert len(refused) == 5
            assert 0.5 < asyncio.get_running_loop().time() - began < 5
            assert not running.done()

    run(main)


def test_what_is_refused_for_another_reason_is_not_repeated() -> None:
    async def main() -> None:
        async with leading() as (leader, _):
            error = Forbidden("ValidatingAdmissionPolicy 'dra-driver-own-slices' denied request", code=403)

            def refuse(_verb: str, kind: str, *_: object) -> None:
                if kind == "Node":
                    raise error

            leader.cluster.before = refuse
            with pytest.raises(Forbidden, match="own-slices"):
                await leader.client.delete(NODES, "n")
            assert len(leader.cluster.written()) == 1

    run(main)


def test_a_leader_whom_the_api_server_does_not_take_for_the_leader_steps_down() -> None:
    """Its token is of a pod that its identity does not begin with; another replica may have a better one."""

    async def main() -> None:
        async with leading() as (leader, running):

            def refuse(_verb: str, kind: str, *_: object) -> None:
                if kind == "Node":
                    leader.clock.time += 2
                    raise not_the_leader()

            leader.cluster.before = refuse
            leader.do(WRITES["delete"](leader.client))
            with pytest.raises(LeadershipLost, match="does 'a' begin with the name of the pod"):
                await running
            assert len(leader.cluster.written()) < 15
            assert leader.tasks[0].cancelled()

    run(main)


def test_writes_that_are_accepted_again_are_not_held_against_the_leader() -> None:
    async def main() -> None:
        async with leading() as (leader, running):
            refusals = [not_the_leader(), None, not_the_leader(), None]

            def now_and_then(_verb: str, kind: str, *_: object) -> None:
                if kind == "Node" and (error := refusals.pop(0)) is not None:
                    raise error

            leader.cluster.before = now_and_then
            await WRITES["patch"](leader.client)
            leader.clock.time += 9
            await asyncio.sleep(0.1)
            leader.clock.time += 9
            await asyncio.sleep(0.1)
            await WRITES["patch"](leader.client)
            assert not running.done()

    run(main)
