"""The stand-in kubelet: it registers plugins, prepares claims, "runs" pods and wipes slices.

It speaks real gRPC over real Unix sockets to real plugin processes; only the containers are simulated. It
does not evict, probe, pull images, mount volumes or measure anything.
"""

from __future__ import annotations

from dra_driver.sim.kubelet.node import SimKubelet
from dra_driver.sim.kubelet.runtime import RunningContainer, SimRuntime
from dra_driver.sim.kubelet.settings import KubeletSettings, NodeLayout

__all__ = ["KubeletSettings", "NodeLayout", "RunningContainer", "SimKubelet", "SimRuntime"]
