"""Backend ``rdma``: InfiniBand and RoCE adapters from ``/sys/class/infiniband``.

They are published under a driver name of their own (``names.RDMA_DRIVER_NAME``) by the same binary, so that
attributes of GPUs and NICs never mix; a claim can still ask for both under one PCIe root, as that attribute
has a standard name.

A container needs ``uverbs`` of its adapter and the shared ``rdma_cm``. ``umad`` lets its holder speak to the
subnet's manager: only ``--backend rdma=umad`` gives it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from dra_driver.api import names
from dra_driver.api.own.inventory import DeviceHealth, InventoryDevice
from dra_driver.cdi import ContainerEdits, DeviceNode
from dra_driver.discovery.core import schema
from dra_driver.discovery.core.bus import pci, pci_products
from dra_driver.discovery.core.bus.pci import PciAddress
from dra_driver.discovery.core.host import sysfs
from dra_driver.discovery.core.hotplug import HotplugHints
from dra_driver.discovery.core.problems import HardwareAbsent, Problem, ProblemLog
from dra_driver.hardware import DiscoveredDevice

__all__ = ["VENDORS", "Port", "RdmaBackend", "parse_rate"]

_DEVICE: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}", re.ASCII)
_PORT: Final = re.compile(r"[0-9]{1,3}", re.ASCII)
_UVERBS: Final = re.compile(r"uverbs[0-9]{1,6}", re.ASCII)
_UMAD: Final = re.compile(r"umad[0-9]{1,6}", re.ASCII)
_NETDEV: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.@:-]{0,14}", re.ASCII)
_GUID: Final = re.compile(r"[0-9a-f]{4}(:[0-9a-f]{4}){3}", re.ASCII)
_RATE: Final = re.compile(r"([0-9]{1,6})(?:\.([0-9]))? Gb/sec.*", re.ASCII)
_STATE: Final = re.compile(r"([0-9]{1,2})(?::\s*(\S+))?", re.ASCII)
# The connection manager, which all adapters share.
_CONNECTIONS: Final = "/dev/infiniband/rdma_cm"
_ACTIVE: Final = 4
_MAX_DEVICES: Final = 4096
_MAX_PORTS: Final = 64

VENDORS: Final[Mapping[int, str]] = {
    0x15B3: "mellanox",
    0x10DE: "nvidia",
    0x8086: "intel",
    0x1D0F: "amazon",
    0x14E4: "broadcom",
    0x1DD8: "amd",
}


@dataclass(frozen=True, slots=True)
class Port:
    """One port.

    Attributes:
        number: from 1.
        state: number of the state, 4 is active; None where it is not known.
        link_layer: InfiniBand or Ethernet.
        rate: bits per second.
    """

    number: int
    state: int | None
    link_layer: str | None
    rate: int | None


@dataclass(frozen=True, slots=True)
class _Adapter:
    """One RDMA device and the PCI function below it; virtual adapters have none."""

    rdma: str
    folder: Path
    address: PciAddress | None
    ports: tuple[Port, ...]
    uverbs: str | None
    umads: tuple[str, ...]
    name: str = ""

    @property
    def function(self) -> Path:
        return self.folder / "device"


class RdmaBackend:
    """RDMA adapters of this machine.

    Args:
        sysfs_root: where sysfs is mounted.
        dev_root: where device nodes are looked for; in containers' specs they are paths below ``/dev``.
        umad: whether containers get ``umad``, too.
    """

    def __init__(self, *, sysfs_root: Path, dev_root: Path, umad: bool = False) -> None:
        self._sysfs_root = sysfs_root
        self._dev_root = dev_root
        self._umad = umad
        self._log = ProblemLog(self.name)

    @property
    def name(self) -> str:
        """``rdma``."""
        return "rdma"

    @property
    def problems(self) -> tuple[Problem, ...]:
        """What the last ``discover`` could not learn."""
        return self._log.current

    @property
    def _class(self) -> Path:
        return self._sysfs_root / "class" / "infiniband"

    @property
    def diagnostics(self) -> str:
        """Where ``discover`` looks."""
        return f"RDMA devices in {self._class}"

    def discover(self) -> Sequence[DiscoveredDevice]:
        """Return every adapter, by name.

        Raises:
            HardwareAbsent: the kernel has no RDMA.
        """
        if sysfs.entries(self._class) is None:
            raise HardwareAbsent(f"rdma: {self._class} is not there: the kernel has no RDMA driver loaded")
        problems: list[Problem] = []
        verbs = self._characters("infiniband_verbs", _UVERBS)
        mads = self._characters("infiniband_mad", _UMAD)
        found: dict[str, _Adapter] = {}
        for rdma in sysfs.children(self._class, _DEVICE)[:_MAX_DEVICES]:
            adapter = self._adapter(rdma, verbs, mads)
            name = _name(adapter, found)
            if name in found:
                problems.append(Problem(rdma, "name", f"left out: {found[name].rdma} is called {name}, too"))
                continue
            found[name] = adapter
        devices = [self._device(name, found[name], problems) for name in sorted(found)]
        self._log.replace(problems)
        return devices

    def hotplug(self) -> HotplugHints:
        """See ``hotplug.HotplugSource``."""
        kinds = ("infiniband", "infiniband_verbs", "infiniband_mad")
        folders = tuple((self._sysfs_root / "class" / kind, "") for kind in kinds)
        return HotplugHints(folders, subsystems=frozenset({"infiniband"}))

    def close(self) -> None:
        """Do nothing: nothing is held."""

    def _characters(self, kind: str, pattern: re.Pattern[str]) -> Mapping[str, tuple[str, ...]]:
        """Return RDMA device → its character devices of a class, numbered in the order of loading."""
        folder = self._sysfs_root / "class" / kind
        found: dict[str, tuple[str, ...]] = {}
        for name in sysfs.children(folder, pattern):
            rdma = sysfs.read_sysfs(folder / name / "ibdev")
            if rdma:
                found[rdma] = (*found.get(rdma, ()), name)
        return found

    def _adapter(
        self, rdma: str, verbs: Mapping[str, tuple[str, ...]], mads: Mapping[str, tuple[str, ...]]
    ) -> _Adapter:
        folder = self._class / rdma
        address = sysfs.link_address(folder / "device")
        numbers = sysfs.children(folder / "ports", _PORT)[:_MAX_PORTS]
        ports = tuple(_port(folder / "ports" / n) for n in numbers)
        return _Adapter(rdma, folder, address, ports, verbs.get(rdma, (None,))[0], mads.get(rdma, ()))

    def _device(self, name: str, adapter: _Adapter, problems: list[Problem]) -> DiscoveredDevice:
        guid = (sysfs.read_sysfs(adapter.folder / "node_guid") or "").lower()
        known_guid = guid if _GUID.fullmatch(guid) and guid.strip("0:") else None
        active = [port for port in adapter.ports if port.state == _ACTIVE]
        rates = [port.rate for port in active if port.rate]
        layers = {port.link_layer for port in active or adapter.ports if port.link_layer}
        properties = schema.build(
            {
                "uuid": known_guid,
                "nodeGUID": known_guid,
                "linkLayer": layers.pop() if len(layers) == 1 else None,
                "rdmaDevice": adapter.rdma,
                "netdev": self._netdev(adapter),
                "ports": len(adapter.ports) or None,
                "firmwareVersion": sysfs.read_sysfs(adapter.folder / "fw_ver") or None,
                "hcaType": sysfs.read_sysfs(adapter.folder / "hca_type") or None,
                "boardID": sysfs.read_sysfs(adapter.folder / "board_id") or None,
                **self._pci_facts(adapter),
            },
            {"bandwidth": sum(rates) if rates else None},
        )
        problems += [Problem(name, subject, why) for subject, why in properties.rejected]
        material = self._material(name, adapter, problems)
        return DiscoveredDevice(
            device=InventoryDevice(
                name=name,
                attributes=properties.attributes,
                capacity=properties.capacity,
                health=tuple(_health(adapter)),
            ),
            uuid=known_guid or (f"pci:{adapter.address}" if adapter.address else f"rdma:{adapter.rdma}"),
            material=material,
            own_nodes=tuple(n.path for n in material.device_nodes if n.path != _CONNECTIONS),
        )

    def _functions(self, adapter: _Adapter, own: PciAddress) -> list[PciAddress]:
        """Return the PCI functions that the adapter's ports are on, its own first.

        Where one RDMA device has ports on several functions (multi-port E-switch, Socket Direct), the kernel
        links it to one of them; the interface of each port, first in its GID table, is linked to its own. Not
        so a bond: it may be over the functions of other adapters as well, and has no link.
        """
        found = [own]
        for port in adapter.ports:
            name = sysfs.read_sysfs(adapter.folder / f"ports/{port.number}/gid_attrs/ndevs/0") or ""
            if _NETDEV.fullmatch(name):
                of_port = sysfs.link_address(self._sysfs_root / "class" / "net" / name / "device")
                found += [of_port] if of_port is not None else []
        return found

    def _pci_facts(self, adapter: _Adapter) -> dict[str, schema.Value | Sequence[schema.Value] | None]:
        if adapter.address is None:
            return {"type": "nic"}
        function = adapter.function
        functions = self._functions(adapter, adapter.address)
        roots = (pci.pcie_root(self._sysfs_root, f) for f in functions)
        numa_nodes = (pci.numa_node(self._sysfs_root, f) for f in functions)
        pci_id = sysfs.pci_id(function)
        product = pci_products.rdma_product(pci_id) if pci_id else None
        physical = sysfs.link_address(function / "physfn")
        total_vfs = sysfs.read_number(function / "sriov_totalvfs")
        return {
            "type": "nic" if physical is None else "vf",
            "vendor": VENDORS.get(int(pci_id[:4], 16)) if pci_id else None,
            "model": product.model if product else None,
            "productName": product.name if product else None,
            "pciID": pci_id,
            names.PCI_BUS_ID: str(adapter.address),
            names.PCIE_ROOT: [root for root in roots if root is not None],
            names.NUMA_NODE: [node for node in numa_nodes if node is not None],
            "kernelDriver": sysfs.driver_name(function),
            "physicalFunction": None if physical is None else str(physical),
            "sriovCapable": None if total_vfs is None else total_vfs > 0,
            "sriovVFs": sysfs.read_number(function / "sriov_numvfs") or None,
        }

    def _netdev(self, adapter: _Adapter) -> str | None:
        """Return the interface of the adapter; None if it has none (InfiniBand without IPoIB) or several."""
        found = sysfs.children(adapter.function / "net", _NETDEV) if adapter.address else []
        if len(found) == 1:
            return found[0]
        # One PCI function may carry several adapters' interfaces: the GID table says whose is whose.
        tables = (adapter.folder / f"ports/{p.number}/gid_attrs/ndevs" for p in adapter.ports)
        told = {sysfs.read_sysfs(table / "0") for table in tables}
        own = [name for name in found if name in told]
        return own[0] if len(own) == 1 else None

    def _material(self, name: str, adapter: _Adapter, problems: list[Problem]) -> ContainerEdits:
        wanted = [n for n in (adapter.uverbs, *(adapter.umads if self._umad else ())) if n]
        paths = [*(f"/dev/infiniband/{n}" for n in wanted), _CONNECTIONS]
        places = [self._dev_root / path.removeprefix("/dev/") for path in paths]
        problems += [Problem(name, "device node", f"{p} is not there") for p in places if not pci.exists(p)]
        return ContainerEdits(device_nodes=tuple(DeviceNode(path) for path in paths))


def _name(adapter: _Adapter, taken: Mapping[str, _Adapter]) -> str:
    """Return ``nic-0000-3b-00-0``, with the RDMA device's name if its function has several or none."""
    own = re.sub(r"[^a-z0-9]+", "-", adapter.rdma.lower()).strip("-")
    if adapter.address is None:
        return f"nic-{own}"[:63].strip("-")
    name = schema.device_name(adapter.address, "nic")
    return name if name not in taken else f"{name}-{own}"[:63].strip("-")


