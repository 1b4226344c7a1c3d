"""Carries out a fault plan on requests, watches and the server's clock."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass

import structlog
from aiohttp import web

from dra_driver.errors import ConfigurationError
from dra_driver.sim.apiserver.objects.kinds import Kinds
from dra_driver.sim.apiserver.objects.status import StatusError
from dra_driver.sim.apiserver.storage.store import Store
from dra_driver.sim.faults import (
    Drop,
    Error,
    Expire,
    Fault,
    FaultPlan,
    Jump,
    Kill,
    Latency,
    Lose,
    Reset,
    Stall,
)
from dra_driver.sim.faults.plan import Timing, Traffic

__all__ = ["Injector", "OpenWatch", "at_moments", "cut"]

log = structlog.get_logger(__name__)

_POLL = 0.02
_REASONS = {
    400: "BadRequest",
    401: "Unauthorized",
    403: "Forbidden",
    404: "NotFound",
    409: "Conflict",
    410: "Expired",
    422: "Invalid",
    429: "TooManyRequests",
    500: "InternalError",
    502: "BadGateway",
    503: "ServiceUnavailable",
    504: "Timeout",
}


@dataclass(eq=False, slots=True)
class OpenWatch:
    """An open watch."""

    resource: str
    agent: str
    request: web.BaseRequest


async def at_moments(
    timing: Timing, elapsed: Callable[[], float], act: Callable[[], Awaitable[None]]
) -> None:
    """Call ``act`` at every moment of the timing; return after the last one."""
    for moment in timing.moments():
        await asyncio.sleep(max(0.0, moment - elapsed()))
        await act()


class Injector:
    """A fault plan in force.

    Args:
        plan: the plan; its statements for processes and disks are ignored here.
        store: the store in which ``expire`` drops history.
        watches: the open watches; read again for every fault.
        exempt: prefixes of User-Agents that no fault strikes, for observers.

    Attributes:
        offset: seconds that the server's clock has jumped so far.
        struck: number of times that each fault has struck, in the plan's order.
    """

    def __init__(
        self, plan: FaultPlan, store: Store, watches: Collection[OpenWatch], exempt: tuple[str, ...] = ()
    ) -> None:
        self.plan = plan
        self.offset = 0.0
        self.struck = [0] * len(plan.faults)
        self._store = store
        self._exempt = exempt
        self._watches = watches
        # Not for secrets.
        self._random = random.Random(plan.seed)  # noqa: S311
        self._start = asyncio.get_running_loop().time()

    def elapsed(self) -> float:
        """Return the seconds since the plan was put in force."""
        return asyncio.get_running_loop().time() - self._start

    def check(self, kinds: Kinds) -> None:
        """Refuse a plan for resources that are not served: its faults would never strike.

        Raises:
            ConfigurationError: with the names of these resources.
        """
        known = {k.plural for k in kinds}
        for fault in self.plan.faults:
            traffic = getattr(fault, "traffic", Traffic())
            unknown = [r for r in traffic.resources if r.partition("/")[0] not in known]
            if unknown:
                raise ConfigurationError(
                    f"faults, in {str(fault)!r}: the API server has no resource {unknown[0]!r}; "
                    f"it has {', '.join(sorted(known))}"
                )

    # --- requests -------------------------------------------------------------------------------------------

    async def enter(self, request: web.BaseRequest, verb: str, resource: str) -> bool:
        """Let faults strike a request before it is handled; return whether its answer is to be lost.

        Raises:
            StatusError: this is to be the answer.
            ConnectionResetError: the connection is gone.
        """
        agent = request.headers.get("User-Agent", "")
        if self._exempt and agent.startswith(self._exempt):
            return False
        lost = False
        for index, fault in enumerate(self.plan.faults):
            match fault:
                case Latency():
                    if self._strikes(index, fault, verb, resource, agent):
                        await asyncio.sleep(self._random.uniform(fault.low, fault.high))
                case Error():
                    if self._strikes(index, fault, verb, resource, agent):
                        raise _answer(fault.code)
                case Reset():
                    if self._strikes(index, fault, verb, resource, agent):
                        cut(request)
                case Lose():
                    lost = lost or (verb != "watch" and self._strikes(index, fault, verb, resource, agent))
                case _:
                    pass
        return lost

    def _strikes(
        self, index: int, fault: Latency | Error | Reset | Lose, verb: str, resource: str, agent: str
    ) -> bool:
        traffic, timing = fault.traffic, fault.timing
        if not traffic.concerns(verb, resource, agent) or not timing.active(self.elapsed()):
            return False
        if timing.times is not None and self.struck[index] >= timing.times:
            return False
        if traffic.percent < 100 and self._random.uniform(0, 100) >= traffic.percent:
            return False
        self.struck[index] += 1
        return True

    # --- watches --------------------------------------------------------------------------------------------

    async def passes(self, watch: OpenWatch) -> None:
        """Wait until a watch may send something."""
        # No event ends a stall: the plan is a function of time.
        while self._stalled(watch):  # noqa: ASYNC110
            await asyncio.sleep(_POLL)

    def _stalled(self, watch: OpenWatch) -> bool:
        return any(
            isinstance(fault, Stall)
            and self._means(fault.traffic, watch)
            and fault.timing.active(self.elapsed())
            for fault in self.plan.faults
        )

    def _means(self, traffic: Traffic, watch: OpenWatch) -> bool:
        exempt = bool(self._exempt) and watch.agent.startswith(self._exempt)
        return not exempt and traffic.concerns("watch", watch.resource, watch.agent)

    # --- faults at a time of their own ----------------------------------------------------------------------

    async def run(self, kill_server: Callable[[float | None], Awaitable[None]]) -> None:
        """Carry out the faults that come at a time of their own; return after the last one.

        Args:
            kill_server: stops the server, and starts it again after so many seconds; if None, never.
        """
        async with asyncio.TaskGroup() as group:
            for index, fault in enumerate(self.plan.faults):
                act = self._moment(fault, kill_server)
                if act is not None:
                    group.create_task(at_moments(fault.timing, self.elapsed, self._counted(index, act)))

    def _counted(self, index: int, act: Callable[[], Awaitable[None]]) -> Callable[[], Awaitable[None]]:
        async def counted() -> None:
            self.struck[index] += 1
            log.info("fault", fault=str(self.plan.faults[index]), at=round(self.elapsed(), 3))
            await act()

        return counted

    def _moment(
        self, fault: Fault, kill_server: Callable[[float | None], Awaitable[None]]
    ) -> Callable[[], Awaitable[None]] | None:
        match fault:
            case Drop(traffic=traffic):
                return lambda: self._drop(traffic)
            case Expire(traffic=traffic):
                return lambda: self._expire(traffic)
            case Jump(seconds=seconds):
                return lambda: self._jump(seconds)
            case Kill(target=target, timing=timing) if target.part == "apiserver":
                return lambda: kill_server(timing.duration)
            case _:
                return None

    async def _drop(self, traffic: Traffic) -> None:
        for watch in [w for w in self._watches if self._means(traffic, w)]:
            _abort(watch.request)

    async def _expire(self, traffic: Traffic) -> None:
        for collection in self._store.collections():
            if traffic.concerns("watch", collection.plural, ""):
                collection.forget()

    async def _jump(self, seconds: float) -> None:
        self.offset += seconds


def cut(request: web.BaseRequest) -> None:
    """Close the connection of a request without an answer.

    Raises:
        ConnectionResetError: always, so that the HTTP server sends no answer.
    """
    _abort(request)
    raise ConnectionResetError("fault injected: connection reset")


def _abort(request: web.BaseRequest) -> None:
    if request.transport is not None:
        request.transport.abort()


def _answer(code: int) -> StatusError:
    headers = {"Retry-After": "1"} if code == 429 else {}
    text = f"fault injected: {_REASONS[code]}"
    return StatusError(code, _REASONS[code], text, retry_after=1 if headers else 0, headers=headers)
