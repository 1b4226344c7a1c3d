"""Backend ``generic``: devices that a YAML file describes, for accelerators without a backend of their own.

``--backend generic=FILE``; what the file says: ``generic_spec``. Paths in it never leave the roots: not by
``..``, and not by a symbolic link either.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from dra_driver.api import names
from dra_driver.api.own.inventory import InventoryDevice
from dra_driver.api.quantity import Format, Quantity
from dra_driver.api.resource import DeviceAttribute, DeviceCapacity
from dra_driver.cdi import ContainerEdits, DeviceNode, own_nodes
from dra_driver.discovery.core import schema, strict
from dra_driver.discovery.core.bus import pci
from dra_driver.discovery.core.bus.pci import PciAddress
from dra_driver.discovery.core.host import sysfs
from dra_driver.discovery.core.problems import Problem, ProblemLog
from dra_driver.discovery.generic import spec as generic_spec
from dra_driver.discovery.generic.spec import DeviceRule
from dra_driver.hardware import DiscoveredDevice

__all__ = ["GenericBackend"]

_MAX_DEVICES: Final = 512
_SAFE: Final = re.compile(r"[A-Za-z0-9_.:@+-]{1,64}", re.ASCII)


@dataclass(frozen=True, slots=True)
class _Found:
    """A device that a rule matches: its directory of facts, its PCI function, its nodes below ``/dev``."""

    rule: DeviceRule
    name: str
    folder: Path | None
    address: PciAddress | None
    nodes: tuple[str, ...]


class GenericBackend:
    """The devices of a description.

    Args:
        path: the YAML file; it is read once.
        sysfs_root: where sysfs is mounted.
        dev_root: where device nodes are looked for; in containers' specs they are paths below ``/dev``.

    Raises:
        ConfigurationError: the file cannot be read, or has mistakes.
    """

    def __init__(self, path: Path, *, sysfs_root: Path, dev_root: Path) -> None:
        self._path = path
        self._rules = generic_spec.decode(strict.read_text(path, "generic devices"), str(path))
        self._sysfs_root = sysfs_root
        self._dev_root = dev_root
        self._log = ProblemLog(self.name)

    @property
    def name(self) -> str:
        """``generic``."""
        return "generic"

    @property
    def problems(self) -> tuple[Problem, ...]:
        """What the last ``discover`` could not learn."""
        return self._log.current

    @property
    def diagnostics(self) -> str:
        """Where ``discover`` looks."""
        return f"{', '.join(rule.name for rule in self._rules)} of {self._path}"

    def discover(self) -> Sequence[DiscoveredDevice]:
        """Return every device that a rule matches, by name."""
        problems: list[Problem] = []
        found: dict[str, _Found] = {}
        for rule in self._rules:
            for match in self._matches(rule):
                if match.name in found:
                    problems.append(Problem(match.name, "name", "left out: another device has this name"))
                elif len(found) == _MAX_DEVICES:
                    problems.append(Problem("", rule.name, f"only {_MAX_DEVICES} devices are looked at"))
                    break
                else:
                    found[match.name] = match
        devices = [self._device(found[name], problems) for name in sorted(found)]
        self._log.replace(problems)
        return devices

    def close(self) -> None:
        """Do nothing: nothing is held."""

    def _matches(self, rule: DeviceRule) -> Iterator[_Found]:
        if rule.pci is not None:
            for address in sysfs.pci_addresses(self._sysfs_root / "bus" / "pci" / "devices") or ():
                folder = sysfs.pci_function(self._sysfs_root, address)
                if _is(folder, rule.pci):
                    nodes = tuple(self._nodes_of(rule, folder))
                    yield _Found(rule, schema.device_name(address, rule.name), folder, address, nodes)
            return
        for path in _glob(self._dev_root, rule.dev or ""):
            own = re.sub(r"[^a-z0-9]+", "-", path.rpartition("/")[2].lower()).strip("-")
            folder_of = self._folder(rule, path.rpartition("/")[2])
            name = f"{rule.name}-{own}"[:63].strip("-")
            yield _Found(rule, name, folder_of, _address(folder_of), (path,))

    def _nodes_of(self, rule: DeviceRule, folder: Path) -> Iterator[str]:
        for node in rule.nodes:
            for path in _glob(folder, node.pattern, self._sysfs_root):
                yield node.path.replace("{name}", path.rpartition("/")[2])

    def _folder(self, rule: DeviceRule, name: str) -> Path | None:
        if rule.sysfs is None:
            return None
        return _inside(self._sysfs_root / rule.sysfs.replace("{name}", name), self._sysfs_root)

    def _device(self, found: _Found, problems: list[Problem]) -> DiscoveredDevice:
        attributes = self._place(found)
        for name, fact in found.rule.attributes.items():
            text = fact.value if fact.file is None else self._read(found, fact.file)
            several = fact.values or (tuple((text or "").split()) if fact.several else ())
            if not text and not several:
                continue
            attribute = (
                generic_spec.typed_list(fact.kind, several)
                if several
                else generic_spec.typed(fact.kind, text or "")
            )
            if isinstance(attribute, str):
                problems.append(Problem(found.name, name, attribute))
            else:
                attributes[name] = attribute
        attributes.setdefault("type", DeviceAttribute(string_value="accelerator"))
        uuid = attributes.get("uuid")
        where = f"pci:{found.address}" if found.address else f"dev:{found.nodes[0]}"
        material = self._material(found, problems)
        return DiscoveredDevice(
            device=InventoryDevice(
                name=found.name, attributes=attributes, capacity=self._capacity(found, problems)
            ),
            uuid=(uuid.string_value if uuid is not None else None) or where,
            material=material,
            own_nodes=_own_nodes(found, material),
        )

    def _place(self, found: _Found) -> dict[str, DeviceAttribute]:
        if found.address is None:
            return {}
        root = pci.pcie_root(self._sysfs_root, found.address)
        numa = pci.numa_node(self._sysfs_root, found.address)
        place = {names.PCI_BUS_ID: DeviceAttribute(string_value=str(found.address))}
        if root is not None:
            place[names.PCIE_ROOT] = DeviceAttribute(string_value=root)
        if numa is not None:
            place[names.NUMA_NODE] = DeviceAttribute(int_value=numa)
        return place

    def _read(self, found: _Found, file: str) -> str | None:
        path = None if found.folder is None else _inside(found.folder / file, self._sysfs_root)
        return None if path is None else sysfs.read_sysfs(path)

    def _capacity(self, found: _Found, problems: list[Problem]) -> Mapping[str, DeviceCapacity]:
        capacity: dict[str, DeviceCapacity] = {}
        for name, amount in found.rule.capacity.items():
            if amount.value is not None:
                capacity[name] = DeviceCapacity(value=amount.value)
                continue
            text = self._read(found, amount.file or "")
            if not text:
                continue
            number = generic_spec.typed("int", text)
            total = -1 if isinstance(number, str) else (number.int_value or 0) * amount.factor
            if not 0 <= total < 2**63:
                problems.append(Problem(found.name, name, f"{text[:80]!r} is no amount"))
                continue
            form = Format.BINARY_SI if name == "memory" else Format.DECIMAL_SI
            capacity[name] = DeviceCapacity(value=Quantity.of(total, form))
        return capacity

    def _material(self, found: _Found, problems: list[Problem]) -> ContainerEdits:
        paths = [f"/dev/{node}" for node in found.nodes] + list(found.rule.device_nodes)
        for path in paths:
            at = self._dev_root / path.removeprefix("/dev/")
            if not pci.exists(at):
                problems.append(Problem(found.name, "device node", f"{at} is not there"))
        return ContainerEdits(
            device_nodes=tuple(DeviceNode(path) for path in dict.fromkeys(paths)),
            mounts=found.rule.mounts,
            env=tuple(f"{name}={value}" for name, value in found.rule.env.items()),
        )


def _own_nodes(found: _Found, material: ContainerEdits) -> tuple[str, ...]:
    """Return the nodes that were found for the device, and those of its description that have a number.

    The description does not say which of the nodes that it names are shared by several devices.
    """
    numbered = (n.path for n in own_nodes(material, None))
    return tuple(dict.fromkeys((*(f"/dev/{node}" for node in found.nodes), *numbered)))


def _is(folder: Path, match: generic_spec.PciMatch) -> bool:
    def hexadecimal(name: str) -> str:
        return (sysfs.read_sysfs(folder / name) or "").lower().removeprefix("0x")

    return (
        hexadecimal("vendor") == match.vendor
        and (match.device is None or hexadecimal("device") == match.device)
        and (match.class_prefix is None or hexadecimal("class").startswith(match.class_prefix))
    )


def _inside(path: Path, root: Path) -> Path | None:
    """Return the path with its links followed; None where it is not there or leads out of the root."""
    try:
        resolved = path.resolve(strict=True)
        return resolved if resolved.is_relative_to(root.resolve()) else None
    except (OSError, RuntimeError):
        # RuntimeError: raised by older versions of Python for a loop of links.
        return None


def _glob(folder: Path, pattern: str, root: Path | None = None) -> Iterator[str]:
    """Yield paths below the folder, sorted; ``*`` and ``?`` cross no ``/``, links do not leave the root."""
    first, _, rest = pattern.partition("/")
    for name in sysfs.entries(folder) or ():
        if not fnmatch.fnmatchcase(name, first) or _SAFE.fullmatch(name) is None:
            continue
        if _inside(folder / name, root or folder) is None:
            continue
        if not rest:
            yield name
        else:
            yield from (f"{name}/{below}" for below in _glob(folder / name, rest, root or folder))


def _address(folder: Path | None) -> PciAddress | None:
    return None if folder is None else PciAddress.parse(folder.name)
