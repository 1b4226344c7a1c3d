"""Backend ``simulated``: hardware that a profile describes, for tests, the demo and bare machines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from dra_driver.discovery.core.control import ToolPaths
from dra_driver.discovery.simulated import profile as simulated_profile
from dra_driver.discovery.simulated.control import SimulatedControl
from dra_driver.discovery.simulated.daemons import SimulatedDaemons
from dra_driver.discovery.simulated.devices import devices_of, loads_of
from dra_driver.errors import ConfigurationError, DiscoveryError
from dra_driver.hardware import DeviceSample, DiscoveredDevice

__all__ = ["STATE_FILE", "SimulatedBackend"]

# In the plugin's state directory: what was done to simulated GPUs.
STATE_FILE: Final = "simulated-gpus.json"


class SimulatedBackend:
    """The devices of a profile. A profile in a file is read again by every ``discover``: hardware may change.

    Args:
        profile: name of a built-in profile, or path of a file.
        seed: makes the UUIDs of this node differ from another node's of the same profile; the same seed gives
            the same UUIDs. The node's name is a good one.

    Raises:
        ConfigurationError: the profile is unknown or wrong.
    """

    def __init__(self, profile: str, *, seed: str) -> None:
        self._profile = profile
        self._seed = seed
        simulated_profile.load(profile)
        self._loads: Mapping[str, float] = {}

    @property
    def name(self) -> str:
        """``simulated``."""
        return "simulated"

    @property
    def simulated(self) -> bool:
        """True: the devices do not exist."""
        return True

    def discover(self) -> Sequence[DiscoveredDevice]:
        """Return the devices of the profile, by PCI address.

        Raises:
            DiscoveryError: the file has become unreadable or wrong since the backend was made.
        """
        try:
            machine = simulated_profile.load(self._profile)
        except ConfigurationError as e:
            raise DiscoveryError(str(e)) from e
        self._loads = loads_of(machine)
        return devices_of(machine, self._seed)

    def sample(self) -> Sequence[DeviceSample]:
        """Return the load of every device whose profile states one; see ``ports.TelemetrySource``."""
        return [DeviceSample(device=name, utilization=load) for name, load in self._loads.items()]

    def control(self, places: ToolPaths) -> SimulatedControl:
        """Return what changes the GPUs; see ``control.ControllableBackend.control``."""
        file = None if places.state_dir is None else places.state_dir / STATE_FILE
        return SimulatedControl(
            lambda: {d.uuid: d for d in self.discover()}, file, daemons=places.own_daemons
        )

    def daemons(self, folder: Path) -> SimulatedDaemons:
        """Return the sharing daemons of its GPUs; see ``control.DaemonSource.daemons``."""
        return SimulatedDaemons(folder)

    def close(self) -> None:
        """Do nothing: no handle is held."""
