"""Carries out prepare and unprepare: the state machine of ``dra_driver.preparation`` on real files.

Time: the kubelet gives a call 45 s and comes back only after 65 s or more, so whatever may pass soon (API
server away, device still held, another call for the same claim) is waited for inside the call, up to
``Timing.budget``. Effects themselves are never cut short.

Between calls nothing is kept that another instance of the plugin could make untrue: a transaction holds the
``NodeLock``, and whoever gets it anew reads again what is durable.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from typing import Final

import msgspec
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
    check_identity,
    check_uid,
    plan,
    renewed,
)
from kubelet_plugin.claims.host_files import EverythingThere, Host
from kubelet_plugin.claims.locks import ClaimLocks, NodeLock, NoNodeLock
from kubelet_plugin.claims.metadata_directory import Metadata, NoMetadata
from kubelet_plugin.claims.recovery import Recovery
from kubelet_plugin.claims.stores import NO_CHECKPOINT, Checkpoints, Specs
from kubelet_plugin.claims.transaction import Transactions
from kubelet_plugin.claims.upkeep import Upkeep
from kubelet_plugin.core.signals import Changes
from kubelet_plugin.gpu.hardware import Hardware, NoHardware

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
        host: what is there of what documents name; defaults to everything.
        complete: whether ``devices`` is all there is, so that what is not in it is not on the node.
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
        node_lock: NodeLock | None = None,
        boot_id: str = "",
        metadata: Metadata | None = None,
        metadata_directory: str = "",
        host: Host | None = None,
        complete: Callable[[], bool] = lambda: True,
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
        self._node_lock: NodeLock = node_lock or NoNodeLock()
        self._node_lock.on_taken(self._read_again)
        self._boot_id = boot_id
        self._metadata: Metadata = metadata or NoMetadata()
        self._metadata_directory = metadata_directory
        self._host: Host = host or EverythingThere()
        self._recovery = Recovery(driver, checkpoints, tell)
        self._steps = Transactions(
            driver=driver,
            checkpoints=checkpoints,
            specs=specs,
            hardware=self._hardware,
            metadata=self._metadata,
            metadata_directory=metadata_directory,
            host=self._host,
        )
        self._upkeep = Upkeep(
            driver=driver,
            checkpoints=checkpoints,
            steps=self._steps,
            hardware=self._hardware,
            host=self._host,
            devices=devices,
            complete=complete,
            boot_id=boot_id,
            tell=tell,
        )
        self._restoring = False

    @property
    def claims(self) -> tuple[PreparedClaim, ...]:
        """The claims that hold something, as this instance remembers, without waiting for another one."""
        return tuple(c for c in self._checkpoints.current if not c.ended)

    @property
    def unsettled(self) -> bool:
        """Whether there are claims whose documents are not known to be right: ``renew`` tries again."""
        return bool(self._upkeep.unsettled)

    @property
    def failures(self) -> Counter[str]:
        """How often what was durable failed, by what it was."""
        return self._steps.failures

    # --- start ----------------------------------------------------------------------------------------------

    async def restore(self) -> None:
        """Brings records and files together after a start: finishes or undoes whatever a crash left.

        Documents wait for the devices to be known; ``renew`` writes them. A claim that cannot be put in order
        now is logged and stays as it is; its next call tries again.

        Raises:
            PrepareError: another instance does not let us.
        """
        self._restoring = True  # reads everything anyway, and knows what to do where it cannot
        try:
            async with self._node_lock.held(asyncio.get_running_loop().time() + self._timing.start):
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
        before = self._checkpoints.current.boot_id
        for record in tuple(self._checkpoints.current):
            await self._upkeep.put_in_order(record.uid, record)
        for uid in files.keys() - known:
            if self._recovery.is_orphan(uid, files[uid]):
                await self._upkeep.put_in_order(uid, None)
        await self._remove_metadata_of_nobody()
        try:
            # Last: a crash before it does all of the above again.
            await self._note_boot()
        except OSError as e:
            log.error("the boot ID could not be written down", error=str(e))
        log.info("claims restored", claims=len(self._checkpoints.current), boot_before=before)

    async def _remove_metadata_of_nobody(self) -> None:
        try:
            for uid in await self._metadata.ours() - {claim.uid for claim in self._checkpoints.current}:
                await self._metadata.remove(uid)
        except OSError as e:
            log.error("metadata files of claims that are gone could not be removed", error=str(e))

    async def _note_boot(self) -> None:
        """Records of this boot must never look like those of the one before, whose devices nobody uses."""
        if self._boot_id:
            await self._checkpoints.booted(self._boot_id)

    async def _read_again(self) -> None:
        """Another instance may have acted since we let go."""
        if not self._restoring and await self._checkpoints.refresh():
            self._steps.holdings = Holdings(self._checkpoints.current)
            self._released.notify()

    # --- now and then ---------------------------------------------------------------------------------------

    async def prepared(self) -> tuple[PreparedClaim, ...]:
        """The records of claims that are prepared or were before a reboot, whichever instance did it."""
        async with self._node_lock.held(asyncio.get_running_loop().time() + self._timing.budget):
            return tuple(
                c for c in self._checkpoints.current if c.standing in (ClaimState.COMPLETED, ClaimState.ENDED)
            )

    async def tidy(self) -> None:
        """Does what ``restore`` does, one claim after the other, while calls go on."""
        files = await self._specs.ours()
        known = {claim.uid for claim in self._checkpoints.current}
        for uid in [*known, *(files.keys() - known)]:
            async with self._undisturbed(uid) as free:
                if not free:
                    continue
                record = self._checkpoints.current.get(uid)
                orphan = record is None and uid in files and self._recovery.is_orphan(uid, files[uid])
                if record is not None or orphan:
                    await self._upkeep.put_in_order(uid, record)

    async def renew(self) -> None:
        """Writes the documents that discovery has something new for, or that could not be written before."""
        self._upkeep.only({claim.uid for claim in self._checkpoints.current})
        for claim in tuple(self._checkpoints.current):
            if not self._upkeep.waits(claim):
                continue
            async with self._undisturbed(claim.uid) as free:
                record = self._checkpoints.current.get(claim.uid)
                if free and record is not None and self._upkeep.waits(record):
                    await self._upkeep.put_in_order(record.uid, record)

    @contextlib.asynccontextmanager
    async def _undisturbed(self, uid: Uid) -> AsyncIterator[bool]:
        """Alone with a claim; says False where a call for it does not end."""
        deadline = asyncio.get_running_loop().time() + self._timing.patience
        async with contextlib.AsyncExitStack() as stack:
            try:
                await stack.enter_async_context(self._claim_locks.held(uid, deadline))
                await stack.enter_async_context(self._node_lock.held(deadline))
            except PrepareError as e:
                log.info("a claim is busy and was not looked at", uid=uid, error=str(e))
                yield False
                return
            yield True

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
            if (devices := await self._answer_again(uid, deadline)) is not None:
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
        async with self._claim_locks.held(uid, deadline), self._node_lock.held(deadline):
            record = self._checkpoints.current.get(uid)
            state = record.standing if record else ClaimState.ABSENT
            await self._steps.carry_out(uid, record, state, Event.UNPREPARE)
            self._upkeep.released(uid)
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
                    planned = plan(
                        claim,
                        uid,
                        driver=self._driver,
                        pool=self._pool,
                        devices=self._devices(),
                        metadata_directory=self._metadata_directory,
                        boot_id=self._boot_id,
                    )
                    await self._check(planned)
                    return planned
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

    async def _check(self, planned: PreparedClaim) -> None:
        """Refuses what would be a document of another device than before the reboot, or of none."""
        before = self._checkpoints.current.get(planned.uid)
        if before is not None:
            names = {d.device for d in planned.devices}
            same = tuple(d for d in before.devices if d.device in names)
            check_identity(msgspec.structs.replace(before, devices=same), self._devices())
        if planned.spec is not None:
            await self._host.document(planned)

    async def _answer_again(self, uid: Uid, deadline: float) -> tuple[PreparedDevice, ...] | None:
        """See ``_repeat``; what may pass soon is waited for."""
        loop = asyncio.get_running_loop()
        limit = min(deadline, loop.time() + self._timing.patience)
        while True:
            try:
                async with self._node_lock.held(deadline):
                    await self._note_boot()
                    return await self._repeat(uid)
            except PrepareError as e:
                if not e.retryable or loop.time() + _LOOK_AGAIN_SECONDS > limit:
                    raise
            await asyncio.sleep(_LOOK_AGAIN_SECONDS)

    async def _repeat(self, uid: Uid) -> tuple[PreparedDevice, ...] | None:
        """The answer for a claim that is prepared already; None for any other, of which nothing is left."""
        record = self._checkpoints.current.get(uid)
        if record is None or record.ended:
            return None
        if self._upkeep.outdated(record):
            await self._upkeep.end(record)
            return None
        if record.state is not ClaimState.COMPLETED:
            # An earlier attempt ended half-way and its undoing failed too: its record says what is left.
            await self._undo(record)
            return None
        return (await self._upkeep.renew(record, Event.PREPARE)).devices

    async def _make(self, planned: PreparedClaim, deadline: float) -> tuple[PreparedDevice, ...]:
        """Waits until nobody else holds the devices, then takes them and makes them usable."""
        loop = asyncio.get_running_loop()
        limit = min(deadline, loop.time() + self._timing.patience)
        while True:
            seen = self._released.count
            async with self._node_lock.held(deadline):
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
        before = self._checkpoints.current.get(planned.uid)
        try:
            # While it waited for the devices they may have changed.
            record = renewed(self._driver, planned, self._devices())
            record = await self._hardware.look(record, self._steps.holdings)
            self._steps.holdings.take(record.uid, record.key, record.devices, record.settings)
            state = before.standing if before is not None else ClaimState.ABSENT
            state, made = await self._steps.carry_out(record.uid, record, state, Event.PREPARE)
            record = made or record
            await self._steps.carry_out(record.uid, record, state, Event.APPLIED)
        except Exception as e:  # also a bug in a backend: nothing may stay half-made
            try:
                await self._undo(self._durable(record.uid) or record)
            except Exception as undo:
                # The record stays STARTED and the devices stay held until the next call or start.
                log.error(
                    "a failed prepare could not be undone", uid=record.uid, error=str(e), undo=str(undo)
                )
            raise
        return record.devices

    async def _undo(self, record: PreparedClaim) -> None:
        # Without a durable record nothing was begun, and what is at the places of its partitions is not ours.
        if self._durable(record.uid) is not None:
            await self._steps.carry_out(record.uid, record, ClaimState.STARTED, Event.FAILED)
        self._upkeep.released(record.uid)
        self._released.notify()

    def _durable(self, uid: Uid) -> PreparedClaim | None:
        """The record of what was begun; that of a claim that a reboot has ended is none."""
        record = self._checkpoints.current.get(uid)
        return None if record is None or record.ended else record


def _may_pass(error: BaseException) -> bool:
    if isinstance(error, PrepareError):
        return error.retryable
    return isinstance(error, ApiUnavailable | ServerBusy)
