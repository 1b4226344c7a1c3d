"""One lane of calls for each GPU, so that a GPU about which a call does not come back costs no other one.

NVML may be called from several threads, and a call about one GPU need not wait for a call about another. It
does where the library or the kernel driver holds a lock of its own meanwhile, which cannot be seen. What can
be seen is whether a call about another GPU comes back after the first one has not: then only the one GPU
hangs, else the library does.

Threads suffice for this. A process for each GPU would help only where the library holds a lock that the
kernel driver does not hold, and would cost the memory and the initialization of the library for each GPU.
"""

from __future__ import annotations

import contextlib
import datetime
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from dra_driver.errors import DiscoveryError

__all__ = ["Answers", "Call", "LaneBusy", "Lanes"]

_T = TypeVar("_T")
# For which a call waits for its lane, or for the library that is closed for a moment: shorter than the agent
# waits for a call (``kubelet_plugin.gpu.calls``), so that the error names the GPU and what it waited for.
_WAIT_SECONDS: Final = 20.0


@dataclass(frozen=True, slots=True)
class Call:
    """A call that is under way.

    Attributes:
        what: a noun phrase.
        since: seconds since the epoch.
        began: seconds of a clock that never goes back.
    """

    what: str
    since: float
    began: float

    def __str__(self) -> str:
        at = datetime.datetime.fromtimestamp(int(self.since), datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        return f"{self.what} that began at {at} has not ended"


@dataclass(frozen=True, slots=True)
class Answers(Generic[_T]):
    """What calls about several GPUs have returned, by lane, and those that have not come back."""

    found: dict[str, _T]
    late: dict[str, Call]


class LaneBusy(DiscoveryError):
    """A call about a GPU that waits for another one, which does not come back."""


class Lanes:
    """The lanes of the GPUs of a machine, by UUID, or what a GPU is called before that is known.

    Attributes:
        patience: seconds after which a call of ``each`` counts as late.
    """

    def __init__(self, patience: float) -> None:
        self.patience = patience
        self._changed = threading.Condition()
        self._busy: dict[str, Call] = {}
        self._closed = False

    @contextlib.contextmanager
    def enter(self, lane: str, what: str, seconds: float = _WAIT_SECONDS) -> Iterator[None]:
        """Keep other calls out of one lane, and the library open, for the time of a block.

        Args:
            lane: of the GPU.
            what: is done, as a noun phrase.
            seconds: to be waited for at most.

        Raises:
            LaneBusy: there is a call that does not come back.
        """
        with self._changed:
            if not self._changed.wait_for(lambda: not self._closed and lane not in self._busy, seconds):
                other = self._busy.get(lane)
                raise LaneBusy(f"GPU {lane}: {other or 'the library is being closed or opened'}")
            self._busy[lane] = Call(what, time.time(), time.monotonic())
        try:
            yield
        finally:
            with self._changed:
                del self._busy[lane]
                self._changed.notify_all()

    @contextlib.contextmanager
    def closed(self, seconds: float | None = None) -> Iterator[None]:
        """Keep all calls out for the time of a block, in which the library may be closed.

        Args:
            seconds: calls that are under way are waited for at most; if None, without end.

        Raises:
            LaneBusy: one of them does not come back.
        """
        with self._changed:
            if not self._changed.wait_for(lambda: not self._closed, seconds):
                raise LaneBusy("nvml: the library is being closed or opened")
            self._closed = True
            if not self._changed.wait_for(lambda: not self._busy, seconds):
                self._closed = False
                self._changed.notify_all()
                lane, call = min(self._busy.items(), key=lambda busy: busy[1].began)
                raise LaneBusy(f"nvml: the library cannot be closed: GPU {lane}: {call}")
        try:
            yield
        finally:
            with self._changed:
                self._closed = False
                self._changed.notify_all()

    def each(self, lanes: Iterable[str], what: str, work: Callable[[str], _T]) -> Answers[_T]:
        """Do the same in several lanes, one after the other, each in a thread of its own.

        While nothing shows that the library answers at all, this does not return: then it is not one GPU that
        hangs.

        Args:
            lanes: no lane twice.
            what: is done, as a noun phrase.
            work: called with the lane. What it raises is raised.
        """
        wanted = tuple(lanes)
        while True:
            answers: Answers[_T] = Answers({}, {})
            proved = False
            for lane in wanted:
                proved = self._ask(lane, what, work, answers, proved=proved)
            if answers.late and not proved and answers.found:
                # Whoever answered may have done so before the library began to hang.
                lane = next(reversed(answers.found))
                del answers.found[lane]
                proved = self._ask(lane, what, work, answers, proved=False)
            if proved or not answers.late:
                return answers
            self._wait_for_one(answers.late)

    def at_once(self, lanes: Iterable[str], what: str, work: Callable[[str], _T]) -> Answers[_T]:
        """Do the same in several lanes at the same time, each in a thread of its own.

        Unlike ``each``, this comes back after the patience for one call, also where nothing shows that the
        library answers: for what is tried again, beside looks that find out whether it does.

        Args:
            lanes: no lane twice.
            what: is done, as a noun phrase.
            work: called with the lane. What it raises is raised.
        """
        answers: Answers[_T] = Answers({}, {})
        asked = [_Asked(self, lane, what, work) for lane in lanes if not self._is_late(lane, answers)]
        end = time.monotonic() + self.patience
        for one in asked:
            one.join(max(0.0, end - time.monotonic()), answers)
        return answers

    def _wait_for_one(self, late: Mapping[str, Call]) -> None:
        with self._changed:
            self._changed.wait_for(lambda: any(self._busy.get(g) is not call for g, call in late.items()))

    def _ask(
        self, lane: str, what: str, work: Callable[[str], _T], answers: Answers[_T], *, proved: bool
    ) -> bool:
        """Ask about one GPU; return whether the library is known to answer."""
        if self._is_late(lane, answers):
            return proved
        return _Asked(self, lane, what, work).join(self.patience, answers)

    def _is_late(self, lane: str, answers: Answers[_T]) -> bool:
        """Return whether a call about a GPU has not come back in time, and note it among the answers.

        No second thread goes the way of the first.
        """
        with self._changed:
            before = self._busy.get(lane)
        if before is None or time.monotonic() - before.began <= self.patience:
            return False
        answers.late[lane] = before
        return True

    def under_way(self, lane: str) -> Call | None:
        """Return the call that is under way about a GPU."""
        with self._changed:
            return self._busy.get(lane)


class _Asked(Generic[_T]):
    """A question about one GPU, asked in a thread."""

    def __init__(self, lanes: Lanes, lane: str, what: str, work: Callable[[str], _T]) -> None:
        self._lanes = lanes
        self._lane = lane
        self._what = what
        self._work = work
        self._done: list[_T] = []
        self._raised: list[BaseException] = []
        self._began = Call(what, time.time(), time.monotonic())
        self._thread = threading.Thread(target=self._run, name=f"gpu-{lane}", daemon=True)
        self._thread.start()

    def join(self, seconds: float, answers: Answers[_T]) -> bool:
        """Note the answer, if there is one within so many seconds; return whether there is."""
        self._thread.join(seconds)
        if self._raised and not isinstance(self._raised[0], LaneBusy):
            raise self._raised[0]
        if self._done:
            answers.found[self._lane] = self._done[0]
            return True
        answers.late[self._lane] = self._lanes.under_way(self._lane) or self._began
        return False

    def _run(self) -> None:
        try:
            with self._lanes.enter(self._lane, self._what, self._lanes.patience):
                self._done.append(self._work(self._lane))
        except BaseException as e:
            self._raised.append(e)
