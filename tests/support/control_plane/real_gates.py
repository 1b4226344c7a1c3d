"""Feature gates that the real components need: for the controller's taint, and for PodGroups."""

from __future__ import annotations

import subprocess
from typing import NamedTuple

import pytest
from real_apiserver import binaries, feature_gates, gate_flag

__all__ = ["Flags", "pod_group_flags", "taint_flags"]

# Without the first there is no allocation by the controller; the tests ask for memory, too.
_NEEDED = ("DRADeviceTaints", "DRAConsumableCapacity", "DRAPartitionableDevices", "DRAExtendedResource")
_RELEASE = "v1.36."
_GATES = (
    "GenericWorkload",
    "GangScheduling",
    "TopologyAwareWorkloadScheduling",
    "DRAWorkloadResourceClaims",
)


class Flags(NamedTuple):
    """Flags of the API server, and of the other components."""

    server: tuple[str, ...]
    others: tuple[str, ...]


def taint_flags() -> Flags:
    """Return the flags without which no controller allocates; none where the gates are on by default."""
    if all(feature_gates(binaries() / "kube-apiserver").get(gate) for gate in _NEEDED):
        return Flags((), ())
    gates = gate_flag(*_NEEDED)
    # kube-scheduler watches the rules of taints in this version.
    return Flags((gates, "--runtime-config=resource.k8s.io/v1alpha3=true"), (gates,))


def pod_group_flags() -> Flags:
    """Return the flags; skip the test where the release does not know these gates."""
    command = [str(binaries() / "kube-apiserver"), "--version"]
    release = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()[-1]
    if not release.startswith(_RELEASE):
        pytest.skip(f"PodGroups are tested with Kubernetes {_RELEASE}x, not {release}")
    gates = f"--feature-gates={','.join(f'{gate}=true' for gate in _GATES)}"
    return Flags((gates, "--runtime-config=scheduling.k8s.io/v1alpha2=true"), (gates,))
