"""NVML's health calls: what polling asks a GPU, and waiting for events of all of them."""

from __future__ import annotations

import contextlib
import ctypes
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pynvml
import structlog

from dra_driver.discovery.nvidia.conditions import XID_EVENT, Conditions, HealthReading
from dra_driver.discovery.nvidia.driver.lanes import Lanes
from dra_driver.errors import DiscoveryError
from dra_driver.hardware import HealthEvent

__all__ = ["EventWatch", "read_health"]

# Double-bit ECC, XID, memory retirement and its failure, poison, GPU unavailable, recovery action.
WANTED: Final = 0x2 | XID_EVENT | 0x400 | 0x800 | 0x1000 | 0x2000 | 0x4000 | 0x8000

# In one answer; a GPU that breaks down can send hundreds.
_MOST_EVENTS: Final = 64

# For which a wait keeps the library from being closed.
_WAIT_SECONDS: Final = 1.0
# Between two looks at several event sets, or at none.
_PAUSE_SECONDS: Final = 0.2
# After which a GPU is tried again whose events cannot be waited for.
_FIRST_DELAY: Final = 1.0
_LONGEST_DELAY: Final = 300.0

_log = structlog.get_logger(__name__)


def read_health(handle: Any, ask: Callable[..., Any], driver_version: str) -> HealthReading:
    """Read the health of one GPU.

    Args:
        handle: NVML's.
        ask: an ``nvml_gpu.Asker``.
        driver_version: of the kernel driver, such as 570.86.15; empty if it is not known.

    Raises:
        GpuLost: the GPU has fallen off the bus.
    """
    remapped = ask("remapped rows", pynvml.nvmlDeviceGetRemappedRows, handle)
    pending = None
    if remapped is None:
        pending = ask("retired pages", pynvml.nvmlDeviceGetRetiredPagesPendingStatus, handle)
    uncorrected = ask(
        "ECC errors",
        pynvml.nvmlDeviceGetTotalEccErrors,
        handle,
        pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED,
        pynvml.NVML_VOLATILE_ECC,
    )
    return HealthReading(
        uncorrected=uncorrected,
        remap_pending=None if remapped is None else bool(remapped[2]),
        remap_failed=None if remapped is None else bool(remapped[3]),
        retirement_pending=None if pending is None else bool(pending),
        recovery_action=_recovery_action(handle, ask),
        branch=_branch(driver_version),
    )


def _recovery_action(handle: Any, ask: Callable[..., Any]) -> int | None:
    field = pynvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION
    values = ask("recovery action", pynvml.nvmlDeviceGetFieldValues, handle, [field])
    if values is None or values[0].nvmlReturn != pynvml.NVML_SUCCESS:
        return None
    return int(values[0].value.uiVal)


def _branch(driver_version: str) -> int | None:
    first = driver_version.partition(".")[0]
    return int(first) if first.isascii() and first.isdigit() and len(first) < 6 else None


@dataclass(frozen=True, slots=True)
class _Set:
    """An event set of NVML's.

    Attributes:
        watched: UUIDs of the GPUs that it watches, by the address of the handle.
        pending: whether a registration may still be under way in it: then it is never freed.
    """

    handle: Any
    watched: Mapping[int, str]
    pending: bool = False


@dataclass(slots=True)
class _Failure:
    """A GPU whose events cannot be waited for: it is polled.

    Attributes:
        again: when that is tried again, by a clock that never goes back.
        delay: that was waited for, in seconds.
    """

    again: float = 0.0
    delay: float = 0.0


