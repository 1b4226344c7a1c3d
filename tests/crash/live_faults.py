"""Faults that come and go while an agent runs, as files say: the clock, hardware that hangs, a disk.

The test makes the files in a folder of its world; only the agent under test installs this. Everything is read
again at each call, so that a fault begins and ends at once.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any


class Faults:
    """The files of one world.

    Attributes:
        clock: seconds by which the wall clock is ahead.
        hang: while it is there, calls of the hardware's library do not return.
        disk: an errno, a folder (``state``, ``cdi``, ``metadata``) and a step (``create``) or ``all``.
    """

    def __init__(self, folder: Path) -> None:
        self.clock = folder / "clock"
        self.hang = folder / "hang"
        self.disk = folder / "disk"

    def install(self) -> None:
        """Put them under the agent of this process."""
        self._install_clock()
        self._install_hangs()

    def _install_clock(self) -> None:
        """Have ``time.time`` say what the file makes of it. Monotonic clocks stay as they are."""
        from dra_driver.discovery.nvidia.backend import NvmlBackend

        real = time.time

        def shifted() -> float:
            try:
                return real() + float(self.clock.read_text())
            except (FileNotFoundError, ValueError):
                return real()

        time.time = shifted
        # It was imported when the clock was right.
        defaults = NvmlBackend.__init__.__kwdefaults__
        assert defaults is not None
        defaults["now"] = shifted

    def _install_hangs(self) -> None:
        import pynvml

        from dra_driver.discovery.simulated.backend import SimulatedBackend
        from dra_driver.discovery.simulated.control import SimulatedControl

        for kind, names in (
            (SimulatedBackend, ("discover", "sample")),
            (SimulatedControl, ("has", "compute_mode", "set_compute_mode", "set_time_slice", "partitioning",
                                "set_partitioning", "instances", "begin_instance", "create_instance",
                                "destroy_instance")),
        ):  # fmt: skip
            for name in names:
                setattr(kind, name, self._hanging(getattr(kind, name)))
        find = pynvml._nvmlGetFunctionPointer
        # The binding looks its functions up at each call.
        pynvml._nvmlGetFunctionPointer = self._hanging(find)

    def _hanging(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            while self.hang.exists():
                time.sleep(0.02)
            return function(*arguments, **named)

        return call
