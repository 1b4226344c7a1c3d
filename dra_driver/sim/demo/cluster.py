"""The nodes of the demo: enough hardware for all examples at once."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Final

from dra_driver.errors import ConfigurationError
from dra_driver.sim.cluster_config import ClusterConfig, NodeConfig

__all__ = ["DEFAULT_NODES", "MAX_NODES", "demo_cluster"]

MAX_NODES: Final = 64
# The nodes that the DevicePolicies of deploy/examples/00-setup select.
_EXAMPLES: Final = {"dra-driver.dev/examples": "true"}
_EXTENDED: Final = NodeConfig("l4x4", labels={"dra-driver.dev/examples": "extended-resources"})
_NICS: Final = "dgx-h100-nics"
# By which the page groups nodes.
_RACK: Final = "topology.kubernetes.io/rack"
_NODES_OF_A_RACK: Final = 2

_NODES: Final = (
    NodeConfig("dgx-h100", nics=_NICS, labels=_EXAMPLES),
    NodeConfig("dgx-a100-40", labels=_EXAMPLES),
    NodeConfig("l4x8", labels=_EXAMPLES),
    NodeConfig("l4x8", labels=_EXAMPLES),
    NodeConfig("assorted", labels=_EXAMPLES),
    _EXTENDED,
)
# With fewer nodes, the first one has what the examples need.
_FEW: Final = (NodeConfig("examples", nics=_NICS, labels=_EXAMPLES), _EXTENDED)
_MORE: Final = ("mixed", "l4x4", "dgx-h200", "t4x2")
DEFAULT_NODES: Final = len(_NODES)


def demo_cluster(
    nodes: int | None = None, profile: str | None = None, kubeconfig: Path | None = None
) -> ClusterConfig:
    """Return the configuration of the demo's cluster.

    Args:
        nodes: number of nodes; if None, as many as show the examples best.
        profile: profile of all nodes; if None, they have different ones.
        kubeconfig: where to write the kubeconfig.

    Raises:
        ConfigurationError: the number of nodes is not allowed.
    """
    count = DEFAULT_NODES if nodes is None else nodes
    if not 1 <= count <= MAX_NODES:
        raise ConfigurationError(f"--nodes {count}: must be between 1 and {MAX_NODES}")
    if profile is not None:
        kinds = (NodeConfig(profile, labels=_EXAMPLES),) * count
    else:
        more = tuple(NodeConfig(p, labels=_EXAMPLES) for p in _MORE)
        kinds = (_NODES if count >= DEFAULT_NODES else _FEW) + more * count
    profiles = tuple(_in_rack(i, kind) for i, kind in enumerate(islice(kinds, count)))
    return ClusterConfig(profiles=profiles, kubeconfig=kubeconfig)


def _in_rack(i: int, node: NodeConfig) -> NodeConfig:
    return replace(node, labels={**node.labels, _RACK: f"r{i // _NODES_OF_A_RACK + 1}"})
