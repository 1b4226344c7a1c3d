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


LEASES = Resource("coordination.k8s.io", "v1", "leases", "Lease", Lease, namespaced=True)


@dataclass(frozen=True, slots=True)
class LeaderConfig:
    """Who we are and how patient.

    Attributes:
        namespace: of the lease.
        name: of the lease.
        identity: unique per process.
        lease_seconds: others may take over when the lease has not changed for so long.
        renew_deadline_seconds: the leader stops working when it could not renew for so long; less than
            ``lease_seconds``, so that two leaders never work at once.
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
    """

    def __init__(self, client: KubeClient, config: LeaderConfig, clock: Clock) -> None:
        self._client = client
        self._config = config
        self._clock = clock
        self._seen: tuple[str, str] | None = None  # uid, resourceVersion
        self._seen_at = 0.0
        self._lease: Lease | None = None
        self.leading = asyncio.Event()

    async def run(self, work: Callable[[], Awaitable[None]]) -> None:
        """Waits for the lease, runs ``work`` until it ends or the lease is lost, and releases the lease.

        Raises:
            LeadershipLost: the lease could not be renewed in time; ``work`` has been cancelled and has ended.
        """
        await self._acquire()
        log.info("leading", lease=self._config.name, identity=self._config.identity)
        self.leading.set()
        # Not a TaskGroup: whichever ends first ends the other, and both are awaited below.
        task = asyncio.create_task(_as_coroutine(work))
        renewal = asyncio.create_task(self._renew_forever())
        try:
            await asyncio.wait({task, renewal}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self.leading.clear()
            for t in (task, renewal):
                t.cancel()
            await asyncio.wait({task, renewal})
            with contextlib.suppress(DraError, TimeoutError):
                async with asyncio.timeout(3):
                    await self._release()
        if not renewal.cancelled() and renewal.exception() is not None:
            raise LeadershipLost(str(renewal.exception()))
        if not task.cancelled():
            task.result()

    async def _acquire(self) -> None:
        while True:
            try:
                if await self._try():
                    return
            except DraError as e:
                log.warning("leader election: cannot read or write the lease", error=str(e))
            await asyncio.sleep(self._config.retry_seconds)

    async def _renew_forever(self) -> None:
        renewed = self._clock.monotonic()
        while True:
            await asyncio.sleep(self._config.retry_seconds)
            age = self._clock.monotonic() - renewed
            left = self._config.renew_deadline_seconds - age
            # A process that could not run for a while (a busy machine) did no work either. Nobody else gets
            # the lease before its end, so there is time for one attempt.
            last_chance = min(self._config.retry_seconds, self._config.lease_seconds - 1 - age)
            problem = "another holds it"
            try:
                async with asyncio.timeout(max(left, last_chance, 0.01)):
                    if await self._try():
                        renewed = self._clock.monotonic()
                        continue
                    raise LeadershipLost(f"lease {self._config.name} was taken by another")
            except TimeoutError:
                problem = "no answer"
            except LeadershipLost:
                raise
            except DraError as e:
                problem = str(e)
            if self._clock.monotonic() - renewed >= self._config.renew_deadline_seconds:
                raise LeadershipLost(f"lease {self._config.name} could not be renewed: {problem}")

    async def _try(self) -> bool:
        """One attempt to take or renew the lease; False while another holds it."""
        config = self._config
        try:
            lease = await self._client.get(LEASES, config.name, config.namespace)
        except NotFound:
            try:
                self._lease = await self._client.create(LEASES, self._body(None), config.namespace)
            except Conflict:
                return False
            return True
        spec = lease.spec
        seen = (lease.metadata.uid, lease.metadata.resource_version)
        if seen != self._seen:
            self._seen, self._seen_at = seen, self._clock.monotonic()
        if spec.holder_identity and spec.holder_identity != config.identity:
            duration = spec.lease_duration_seconds or config.lease_seconds
            if self._clock.monotonic() - self._seen_at < duration:
                return False
        try:
            self._lease = await self._client.replace(LEASES, self._body(lease))
        except Conflict:
            return False
        return True

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
        """Empties the lease so that the next leader need not wait for it to run out."""
        if self._lease is None:
            return
        body = self._body(self._lease)
        body["spec"]["holderIdentity"] = ""
        body["spec"]["leaseDurationSeconds"] = 1
        await self._client.replace(LEASES, body)
        self._lease = None


class LeadershipLost(DraError):
    """The lease went to another, or could not be renewed in time."""


async def _as_coroutine(work: Callable[[], Awaitable[None]]) -> None:
    await work()
