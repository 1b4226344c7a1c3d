"""Carries out prepare and unprepare: the state machine of ``dra_driver.preparation`` on real files.

Time: the kubelet gives a call 45 s and comes back only after 65 s or more, so whatever may pass soon (API
server away, device still held, another call for the same claim) is waited for inside the call, up to
``Timing.budget``. Effects themselves are never cut short.

Between calls nothing is kept that another instance of the plugin could make untrue: a transaction holds the
``Turn``, and whoever gets it anew reads again what is durable.
"""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import structlog
import tenacity

from dra_driver.api.meta import PoolName, Uid
from dra_driver.api.resource import RESOURCE_CLAIMS, ResourceClaim
from dra_driver.errors import ApiUnavailable, DraError, NotFound, PrepareError, ServerBusy
from dra_driver.ports import KubeClient
from dra_driver.preparation import (
    ClaimState,
    Event,
    Holdings,
    NodeDevice,
    PreparedClaim,
    PreparedDevice,
    check_uid,
    plan,
)
from kubelet_plugin.hardware import Hardware, NoHardware
from kubelet_plugin.locks import ClaimLocks, NoOtherInstance, Turn
from kubelet_plugin.metadata_directory import Metadata, NoMetadata
from kubelet_plugin.recovery import Recovery
from kubelet_plugin.signals import Changes
from kubelet_plugin.stores import NO_CHECKPOINT, Checkpoints, Specs
from kubelet_plugin.transaction import Transactions

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
        start: for the memory that another instance is changing, at our start.
    """

    budget: float = 40.0
    patience: float = 10.0
    start: float = 60.0


# Another instance cannot tell us that it has let a device go.
_LOOK_AGAIN_SECONDS: Final = 0.5


class Engine:
    """The claims of one driver on one node.

    Args:
        metadata: where device metadata files go, and ``metadata_directory`` under which name of the host.
        tell: called with kind (see ``notices``) and text of what somebody should know.
    """

    def __init__(
        self,
        *,
        driver: str,
        pool: PoolName,
        client: KubeClient,
        checkpoints: Checkpoints,
        specs: Specs,
        devices: Callable[[], Mapping[str, NodeDevice]],
        hardware: Hardware | None = None,
        timing: Timing | None = None,
        turn: Turn | None = None,
        boot_id: str = "",
        metadata: Metadata | None = None,
        metadata_directory: str = "",
        tell: Callable[[str, str], None] = lambda *_: None,
    ) -> None:
        self._driver = driver
        self._pool = pool
        self._client = client
        self._checkpoints = checkpoints
        self._specs = specs
        self._devices = devices
        self._hardware: Hardware = hardware or NoHardware()
        self._timing = timing or Timing()
        self._released = Changes()
        self._claim_locks = ClaimLocks()
        self._turn: Turn = turn or NoOtherInstance()
        self._turn.on_taken(self._read_again)
        self._boot_id = boot_id
        self._metadata: Metadata = metadata or NoMetadata()
        self._metadata_directory = metadata_directory
        self._recovery = Recovery(driver, checkpoints, tell)
        self._steps = Transactions(
            driver=driver,
            checkpoints=checkpoints,
            specs=specs,
            hardware=self._hardware,
            metadata=self._metadata,
            metadata_directory=metadata_directory,
        )
        self._restoring = False

    @property
    def claims(self) -> tuple[PreparedClaim, ...]:
        """What this instance remembers, without waiting for another one."""
        return tuple(self._checkpoints.current)

    @property
    def failures(self) -> Counter[str]:
        """How often what was durable failed, by what it was."""
        return self._steps.failures

    # --- start ----------------------------------------------------------------------------------------------

    async def restore(self) -> None:
        """Brings records and files together after a start: finishes or undoes whatever a crash left.

        A claim that cannot be put in order now is logged and stays as it is; its next call tries again.

        Raises:
            PrepareError: another instance does not let us.
        """
        self._restoring = True  # reads everything anyway, and knows what to do where it cannot
        try:
            async with self._turn.held(asyncio.get_running_loop().time() + self._timing.start):
                await self._restore()
        finally:
            self._restoring = False

    async def _restore(self) -> None:
        problem = await self._checkpoints.load()
        try:
            await self._specs.clean()
        except OSError as e:
            log.error("leftovers of an interrupted write could not be removed", error=str(e))
        files: Mapping[Uid, bytes] = {}
        try:
            files = await self._specs.ours()
        except OSError as e:
            self._steps.failures["cdi"] += 1
            log.error("the CDI directory cannot be read", error=str(e))
        known = {claim.uid for claim in self._checkpoints.current}
        if problem:
            self._steps.failures["checkpoint"] += problem != NO_CHECKPOINT
            known |= await self._recovery.recover(problem, known, files)
        # First of all: what is undone for one claim may be needed by another.
        self._steps.holdings = Holdings(self._checkpoints.current)
        rebooted = self._rebooted()
        for record in tuple(self._checkpoints.current):
            lost = rebooted and (record.touches_hardware or record.names_device_numbers)
            await self._restart(record.uid, record, Event.REBOOT if lost else Event.RESTART)
        for uid in files.keys() - known:
            if self._recovery.is_orphan(uid, files[uid]):
                await self._restart(uid, None)
        await self._remove_metadata_of_nobody()
        try:
            # Last: a crash before it does all of the above again.
            await self._note_boot()
        except OSError as e:
            log.error("the boot ID could not be written down", error=str(e))
        log.info("claims restored", claims=len(self._checkpoints.current), rebooted=rebooted)

    async def _remove_metadata_of_nobody(self) -> None:
        try:
            for uid in await self._metadata.ours() - {claim.uid for claim in self._checkpoints.current}:
                await self._metadata.remove(uid)
        except OSError as e:
            log.error("metadata files of claims that are gone could not be removed", error=str(e))

    def _rebooted(self) -> bool:
        before = self._checkpoints.current.boot_id
        return bool(self._boot_id and before) and self._boot_id != before

    async def _note_boot(self) -> None:
        """Records of this boot must never look like those of the one before, whose devices nobody uses."""
        if self._boot_id:
            await self._checkpoints.booted(self._boot_id)

    async def _read_again(self) -> None:
        """Another instance may have acted since we let go."""
        if not self._restoring and await self._checkpoints.refresh():
            self._steps.holdings = Holdings(self._checkpoints.current)
            self._released.notify()

    async def _restart(self, uid: Uid, record: PreparedClaim | None, event: Event = Event.RESTART) -> None:
        state = record.state if record else ClaimState.ABSENT
        if state is ClaimState.STARTED:
            log.warning("undoing a prepare that did not end", uid=uid)
        elif event is Event.REBOOT:
            log.info("the reboot ended what a claim had; it is prepared anew when it is wanted", uid=uid)
        try:
            state, _ = await self._steps.carry_out(uid, record, state, event)
        except (OSError, DraError) as e:
            log.error("a claim could not be put in order", uid=uid, state=state.value, error=str(e))
            return
        except Exception:
            # A bug in a backend must not end the plugin at each of its starts.
            log.exception("a claim could not be put in order", uid=uid, state=state.value)
            return
        if state is ClaimState.ABSENT:
            self._steps.holdings.release(uid)

    # --- now and then ---------------------------------------------------------------------------------------

    async def prepared(self) -> tuple[PreparedClaim, ...]:
        """The records of prepared claims, also of those that another instance prepared."""
        async with self._turn.held(asyncio.get_running_loop().time() + self._timing.budget):
            return tuple(c for c in self._checkpoints.current if c.state is ClaimState.COMPLETED)

    async def tidy(self) -> None:
        """Does what ``restore`` does, one claim after the other, while calls go on."""
        files = await self._specs.ours()
        known = {claim.uid for claim in self._checkpoints.current}
        for uid in [*known, *(files.keys() - known)]:
            deadline = asyncio.get_running_loop().time() + self._timing.patience
            try:
                async with self._claim_locks.held(uid, deadline), self._turn.held(deadline):
                    record = self._checkpoints.current.get(uid)
                    if record is not None or (uid in files and self._recovery.is_orphan(uid, files[uid])):
                        await self._restart(uid, record)
            except PrepareError as e:
                log.info("a claim is busy and was not looked at", uid=uid, error=str(e))

    # --- calls ----------------------------------------------------------------------------------------------

    async def prepare(self, reference: ClaimReference) -> tuple[PreparedDevice, ...]:
        """Makes the devices of a claim usable; a claim that is prepared already gives the same answer.

        Raises:
            DraError: it is not prepared; the text says why and goes to the pod's Event.
            OSError: likewise, for files.
        """
        uid = check_uid(reference.uid)
        deadline = asyncio.get_running_loop().time() + self._timing.budget
        async with self._claim_locks.held(uid, deadline):
            async with self._turn.held(deadline):
                await self._note_boot()
                if (devices := await self._repeat(uid)) is not None:
                    return devices
            planned = await self._plan(reference, uid, deadline)
            return await self._make(planned, deadline)

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
        async with self._claim_locks.held(uid, deadline), self._turn.held(deadline):
            record = self._checkpoints.current.get(uid)
            state = record.state if record else ClaimState.ABSENT
            await self._steps.carry_out(uid, record, state, Event.UNPREPARE)
            self._steps.holdings.release(uid)
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
                    return plan(
                        claim,
                        uid,
                        driver=self._driver,
                        pool=self._pool,
                        devices=self._devices(),
                        metadata_directory=self._metadata_directory,
                    )
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

    async def _repeat(self, uid: Uid) -> tuple[PreparedDevice, ...] | None:
        """The answer for a claim that is prepared already; None for any other, of which nothing is left."""
        record = self._checkpoints.current.get(uid)
        if record is None:
            return None
        if record.state is not ClaimState.COMPLETED:
            # An earlier attempt ended half-way and its undoing failed too: its record says what is left.
            await self._undo(record)
            return None
        self._check_identity(record)
        _, verified = await self._steps.carry_out(uid, record, ClaimState.COMPLETED, Event.PREPARE)
        return verified.devices if verified else ()

    async def _make(self, planned: PreparedClaim, deadline: float) -> tuple[PreparedDevice, ...]:
        """Waits until nobody else holds the devices, then takes them and makes them usable."""
        loop = asyncio.get_running_loop()
        limit = min(deadline, loop.time() + self._timing.patience)
        while True:
            seen = self._released.count
            async with self._turn.held(deadline):
                # While we waited, another instance may have prepared it.
                if (devices := await self._repeat(planned.uid)) is not None:
                    return devices
                conflict = self._steps.holdings.conflict(planned.uid, planned.devices, planned.settings)
                if conflict is None:
                    # Nothing is awaited between the question and the answer.
                    self._steps.holdings.take(planned.uid, planned.key, planned.devices, planned.settings)
                    return await self._apply(planned)
            left = limit - loop.time()
            if left <= 0:
                raise PrepareError(
                    f"{conflict}; waited {self._timing.patience:g} s for it to be unprepared", retryable=True
                )
            await self._released.wait(seen, min(left, _LOOK_AGAIN_SECONDS))

    # --- the transaction ------------------------------------------------------------------------------------

    async def _apply(self, planned: PreparedClaim) -> tuple[PreparedDevice, ...]:
        record = planned
        try:
            record = await self._hardware.look(planned, self._steps.holdings)
            self._steps.holdings.take(record.uid, record.key, record.devices, record.settings)
            state, made = await self._steps.carry_out(record.uid, record, ClaimState.ABSENT, Event.PREPARE)
            record = made or record
            await self._steps.carry_out(record.uid, record, state, Event.APPLIED)
        except Exception as e:  # also a bug in a backend: nothing may stay half-made
            try:
                await self._undo(self._checkpoints.current.get(record.uid) or record)
            except Exception as undo:
                # The record stays STARTED and the devices stay held until the next call or start.
                log.error(
                    "a failed prepare could not be undone", uid=record.uid, error=str(e), undo=str(undo)
                )
            raise
        return record.devices

    async def _undo(self, record: PreparedClaim) -> None:
        # Without a durable record nothing was begun, and what is at the places of its partitions is not ours.
        if self._checkpoints.current.get(record.uid) is not None:
            await self._steps.carry_out(record.uid, record, ClaimState.STARTED, Event.FAILED)
        self._steps.holdings.release(record.uid)
        self._released.notify()


def _may_pass(error: BaseException) -> bool:
    if isinstance(error, PrepareError):
        return error.retryable
    return isinstance(error, ApiUnavailable | ServerBusy)
