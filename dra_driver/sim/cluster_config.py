"""The configuration of an embedded cluster."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dra_driver.api.names import DEFAULT_DRIVER_NAME, RDMA_DRIVER_NAME
from dra_driver.sim.apiserver import DEFAULT
from dra_driver.sim.kubelet import KubeletSettings
from dra_driver.sim.processes import Spawn, spawn

__all__ = ["ClusterConfig", "NodeConfig"]


@dataclass(frozen=True, slots=True)
class NodeConfig:
    """One node.

    Attributes:
        profile: profile of its simulated GPUs: a built-in one or a file; empty if it has none.
        nics: profile of its RDMA NICs, which a second plugin publishes: a built-in one or a file; empty if it
            has none.
        labels: labels of the Node object, beside the usual ones.
        taints: taints of the Node object.
        backends: ``NAME[=ARG]`` of each backend by which its node agent finds what this computer has.
    """

    profile: str = ""
    nics: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    taints: tuple[Mapping[str, str], ...] = ()
    backends: tuple[str, ...] = ()

    @property
    def devices(self) -> str:
        """Where its devices come from, for people."""
        return ", ".join(filter(None, (self.profile, *self.backends)))


@dataclass(frozen=True, slots=True)
class ClusterConfig:
    """The parts that are started.

    Attributes:
        profiles: the nodes; a plain string is a node with that profile and nothing else.
        kubeconfig: where to write the kubeconfig; if None, below the cluster's directory.
        driver_name: name of the driver under test.
        allocator: ``controller`` or ``scheduler``.
        kubelet: delays of the kubelets.
        run_controller: whether to start the controller; tests may bring their own.
        open_pools: whether its pools are open, as those of an installation are; it has its account then.
        log_level: log level of the child processes.
        plugin_flags: further flags of the node agents of GPUs, on nodes with simulated ones.
        controller_flags: further flags of the controller.
        manifests: objects that are created before anything runs.
        kubernetes: release of Kubernetes that the API server serves the API of.
        gates: feature gates of that release that are on, of those that are off by default.
        spawn: starts the child processes.
    """

    profiles: tuple[NodeConfig | str, ...] = ("l4x4",)
    kubeconfig: Path | None = None
    driver_name: str = DEFAULT_DRIVER_NAME
    allocator: str = "controller"
    kubelet: KubeletSettings = field(default_factory=KubeletSettings.quick)
    run_controller: bool = True
    open_pools: bool = True
    log_level: str = "info"
    plugin_flags: tuple[str, ...] = ()
    controller_flags: tuple[str, ...] = ()
    manifests: tuple[dict[str, Any], ...] = ()
    kubernetes: str = DEFAULT
    gates: tuple[str, ...] = ()
    spawn: Spawn = spawn

    @property
    def nodes(self) -> tuple[NodeConfig, ...]:
        """The nodes, in order."""
        return tuple(NodeConfig(p) if isinstance(p, str) else p for p in self.profiles)

    @property
    def opens_pools(self) -> bool:
        """Whether pools are to be open: without a controller nobody would take the gate off pods."""
        return self.open_pools and self.run_controller

    @property
    def drivers(self) -> tuple[str, ...]:
        """Names of the drivers of which plugins run on any node."""
        nics = any(node.nics for node in self.nodes)
        return (self.driver_name, RDMA_DRIVER_NAME) if nics else (self.driver_name,)
