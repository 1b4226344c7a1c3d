"""NPUs of a third party's driver, the one that docs/sdk.md writes: files, whose names in /dev change."""

from __future__ import annotations

import atexit
import functools
import json
import os
import random
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2] / "support"))
sys.path.insert(0, str(Path(__file__).parents[2] / "support" / "hardware"))

from example_driver import acme_machine, install_example

from dra_driver.discovery.registry import ENTRY_POINTS

NPUS = 4
DRIVER = "npu.acme.example"
# What a power limit is set back to, and the environment variable that says one.
LIMIT = 300
VARIABLE = "ACME_POWER_LIMIT"


@functools.cache
def package() -> str:
    """Return a PYTHONPATH with the driver as pip installs it, and beside it the backend that is slow."""
    site = Path(tempfile.mkdtemp(prefix="dra-crash-acme-"))
    atexit.register(shutil.rmtree, site, ignore_errors=True)
    slow = site / "slow_acme-1.0.0.dist-info"
    slow.mkdir()
    (slow / "METADATA").write_text("Metadata-Version: 2.1\nName: slow-acme\nVersion: 1.0.0\n")
    (slow / "entry_points.txt").write_text(f"[{ENTRY_POINTS}]\nslow-acme = machines.slow_backend:factory\n")
    return os.pathsep.join((*install_example(site), *filter(None, [os.environ.get("PYTHONPATH")])))


class AcmeMachine:
    """Four NPUs that keep without power what they were told; implements ``Machine``.

    Names change as when the kernel's driver is loaded anew: the links below ``class/acme`` go (together, as
    they are behind one link), each NPU gets its new name, and links come back.
    """

    driver = DRIVER

    def __init__(self, root: Path, _node: str) -> None:
        self._machine = acme_machine(root / "npus", NPUS)
        self._class = self._machine / "sys/class/acme"
        shutil.rmtree(self._class)
        functions = self._machine / "sys/devices/pci0000:3a"
        # Each has one entry, the NPU under the name that it has now.
        self._folders = [functions / f"0000:3b:0{i}.0" / "acme" for i in range(NPUS)]
        self._shift = self._trees = 0
        nodes = self._machine / "dev/acme"
        nodes.mkdir(parents=True)
        for i in range(NPUS):
            for name in (f"npu{i}", f"npu{i}p0", f"npu{i}p1"):
                (nodes / name).touch()
        self._rename()

    def arguments(self) -> Sequence[str]:
        roots = (f"--sysfs-root={self._machine}/sys", f"--dev-root={self._machine}/dev")
        return (*roots, f"--driver-name={self.driver}", "--backend=acme")

    def environment(self) -> Mapping[str, str]:
        return {}

    def boot(self, chance: random.Random) -> None:
        self._shift += chance.randrange(1, NPUS)
        self._rename()

    def swap(self) -> None:
        self._shift += 1
        self._rename()

    def mistake(self, device: Mapping[str, Any], nodes: set[str], spec: Mapping[str, Any]) -> str:
        partition = device.get("partition", {})
        now = self._names()[_function(partition.get("gpu", device["device"]))]
        # A half comes without the node by which a container would have all of the NPU.
        wanted = f"/dev/acme/{now}p{partition['start']}" if partition else f"/dev/acme/{now}"
        if nodes != {wanted}:
            return f"{device['device']}: {sorted(nodes)}, not {wanted}"
        edits = (spec.get("containerEdits", {}), *(d["containerEdits"] for d in spec["devices"]))
        seen = {v for e in edits for v in e.get("env", ()) if v.startswith(f"{VARIABLE}=")}
        limits = {_watts(d) for d in [device] if "effect" in d}
        if not {f"{VARIABLE}={watts}" for watts in limits} <= seen:
            return f"{device['device']}: {sorted(seen)}, and its limit is {sorted(limits)}"
        return ""

    def differences(self, records: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
        held: dict[str, tuple[str, int]] = {}
        parts: dict[str, set[str]] = {}
        for uid, record in records.items():
            for device in record["devices"]:
                partition = device.get("partition")
                name = _function(partition["gpu"] if partition else device["device"])
                if partition:
                    parts.setdefault(name, set()).add(str(partition["start"]))
                if "effect" in device:
                    held[name] = (uid, _watts(device))
        for folder in self._folders:
            (npu,) = folder.iterdir()
            name = folder.parent.name
            yield from _of_npu(npu, *held.get(name, ("", LIMIT)))
            yield from of_partitions(npu, parts.get(name, set()))

    def close(self) -> None:
        pass

    def _names(self) -> dict[str, str]:
        """Return the name of each NPU by its PCI address."""
        return {folder.parent.name: npu.name for folder in self._folders for npu in folder.iterdir()}

    def _rename(self) -> None:
        """Take the links away, give each NPU its name, and link them again."""
        self._link(())
        npus: list[Path] = []
        for i, folder in enumerate(self._folders):
            (before,) = folder.iterdir()
            npus.append(before.rename(before.with_name(f"npu{(i + self._shift) % NPUS}")))
        self._link(npus)

    def _link(self, npus: Sequence[Path]) -> None:
        self._trees += 1
        tree = self._machine / f"names-{self._trees}"
        tree.mkdir()
        for npu in npus:
            (tree / npu.name).symlink_to(npu)
        aside = self._class.with_name("acme.new")
        aside.symlink_to(tree)
        aside.rename(self._class)


def _function(name: str) -> str:
    """Return the PCI address of an NPU by its name."""
    _, domain, bus, slot, function = name.split("-")
    return f"{domain}:{bus}:{slot}.{function}"


def _watts(device: Mapping[str, Any]) -> int:
    watts: int = json.loads(device["effect"]["settings"])["watts"]
    return watts


def _of_npu(npu: Path, uid: str, watts: int) -> Iterator[tuple[str, str]]:
    """Yield what is otherwise than one claim's limit (none: as it was)."""
    job = npu / "job"
    found = (job.read_text().strip() if job.exists() else "", (npu / "power_limit").read_text().strip())
    if found != (uid, str(watts)):
        kind = "half-prepared claims" if uid else "leaked settings"
        yield kind, f"{npu.name}: job and power limit {found}, not {(uid, watts)}"


def of_partitions(npu: Path, parts: set[str]) -> Iterator[tuple[str, str]]:
    """Yield what is otherwise than that these partitions exist."""
    folder = npu / "partitions"
    made = {p.name for p in folder.iterdir()} if folder.is_dir() else set()
    if made - parts:
        yield "leaked instances", f"{npu.name}: {sorted(made - parts)}"
    whole = {name for name in made if (folder / name / "uuid").exists()}
    if parts - whole:
        yield "half-prepared claims", f"{npu.name}: no instances {sorted(parts - whole)}"
