"""Health conditions of NVIDIA GPUs: made by events and by polling, and how they end.

No NVML here: events and readings come in, ``DeviceHealth`` comes out, so that the rules can be tested alone.

A condition that an event made ends in one of two ways (``nvml_xids.Ends``): it expires, or the GPU was reset.
A reset shows in four ways, and any of them will do: the library was opened anew (a reset and a driver reload
both need its handles gone), the GPU was lost and is back, a counter of errors since the last reset went down,
or NVML's recovery action went back to "none" after it had been something else. What a program may have caused
(``Meaning.verdicts``) ends as well when the driver has asked for nothing for a while: otherwise a tenant
could keep the GPU from others until somebody resets it. A condition that polling made ends when polling does
not see it any more.

``memory`` and ``recall`` carry what events made from one process to the next: that a new process opens the
library is no sign of a reset. What polling finds is not carried, because polling finds it again.
"""

from __future__ import annotations

import datetime
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

import msgspec

from dra_driver.api import codec
from dra_driver.api.meta import Wire
from dra_driver.api.own.inventory import DeviceHealth
from dra_driver.discovery.nvidia import xids as nvml_xids
from dra_driver.discovery.nvidia.xids import Ends, Meaning
from dra_driver.hardware import HealthEvent

__all__ = ["Conditions", "HealthReading"]

XID_EVENT: Final = 0x8

_WHOLE_GPU: Final = 0xFFFFFFFF
# By how much what is written down of an error may be behind: a program that repeats its fault all the time
# would have it written all the time.
_BEHIND_SECONDS: Final = 60.0
_MOST_ENDED: Final = 10_000


@dataclass(frozen=True, slots=True)
class HealthReading:
    """What polling read; None where the GPU or the library does not answer.

    Attributes:
        uncorrected: memory errors since the last reset that could not be corrected.
        remap_pending: memory rows wait for the next reset to be replaced.
        remap_failed: a memory row could not be replaced.
        retirement_pending: memory pages wait for the next reset to be retired (before Ampere).
        recovery_action: see ``nvml_xids.RECOVERY_ACTIONS``.
        branch: of the kernel driver: 570 of 570.86.15.
    """

    uncorrected: int | None = None
    remap_pending: bool | None = None
    remap_failed: bool | None = None
    retirement_pending: bool | None = None
    recovery_action: int | None = None
    branch: int | None = None


class _EntryMemory(Wire, frozen=True, kw_only=True):
    """``_Entry`` on disk; times in seconds since the epoch."""

    severity: str
    message: str
    reset: bool
    since: float
    expires: float
    action_seen: bool = False


class _GpuMemory(Wire, frozen=True, kw_only=True):
    entries: Mapping[str, _EntryMemory] = msgspec.field(default_factory=dict)
    lost: bool = False


class _Memory(Wire, frozen=True, kw_only=True):
    """What ``Conditions`` keeps; ``driver`` identifies one loading of the kernel driver."""

    driver: str = ""
    gpus: Mapping[str, _GpuMemory] = msgspec.field(default_factory=dict)


@dataclass(slots=True)
class _Entry:
    """A condition that an event made; ``kept`` is what ``memory`` says of ``expires``."""

    meaning: Meaning
    message: str
    since: float
    expires: float
    action_seen: bool = False
    kept: float = 0.0

    def is_acquitted(self, reading: HealthReading, now: float) -> bool:
        """Whether the driver has known of the error for a while, and asks for nothing."""
        covered = 0 < self.meaning.verdicts <= (reading.branch or 0)
        last = self.expires - self.meaning.seconds
        return covered and reading.recovery_action == 0 and now - last >= nvml_xids.VERDICT_SECONDS


@dataclass(slots=True)
class _Gpu:
    entries: dict[str, _Entry] = field(default_factory=dict)
    polled: dict[str, DeviceHealth] = field(default_factory=dict)
    uncorrected: int = 0
    lost: bool = False