def _port(folder: Path) -> Port:
    state = _STATE.fullmatch(sysfs.read_sysfs(folder / "state") or "")
    layer = sysfs.read_sysfs(folder / "link_layer")
    return Port(
        number=int(folder.name),
        state=int(state[1]) if state else None,
        link_layer=layer if layer in ("InfiniBand", "Ethernet") else None,
        rate=parse_rate(sysfs.read_sysfs(folder / "rate") or ""),
    )


def parse_rate(text: str) -> int | None:
    """Return bits per second of ``100 Gb/sec (4X EDR)`` or ``2.5 Gb/sec (1X SDR)``; None if it is neither."""
    match = _RATE.fullmatch(text)
    if match is None:
        return None
    return int(match[1]) * 10**9 + int(match[2] or 0) * 10**8 or None


def _health(adapter: _Adapter) -> list[DeviceHealth]:
    health: list[DeviceHealth] = []
    if adapter.uverbs is None:
        message = "the kernel shows no verbs device of it, so that no container can be given this adapter"
        health.append(DeviceHealth(reason="DeviceNodeUnknown", severity="degraded", message=message))
    states = [port.state for port in adapter.ports if port.state is not None]
    if states and _ACTIVE not in states:
        health.append(
            DeviceHealth(reason="PortDown", severity="degraded", message="none of its ports is active")
        )
    return health + (sysfs.pcie_errors(adapter.function) if adapter.address else [])
