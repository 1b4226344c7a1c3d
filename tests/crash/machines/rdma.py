"""RDMA adapters: a tree of sysfs and of device nodes, whose numbers change."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from crash_gpus import address

from dra_driver.api.names import RDMA_DRIVER_NAME
from dra_driver.discovery.simulated import layout, profile

PROFILE = "dgx-h100-nics"
VERBS = "sys/class/infiniband_verbs"
SHARED = "/dev/infiniband/rdma_cm"


class RdmaMachine:
    """Eight ConnectX-7; implements ``Machine``.

    Each change of numbers is a tree of its own behind one link, so that no agent sees half of it.
    """

    driver = RDMA_DRIVER_NAME

    def __init__(self, root: Path, _node: str) -> None:
        self._root = root
        self._link = root / "nics"
        self._trees = 0
        self._shift = 0
        self._build()

    def arguments(self) -> Sequence[str]:
        roots = (f"--sysfs-root={self._link}/sys", f"--dev-root={self._link}/dev")
        return (*roots, f"--driver-name={self.driver}", "--backend=rdma")

    def environment(self) -> Mapping[str, str]:
        return {}

    def boot(self, chance: random.Random) -> None:
        self._shift += chance.randrange(1, 8)
        self._build()

    def swap(self) -> None:
        self._shift += 1
        self._build()

    def mistake(self, device: Mapping[str, Any], nodes: set[str], spec: Mapping[str, Any]) -> str:
        now = self.uverbs()[address(device["device"])]
        if nodes != {f"/dev/infiniband/{now}", SHARED}:
            return f"{device['device']}: {sorted(nodes)}, and its verbs are {now}"
        return ""

    def differences(self, records: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
        yield from ()

    def close(self) -> None:
        pass

    def uverbs(self) -> dict[str, str]:
        """Return the name of the verbs of each adapter, by PCI address."""
        # …/ADDRESS/infiniband_verbs/uverbsN
        links = (self._link / VERBS).iterdir()
        return {p.readlink().parent.parent.name: p.name for p in links}

    def _build(self) -> None:
        self._trees += 1
        tree = self._root / f"nics-{self._trees}"
        layout.build(profile.load(PROFILE), tree)
        links = sorted((tree / VERBS).iterdir())
        folders = {p.name: p.resolve() for p in links}
        names = list(folders)
        for path in links:
            path.unlink()
        for folder in folders.values():
            folder.rename(folder.with_name("moving"))
        for i, folder in enumerate(folders.values()):
            fresh = folder.with_name(names[(i + self._shift) % len(names)])
            folder.with_name("moving").rename(fresh)
            (tree / VERBS / fresh.name).symlink_to(os.path.relpath(fresh, tree / VERBS))
        aside = self._root / "nics.new"
        aside.symlink_to(tree.name)
        aside.rename(self._link)
        shutil.rmtree(self._root / f"nics-{self._trees - 2}", ignore_errors=True)
