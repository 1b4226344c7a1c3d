"""One node of the embedded cluster, and what claims have left on it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dra_driver.discovery.simulated.backend import STATE_FILE as GPU_SETTINGS
from dra_driver.sim.cluster_config import NodeConfig
from dra_driver.sim.kubelet import NodeLayout, SimKubelet
from dra_driver.sim.processes import ManagedProcess
from kubelet_plugin.claims.checkpoint_file import read_checkpoint

__all__ = ["SimNode"]


@dataclass(slots=True)
class SimNode:
    """One simulated node.

    Attributes:
        kubelet: the stand-in kubelet that runs at present.
        plugin: the node agent's process.
        nic_plugin: process of the node agent that publishes NICs; None if the node has none.
    """

    name: str
    config: NodeConfig
    layout: NodeLayout
    kubelet: SimKubelet
    plugin: ManagedProcess
    nic_plugin: ManagedProcess | None = None
    task: asyncio.Task[None] | None = None

    def leftovers(self) -> list[str]:
        """Return what claims have left on the node: CDI files and entries of the two checkpoints."""
        found = [f"CDI file {path.name}" for path in sorted(self.layout.cdi.iterdir()) if path.is_file()]
        found += [f"kubelet checkpoint entry of {key}" for key in self.kubelet.claims.claims]
        for folder in sorted({path.parent for path in self.layout.state.rglob("checkpoint.json*")}):
            claims = read_checkpoint(folder / "checkpoint.json")
            found += [f"plugin checkpoint entry of {claim.key}" for claim in claims]
        # What containers wrote for daemons that have ended is removed later; its names begin with a dot.
        found += [f"MPS daemon of {path.name}" for path in sorted(self.layout.state.glob("mps/[!.]*"))]
        found += [
            f"MIG instances of {uuid}" for uuid, gpu in self.gpu_settings().items() if gpu.get("instances")
        ]
        return [f"{self.name}: {item}" for item in found]

    def gpu_settings(self) -> Mapping[str, Mapping[str, Any]]:
        """Return UUID → settings of each simulated GPU: time slice, compute mode, MIG mode and instances."""
        try:
            found: dict[str, dict[str, Any]] = json.loads((self.layout.state / GPU_SETTINGS).read_bytes())
        except FileNotFoundError:
            return {}
        return found
