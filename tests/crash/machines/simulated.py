"""Simulated GPUs: a profile in a file, whose device nodes and driver change as on a real machine."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from crash_gpus import PROFILE, Gpus, address
from manifest_files import documents

from dra_driver.api.names import DEFAULT_DRIVER_NAME
from dra_driver.sim.profiles import device_nodes, write_profile

# Each of another boot. Containers see them in a variable, which stands for the driver's files.
VERSIONS = ("550.163.01", "570.148.08", "580.65.06")
VARIABLE = "DRIVER_FILES"


class SimulatedMachine:
    """Eight H100 that do not exist; implements ``Machine``."""

    driver = DEFAULT_DRIVER_NAME

    def __init__(self, root: Path, node: str) -> None:
        self._root = root
        self._gpus = Gpus(root, node)
        self._profile = root / "profile.yaml"
        self._version = ""
        write_profile(PROFILE, self._profile)

    def arguments(self) -> Sequence[str]:
        return (
            f"--sysfs-root={self._root}/sys",
            f"--dev-root={self._root}/dev",
            "--passthrough",
            "--passthrough-claim-namespace=*",
            f"--backend=simulated={self._profile}",
        )

    def environment(self) -> Mapping[str, str]:
        return {}

    def boot(self, chance: random.Random) -> None:
        self._gpus.boot()
        self._version = chance.choice([v for v in VERSIONS if v != self._version])
        self._change(self._other_driver)
        self.swap()

    def swap(self) -> None:
        self._change(_other_nodes)

    def mistake(self, device: Mapping[str, Any], nodes: set[str], spec: Mapping[str, Any]) -> str:
        now = device_nodes(self._profile)
        gpu = device.get("partition", {}).get("gpu", device["device"])
        if nodes != now[address(gpu)]:
            return f"{device['device']}: {sorted(nodes)}, not {sorted(now[address(gpu)])}"
        edits = (spec.get("containerEdits", {}), *(d["containerEdits"] for d in spec["devices"]))
        seen = {v for e in edits for v in e.get("env", ()) if v.startswith(f"{VARIABLE}=")}
        if seen != {f"{VARIABLE}={self._version}"}:
            return f"{device['device']}: {sorted(seen)}, and the driver is {self._version}"
        return ""

    def differences(self, records: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
        return self._gpus.differences(records)

    def close(self) -> None:
        pass

    def _other_driver(self, document: dict[str, Any]) -> None:
        document["driverVersion"] = self._version
        for gpu in document["gpus"]:
            gpu["env"] = {VARIABLE: self._version}

    def _change(self, change: Callable[[dict[str, Any]], None]) -> None:
        (document,) = documents(self._profile)
        change(document)
        fresh = self._profile.with_suffix(".new")
        fresh.write_text(json.dumps(document))  # which is YAML
        fresh.rename(self._profile)


def _other_nodes(document: dict[str, Any]) -> None:
    nodes = [gpu["deviceNodes"] for gpu in document["gpus"]]
    for gpu, others in zip(document["gpus"], (*nodes[1:], nodes[0]), strict=True):
        gpu["deviceNodes"] = others
