"""Backend ``acme`` for an imaginary accelerator: /sys/class/acme/npu0, /dev/acme/npu0, and so on."""

import re
from collections.abc import Sequence
from pathlib import Path

from dra_driver.discovery import sdk


class AcmeBackend:
    """The Acme NPUs of this machine."""

    name = "acme"

    def __init__(self, sysfs_root: Path, dev_root: Path) -> None:
        self._sysfs_root = sysfs_root
        self._dev_root = dev_root

    def discover(self) -> Sequence[sdk.DiscoveredDevice]:
        """Every NPU, in a stable order; one that is broken is left out or incomplete."""
        folder = self._sysfs_root / "class" / "acme"
        if sdk.entries(folder) is None:
            raise sdk.HardwareAbsent(f"acme: {folder} is not there: the driver acme is not loaded")
        found = [self._device(folder / name) for name in sdk.children(folder, re.compile("npu[0-9]+"))]
        return [device for device in found if device is not None]

    def _device(self, folder: Path) -> sdk.DiscoveredDevice | None:
        address = sdk.link_address(folder / "device")
        if address is None:
            return None
        serial = sdk.read_text(folder / "serial")
        node = f"/dev/acme/{folder.name}"
        facts = {
            "type": "npu",
            "vendor": "acme",
            "uuid": serial,
            "model": sdk.read_text(folder / "model"),
            "driverVersion": sdk.read_text(self._sysfs_root / "module" / "acme" / "version"),
            sdk.PCI_BUS_ID: str(address),
            sdk.PCIE_ROOT: sdk.pcie_root(self._sysfs_root, address),
            sdk.NUMA_NODE: sdk.numa_node(self._sysfs_root, address),
        }
        return sdk.DiscoveredDevice(
            device=sdk.describe_device(
                sdk.device_name(address, "npu"),
                facts,
                {"memory": sdk.read_number(folder / "memory_bytes")},
                own={"tops": sdk.read_number(folder / "tops")},
            ),
            uuid=serial or f"pci:{address}",
            material=sdk.ContainerEdits(device_nodes=(sdk.DeviceNode(node),)),
            own_nodes=(node,),
        )

    def close(self) -> None:
        """Nothing is held."""


def factory(arg: str, *, sysfs_root: Path, dev_root: Path, node_name: str) -> sdk.DeviceBackend:
    """The entry point: makes a backend for ``--backend acme``."""
    if arg:
        raise sdk.ConfigurationError(f"--backend acme={arg}: acme takes no argument")
    return AcmeBackend(sysfs_root, dev_root)
