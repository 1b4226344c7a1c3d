"""The NPUs of a third party whose backend takes longer to prepare them than the kubelet waits."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import short_waits

from machines.acme import AcmeMachine, of_partitions
from machines.slow_backend import DONE, function_of

Found = Iterator[tuple[str, str]]


class SlowMachine(AcmeMachine):
    """Four NPUs that a slow tool prepares; implements ``Machine``.

    What the tool has made outlives a power failure. A device that it has taken off its bus is back after one.
    """

    def __init__(self, root: Path, node: str) -> None:
        super().__init__(root, node)
        self._functions = sorted((root / "npus/sys/devices/pci0000:3a").iterdir())
        self._log = root / "npus/tool.log"
        for function in self._functions:
            (function / "jobs").mkdir()
        self._fresh = 0
        self._kept: frozenset[str] = frozenset()
        self._paces: dict[str, Mapping[str, Any]] = {}
        self.calm()

    def arguments(self) -> Sequence[str]:
        others = [a for a in super().arguments() if not a.startswith("--backend=")]
        return (*others, "--backend=slow-acme", "--rescan-interval=1")

    def environment(self) -> Mapping[str, str]:
        return {short_waits.VARIABLE: "yes"}

    def boot(self, chance: random.Random) -> None:
        for function in self._functions:
            (function / "off").unlink(missing_ok=True)
        super().boot(chance)

    def calm(self) -> None:
        """Let the tool work quickly and well from now on."""
        for function in self._functions:
            self._set(function)

    def stir(self, chance: random.Random) -> None:
        """Let the tool work otherwise from now on: what it begins, not what it is at."""
        for function in self._functions:
            slow = chance.choice((0.0, 0.5, 2.0, 3.0, 6.0))
            self._set(
                function,
                prepare=chance.random() * slow,
                undo=chance.random() * chance.choice((0.1, 0.3, 1.5)),
                verify=chance.random() * chance.choice((0.0, 0.0, 0.5, 1.5)),
                # What takes longer than it has planned is refused, and undone.
                planned=chance.choice((1, 2, 30, 30, 30)),
                off=chance.random() < 0.2 and function.name not in self._kept,
                fails=chance.choice(("", "", "", "", "prepare", "undo")),
                retryable=chance.random() < 0.5,
            )

    def keep(self, devices: Iterable[str]) -> None:
        """Have the tool leave these devices, and no others, on their bus whatever it does."""
        self._kept = frozenset(map(function_of, devices))
        for function in self._functions:
            if function.name in self._kept and self._paces[function.name]["off"]:
                self._set(function, **{**self._paces[function.name], "off": False})

    def unfinished(self, uid: str, devices: Sequence[str], watts: int) -> str:
        """Return what is not as the tool leaves it for a claim; empty if all is."""
        for device in devices:
            found = self._jobs(function_of(device)).get(f"{device}.{uid}", "nothing")
            if found != f"{watts} {DONE}":
                return f"{device}: {found!r}, not {watts} W"
        return ""

    def work(self) -> Found:
        """Yield work of two on one device at once, or before what was made for another claim was undone."""
        lines = self._log.read_text().splitlines() if self._log.exists() else ()
        last: dict[str, str] = {}
        for number, line in enumerate(lines):
            work, device, claim, verb, what = line.split(" ", 4)
            if what == "begin":
                last[device] = work
            elif last[device] != work:
                others = [text for text in lines[:number] if text.startswith(f"{last[device]} ")]
                yield "devices worked on twice", f"{line!r} after {others[0]!r}"
            if what.startswith("alarm"):
                yield "devices worked on twice", f"{device}: {verb} for {claim}: {what}"

    def differences(self, records: Mapping[str, Any]) -> Found:
        wanted: dict[str, dict[str, str]] = {f.name: {} for f in self._functions}
        parts: dict[str, set[str]] = {f.name: set() for f in self._functions}
        for uid, record in records.items():
            for device in record["devices"]:
                function = function_of(device["device"])
                if partition := device.get("partition"):
                    parts[function].add(str(partition["start"]))
                if "effect" in device:
                    watts = json.loads(device["effect"]["settings"])["watts"]
                    wanted[function][f"{device['device']}.{uid}"] = f"{watts} {DONE}"
        for folder in self._functions:
            function = folder.name
            jobs, due = self._jobs(function), wanted[function]
            if jobs.keys() - due.keys():
                yield "leaked settings", f"{sorted(jobs.keys() - due.keys())}"
            if jobs != due:
                yield "half-prepared claims", f"{jobs}, not {due}"
            if (folder / "off").exists():
                yield "leaked settings", f"{function} is off its bus"
            (npu,) = (folder / "acme").iterdir()
            yield from of_partitions(npu, parts[function])
        yield from self.work()

    def _jobs(self, function: str) -> dict[str, str]:
        (folder,) = (f / "jobs" for f in self._functions if f.name == function)
        jobs: dict[str, str] = {}
        for path in sorted(folder.iterdir()):
            try:
                jobs[path.name] = path.read_text().strip()
            except FileNotFoundError:
                continue
        return jobs

    def _set(self, function: Path, **pace: object) -> None:
        still = {
            "prepare": 0.0,
            "undo": 0.0,
            "verify": 0.0,
            "planned": 30,
            "off": False,
            "fails": "",
            "retryable": True,
        }
        self._fresh += 1
        fresh = self._machine / f"pace-{self._fresh}"
        self._paces[function.name] = {**still, **pace}
        fresh.write_text(json.dumps(self._paces[function.name]))
        fresh.rename(function / "pace")
