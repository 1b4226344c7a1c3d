"""Which devices are busy, for allocators that take idle ones first.

Whether a device is busy or idle is decided by the mean of its load over the last minute, and changes when the
new state has lasted for another minute. So bursts change nothing, and the inventory is written rarely. A
device that has reported no load for a minute is neither.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Final, Literal

import structlog

from dra_driver.api.own.inventory import Activity
from dra_driver.hardware import DeviceSample
from dra_driver.ports import Clock
from kubelet_plugin.core.signals import Changes

__all__ = ["ActivityWatch", "DeviceActivity"]

SAMPLE_SECONDS: Final = 15.0

Use = Literal["busy", "idle"]

log = structlog.get_logger(__name__)


class DeviceActivity:
    """One device. Pure: times are given.

    Args:
        threshold: share of the time, 0 to 1; a device whose mean load reaches it is busy. Idle is what stays
            below half of it; in between nothing changes.
        seconds: over which the mean is taken, and for which a new state must last before it counts.
    """

    def __init__(self, threshold: float, seconds: float) -> None:
        self._threshold = threshold
        self._seconds = seconds
        self._samples: deque[tuple[float, float]] = deque()
        self._begun: float | None = None
        self._other: Use | None = None
        self._since = 0.0
        self.use: Use | None = None

    def observe(self, now: float, load: float | None) -> None:
        """Take one sample.

        Args:
            now: seconds on a clock that never goes back.
            load: share of the time, 0 to 1; if None, the device has reported none.
        """
        if load is not None:
            if not self._samples:
                self._begun = now
            self._samples.append((now, load))
        while self._samples and now - self._samples[0][0] >= self._seconds:
            self._samples.popleft()
        if not self._samples:
            self.use = self._other = None
            return
        found = self._use_now(now)
        if found is None or found == self.use:
            self._other = None
        elif found != self._other:
            self._other, self._since = found, now
        elif now - self._since >= self._seconds:
            self.use, self._other = found, None

    def _use_now(self, now: float) -> Use | None:
        assert self._begun is not None
        if now - self._begun < self._seconds:
            return self.use  # too little is known
        mean = sum(load for _, load in self._samples) / len(self._samples)
        if mean >= self._threshold:
            return "busy"
        return "idle" if mean < self._threshold / 2 else self.use


class ActivityWatch:
    """Samples the devices and says which are busy.

    Attributes:
        current: None until there are enough samples; what an earlier process has written stays meanwhile.
        changes: notified when ``current`` has become another one.

    Args:
        clock: of which ``monotonic`` is used.
        threshold: see ``DeviceActivity``.
        seconds: likewise.
    """

    def __init__(self, clock: Clock, *, threshold: float, seconds: float) -> None:
        self._clock = clock
        self._threshold = threshold
        self._seconds = seconds
        self.changes = Changes()
        self._every = min(SAMPLE_SECONDS, seconds / 4)
        self._begun = clock.monotonic()
        self._devices: dict[str, DeviceActivity] = {}
        self.current: Activity | None = None

    async def run(self, samples: Callable[[], Awaitable[Sequence[DeviceSample]]]) -> None:
        """Sample until cancelled.

        Args:
            samples: of all devices; none where they do not answer.
        """
        while True:
            self.take(await samples())
            await asyncio.sleep(self._every)

    def take(self, samples: Iterable[DeviceSample]) -> None:
        """Take one sample of each device; one that is missing has no utilisation."""
        now = self._clock.monotonic()
        loads = {s.device: _load(s.utilization) for s in samples}
        for name in loads.keys() - self._devices.keys():
            self._devices[name] = DeviceActivity(self._threshold, self._seconds)
        for name, device in self._devices.items():
            device.observe(now, loads.get(name))
        for name in [n for n, d in self._devices.items() if d.use is None and n not in loads]:
            del self._devices[name]
        if self.current is None and now - self._begun < 2 * self._seconds + 2 * self._every:
            return
        found = Activity(busy=self._named("busy"), idle=self._named("idle"))
        if found != self.current:
            log.info("activity of the devices has changed", busy=len(found.busy), idle=len(found.idle))
            self.current = found
            self.changes.notify()

    def _named(self, use: Use) -> tuple[str, ...]:
        return tuple(sorted(name for name, device in self._devices.items() if device.use == use))


def _load(value: object) -> float | None:
    """Return the share of the time that a backend reports; None where it reports something else."""
    return float(value) if isinstance(value, int | float) and 0 <= value <= 1 else None
