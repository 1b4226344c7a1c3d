"""Leader election on a ``coordination.k8s.io/v1 Lease``.

``kubernetes.aio.leaderelection`` is not used: it ends the process on a missing argument, compares wall clocks
written as local time, does not release the lease, and does not wait for the work it cancels.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import structlog

from dra_driver.api import codec
from dra_driver.api.meta import Resource, Wire, WireObject
from dra_driver.errors import Conflict, DraError, NotFound
from dra_driver.kube.clock import micro_time
from dra_driver.kube.fence import Fence
from dra_driver.ports import Clock, KubeClient

__all__ = ["LEASES", "LeaderConfig", "LeaderElector", "LeadershipLost", "Lease", "LeaseSpec"]

log = structlog.get_logger(__name__)


class LeaseSpec(Wire, frozen=True, kw_only=True):
    """``spec`` of a lease. Times are MicroTime text."""

    holder_identity: str | None = None
    lease_duration_seconds: int | None = None
    acquire_time: str | None = None
    renew_time: str | None = None
    lease_transitions: int | None = None


class Lease(WireObject, frozen=True, kw_only=True):
    """A lease."""

    spec: LeaseSpec = LeaseSpec()


# A write that is under way when the work is to end gets so long to be answered.
ANSWER_SECONDS = 2.0

LEASES = Resource("coordination.k8s.io", "v1", "leases", "Lease", Lease, namespaced=True)


@dataclass(frozen=True, slots=True)
class LeaderConfig:
    """Identity of a process and its patience.

    Attributes:
        namespace: of the lease.
        name: of the lease.
        identity: unique per process.
        lease_seconds: others may take over when the lease has not changed for so long.
        renew_deadline_seconds: the leader writes nothing when it asked for its last renewal so long ago; less
            than ``lease_seconds``, so that what was sent last is answered, or given up, before another leads.
        retry_seconds: between tries.
    """

    namespace: str
    name: str
    identity: str
    lease_seconds: int = 15
    renew_deadline_seconds: float = 10.0
    retry_seconds: float = 2.0

    def __post_init__(self) -> None:
        if not 0 < self.retry_seconds < self.renew_deadline_seconds < self.lease_seconds:
            raise ValueError("leader election needs 0 < retry < renew deadline < lease duration")


class LeaderElector:
    """Runs work while it holds the lease.

    The age of another's lease is measured on our own monotonic clock from when we saw it change, so that no
    clocks of two machines are compared.

    Attributes:
        fence: open while the work may write; give the work a ``FencedClient`` with it.
        holder: identity of the process that held the lease when it was read last; empty: none did.
    """

    def __init__(self, client: KubeClient, config: LeaderConfig, clock: Clock) -> None:
        self._client = client
        self._config = config
        self._clock = clock
        self._seen: tuple[str, str] | None = None  # uid, resourceVersion
        self._others_until = 0.0
        self._lease: Lease | None = None
        self.holder = ""
        self.fence = Fence(clock, config.renew_deadline_seconds, config.lease_seconds)

    async def run(self, work: Callable[[], Awaitable[None]]) -> None:
        """Wait for the lease, run ``work`` until it ends or the lease is lost, and release the lease.

        Raises:
            LeadershipLost: the lease could not be renewed in time, or the API server takes another for its
                holder; ``work`` has been cancelled and has ended.
        """
        self.fence.begin()
        await self._acquire()
        log.info("leading", lease=self._config.name, identity=self._config.identity)
        # Not a TaskGroup: whichever ends first ends the other, and both are awaited below.
        task = asyncio.create_task(_as_coroutine(work))
        renewal = asyncio.create_task(self._renew_forever())
        try:
            await asyncio.wait({task, renewal}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            await self._end(task, renewal)
        if not renewal.cancelled() and renewal.exception() is not None:
            raise LeadershipLost(str(renewal.exception()))
        if not task.cancelled():
            task.result()

    async def _end(self, task: asyncio.Task[None], renewal: asyncio.Task[None]) -> None:
        """End the work, and then the lease.

        The lease is emptied only when every write has been answered: the next leader begins at once then, and
        a write that was cut off may still be carried out.
        """
        ours = not renewal.done()
        answered = False
        try:
            self.fence.hold()
            if ours:
                answered = await self.fence.answered(ANSWER_SECONDS)
        finally:
            self.fence.end()
            for t in (task, renewal):
                t.cancel()
            await asyncio.wait({task, renewal})
        if not answered:
            if ours:
                log.warning("a write was not answered: the lease is left to run out", lease=self._config.name)
            return
        with contextlib.suppress(DraError, TimeoutError):
            async with asyncio.timeout(3):
                await self._release()

    async def _acquire(self) -> None:
        while True:
            try:
                if await self._try():
                    return
            except DraError as e:
                log.warning("leader election: cannot read or write the lease", error=str(e))
            await asyncio.sleep(self._config.retry_seconds)

    async def _renew_forever(self) -> None:
        deadline = self._config.renew_deadline_seconds
        while True:
            await asyncio.sleep(self._config.retry_seconds)
            if self.fence.disowned:
                raise LeadershipLost(
                    f"lease {self._config.name} is ours, but the API server refuses our writes as those of "
                    f"another; does {self._config.identity!r} begin with the name of the pod of our token?"
                )
            problem = await self._attempt()
            if problem and self.fence.age >= deadline:
                # A process that was stopped for a while may find its attempt timed out by that alone, so the
                # last one begins after the deadline. The fence is closed meanwhile, and being late is no
                # harm: see _renew. A leader that was not replaced goes on with what it has in memory,
                # which is as old as after any delay of its watches; its writes carry the versions they saw.
                log.warning("the lease was not renewed in time: writes wait", age=round(self.fence.age, 1))
                problem = await self._attempt()
                if problem:
                    raise LeadershipLost(f"lease {self._config.name} could not be renewed: {problem}")

    async def _attempt(self) -> str:
        """Try to renew the lease; return what went wrong, if anything did.

        Raises:
            LeadershipLost: another has the lease, or had it in the meantime.
        """
        config = self._config
        deadline = config.renew_deadline_seconds
        # One attempt that hangs must leave time for another.
        seconds = max(config.retry_seconds, min(deadline / 2, deadline - self.fence.age))
        try:
            async with asyncio.timeout(seconds):
                await self._renew()
        except TimeoutError:
            return "no answer"
        except LeadershipLost:
            raise
        except DraError as e:
            return str(e)
        return ""

    async def _renew(self) -> None:
        """Renew the lease, at whatever age.

        The lease names us as its holder and counts no transition since we took it: no other has held it
        meanwhile. It is written under the resourceVersion at which that was so.

        Raises:
            LeadershipLost: another has the lease, or had it in the meantime.
        """
        config, mine = self._config, self._lease
        assert mine is not None
        try:
            lease = await self._client.get(LEASES, config.name, config.namespace)
        except NotFound:
            raise LeadershipLost(f"lease {config.name} was deleted") from None
        if _term(lease) != _term(mine):
            raise LeadershipLost(f"lease {config.name} was taken by another")
        await self._write(lease)

    async def _try(self) -> bool:
        """Make one attempt to take the lease; return False while another holds it."""
        config = self._config
        lease: Lease | None = None
        with contextlib.suppress(NotFound):
            lease = await self._client.get(LEASES, config.name, config.namespace)
        self.holder = (lease.spec.holder_identity or "") if lease is not None else ""
        if lease is not None:
            seen = (lease.metadata.uid, lease.metadata.resource_version)
            if seen != self._seen:
                self._seen, self._others_until = seen, self._clock.monotonic() + self._claimed(lease)
        # Also where the lease was deleted: its holder need not know that yet.
        if self._clock.monotonic() < self._others_until:
            return False
        try:
            await self._write(lease)
        except Conflict:
            return False
        return True

    def _claimed(self, lease: Lease) -> float:
        """Return for how many seconds a lease is another's after it was written."""
        if lease.spec.holder_identity in (None, "", self._config.identity):
            return 0.0
        return lease.spec.lease_duration_seconds or self._config.lease_seconds

    async def _write(self, lease: Lease | None) -> None:
        """Make the lease ours, from the version that was read; if None, create it."""
        asked = self._clock.monotonic()
        if lease is None:
            self._lease = await self._client.create(LEASES, self._body(None), self._config.namespace)
        else:
            self._lease = await self._client.replace(LEASES, self._body(lease))
        self.fence.renewed(asked)

    def _body(self, lease: Lease | None) -> dict[str, Any]:
        config = self._config
        now = micro_time(self._clock.now())
        mine = lease is not None and lease.spec.holder_identity == config.identity
        old = lease.spec if lease is not None else LeaseSpec()
        spec = LeaseSpec(
            holder_identity=config.identity,
            lease_duration_seconds=config.lease_seconds,
            acquire_time=old.acquire_time if mine and old.acquire_time else now,
            renew_time=now,
            lease_transitions=(old.lease_transitions or 0) + (0 if mine or lease is None else 1),
        )
        body: dict[str, Any] = {
            "apiVersion": LEASES.api_version,
            "kind": LEASES.kind,
            "metadata": {"name": config.name, "namespace": config.namespace},
            "spec": {
                k: v for k, v in codec.to_raw(LEASES, Lease(spec=spec))["spec"].items() if v is not None
            },
        }
        if lease is not None:
            body["metadata"]["resourceVersion"] = lease.metadata.resource_version
        return body

    async def _release(self) -> None:
        """Empty the lease so that the next leader need not wait for it to run out."""
        if self._lease is None:
            return
        body = self._body(self._lease)
        body["spec"]["holderIdentity"] = ""
        body["spec"]["leaseDurationSeconds"] = 1
        await self._client.replace(LEASES, body)
        self._lease = None


def _term(lease: Lease) -> tuple[str, str | None, int]:
    """Return what differs whenever the lease has changed hands."""
    return (lease.metadata.uid, lease.spec.holder_identity, lease.spec.lease_transitions or 0)


class LeadershipLost(DraError):
    """The lease went to another, or could not be renewed in time."""


async def _as_coroutine(work: Callable[[], Awaitable[None]]) -> None:
    await work()
