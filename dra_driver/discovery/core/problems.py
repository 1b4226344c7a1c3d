"""What went wrong while looking at hardware, in a form that can be shown, counted and compared."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import structlog

from dra_driver.errors import DiscoveryError

__all__ = ["DriverMissing", "HardwareAbsent", "Problem", "ProblemLog"]

_log = structlog.get_logger(__name__)


class HardwareAbsent(DiscoveryError):
    """The hardware of a backend, or the software to look at it, is not on this machine."""


class DriverMissing(HardwareAbsent):
    """The hardware is on this machine, and the software to look at it has to be installed."""


@dataclass(frozen=True, slots=True, order=True)
class Problem:
    """One thing that could not be learned.

    Attributes:
        device: name of the device, or how the library numbers it where it has no name; empty for the backend.
        subject: the attribute or the call concerned.
        message: why, for people.
    """

    device: str
    subject: str
    message: str

    def __str__(self) -> str:
        return (
            f"{self.device}: {self.subject}: {self.message}"
            if self.device
            else f"{self.subject}: {self.message}"
        )


class ProblemLog:
    """A log of problems: each is logged once, when it appears, although discovery runs again and again."""

    def __init__(self, backend: str) -> None:
        self._backend = backend
        self.current: tuple[Problem, ...] = ()

    def replace(self, problems: Sequence[Problem]) -> None:
        """Take the problems of one discovery."""
        known = frozenset(self.current)
        self.current = tuple(problems)
        for problem in problems:
            if problem not in known:
                _log.warning(
                    "discovery is incomplete",
                    backend=self._backend,
                    device=problem.device,
                    subject=problem.subject,
                    reason=problem.message,
                )
