"""Whether the devices of a backend exist."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from dra_driver.ports import DeviceBackend

__all__ = ["Simulation", "is_simulated"]


@runtime_checkable
class Simulation(Protocol):
    """A ``DeviceBackend`` that says whether its devices exist."""

    @property
    def simulated(self) -> bool:
        """Whether there is no such hardware.

        Then device nodes and files of its devices need not be there either, and what is written about them
        need not be rare, for they may change in a test's time.
        """
        ...


def is_simulated(backend: DeviceBackend) -> bool:
    """Return whether the devices of the backend do not exist; false if it does not say so."""
    return isinstance(backend, Simulation) and backend.simulated
