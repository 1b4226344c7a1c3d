"""GPUs and sharing daemons of the crash test: files, so that they outlive the agents like hardware.

The GPUs are the simulated backend's. The daemons are files in ``STATE/daemons``, one per device, which hold
the UUID that the daemon was started for; they stand for NVIDIA's, which the machine that runs this has not.
"""

from __future__ import annotations

import copy
import functools
import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence, Set
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent / "support" / "hardware"))

from fake_pci import FakePci

from dra_driver.discovery import open_backend

PROFILE = "dgx-h100"
STATE_FILE = "simulated-gpus.json"
DAEMONS = "daemons"
# 1g.10gb at the last place, made by somebody else.
STRANGER = [19, 6, 1]
_DEFAULTS: Mapping[str, Any] = {"compute": "default", "slice": "Default", "mig": False, "instances": []}


class FileDaemons:
    """Implements ``ports.Daemons``; in the agent under test."""

    def __init__(self, folder: Path, **_: object) -> None:
        self._folder = folder.with_name(DAEMONS)

    def directory(self, device: str) -> str:
        return f"/mps/{device}"

    def start(self, device: str, gpu: str) -> None:
        self._folder.mkdir(exist_ok=True)
        if device in self.present():
            return
        descriptor = os.open(self._folder / device, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.write(descriptor, gpu.encode())
        finally:
            os.close(descriptor)

    def stop(self, device: str) -> None:
        (self._folder / device).unlink(missing_ok=True)

    def present(self) -> Sequence[str]:
        return sorted(p.name for p in self._folder.iterdir()) if self._folder.is_dir() else ()

    def sweep(self) -> bool:
        return False


def install(root: Path) -> None:
    """Puts the daemons and the kernel of the PCI bus under the agent of this process."""
    import dra_driver.discovery.core.bus.pci_binding
    import dra_driver.discovery.simulated.backend as simulated_backend
    from dra_driver.discovery.simulated.control import SimulatedControl

    simulated_backend.SimulatedDaemons = FileDaemons  # type: ignore[attr-defined, assignment]
    dra_driver.discovery.core.bus.pci_binding.write_attribute = FakePci(root).write
    SimulatedControl.runs_daemons = True  # type: ignore[assignment, method-assign]


class Gpus:
    """The hardware of one node, as the test looks at it, without the product's code for it."""

    def __init__(self, root: Path, node: str) -> None:
        self._state = root / "state"
        self._uuids = _uuids(node)
        # A function and an IOMMU group for each GPU; the card of the fourth one, which is passed through, has
        # sound as well.
        groups = enumerate(sorted(self._uuids), 10)
        self._drivers = {address(name): "nvidia" for name in self._uuids}
        functions = {address(name): ("nvidia", str(n)) for n, name in groups}
        card = address(sorted(self._uuids)[3])
        sound = f"{card.rpartition('.')[0]}.1"
        self._drivers[sound] = "snd_hda_intel"
        functions[sound] = ("snd_hda_intel", functions[card][1])
        self._pci = FakePci(root).build(functions, sound={sound})

    def boot(self) -> None:
        """As the machine comes up: no daemons, a stranger's instance, an administrator's settings."""
        first, *_, last = sorted(self._uuids)
        third = sorted(self._uuids)[2]
        self._before: dict[str, dict[str, Any]] = {
            self._uuids[first]: {},
            self._uuids[third]: {"compute": "prohibited"},
            self._uuids[last]: {"mig": True, "instances": [STRANGER]},
        }
        self._state.mkdir(mode=0o700, exist_ok=True)
        (self._state / STATE_FILE).write_text(json.dumps(self._before))
        for daemon in self._daemons():
            (self._state / DAEMONS / daemon).unlink()
        self._pci.reboot()

    def differences(self, records: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
        """Kind and text of everything that is otherwise than these records (and the boot) say."""
        wanted, daemons = due(self._before, records)
        found = json.loads((self._state / STATE_FILE).read_text())
        yield from of_gpus(wanted, found)
        yield from self._of_drivers(records)
        yield from of_daemons(daemons, self._daemons())

    def _of_drivers(self, records: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
        bindings = (d["binding"] for r in records.values() for d in r["devices"] if "binding" in d)
        bound = {f["address"]: b["driver"] for b in bindings for f in (b, *b.get("companions", ()))}
        for function in sorted(self._drivers):
            found, wanted = self._pci.driver(function), bound.get(function, self._drivers[function])
            if found != wanted:
                kind = "half-prepared claims" if function in bound else "leaked drivers"
                yield kind, f"{function}: bound to {found or 'nothing'}, not to {wanted}"
            override = self._pci.override(function)
            if override != bound.get(function, ""):
                yield "leaked drivers", f"{function}: driver_override is {override!r}"

    def _daemons(self) -> set[str]:
        folder = self._state / DAEMONS
        return {p.name for p in folder.iterdir()} if folder.is_dir() else set()


def address(name: str) -> str:
    """PCI address of a GPU by its name (``gpu-0000-1b-00-0``)."""
    _, domain, bus, slot, function = name.split("-")
    return f"{domain}:{bus}:{slot}.{function}"


def due(
    before: Mapping[str, Mapping[str, Any]], records: Mapping[str, Any]
) -> tuple[dict[str, dict[str, Any]], set[str]]:
    """Return how GPUs are to be set up, by UUID, and which devices have a daemon.

    Args:
        before: how they were set up before anything was prepared.
        records: of the checkpoint.
    """
    wanted = {uuid: dict(copy.deepcopy(gpu)) for uuid, gpu in before.items()}
    daemons: set[str] = set()
    for record in records.values():
        for setting in record.get("settings", ()):
            gpu = wanted.setdefault(setting["uuid"], {})
            if setting.get("mig"):
                gpu["mig"] = True
            if setting.get("timeSlice"):
                gpu["slice"] = setting["timeSlice"]
                if gpu.get("compute") != "exclusive-process":
                    gpu["compute"] = "default"
            if setting.get("daemon"):
                gpu["compute"] = "exclusive-process"
                daemons.add(setting["device"])
        for device in record["devices"]:
            if partition := device.get("partition"):
                gpu = wanted.setdefault(device["uuid"], {})
                place = [partition["profileId"], partition["start"], partition["size"]]
                gpu["instances"] = [*gpu.get("instances", ()), place]
                if partition.get("daemon"):
                    daemons.add(device["device"])
    return wanted, daemons


def of_gpus(
    wanted: Mapping[str, Mapping[str, Any]], found: Mapping[str, Mapping[str, Any]]
) -> Iterator[tuple[str, str]]:
    """Return kind and text of every difference between GPUs as they are to be and as they are."""
    for uuid in sorted(wanted.keys() | found.keys()):
        yield from _of_gpu(uuid, {**_DEFAULTS, **wanted.get(uuid, {})}, {**_DEFAULTS, **found.get(uuid, {})})


def of_daemons(wanted: Set[str], running: Set[str]) -> Iterator[tuple[str, str]]:
    """Return the same for sharing daemons."""
    if running - wanted:
        yield "leaked daemons", f"{sorted(running - wanted)}"
    if wanted - running:
        yield "half-prepared claims", f"no daemons for {sorted(wanted - running)}"


def _of_gpu(uuid: str, wanted: Mapping[str, Any], found: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    here, due = ({tuple(i) for i in gpu["instances"]} for gpu in (found, wanted))
    if here - due:
        yield "leaked instances", f"{uuid}: {sorted(here - due)}"
    if due - here:
        yield "half-prepared claims", f"{uuid}: no instances {sorted(due - here)}"
    for setting in ("compute", "slice", "mig"):
        if found[setting] != wanted[setting]:
            yield "leaked settings", f"{uuid}: {setting} is {found[setting]}, not {wanted[setting]}"


@functools.cache
def _uuids(node: str) -> Mapping[str, str]:
    """UUIDs by name of the device."""
    backend = open_backend(
        f"simulated={PROFILE}",
        sysfs_root=Path("/sys"),
        procfs_root=Path("/proc"),
        dev_root=Path("/dev"),
        node_name=node,
    )
    return {d.device.name: d.uuid for d in backend.discover()}
