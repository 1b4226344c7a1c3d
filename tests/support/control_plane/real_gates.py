"""Feature gates that the real components need for PodGroups, which are alpha in Kubernetes 1.36."""

from __future__ import annotations

import subprocess
from typing import NamedTuple

import pytest
from real_apiserver import binaries

__all__ = ["Flags", "pod_group_flags"]

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


def pod_group_flags() -> Flags:
    """Return the flags; skip the test where the release does not know these gates."""
    command = [str(binaries() / "kube-apiserver"), "--version"]
    release = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()[-1]
    if not release.startswith(_RELEASE):
        pytest.skip(f"PodGroups are tested with Kubernetes {_RELEASE}x, not {release}")
    gates = f"--feature-gates={','.join(f'{gate}=true' for gate in _GATES)}"
    return Flags((gates, "--runtime-config=scheduling.k8s.io/v1alpha2=true"), (gates,))
