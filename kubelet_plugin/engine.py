"""Carries out prepare and unprepare: the state machine of ``dra_driver.preparation`` on real files.

Time: the kubelet gives a call 45 s and comes back only after 65 s or more, so whatever may pass soon (API
server away, device still held, another call for the same claim) is waited for inside the call, up to
``Timing.budget``. Effects themselves are never cut short.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Mapping, Set
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final

import msgspec
import structlog
import tenacity

from dra_driver import cdi
from dra_driver.api.meta import PoolName, Uid
from dra_driver.api.resource import RESOURCE_CLAIMS, ResourceClaim
from dra_driver.errors import ApiUnavailable, DraError, NotFound, PrepareError, ServerBusy
from dra_driver.ports import KubeClient
from dra_driver.preparation import (
    ClaimState,
    Effect,
    Event,
    Holdings,
    NodeDevice,
    PreparedClaim,
    PreparedDevice,
    check_uid,
    plan,
    recover,
    transition,
)
from kubelet_plugin.signals import Changes
from kubelet_plugin.stores import NO_CHECKPOINT, Checkpoints, Specs

__all__ = ["ClaimReference", "Engine", "Timing"]

log = structlog.get_logger(__name__)

_NAME: Final = re.compile(r"[a-z0-9](?:[a-z0-9.-]{0,251}[a-z0-9])?")


@dataclass(frozen=True, slots=True)
class ClaimReference:
    """A claim as the kubelet names it. All three are a stranger's text until checked."""

    namespace: str
    name: str
    uid: str


@dataclass(frozen=True, slots=True)
class Timing:
    """How long a call waits, in seconds.

    Attributes:
        budget: for everything that may be waited for, in one call; the kubelet's own limit is 45.
        patience: for what the node may know better soon: a device that another claim still holds (the claim
            of a force-deleted pod is unprepared 4 s later), a device that is not in the inventory yet.
    """

    budget: float = 40.0
    patience: float = 10.0


