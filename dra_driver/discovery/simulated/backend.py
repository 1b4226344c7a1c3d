"""Backend ``simulated``: hardware that a YAML file describes, for tests, the demo and bare machines."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import resources
from itertools import permutations
from pathlib import Path
from typing import Final

from dra_driver.api import names
from dra_driver.api.inventory import DeviceLink, InventoryDevice
from dra_driver.cdi import ContainerEdits, DeviceNode
from dra_driver.discovery.core import links as link_groups
from dra_driver.discovery.core import schema, strict
from dra_driver.discovery.core.control import ToolPaths
from dra_driver.discovery.core.pci import PciAddress
from dra_driver.discovery.nvidia import products
from dra_driver.discovery.simulated import profile as simulated_profile
from dra_driver.discovery.simulated.control import SimulatedControl
from dra_driver.errors import ConfigurationError, DiscoveryError
from dra_driver.hardware import DeviceSample, DiscoveredDevice

__all__ = ["STATE_FILE", "SimulatedBackend", "built_in_profiles", "load"]

# In the plugin's state directory: what was done to simulated GPUs.
STATE_FILE: Final = "simulated-gpus.json"
_NAMESPACE = uuid.uuid5(uuid.NAMESPACE_DNS, "simulated.dra-driver.dev")


def built_in_profiles() -> tuple[str, ...]:
    """Names of the built-in profiles."""
    folder = resources.files("dra_driver.discovery").joinpath("data/profiles")
    return tuple(sorted(f.name.removesuffix(".yaml") for f in folder.iterdir() if f.name.endswith(".yaml")))


def load(profile: str) -> simulated_profile.SimulatedProfile:
    """A built-in profile by name, or the file that ``profile`` names (anything with a ``/`` or ``.yaml``).

    Raises:
        ConfigurationError: there is no such profile, the file cannot be read, or it has mistakes.
    """
    if "/" not in profile and not profile.endswith((".yaml", ".yml")):
        known = built_in_profiles()
        if profile not in known:
            raise ConfigurationError(
                f"simulated profile {profile[:80]!r} is unknown: allowed are {', '.join(known)}, "
                "or the path of a YAML file (./NAME.yaml)"
            )
        return _built_in(profile)
    return simulated_profile.decode(strict.read_text(Path(profile), "simulated profile"), profile)


@cache
def _built_in(name: str) -> simulated_profile.SimulatedProfile:
    file = resources.files("dra_driver.discovery").joinpath(f"data/profiles/{name}.yaml")
    return simulated_profile.decode(file.read_text(encoding="utf-8"), name)


class SimulatedBackend:
    """Devices of a profile. A profile in a file is read again on every ``discover``: hardware may change.

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
        load(profile)
        self._loads: Mapping[str, float] = {}

    @property
    def name(self) -> str:
        """``simulated``."""
        return "simulated"

    def discover(self) -> Sequence[DiscoveredDevice]:
        """The devices of the profile, by PCI address.

        Raises:
            DiscoveryError: the file has become unreadable or wrong since the backend was made.
        """
        try:
            profile = load(self._profile)
        except ConfigurationError as e:
            raise DiscoveryError(str(e)) from e
        self._loads = {
            schema.device_name(g.address): g.load / 100 for g in profile.gpus if g.load is not None
        }
        links = _links(profile)
        groups = link_groups.groups({name: [link.peer for link in ls] for name, ls in links.items()})
        return [self._device(profile, gpu, i, links, groups) for i, gpu in enumerate(profile.gpus)]

    def sample(self) -> Sequence[DeviceSample]:
        """See ``ports.TelemetrySource``: of devices whose profile gives a load."""
        return [DeviceSample(device=name, utilization=load) for name, load in self._loads.items()]

    def control(self, places: ToolPaths) -> SimulatedControl:
        """See ``control.ControllableBackend.control``."""
        file = None if places.state_dir is None else places.state_dir / STATE_FILE
        return SimulatedControl(
            lambda: {d.uuid: d for d in self.discover()}, file, daemons=places.simulated_daemons
        )

    def close(self) -> None:
        """Nothing is held."""

    def _device(
        self,
        profile: simulated_profile.SimulatedProfile,
        gpu: simulated_profile.SimulatedGpu,
        index: int,
        links: Mapping[str, tuple[DeviceLink, ...]],
        groups: Mapping[str, str],
    ) -> DiscoveredDevice:
        name = schema.device_name(gpu.address)
        identity = gpu.uuid or self._uuid(gpu.address)
        partitions = tuple(
            products.mig_partition(
                name=p.name,
                profile_id=p.profile_id,
                placements=p.placements,
                capacity=p.capacity,
                parent_uuid=identity,
            )
            for p in gpu.partitions
        )
        properties = schema.build(
            {
                **gpu.facts,
                "type": "gpu",
                "uuid": identity,
                "index": index,
                "driverVersion": profile.driver_version,
                "cudaDriverVersion": profile.cuda_driver_version if gpu.facts["vendor"] == "nvidia" else None,
                "nvlinkGroup": groups.get(name),
                names.PCI_BUS_ID: str(gpu.address),
            },
            {
                **schema.partition_maxima(partitions),
                "memory": gpu.memory,
                "multiprocessors": gpu.multiprocessors,
            },
        )
        return DiscoveredDevice(
            device=InventoryDevice(
                name=name,
                attributes=properties.attributes,
                capacity=properties.capacity,
                partitions=partitions,
                links=links[name],
                health=gpu.health,
            ),
            uuid=identity,
            material=ContainerEdits(
                device_nodes=tuple(DeviceNode(path) for path in gpu.device_nodes),
                # One variable per device, for several devices may meet in one container.
                env=tuple(
                    f"{variable}={value}"
                    for variable, value in {
                        f"SIMULATED_{name.upper().replace('-', '_')}": identity,
                        **gpu.env,
                    }.items()
                ),
            ),
            simulated=True,
        )

    def _uuid(self, address: PciAddress) -> str:
        return f"GPU-{uuid.uuid5(_NAMESPACE, f'{self._seed}/{address}')}"


def _links(profile: simulated_profile.SimulatedProfile) -> dict[str, tuple[DeviceLink, ...]]:
    """Device → its links."""
    found: dict[str, dict[str, int]] = {schema.device_name(gpu.address): {} for gpu in profile.gpus}
    for group in profile.nvlink:
        members = [schema.device_name(address) for address in group.members]
        pairs = [(m, "switch") for m in members] if group.switched else permutations(members, 2)
        for device, peer in pairs:
            found[device][peer] = found[device].get(peer, 0) + group.links
    return {
        device: tuple(DeviceLink(peer=p, type="nvlink", count=n) for p, n in sorted(peers.items()))
        for device, peers in found.items()
    }
