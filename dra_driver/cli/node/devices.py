"""``dra-driver devices``: what discovery finds on this machine."""

from __future__ import annotations

import argparse
import json
import platform
import re
import sys
import threading
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from dra_driver import discovery
from dra_driver.api import codec, names
from dra_driver.api.own.inventory import InventoryDevice
from dra_driver.api.resource import DeviceAttribute
from dra_driver.cli import common
from dra_driver.cli.display.progress import shown_if_long
from dra_driver.cli.display.report import printable
from dra_driver.discovery import LastKnownGood
from dra_driver.ports import DeviceBackend

__all__ = ["add_arguments", "run"]

_CLOSE_SECONDS: Final = 5.0
# A DNS label.
_NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of the command."""
    parser.add_argument(
        "--backend",
        action="append",
        default=None,
        metavar="NAME[=ARG]",
        help=f"how to look at hardware ({', '.join(discovery.backend_names())}; simulated=dgx-h100 for a "
        "built-in profile) (repeatable); default: every built-in backend that finds its hardware",
    )
    parser.add_argument("--sysfs-root", type=Path, default=Path("/sys"), metavar="DIR", help="mount of sysfs")
    parser.add_argument(
        "--dev-root", type=Path, default=Path("/dev"), metavar="DIR", help="directory of device nodes"
    )
    parser.add_argument(
        "--procfs-root", type=Path, default=Path("/proc"), metavar="DIR", help="mount of procfs"
    )
    common.add_driver_root_arguments(parser)
    parser.add_argument(
        "-o",
        "--output",
        choices=("table", "json", "yaml", "slices"),
        default="table",
        help="form of the output; slices: ResourceSlices as a controller would publish them (YAML), for "
        "explain -f and allocate -f",
    )


def _open_backends(args: argparse.Namespace) -> list[LastKnownGood]:
    opened = discovery.open_backends(
        args.backend or (*discovery.GPU_BACKENDS, *discovery.NIC_BACKENDS),
        sysfs_root=args.sysfs_root,
        dev_root=args.dev_root,
        procfs_root=args.procfs_root,
        host_root=args.host_root,
        nvidia_driver_root=args.nvidia_driver_root,
        node_name=platform.node(),
    )
    return [LastKnownGood(backend, optional=not args.backend) for backend in opened]


def run(args: argparse.Namespace) -> int:
    """Run the command; return 1 if a backend fails, or one that was asked for has no hardware."""
    backends = _open_backends(args)
    for kept in backends:
        try:
            with shown_if_long(f"looking for devices: {kept.backend.name}"):
                kept.look()
        finally:
            _close(kept.backend)
    devices = [found.device for kept in backends for found in kept.devices]
    broken = [kept.report for kept in backends if kept.report.broken]
    if args.output == "slices":
        from dra_driver.cli.node.publishing import slice_list

        found = {kept.backend.name: [one.device for one in kept.devices] for kept in backends}
        common.print_data(slice_list(platform.node().lower() or "node", found), "yaml")
    elif args.output != "table":
        data: dict[str, object] = {"devices": [_plain(device) for device in devices]}
        if problems := _problems(backends):
            data["problems"] = problems
        common.print_data(data, args.output)
    elif devices:
        _print_table(devices)
    if not devices and not broken:
        lines = discovery.diagnostics(backends, sysfs_root=args.sysfs_root, dev_root=args.dev_root)
        # stdout has nothing but the data, so that a program can read it.
        stream = sys.stdout if args.output == "table" else sys.stderr
        print("No devices were found. Looked for:", *(f"  {line}" for line in lines), sep="\n", file=stream)
    errors = [report.message for report in broken] + _wrong_names(devices)
    for error in errors:
        print(printable(f"dra-driver devices: {error}"), file=sys.stderr)
    return 1 if errors else 0


def _wrong_names(devices: Sequence[InventoryDevice]) -> list[str]:
    """Return what is wrong with the names of devices, as a new backend may have them."""
    numbers = Counter(device.name for device in devices)
    found = [
        f"device {name[:80]!r}: not a name of a device; expected at most 63 lower-case letters, digits and "
        "'-', with a letter or digit at both ends"
        for name in numbers
        if not _NAME.fullmatch(name)
    ]
    found += [
        f"device {name[:80]!r}: {number} devices have this name; names must be different on a node"
        for name, number in numbers.items()
        if number > 1
    ]
    return found


def _close(backend: DeviceBackend) -> None:
    """Close a backend; one in which a call hangs is left to the end of the process."""
    closing = threading.Thread(target=backend.close, daemon=True)
    closing.start()
    closing.join(_CLOSE_SECONDS)


def _problems(backends: Sequence[LastKnownGood]) -> list[dict[str, str]]:
    """Return what could not be read: a backend as a whole, or single facts."""
    found: list[dict[str, str]] = []
    for report in (kept.report for kept in backends):
        if report.broken:
            found.append({"backend": report.backend, "message": report.message})
        found += [
            {"backend": report.backend, "device": p.device, "subject": p.subject, "message": p.message}
            for p in report.problems
        ]
    return found


def _plain(device: InventoryDevice) -> dict[str, object]:
    raw: dict[str, object] = json.loads(codec.encode(device))
    return {"name": device.name, "attributes": {}, "capacity": {}} | raw


def _value(attribute: DeviceAttribute | None) -> str:
    if attribute is None:
        return "-"
    values = (attribute.string_value, attribute.int_value, attribute.version_value, attribute.bool_value)
    lists = (attribute.strings, attribute.ints, attribute.versions, attribute.bools)
    return next((str(v) for v in values if v is not None), "") or next(
        (",".join(map(str, of)) for of in lists if of), "-"
    )


def _kinds(number: int) -> str:
    return "-" if number == 0 else "1 kind" if number == 1 else f"{number} kinds"


def _links(device: InventoryDevice) -> str:
    if len(device.links) > 2:
        return f"{len(device.links)} peers"
    return " ".join(f"{link.count}x{link.peer}" for link in device.links) or "-"


def _print_table(devices: Sequence[InventoryDevice]) -> None:
    header = (
        "NAME",
        "MODEL",
        "MEMORY",
        "ARCHITECTURE",
        "PCIE ROOT",
        "NUMA",
        "DRIVER",
        "PARTITIONS",
        "LINKS",
        "HEALTH",
    )
    rows = []
    for device in devices:
        memory = device.capacity.get("memory")
        rows.append(
            (
                device.name,
                *(_value(device.attributes.get("model")), "-" if memory is None else str(memory.value)),
                *(
                    _value(device.attributes.get(name))
                    for name in ("architecture", names.PCIE_ROOT, names.NUMA_NODE, "driverVersion")
                ),
                _kinds(len(device.partitions)),
                _links(device),
                " ".join(h.reason for h in device.health) or "ok",
            )
        )
    common.print_table(header, rows)
