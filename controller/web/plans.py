"""Plans for waiting pods, as readers ask for them: one at a time, few that wait, each kept while it holds."""

from __future__ import annotations

import asyncio
import math
from collections import OrderedDict
from dataclasses import dataclass
from typing import Final, Protocol

import msgspec

from dra_driver.api.meta import ObjectKey, Uid

__all__ = ["PlanReply", "PlanSource", "Planned", "Plans"]

MOST_WAITING: Final = 8
FRESH_SECONDS: Final = 5.0
"""For so long a plan is given again although the cluster has changed: a busy one changes all the time."""
_MOST_KEPT: Final = 256
_MOST_BYTES: Final = 16 << 20
# For the pause after a plan, as a multiple of its CPU time: plans take half of a processor at most.
_PAUSE: Final = 1.0


@dataclass(frozen=True, slots=True)
class Planned:
    """What was worked out about a pod.

    Attributes:
        version: of the cluster that it is about.
        seconds: of CPU time that it took.
        limit: why there is no plan; empty where there is one.
        plan: as JSON.
    """

    version: int
    seconds: float
    limit: str
    plan: bytes


class PlanSource(Protocol):
    """Whatever works out plans."""

    @property
    def version(self) -> int:
        """Number that differs whenever the cluster does."""
        ...

    def find(self, pod: ObjectKey) -> Uid | None:
        """Return the UID of a pod that waits for claims; None where there is no such pod."""
        ...

    async def ask(self, pod: ObjectKey, uid: Uid) -> Planned:
        """Work out the plan for a pod."""
        ...


@dataclass(frozen=True, slots=True)
class PlanReply:
    """An answer to a reader of the page.

    Attributes:
        status: of HTTP.
        body: JSON.
        retry_after: seconds after which to ask again; 0: not said.
    """

    status: int
    body: bytes
    retry_after: int = 0


@dataclass(frozen=True, slots=True)
class _Kept:
    planned: Planned
    at: float


class _Answer(msgspec.Struct):
    """What ``/fleet/plan`` answers.

    Attributes:
        pod: ``namespace/name``.
        age: seconds since it was worked out.
        seconds: of CPU time that it took.
        plan: the plan.
    """

    pod: str
    age: float
    seconds: float
    plan: msgspec.Raw


class Plans:
    """Asks for plans, and keeps the answers.

    Args:
        source: works them out.
    """

    def __init__(self, source: PlanSource) -> None:
        self._source = source
        self._kept: OrderedDict[tuple[ObjectKey, Uid], _Kept] = OrderedDict()
        self.kept_bytes = 0
        self._turn = asyncio.Lock()
        self._waiting = 0
        # When the next one may begin.
        self._next = 0.0

    async def get(self, pod: ObjectKey) -> PlanReply:
        """Return the plan for a pod, or why there is none."""
        uid = self._source.find(pod)
        if uid is None:
            return _problem(404, f"no pod {pod} waits for claims")
        known = self._recall(pod, uid)
        if known is not None:
            return known
        if self._waiting >= MOST_WAITING:
            left = max(0.0, self._next - asyncio.get_running_loop().time())
            return _problem(503, "too many plans are asked for; ask again", math.ceil(left) + MOST_WAITING)
        self._waiting += 1
        try:
            async with self._turn:
                # Another reader may have asked the same meanwhile.
                return self._recall(pod, uid) or await self._ask(pod, uid)
        finally:
            self._waiting -= 1

    async def _ask(self, pod: ObjectKey, uid: Uid) -> PlanReply:
        loop = asyncio.get_running_loop()
        await asyncio.sleep(max(0.0, self._next - loop.time()))
        planned = await self._source.ask(pod, uid)
        self._next = loop.time() + _PAUSE * planned.seconds
        kept = _Kept(planned, loop.time())
        self._keep((pod, uid), kept)
        return _reply(pod, kept, loop.time())

    def _recall(self, pod: ObjectKey, uid: Uid) -> PlanReply | None:
        kept, now = self._kept.get((pod, uid)), asyncio.get_running_loop().time()
        if kept is None:
            return None
        # What was stopped may go well the next time: the machine had other work.
        same = kept.planned.version == self._source.version and not kept.planned.limit
        if not same and now - kept.at > FRESH_SECONDS:
            return None
        return _reply(pod, kept, now)

    def _keep(self, key: tuple[ObjectKey, Uid], kept: _Kept) -> None:
        before = self._kept.pop(key, None)
        self.kept_bytes += _size(kept) - (_size(before) if before is not None else 0)
        self._kept[key] = kept
        while len(self._kept) > _MOST_KEPT or (self.kept_bytes > _MOST_BYTES and len(self._kept) > 1):
            _, oldest = self._kept.popitem(last=False)
            self.kept_bytes -= _size(oldest)


def _size(kept: _Kept) -> int:
    return len(kept.planned.plan)


def _reply(pod: ObjectKey, kept: _Kept, now: float) -> PlanReply:
    planned = kept.planned
    if planned.limit:
        return _problem(503, f"there is no plan: {planned.limit}", math.ceil(FRESH_SECONDS))
    answer = _Answer(str(pod), round(now - kept.at, 1), round(planned.seconds, 2), msgspec.Raw(planned.plan))
    return PlanReply(200, msgspec.json.encode(answer))


def _problem(status: int, text: str, retry_after: int = 0) -> PlanReply:
    return PlanReply(status, msgspec.json.encode({"error": text}), retry_after)