class Engine:
    """The claims of one driver on one node."""

    def __init__(
        self,
        *,
        driver: str,
        pool: PoolName,
        client: KubeClient,
        checkpoints: Checkpoints,
        specs: Specs,
        devices: Callable[[], Mapping[str, NodeDevice]],
        timing: Timing | None = None,
    ) -> None:
        self._driver = driver
        self._pool = pool
        self._client = client
        self._checkpoints = checkpoints
        self._specs = specs
        self._devices = devices
        self._timing = timing or Timing()
        self._holdings = Holdings()
        self._released = Changes()
        self._locks: dict[Uid, tuple[asyncio.Lock, int]] = {}

    # --- start ----------------------------------------------------------------------------------------------

    async def restore(self) -> None:
        """Brings records and files together after a start: finishes or undoes whatever a crash left.

        A claim that cannot be put in order now is logged and stays as it is; its next call tries again.
        """
        problem = await self._checkpoints.load()
        files = await self._specs.ours()
        known = {claim.uid for claim in self._checkpoints.current}
        if problem:
            known |= await self._recover(problem, known, files)
        for record in tuple(self._checkpoints.current):
            await self._restart(record.uid, record)
        for uid in files.keys() - known:
            if self._is_orphan(uid, files[uid]):
                await self._restart(uid, None)
        self._holdings = Holdings(self._checkpoints.current)
        log.info("claims restored", claims=len(self._checkpoints.current))

    async def _recover(self, problem: str, known: Set[Uid], files: Mapping[Uid, bytes]) -> Set[Uid]:
        """Adds records that only the CDI files still hold."""
        found = [r for u, data in files.items() if u not in known and (r := self._recovered(u, data))]
        if known or found or problem != NO_CHECKPOINT:
            log.error(
                "checkpoint lost; claims recovered from what is left",
                problem=problem,
                from_checkpoint=len(known),
                from_cdi=len(found),
            )
        try:
            await self._checkpoints.save(*found)
        except OSError as e:
            # Their files stay, and unprepare of a claim without a record removes its file.
            log.error("recovered claims could not be written down", error=str(e))
        return {claim.uid for claim in found}

    def _recovered(self, uid: Uid, data: bytes) -> PreparedClaim | None:
        try:
            record = recover(self._driver, cdi.decode(data))
        except DraError as e:
            log.error("a CDI file of a claim cannot be read back", uid=uid, error=str(e))
            return None
        if record.uid != uid:
            log.error("a CDI file carries the record of another claim", uid=uid, record=record.uid)
            return None
        return record

    def _is_orphan(self, uid: Uid, data: bytes) -> bool:
        # By name it is ours; its content decides, because the directory belongs to everybody.
        record = self._recovered(uid, data)
        if record is not None:
            log.warning(
                "removing the CDI file of a claim that nobody prepared", uid=uid, claim=str(record.key)
            )
        return record is not None

    async def _restart(self, uid: Uid, record: PreparedClaim | None) -> None:
        state = record.state if record else ClaimState.ABSENT
        if state is ClaimState.STARTED:
            log.warning("undoing a prepare that did not end", uid=uid)
        try:
            await self._carry_out(uid, record, state, Event.RESTART)
        except OSError as e:
            log.error("a claim could not be put in order", uid=uid, state=state.value, error=str(e))

    # --- calls ----------------------------------------------------------------------------------------------

    async def prepare(self, reference: ClaimReference) -> tuple[PreparedDevice, ...]:
        """Makes the devices of a claim usable; a claim that is prepared already gives the same answer.

        Raises:
            DraError: it is not prepared; the text says why and goes to the pod's Event.
            OSError: likewise, for files.
        """
        uid = check_uid(reference.uid)
        deadline = asyncio.get_running_loop().time() + self._timing.budget
        async with self._exclusively(uid, deadline):
            record = self._checkpoints.current.get(uid)
            if record is not None and record.state is ClaimState.COMPLETED:
                self._check_identity(record)
                await self._carry_out(uid, record, ClaimState.COMPLETED, Event.PREPARE)
                return record.devices
            planned = await self._plan(reference, uid, deadline)
            await self._take(planned, deadline)
            return await self._apply(planned, record.state if record else ClaimState.ABSENT)

    async def unprepare(self, reference: ClaimReference) -> None:
        """Undoes prepare, without the API server; a claim that is not known is a success.

        Raises:
            PrepareError: another call for the claim does not end.
            OSError: a file cannot be removed or the checkpoint cannot be written; the claim stays prepared.
        """
        try:
            uid = check_uid(reference.uid)
        except DraError as e:
            log.warning("unprepare of what cannot have been prepared", error=str(e))
            return
        deadline = asyncio.get_running_loop().time() + self._timing.budget
        async with self._exclusively(uid, deadline):
            record = self._checkpoints.current.get(uid)
            state = record.state if record else ClaimState.ABSENT
            await self._carry_out(uid, record, state, Event.UNPREPARE)
            self._holdings.release(uid)
            self._released.notify()

    # --- the way to a plan ----------------------------------------------------------------------------------

    async def _plan(self, reference: ClaimReference, uid: Uid, deadline: float) -> PreparedClaim:
        """Reads the claim and plans it, again and again while the trouble may pass."""
        patience = min(deadline, asyncio.get_running_loop().time() + self._timing.patience)
        for what, name in (("namespace", reference.namespace), ("name", reference.name)):
            if not _NAME.fullmatch(name):
                raise PrepareError(f"claim {what} {name[:80]!r}: not a name that Kubernetes allows")

        def give_up(state: tenacity.RetryCallState) -> bool:
            error = state.outcome.exception() if state.outcome else None
            limit = patience if isinstance(error, PrepareError) else deadline
            pause = state.upcoming_sleep
            return asyncio.get_running_loop().time() + pause >= limit

        try:
            async for attempt in tenacity.AsyncRetrying(
                retry=tenacity.retry_if_exception(_may_pass),
                wait=tenacity.wait_random_exponential(multiplier=0.2, max=2.0),
                stop=give_up,
                reraise=True,
            ):
                with attempt:
                    claim = await self._read(reference, deadline)
                    return plan(claim, uid, driver=self._driver, pool=self._pool, devices=self._devices())
        except (ApiUnavailable, ServerBusy) as e:
            raise PrepareError(
                f"the claim cannot be read, tried for {self._timing.budget:g} s: {e}", retryable=True
            ) from e
        raise AssertionError("tenacity gives a result or raises")

    async def _read(self, reference: ClaimReference, deadline: float) -> ResourceClaim:
        try:
            async with asyncio.timeout_at(deadline):
                return await self._client.get(RESOURCE_CLAIMS, reference.name, reference.namespace)
        except TimeoutError:
            raise ApiUnavailable(f"the API server did not answer within {self._timing.budget:g} s") from None
        except NotFound:
            raise PrepareError("the API server has no such claim") from None

    def _check_identity(self, record: PreparedClaim) -> None:
        """A device that was replaced under its name is not what the claim was given."""
        here = self._devices()
        for device in record.devices:
            now = here.get(device.device)
            if now is not None and device.uuid and now.uuid != device.uuid:
                raise PrepareError(
                    f"device {device.device} was prepared with uuid {device.uuid!r}, but the hardware now "
                    f"says {now.uuid!r}: it was replaced; delete the pod to get another device"
                )

    async def _take(self, planned: PreparedClaim, deadline: float) -> None:
        """Waits until nobody else holds the devices, then holds them."""
        loop = asyncio.get_running_loop()
        limit = min(deadline, loop.time() + self._timing.patience)
        while True:
            seen = self._released.count
            conflict = self._holdings.conflict(planned.uid, planned.devices)
            if conflict is None:
                # Nothing is awaited between the question and the answer.
                self._holdings.take(planned.uid, planned.key, planned.devices)
                return
            left = limit - loop.time()
            if left <= 0:
                raise PrepareError(
                    f"{conflict}; waited {self._timing.patience:g} s for it to be unprepared", retryable=True
                )
            await self._released.wait(seen, left)

    # --- the transaction ------------------------------------------------------------------------------------

    async def _apply(self, planned: PreparedClaim, state: ClaimState) -> tuple[PreparedDevice, ...]:
        uid = planned.uid
        try:
            state = await self._carry_out(uid, planned, state, Event.PREPARE)
            await self._carry_out(uid, planned, state, Event.APPLIED)
        except (OSError, DraError) as e:
            try:
                await self._carry_out(uid, planned, ClaimState.STARTED, Event.FAILED)
            except OSError as undo:
                # The record stays STARTED and the devices stay held until the next call or start.
                log.error("a failed prepare could not be undone", uid=uid, error=str(e), undo=str(undo))
            else:
                self._holdings.release(uid)
                self._released.notify()
            raise
        return planned.devices

    async def _carry_out(
        self, uid: Uid, record: PreparedClaim | None, state: ClaimState, event: Event
    ) -> ClaimState:
        step = transition(state, event)
        spec = record.spec if record else None
        for effect in step.effects:
            match effect:
                case Effect.SAVE:
                    assert record is not None
                    await self._checkpoints.save(msgspec.structs.replace(record, state=step.state))
                case Effect.FORGET:
                    await self._checkpoints.forget(uid)
                case Effect.WRITE_SPEC:
                    if spec is not None:
                        await self._specs.write(uid, spec)
                case Effect.VERIFY_SPEC:
                    if spec is not None and await self._specs.verify(uid, spec):
                        log.warning("the CDI file of a claim was missing or changed; written again", uid=uid)
                case Effect.REMOVE_SPEC:
                    await self._specs.remove(uid)
        return step.state

    @asynccontextmanager
    async def _exclusively(self, uid: Uid, deadline: float) -> AsyncIterator[None]:
        """One call at a time for one claim; different claims do not wait for each other."""
        lock, users = self._locks.get(uid, (asyncio.Lock(), 0))
        self._locks[uid] = (lock, users + 1)
        try:
            try:
                async with asyncio.timeout_at(deadline):
                    await lock.acquire()
            except TimeoutError:
                raise PrepareError(
                    f"another call for this claim has not ended after {self._timing.budget:g} s",
                    retryable=True,
                ) from None
            try:
                yield
            finally:
                lock.release()
        finally:
            lock, users = self._locks[uid]
            if users == 1:
                del self._locks[uid]
            else:
                self._locks[uid] = (lock, users - 1)


def _may_pass(error: BaseException) -> bool:
    if isinstance(error, PrepareError):
        return error.retryable
    return isinstance(error, ApiUnavailable | ServerBusy)
