"""What an Intel GPU does right now, as far as i915 and xe show it in sysfs without privilege.

The drivers show no load there, but how long each GT (a part of the GPU with an engine of its own: render and
compute, media) has slept (RC6). The load is the share of the time since the sample before in which
the GT that slept least was awake: what runs keeps it awake, and it falls asleep within milliseconds. Power is
the difference of an energy counter. How much memory is in use is not shown; it is absent.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from dra_driver.discovery.core.host import hwmon, sysfs
from dra_driver.hardware import DeviceSample

__all__ = ["IntelSampler", "Sampled"]

_TILE: Final = re.compile(r"tile[0-9]{1,2}", re.ASCII)
_GT: Final = re.compile(r"gt[0-9]{1,2}", re.ASCII)
# Counters of two looks that are closer say little: the one before counts again.
_LEAST_SECONDS: Final = 0.5


@dataclass(frozen=True, slots=True)
class Sampled:
    """A GPU to be sampled.

    Attributes:
        device: its name in the inventory.
        function: sysfs directory of the PCI function.
        card: name of its card node, such as ``card0``.
        memory: bytes, where known.
    """

    device: str
    function: Path
    card: str | None
    memory: int | None


@dataclass(frozen=True, slots=True)
class _Counters:
    """Seconds on our clock, seconds that each GT has slept, joules; and what came out of them."""

    at: float
    asleep: dict[str, float]
    energy: float | None
    utilization: float | None = None
    power: float | None = None


class IntelSampler:
    """A sampler that keeps the counters of the sample before. Not for several threads at a time.

    Args:
        now: seconds on a clock that never goes back.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._before: dict[str, _Counters] = {}

    def sample(self, gpu: Sampled) -> DeviceSample:
        """Return one sample; load and power are absent from the first."""
        before = self._before.get(gpu.device)
        at = self._now()
        if before is None or at - before.at >= _LEAST_SECONDS:
            counters = _since(before, _Counters(at, _asleep(gpu), hwmon.energy(gpu.function)))
            self._before[gpu.device] = counters
        else:
            counters = before
        told = hwmon.power(gpu.function)
        return DeviceSample(
            device=gpu.device,
            utilization=counters.utilization,
            memory_total=gpu.memory,
            temperature=hwmon.temperature(gpu.function),
            power=counters.power if told is None else told,
        )


def _since(before: _Counters | None, now: _Counters) -> _Counters:
    if before is None:
        return now
    seconds = now.at - before.at
    slept = [now.asleep[gt] - before.asleep[gt] for gt in now.asleep.keys() & before.asleep.keys()]
    # Counters that went back were reset with the GPU. They tick in milliseconds, so that a GT may seem to
    # have slept a little longer than the time was.
    known = bool(slept) and len(slept) == len(now.asleep) and min(slept) >= 0
    utilization = min(1.0, max(0.0, 1 - min(slept) / seconds)) if known else None
    power = None
    if now.energy is not None and before.energy is not None and now.energy >= before.energy:
        power = (now.energy - before.energy) / seconds
    return _Counters(now.at, now.asleep, now.energy, utilization, power)


def _asleep(gpu: Sampled) -> dict[str, float]:
    """Return GT → seconds that it has slept; nothing if one of them does not report it."""
    found: dict[str, float | None] = {}
    for tile in sysfs.children(gpu.function, _TILE):
        for gt in sysfs.children(gpu.function / tile, _GT):
            found[f"{tile}/{gt}"] = _seconds(gpu.function / tile / gt / "gtidle" / "idle_residency_ms")
    if not found and gpu.card is not None:
        card = gpu.function / "drm" / gpu.card
        for gt in sysfs.children(card / "gt", _GT):
            found[gt] = _seconds(card / "gt" / gt / "rc6_residency_ms")
        if not found:
            found["gt"] = _seconds(card / "power" / "rc6_residency_ms")
    known = {gt: seconds for gt, seconds in found.items() if seconds is not None}
    return known if len(known) == len(found) else {}


def _seconds(path: Path) -> float | None:
    number = sysfs.read_number(path)
    return None if number is None else number / 1000