class EventWatch:
    """A watch for the events of all GPUs.

    ``wait`` runs in a thread of its own; ``released`` gives everything up, so that the library can be closed.

    One event set watches all GPUs, until waiting for it fails: from then on each GPU has a set of its own,
    and those that fail are tried again more and more rarely. What goes wrong is logged once, and when it
    changes.

    Args:
        conditions: what events are noted in.
        lanes: of the GPUs.
        find: returns NVML's handle of a GPU with this UUID; None if it is not there.
    """

    def __init__(self, conditions: Conditions, lanes: Lanes, find: Callable[[str], Any]) -> None:
        self._conditions = conditions
        self._lanes = lanes
        self._find = find
        self._lock = threading.Lock()
        self._wanted_elsewhere = threading.Event()
        self._gpus: frozenset[str] = frozenset()
        self._sets: list[_Set] = []
        self._failures: dict[str, _Failure] = {}
        self._apart = False
        # What was said, and when it was so last.
        self._said: dict[str, tuple[str, float]] = {}

    def enable(self, gpus: Iterable[str]) -> None:
        """Note that the library is open, and which GPUs are to be watched."""
        wanted = frozenset(gpus)
        if wanted != self._gpus:
            with self._stopped():
                self._free()
                self._gpus = wanted

    @contextlib.contextmanager
    def released(self) -> Iterator[None]:
        """Free the event sets, after a ``wait`` under way; the next ``enable`` makes them anew."""
        with self._stopped():
            self._gpus = frozenset()
            self._free()
        yield

    @contextlib.contextmanager
    def _stopped(self) -> Iterator[None]:
        self._wanted_elsewhere.set()
        try:
            with self._lock:
                yield
        finally:
            self._wanted_elsewhere.clear()

    def wait(self, seconds: float) -> tuple[tuple[HealthEvent, ...], bool]:
        """Wait for events, up to so many seconds.

        Returns:
            The events, and whether a GPU was lost that was not before (NVML does not say which one).
        """
        end = time.monotonic() + seconds
        with self._lock:
            while self._gpus and not self._wanted_elsewhere.is_set():
                self._register()
                events, lost = self._poll(end)
                if events or lost or time.monotonic() >= end:
                    return tuple(events), lost
        time.sleep(min(seconds, _PAUSE_SECONDS))
        return (), False

    def _poll(self, end: float) -> tuple[list[HealthEvent], bool]:
        """Wait once: for one set as long as may be, for several by asking each of them."""
        left = max(0.0, end - time.monotonic())
        alone = len(self._sets) == 1
        events: list[HealthEvent] = []
        lost = False
        for one in tuple(self._sets):
            try:
                events += self._next(one, int(min(left, _WAIT_SECONDS) * 1000) if alone else 0)
            except pynvml.NVMLError as e:
                lost |= self._failed(one, e) and e.value == pynvml.NVML_ERROR_GPU_IS_LOST
                alone = False
        if not alone and not events and not lost:
            time.sleep(min(left, _PAUSE_SECONDS))
        return events, lost

    def _next(self, one: _Set, timeout: int) -> Iterator[HealthEvent]:
        for _ in range(_MOST_EVENTS):
            try:
                data = pynvml.nvmlEventSetWait_v2(one.handle, timeout)
            except pynvml.NVMLError as e:
                if e.value == pynvml.NVML_ERROR_TIMEOUT:
                    return
                raise
            yield from self._noted(one, data)
            timeout = 0

    def _failed(self, one: _Set, error: pynvml.NVMLError) -> bool:
        """Give up a set, and return whether that is news."""
        self._sets.remove(one)
        _free(one)
        gpus = sorted(one.watched.values())
        if len(gpus) > 1:
            self._apart = True
        else:
            self._put_off(gpus)
        return self._say(", ".join(gpus), "waiting for GPU events failed", error)

    def _put_off(self, gpus: Iterable[str]) -> None:
        for gpu in gpus:
            failure = self._failures.setdefault(gpu, _Failure())
            failure.delay = min(max(2 * failure.delay, _FIRST_DELAY), _LONGEST_DELAY)
            failure.again = time.monotonic() + failure.delay

    def _say(self, gpu: str, what: str, error: object) -> bool:
        """Log what goes wrong, unless that was said and has not ended since; return whether it is news."""
        text, now = f"{what}: {error}", time.monotonic()
        before, at = self._said.get(gpu, ("", 0.0))
        self._said[gpu] = (text, now)
        if text == before and now - at < 2 * _LONGEST_DELAY:
            return False
        unsupported = getattr(error, "value", None) == pynvml.NVML_ERROR_NOT_SUPPORTED
        write = _log.info if unsupported else _log.warning
        write(what, gpu=gpu, error=str(error), consequence="the GPU is polled; it is tried again")
        return True

    def _noted(self, one: _Set, data: Any) -> Iterator[HealthEvent]:
        uuid = one.watched.get(_address(data.device))
        if uuid is None:
            _log.warning("an event of a GPU that is not watched", type=hex(data.eventType))
            return
        event = self._conditions.event(uuid, int(data.eventType), int(data.eventData), data.gpuInstanceId)
        if event is not None:
            yield event

    def _register(self) -> None:
        """Make event sets for the GPUs that are not watched and whose turn it is."""
        watched = {uuid for one in self._sets for uuid in one.watched.values()}
        now = time.monotonic()
        due = sorted(
            g for g in self._gpus - watched if g not in self._failures or self._failures[g].again <= now
        )
        # A set of several GPUs is the first one; what comes later has its own.
        alone = self._apart or bool(self._sets) or bool(self._failures)
        if due:
            self._make_sets([[g] for g in due] if alone else [due])

    def _make_sets(self, groups: Sequence[Sequence[str]]) -> None:
        """Make an event set for each group; a GPU that hangs takes no longer than one of them."""
        sets: dict[str, Any] = {}
        for gpus in groups:
            try:
                sets |= dict.fromkeys(gpus, pynvml.nvmlEventSetCreate())
            except pynvml.NVMLError as e:
                self._put_off(gpus)
                self._say(", ".join(gpus), "GPU events are not available", e)
        answers = self._lanes.at_once(
            sets, "the registration of its events", lambda gpu: self._watch(gpu, sets[gpu])
        )
        failed = {g: answer for g, answer in answers.found.items() if isinstance(answer, Exception)}
        failed |= {g: DiscoveryError(str(call)) for g, call in answers.late.items()}
        self._put_off(failed)
        for gpu, error in failed.items():
            self._say(gpu, "a GPU's events are not watched", error)
        watched = {g: a for g, a in answers.found.items() if isinstance(a, int)}
        for gpus in groups:
            if gpus[0] in sets:
                made = _Set(
                    sets[gpus[0]],
                    {watched[g]: g for g in gpus if g in watched},
                    pending=any(g in answers.late for g in gpus),
                )
                if made.watched:
                    self._sets.append(made)
                else:
                    _free(made)

    def _watch(self, gpu: str, events: Any) -> int | Exception:
        """Register a GPU, in its lane; return the address of its handle, or why that is impossible."""
        refusal: Exception
        try:
            handle = self._find(gpu)
            if handle is None:
                return DiscoveryError("it is not there")
            kinds = pynvml.nvmlDeviceGetSupportedEventTypes(handle) & WANTED
            pynvml.nvmlDeviceRegisterEvents(handle, kinds, events)
        except (DiscoveryError, pynvml.NVMLError) as e:
            refusal = e
            return refusal
        return _address(handle)

    def _free(self) -> None:
        for one in self._sets:
            _free(one)
        self._sets, self._failures, self._apart = [], {}, False


def _free(one: _Set) -> None:
    if one.pending:
        return
    try:
        pynvml.nvmlEventSetFree(one.handle)
    except pynvml.NVMLError as e:
        _log.debug("an event set could not be freed", error=str(e))


def _address(handle: Any) -> int:
    return ctypes.cast(handle, ctypes.c_void_p).value or 0
