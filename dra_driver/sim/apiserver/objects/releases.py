"""Releases of Kubernetes that the server can be, and their feature gates that are off by default."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from dra_driver.api.names import LISTS_GATE
from dra_driver.errors import ConfigurationError

__all__ = [
    "COMPOSITE_GATE",
    "COUNTERS_TOGETHER",
    "DEFAULT",
    "RELEASES",
    "WORKLOADS_GATE",
    "Served",
    "served",
]

DEFAULT: Final = "1.36"
COMPOSITE_GATE: Final = "CompositePodGroup"
WORKLOADS_GATE: Final = "GenericWorkload"
COUNTERS_TOGETHER: Final = "counters together"
"""Counters are taken in the slice of the devices that consume them only, as by Kubernetes 1.34."""

RELEASES: Final[Mapping[str, tuple[str, ...]]] = {
    DEFAULT: (LISTS_GATE,),
    "1.37": (
        COMPOSITE_GATE,
        "DRADerivedAttributes",
        "DRADeviceCompatibilityGroups",
        LISTS_GATE,
        "DRANodeAllocatableResources",
        "DRAOptionalNodeOperations",
        "DRAPartitionableDevicesType",
        "DRAWorkloadResourceClaims",
        WORKLOADS_GATE,
        "PodGroupPreemptionPolicy",
        "TopologyAwareWorkloadScheduling",
        "WorkloadWithJob",
    ),
}
"""Release → gates that can be turned on. Every other gate is as Kubernetes has it by default."""


@dataclass(frozen=True, slots=True)
class Served:
    """What a server serves.

    Attributes:
        release: the release, for example ``1.37``.
        gates: its feature gates that are on, of those that are off by default.
    """

    release: str = DEFAULT
    gates: frozenset[str] = frozenset()


def served(release: str, gates: Iterable[str]) -> Served:
    """Return what a server of a release with some gates serves.

    Args:
        release: one of ``RELEASES``.
        gates: feature gates that are on. And ``COUNTERS_TOGETHER``, which is none of Kubernetes.

    Raises:
        ConfigurationError: the release, or a gate of it, is not known.
    """
    if release not in RELEASES:
        raise ConfigurationError(
            f"Kubernetes {release!r} cannot be served: give one of {', '.join(RELEASES)}"
        )
    on = frozenset(gates)
    for gate in sorted(on - {*RELEASES[release], COUNTERS_TOGETHER}):
        elsewhere = [r for r, known in RELEASES.items() if gate in known]
        hint = f" (it is one of Kubernetes {', '.join(elsewhere)})" if elsewhere else ""
        raise ConfigurationError(
            f"feature gate {gate!r} cannot be turned on for Kubernetes {release}{hint}: give one of "
            f"{', '.join(RELEASES[release])}"
        )
    return Served(release, on)