class Conditions:
    """The conditions of all GPUs, by UUID. Safe to use from several threads.

    Args:
        now: seconds since the epoch.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._lock = threading.Lock()
        self._gpus: dict[str, _Gpu] = {}
        # What has ended here: another process may still have it in its memory.
        self._ended: set[tuple[str, str, float]] = set()

    def memory(self, driver: str) -> bytes:
        """Return what has to outlive the process, as JSON.

        Args:
            driver: which loading of the kernel driver this is; empty where unknown.
        """
        with self._lock:
            live = {uuid: entries for uuid, gpu in self._gpus.items() if (entries := self._live(gpu))}
            noted = [e for entries in live.values() for e in entries.values()]
            if any(e.expires - e.kept >= _BEHIND_SECONDS or e.kept > e.expires for e in noted):
                for e in noted:
                    e.kept = e.expires
            gpus = {
                uuid: _GpuMemory(
                    entries={
                        reason: _EntryMemory(
                            severity=e.meaning.severity,
                            message=e.message,
                            reset=e.meaning.ends is Ends.RESET,
                            since=e.since,
                            expires=e.kept,
                            action_seen=e.action_seen,
                        )
                        for reason, e in entries.items()
                    },
                    # Not the count of errors: it also starts anew when the last user of a GPU goes.
                    lost=self._gpus[uuid].lost,
                )
                for uuid, entries in live.items()
            }
        return codec.encode(_Memory(driver=driver, gpus=gpus))

    def recall(self, data: bytes, driver: str | None) -> None:
        """Add what another process, or one before this, has kept; what is known here stays as it is.

        Args:
            data: of ``memory``.
            driver: which loading of the kernel driver this is: empty if unknown, None if it is not loaded.

        Raises:
            DecodeError: it is not what ``memory`` gives.
        """
        kept = codec.decode(_Memory, data)
        reloaded = driver is None or bool(kept.driver and driver and kept.driver != driver)
        with self._lock:
            for uuid, memory in kept.gpus.items():
                known = uuid in self._gpus
                gpu = self._gpus.setdefault(uuid, _Gpu())
                if not known and not reloaded:
                    gpu.lost = memory.lost
                for reason, e in memory.entries.items():
                    ended = (e.reset and reloaded) or (uuid, reason, e.since) in self._ended
                    if ended or reason in gpu.entries:
                        continue
                    meaning = nvml_xids.meaning_of_reason(reason)
                    if meaning is None:
                        ends = Ends.RESET if e.reset else Ends.EXPIRY
                        meaning = Meaning(e.message, e.severity, ends, max(0.0, e.expires - e.since))
                    # What an older version took for more than it is does not outlive the update.
                    if meaning.severity:
                        gpu.entries[reason] = _Entry(
                            meaning, e.message, e.since, e.expires, e.action_seen, e.expires
                        )

    def _live(self, gpu: _Gpu) -> dict[str, _Entry]:
        now = self._now()
        for entry in gpu.entries.values():
            if entry.expires > now + entry.meaning.seconds:
                # The clock was ahead when it was noted; it would last until that time comes.
                entry.expires = now + entry.meaning.seconds
                entry.since = min(entry.since, now)
        return {r: e for r, e in gpu.entries.items() if e.meaning.ends is not Ends.EXPIRY or e.expires > now}

    def _end(self, uuid: str, reason: str) -> None:
        entry = self._gpus[uuid].entries.pop(reason)
        if len(self._ended) >= _MOST_ENDED:
            self._ended.clear()
        self._ended.add((uuid, reason, entry.since))

    def event(self, uuid: str, kind: int, data: int, instance: int = _WHOLE_GPU) -> HealthEvent | None:
        """Note an NVML event.

        Args:
            uuid: of the GPU.
            kind: NVML's event type.
            data: NVML's event data; of an XID event, its number.
            instance: GPU instance (MIG) that it is about.

        Returns:
            None where it is of no kind that matters.
        """
        code: int | None = None
        if kind == XID_EVENT:
            code, reason, meaning = data, f"Xid{data}", nvml_xids.meaning_of_xid(data)
            text = f"XID {data}: {meaning.text}"
        elif (known := nvml_xids.meaning_of_event(kind)) is not None:
            reason, meaning = known
            text = meaning.text
        else:
            return None
        if instance != _WHOLE_GPU:
            text += f" (GPU instance {instance})"
        if meaning.severity:
            with self._lock:
                now = self._now()
                entries = self._gpus.setdefault(uuid, _Gpu()).entries
                entry = entries.setdefault(reason, _Entry(meaning, text, now, now))
                # The text stays as it was first, so that repetitions do not look like news.
                entry.expires = now + meaning.seconds
        return HealthEvent(uuid=uuid, reason=reason, severity=meaning.severity, message=text, code=code)

    def poll(self, uuid: str, reading: HealthReading) -> None:
        """Note what polling read."""
        with self._lock:
            gpu = self._gpus.setdefault(uuid, _Gpu())
            now = self._now()
            was_reset = gpu.lost
            gpu.lost = False
            if reading.uncorrected is not None:
                was_reset |= reading.uncorrected < gpu.uncorrected
                gpu.uncorrected = reading.uncorrected
            for reason, entry in tuple(gpu.entries.items()):
                if reading.recovery_action:
                    entry.action_seen = True
                done = was_reset or (entry.action_seen and reading.recovery_action == 0)
                if (entry.meaning.ends is Ends.RESET and done) or entry.is_acquitted(reading, now):
                    self._end(uuid, reason)
            found = {h.reason: h for h in _polled(reading, now)}
            # What was there before keeps its beginning.
            gpu.polled = {
                reason: old if (old := gpu.polled.get(reason)) and old.message == new.message else new
                for reason, new in found.items()
            }

    def lost(self, uuid: str) -> None:
        """Note that the GPU does not answer. Once it does again, it has been reset."""
        with self._lock:
            self._gpus.setdefault(uuid, _Gpu()).lost = True

    def seen(self, uuids: Collection[str]) -> None:
        """Note all GPUs that the driver has. Another one that comes, or comes back, has been reset."""
        with self._lock:
            for uuid, gpu in self._gpus.items():
                gpu.lost |= uuid not in uuids

    def reopened(self) -> None:
        """Note that the library was reopened: GPUs may have been reset, and polling shows what is left."""
        with self._lock:
            for uuid, gpu in self._gpus.items():
                for reason in [r for r, e in gpu.entries.items() if e.meaning.ends is Ends.RESET]:
                    self._end(uuid, reason)
                gpu.polled = {}
                gpu.uncorrected = 0
                gpu.lost = False

    def health(self, uuid: str) -> tuple[DeviceHealth, ...]:
        """Return the conditions of a GPU, the worst first."""
        with self._lock:
            gpu = self._gpus.get(uuid)
            if gpu is None:
                return ()
            gpu.entries = self._live(gpu)
            found = [
                DeviceHealth(
                    reason=reason, severity=e.meaning.severity, message=e.message, since=_time(e.since)
                )
                for reason, e in gpu.entries.items()
            ]
            found += gpu.polled.values()
        return tuple(sorted(found, key=lambda h: (_ORDER.get(h.severity, 3), h.reason)))


_ORDER: Final = {"failed": 0, "degraded": 1, "info": 2}


def _polled(reading: HealthReading, now: float) -> Iterator[DeviceHealth]:
    since = _time(now)
    if reading.uncorrected:
        yield DeviceHealth(
            reason="UncorrectedMemoryErrors",
            severity="info",
            message=f"{reading.uncorrected} memory errors since the last reset could not be corrected",
            since=since,
        )
    if reading.remap_failed:
        yield DeviceHealth(
            reason="RowRemapFailed",
            severity="degraded",
            message="a bad memory row could not be replaced: there are no spare rows left",
            since=since,
        )
    if reading.remap_pending:
        yield DeviceHealth(
            reason="RowRemapPending",
            severity="degraded",
            message="bad memory rows are replaced at the next reset of the GPU",
            since=since,
        )
    if reading.retirement_pending:
        yield DeviceHealth(
            reason="PageRetirementPending",
            severity="degraded",
            message="bad memory pages are retired at the next reset of the GPU",
            since=since,
        )
    action = reading.recovery_action
    if action:
        severity, text = nvml_xids.RECOVERY_ACTIONS.get(
            action, ("degraded", f"the driver recommends recovery action {action}")
        )
        yield DeviceHealth(reason="RecoveryAction", severity=severity, message=text, since=since)


def _time(seconds: float) -> str:
    return datetime.datetime.fromtimestamp(int(seconds), datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
