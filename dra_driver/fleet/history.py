"""What happened lately: entries about devices, nodes, claims and pods, in memory, few of them.

There is a bound for what is kept about one subject, a bound in entries and bytes for all, and an age. Where
all of it is full, the tenant goes first that has most: a namespace whose claims come and go all the time
takes the place of its own past, not of that of others.
"""

from __future__ import annotations

import sys
from collections import OrderedDict, deque
from typing import Final, NamedTuple

import msgspec

__all__ = ["FleetSample", "History", "HistoryEntry", "Subject", "Trend"]

MOST_ENTRIES: Final = 50_000
MOST_BYTES: Final = 24 << 20
MOST_PER_SUBJECT: Final = 64
LONGEST_SECONDS: Final = 6 * 3600.0
_LONGEST_TEXT: Final = 300
# Of the containers, for one entry: measured by a test.
_ENTRY_BYTES: Final = 420
_SUBJECT_BYTES: Final = 1_100


class Subject(NamedTuple):
    """What an entry is about.

    Attributes:
        kind: ``device``, ``node``, ``claim`` or ``pod``.
        name: ``driver/pool/device``, a node's name, or ``namespace/name``.
    """

    kind: str
    name: str

    @property
    def tenant(self) -> str:
        """The namespace; empty for what has none."""
        return self.name.partition("/")[0] if self.kind in ("claim", "pod") else ""


class HistoryEntry(msgspec.Struct, frozen=True):
    """Something that happened.

    Attributes:
        at: seconds since the epoch.
        kind: what kind of thing: ``allocated``, ``freed``, ``admin``, ``health``, ``activity``, ``waits``,
            ``phase``, ``node``, ``created`` or ``deleted``.
        text: for people.
    """

    at: float
    kind: str
    text: str


class History:
    """Entries about subjects, within bounds.

    Args:
        entries: most of them.
        size: most bytes for all of them, about.
        per_subject: most entries about one subject.
        seconds: age at which an entry is forgotten.
    """

    def __init__(
        self,
        *,
        entries: int = MOST_ENTRIES,
        size: int = MOST_BYTES,
        per_subject: int = MOST_PER_SUBJECT,
        seconds: float = LONGEST_SECONDS,
    ) -> None:
        self._entries = entries
        self._size = size
        self._per_subject = per_subject
        self._seconds = seconds
        self._next = 0
        self._total = 0
        self.bytes = 0
        # Of each tenant the numbers of its entries with their subjects, oldest first; of each subject its
        # entries with their numbers. Within a subject the order is the same as within its tenant.
        self._tenants: dict[str, OrderedDict[int, Subject]] = {}
        self._subjects: dict[Subject, deque[tuple[int, HistoryEntry]]] = {}

    def __len__(self) -> int:
        """Return the number of entries."""
        return self._total

    def note(self, subject: Subject, at: float, kind: str, text: str) -> None:
        """Keep an entry; texts are cut at 300 characters."""
        entry = HistoryEntry(at, kind, text[:_LONGEST_TEXT])
        mine = self._subjects.get(subject)
        if mine is None:
            mine = self._subjects[subject] = deque()
            self.bytes += _SUBJECT_BYTES + sys.getsizeof(subject.name)
        self._next += 1
        mine.append((self._next, entry))
        self._tenants.setdefault(subject.tenant, OrderedDict())[self._next] = subject
        self._total += 1
        self.bytes += _size(entry)
        if len(mine) > self._per_subject:
            self._forget(subject)
        while self._total > self._entries or self.bytes > self._size:
            largest = max(self._tenants.values(), key=len)
            self._forget(next(iter(largest.values())))

    def of(self, subject: Subject, now: float) -> tuple[HistoryEntry, ...]:
        """Return what is known about a subject, oldest first."""
        return tuple(e for _, e in self._subjects.get(subject, ()) if e.at >= now - self._seconds)

    def expire(self, now: float) -> None:
        """Forget what is too old."""
        for tenant in tuple(self._tenants):
            while (mine := self._tenants.get(tenant)) is not None:
                subject = next(iter(mine.values()))
                if self._subjects[subject][0][1].at >= now - self._seconds:
                    break
                self._forget(subject)

    def _forget(self, subject: Subject) -> None:
        """Forget the oldest entry about a subject."""
        mine = self._subjects[subject]
        number, entry = mine.popleft()
        tenant = self._tenants[subject.tenant]
        del tenant[number]
        self._total -= 1
        self.bytes -= _size(entry)
        if not tenant:
            del self._tenants[subject.tenant]
        if not mine:
            del self._subjects[subject]
            self.bytes -= _SUBJECT_BYTES + sys.getsizeof(subject.name)


class FleetSample(msgspec.Struct, frozen=True, rename="camel"):
    """The fleet at one moment.

    Attributes:
        at: seconds since the epoch.
        states: how many devices are in each of ``STATES``, in that order.
        busy: devices on which something runs, as far as nodes report it.
        waiting: claims that are not allocated.
    """

    at: float
    states: tuple[int, ...]
    busy: int
    waiting: int


class Trend:
    """The latest samples of the fleet, ``most`` of them."""

    def __init__(self, most: int = 360) -> None:
        self._samples: deque[FleetSample] = deque(maxlen=most)

    def add(self, sample: FleetSample) -> None:
        """Keep a sample; the oldest one goes where there is no place."""
        self._samples.append(sample)

    def samples(self) -> tuple[FleetSample, ...]:
        """Return them, oldest first."""
        return tuple(self._samples)


def _size(entry: HistoryEntry) -> int:
    return _ENTRY_BYTES + sys.getsizeof(entry.text)
