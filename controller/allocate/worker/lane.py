"""Tasks that are worked out in copies of this process, a few at a time, beside what it does itself."""

from __future__ import annotations

import enum
import time
from collections import deque
from collections.abc import Callable, Collection
from dataclasses import dataclass

from controller.allocate.worker import copies

__all__ = ["Lane", "Limit", "Result", "Task"]


class Limit(enum.Enum):
    """Why a task has no result."""

    NO_ROOM = "no room"
    """There are no more processes, files or memory."""
    TIME = "time"
    """It has taken too long by the clock."""
    SIZE = "size"
    """Its result is too long."""
    MEMORY = "memory"
    PROCESSOR = "processor"
    """It has taken too much CPU time, or was killed for lack of memory."""
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Result:
    """What became of a task.

    Attributes:
        data: that the copy has sent; to be used only if there is no limit.
        limit: that it met; None: none.
        seconds: of CPU time that it took.
        problem: what was lacking, where there was no room.
    """

    data: bytes = b""
    limit: Limit | None = None
    seconds: float = 0.0
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Task:
    """What is to be worked out.

    Attributes:
        work: is done in the copy, and what it returns is sent.
        seconds: of CPU time that it may take, besides ``copies.GRACE_SECONDS``.
        done: called with what became of it.
    """

    work: Callable[[], bytes]
    seconds: float
    done: Callable[[Result], None]


@dataclass(slots=True)
class _UnderWay:
    task: Task
    copy: copies.Copy
    started: float
    overdue: bool = False


class Lane:
    """Begins tasks in order, and stops those that take too much.

    Args:
        most: copies at a time.
        memory: bytes that a copy may take beyond what this process has.
        largest: bytes that a result may have.
        wall_seconds: that a task may take by the clock.
        connection: file descriptor of this process that copies must not keep open.
        nice: by how much copies come after this process where processors are short.
    """

    def __init__(
        self,
        *,
        memory: int,
        largest: int,
        wall_seconds: float,
        connection: int,
        most: int = 1,
        nice: int = 5,
    ) -> None:
        self._most = most
        self._memory = memory
        self._largest = largest
        self._wall_seconds = wall_seconds
        self._connection = connection
        self._nice = nice
        self._waiting: deque[Callable[[], Task]] = deque()
        self._copies: dict[int, _UnderWay] = {}  # by pipe

    @property
    def pipes(self) -> Collection[int]:
        """What ``read`` is to be called for when it can be read."""
        return self._copies.keys()

    @property
    def timeout(self) -> float | None:
        """Seconds after which ``look`` is to be called; None while nothing is under way."""
        ends = [one.started + self._wall_seconds for one in self._copies.values() if not one.overdue]
        return max(0.0, min(ends) - time.monotonic()) if ends else None

    def put(self, task: Callable[[], Task]) -> None:
        """Work on a task as soon as there is room; it is asked for when its copy is made."""
        self._waiting.append(task)
        self.look()

    def look(self) -> None:
        """Stop what takes too long, and begin what there is room for."""
        now = time.monotonic()
        for one in self._copies.values():
            if not one.overdue and now - one.started >= self._wall_seconds:
                one.overdue = True
                one.copy.stop()
        while self._waiting and len(self._copies) < self._most:
            self._begin(self._waiting.popleft()())

    def _begin(self, task: Task) -> None:
        try:
            copy = copies.begin(
                task.work,
                connection=self._connection,
                memory=self._memory,
                seconds=task.seconds,
                nice=self._nice,
            )
        except OSError as e:
            task.done(Result(limit=Limit.NO_ROOM, problem=e.strerror or str(e)))
            return
        self._copies[copy.pipe] = _UnderWay(task, copy, time.monotonic())

    def read(self, pipe: int) -> None:
        """Take in what is sent on a pipe, if it is one of these, and report a result that is complete."""
        one = self._copies.get(pipe)
        if one is not None and (ended := one.copy.read(self._largest)) is not None:
            del self._copies[pipe]
            one.task.done(Result(bytes(one.copy.data), self._limit(one, ended), ended.seconds))
            self.look()

    def _limit(self, one: _UnderWay, ended: copies.Ended) -> Limit | None:
        if len(one.copy.data) > self._largest:
            return Limit.SIZE
        if ended.has_result:
            return None
        if one.overdue:
            return Limit.TIME
        if ended.lacked_memory:
            return Limit.MEMORY
        return Limit.PROCESSOR if ended.was_stopped else Limit.FAILED

    def close(self) -> None:
        """Stop everything."""
        self._waiting.clear()
        for one in self._copies.values():
            one.copy.close()
        self._copies.clear()
