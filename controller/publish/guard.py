"""Looks at the admission policy, proves it, and writes the object by which it decides: one write at a time.

The claims are read beside that, because there may be many: no grant waits for it.

Every write carries the resourceVersion of what it replaces and changes the object in any case. So what a
process before this one may still have under way is refused once a write of this one is stored. What became of
a write that was not answered is not known: the object is read again, and written again.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
from typing import Final

import structlog

from controller.publish.grants import Asked, PoolGrants
from controller.publish.known_claims import KnownClaims
from dra_driver.api.core import CONFIG_MAPS, ConfigMap
from dra_driver.api.meta import DriverName, WireObject
from dra_driver.api.names import GRANTS, TRIAL_CLAIM
from dra_driver.api.resource import RESOURCE_CLAIMS
from dra_driver.api.server.admission import VALIDATING_POLICIES, VALIDATING_POLICY_BINDINGS
from dra_driver.errors import (
    ApiUnavailable,
    Conflict,
    DraError,
    Forbidden,
    Invalid,
    NotFound,
    NotLeading,
    ServerBusy,
)
from dra_driver.kube import Backoff
from dra_driver.ownership import Grants
from dra_driver.ports import Clock, KubeClient
from dra_driver.publishing.grants import GuardState
from dra_driver.resourceclaim import guard_problem, trial_status, turn_of_refusal

__all__ = ["GuardKeeper"]

log = structlog.get_logger(__name__)

# How often policy, binding and object are read, and the trial is made, where nothing is to be written.
_LOOK_SECONDS: Final = 10.0
# Until a look that fails counts as one that has found a change.
_UNKNOWN_SECONDS: Final = 30.0
# How long an API server may need to follow a policy that is new; and how often it is tried meanwhile.
_FOLLOW_SECONDS: Final = 30.0
_POLL_SECONDS: Final = 0.5
# For which an API server that answers may keep the policy from being in force without a reason that is known.
_PATIENCE_SECONDS: Final = 60.0
# From the end of one read of the claims to the next one, in times of what it took.
_READ_PAUSE: Final = 4.0
_LONGEST_PAUSE: Final = 30.0


class GuardKeeper:
    """Keeps the object as the grants want it, and finds out whether the policy holds it.

    Args:
        client: of the leader.
        clock: for times.
        namespace: of the driver.
        drivers: ours.
        grants: what is granted.
        claims: compares them with what is known.
        closing: seconds in which every API server follows a write of the object.
    """

    def __init__(
        self,
        client: KubeClient,
        clock: Clock,
        namespace: str,
        drivers: tuple[DriverName, ...],
        grants: PoolGrants,
        claims: KnownClaims,
        closing: float,
    ) -> None:
        self._client = client
        self._clock = clock
        self._namespace = namespace
        self._drivers = drivers
        self._grants = grants
        self._claims = claims
        self._closing = closing
        # As read or answered last; the version is empty where something else may be stored.
        self._version = ""
        self._data: dict[str, str] = {}
        # What may be stored where a write was not answered: what was there before, or what was written.
        self._either: tuple[dict[str, str], ...] = ()
        self._looked_at = 0.0
        self._admitted_since: float | None = None
        # In which the object was last written for the guard; and in which at all, with the times.
        self._turn = 0
        self._turns: collections.deque[tuple[float, int]] = collections.deque(maxlen=1024)
        # UID and generation of policy and binding.
        self._installed: tuple[tuple[str, int], ...] = ()
        self._to_read = asyncio.Event()
        # Since when the policy is not in force, as far as the API server answers.
        self._waits_since: float | None = None

    async def run(self) -> None:
        """Look, write and read until cancelled. What fails is logged and tried again."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._keep_object())
            tasks.create_task(self._keep_reading())

    async def _keep_object(self) -> None:
        backoff = Backoff(base=0.1, cap=_LOOK_SECONDS)
        while True:
            self._grants.asking.clear()
            try:
                await self.once()
                self._count(self._clock.monotonic(), "policy or object are changed, or claims cannot be read")
            except Conflict:
                # Somebody else has written it: it is read again.
                self._count(self._clock.monotonic(), f"somebody else writes the ConfigMap {GRANTS}")
                await asyncio.sleep(backoff.next())
            except DraError as e:
                silent = isinstance(e, ApiUnavailable | ServerBusy | NotLeading)
                self._count(None if silent else self._clock.monotonic(), str(e))
                delay = backoff.next()
                log.error(
                    "the admission policy cannot be looked at, or its object not written",
                    config_map=GRANTS,
                    error=str(e),
                    retry_in=round(delay, 2),
                )
                if self._clock.monotonic() - self._looked_at >= _UNKNOWN_SECONDS:
                    self._grants.failed(f"it cannot be looked at: {e}")
                await asyncio.sleep(delay)
            else:
                backoff.reset()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self._pause()):
                        await self._grants.asking.wait()

    async def once(self) -> None:
        """Look where that is due, write the object where it should be another one, and have claims read.

        Raises:
            DraError: of the API server; what is stored then is not known.
        """
        due = self._clock.monotonic() - self._looked_at >= _LOOK_SECONDS
        if due or not self._version or self._grants.guard.state is GuardState.PROVING:
            await self._look()
        if self._version:
            # From here to the write nothing is awaited.
            work = self._grants.look(Grants.of_data(self._data))
            if work is not None:
                await self._write(*work)
        now = self._clock.monotonic()
        if self._grants.left() == 0:
            if self._grants.guard.state is not GuardState.WRITING:
                await self._try(now)  # one API server at least has to show that it follows
            self._grants.tick(now)
        if self._grants.reading():
            self._to_read.set()

    async def _keep_reading(self) -> None:
        backoff = Backoff(base=_POLL_SECONDS, cap=_LOOK_SECONDS)
        while True:
            await self._to_read.wait()
            self._to_read.clear()
            began, read = self._clock.monotonic(), self._grants.reading()
            pause = 0.0
            try:
                if read and await self._claims.are_known():
                    self._grants.claims_seen(read)
            except DraError as e:
                pause = backoff.next()
                log.error("the claims cannot be read", error=str(e), retry_in=round(pause, 2))
            else:
                backoff.reset()
            if self._grants.reading():
                self._to_read.set()
            took = self._clock.monotonic() - began
            await asyncio.sleep(max(pause, _POLL_SECONDS, min(_READ_PAUSE * took, _LONGEST_PAUSE)))

    def _count(self, now: float | None, why: str) -> None:
        """Say why the policy is not in force where that lasts: pools get their taint then.

        Args:
            now: monotonic time in seconds; None: the API server does not answer, and nobody can allocate.
            why: for people.
        """
        if now is None or self._grants.problem or self._grants.in_force():
            self._waits_since = None
        elif self._waits_since is None:
            self._waits_since = now
        elif now - self._waits_since >= _PATIENCE_SECONDS:
            self._grants.not_proved(f"the policy {GRANTS} has not come into force for a minute: {why}")

    def _pause(self) -> float:
        """Return the seconds until there is something to do although nothing has changed."""
        left = self._looked_at + _LOOK_SECONDS - self._clock.monotonic()
        closing = self._grants.left()
        busy = self._grants.guard.state is GuardState.PROVING and not self._grants.problem
        times = (left, *([closing] if closing is not None else []), *([_POLL_SECONDS] if busy else []))
        return max(0.01, min(times))

    # --- policy, binding and object -------------------------------------------------------------------------

    async def _look(self) -> None:
        problem = await self._problem()
        self._grants.found(problem)
        if not problem and self._grants.guard.state is not GuardState.WRITING:
            await self._try(self._clock.monotonic())
        self._looked_at = self._clock.monotonic()

    async def _problem(self) -> str:
        """Read what is installed; return why it does not keep devices, empty if it should."""
        install = "install it with the chart, or from deploy/manifests/60-grants.yaml"
        before, self._version = self._version, ""
        try:
            found = await self._client.get(CONFIG_MAPS, GRANTS, self._namespace)
        except NotFound:
            return f"the ConfigMap {GRANTS} is missing: {install}"
        except Forbidden as e:
            return f"the ConfigMap {GRANTS} cannot be read: {e}"
        self._take(found)
        either, self._either = self._either, ()
        if (before and self._version != before) or (either and self._data not in either):
            self._grants.failed(f"the ConfigMap {GRANTS} has been written by somebody else")
        try:
            policy = await self._client.get(VALIDATING_POLICIES, GRANTS)
            binding = await self._client.get(VALIDATING_POLICY_BINDINGS, GRANTS)
        except NotFound:
            return f"the policy {GRANTS}, or its binding, is not installed: {install}"
        except Forbidden as e:
            return f"the policy {GRANTS} cannot be read: {e}"
        installed = tuple(map(_identity, (policy, binding)))
        if self._installed and installed != self._installed:
            self._grants.failed(f"the policy {GRANTS}, or its binding, has changed")
        self._installed = installed
        return guard_problem(policy, binding, self._drivers, self._namespace)

    async def _try(self, now: float) -> None:
        """Try a write that nobody may make; nothing of it is stored.

        Args:
            now: monotonic time in seconds; what was written so long before as is waited for has to count.
        """
        patch, admitted = {"status": trial_status(self._drivers[0])}, False
        try:
            await self._client.merge_patch(
                RESOURCE_CLAIMS, TRIAL_CLAIM, patch, self._namespace, subresource="status", dry_run=True
            )
            admitted = True
        except NotFound:
            self._grants.not_proved(f"the ResourceClaim {TRIAL_CLAIM} is missing: install it with the policy")
            return
        except (Forbidden, Invalid) as e:
            turn = turn_of_refusal(str(e))
            if turn is None:
                self._grants.not_proved(f"whether the policy {GRANTS} refuses anything cannot be tried: {e}")
                return
            admitted = turn < self._due(now)
        self._judge(admitted=admitted)

    def _due(self, now: float) -> int:
        """Return the turn that every API server has to know."""
        while self._turns and self._turns[0][0] <= now - self._closing:
            self._turn = max(self._turn, self._turns.popleft()[1])
        return self._turn

    def _judge(self, *, admitted: bool) -> None:
        now = self._clock.monotonic()
        if not admitted:
            self._admitted_since = None
            self._grants.proved()
            return
        if self._admitted_since is None:
            self._admitted_since = now
        if self._grants.guard.state is not GuardState.PROVING:
            self._grants.failed("an API server admits what it should refuse")
        elif now - self._admitted_since >= _FOLLOW_SECONDS:
            self._grants.not_proved(f"an API server admits what the policy {GRANTS} should refuse")

    async def _write(self, wanted: Grants, asked: Asked) -> None:
        version, self._version = self._version, ""
        data = wanted.data()
        self._either = (self._data, data)
        gone = dict.fromkeys(self._data.keys() - data.keys())
        patch = {"metadata": {"resourceVersion": version}, "data": {**gone, **data}}
        answer = await self._client.merge_patch(CONFIG_MAPS, GRANTS, patch, self._namespace)
        if answer.metadata.resource_version == version:
            raise DraError(f"the API server has not changed the ConfigMap {GRANTS}")
        self._either = ()
        self._take(answer)
        if asked.guard is not None:
            self._turn = wanted.turn
        self._turns.append((self._clock.monotonic(), wanted.turn))
        self._grants.stored(Grants.of_data(self._data), asked)

    def _take(self, found: ConfigMap) -> None:
        self._data = dict(found.data or {})
        self._version = found.metadata.resource_version


def _identity(found: WireObject) -> tuple[str, int]:
    return found.metadata.uid, found.metadata.generation
