"""What is to be explained: ``pod/x``, ``claim/x``, ``deploy/x``. Pure.

The pods of a Deployment and the like are found by their owner references, so that no right to read these
objects is needed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from dra_driver.api.core import Pod
from dra_driver.errors import InvalidInput
from dra_driver.suggestions import did_you_mean

__all__ = [
    "CLAIM",
    "DEVICE",
    "NODE",
    "POD",
    "Target",
    "is_target",
    "parse_target",
    "parse_targets",
    "pods_of",
]

POD: Final = "Pod"
CLAIM: Final = "ResourceClaim"
NODE: Final = "Node"
DEVICE: Final = "device"
_DEPLOYMENT: Final = "Deployment"
_REPLICA_SET: Final = "ReplicaSet"
# The names that kubectl takes, and "claim".
_KINDS: Final = {
    "pod": POD,
    "pods": POD,
    "po": POD,
    "claim": CLAIM,
    "claims": CLAIM,
    "resourceclaim": CLAIM,
    "resourceclaims": CLAIM,
    "template": CLAIM,
    "resourceclaimtemplate": CLAIM,
    "deploy": _DEPLOYMENT,
    "deployment": _DEPLOYMENT,
    "deployments": _DEPLOYMENT,
    "rs": _REPLICA_SET,
    "replicaset": _REPLICA_SET,
    "replicasets": _REPLICA_SET,
    "sts": "StatefulSet",
    "statefulset": "StatefulSet",
    "statefulsets": "StatefulSet",
    "ds": "DaemonSet",
    "daemonset": "DaemonSet",
    "daemonsets": "DaemonSet",
    "job": "Job",
    "jobs": "Job",
    "node": NODE,
    "nodes": NODE,
    "no": NODE,
    "device": DEVICE,
    "devices": DEVICE,
}
_HASH_LABEL: Final = "pod-template-hash"


class Target(NamedTuple):
    """An object that is named on the command line.

    Attributes:
        kind: ``Pod``, ``ResourceClaim``, a kind that makes pods, ``Node``, or ``device``.
        name: of the object; of a device, ``NODE/DEVICE``.
    """

    kind: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"


def parse_target(text: str) -> Target:
    """Return what ``KIND/NAME`` names.

    Raises:
        InvalidInput: it has another form, or the kind is not known.
    """
    found = _target(text)
    if found is None:
        meant = did_you_mean(text.partition("/")[0].lower(), _KINDS)
        raise InvalidInput(
            f"{text!r}: KIND/NAME is wanted, such as pod/NAME; KIND is pod, claim, deploy, rs, sts, ds, "
            f"job, node or device (device/NODE/NAME), and -n names the namespace{meant}"
        )
    return found


def parse_targets(words: Sequence[str]) -> list[Target]:
    """Return what words name, each ``KIND/NAME``, or as kubectl takes them ``KIND NAME NAME``.

    Raises:
        InvalidInput: as for ``parse_target``.
    """
    if len(words) > 1 and "/" not in words[0] and words[0].lower().partition(".")[0] in _KINDS:
        words = [f"{words[0]}/{name}" for name in words[1:]]
    return [parse_target(word) for word in words]


def is_target(text: str) -> bool:
    """Return whether a text has the form of ``KIND/NAME``."""
    return _target(text) is not None


def _target(text: str) -> Target | None:
    kind, slash, name = text.partition("/")
    known = _KINDS.get(kind.lower().partition(".")[0])
    parts = name.split("/")
    if not slash or known is None or not all(parts) or len(parts) != (2 if known == DEVICE else 1):
        return None
    return Target(known, name)


def pods_of(target: Target, namespace: str, pods: Iterable[Pod]) -> list[Pod]:
    """Return the pod that is named, or the pods that the named object owns, in order of their names."""
    found = [p for p in pods if p.metadata.namespace == namespace and _belongs(p, target)]
    return sorted(found, key=lambda p: p.metadata.name)


def _belongs(pod: Pod, target: Target) -> bool:
    if target.kind == POD:
        return pod.metadata.name == target.name
    owner = next((o for o in pod.metadata.owner_references or () if o.controller), None)
    if owner is None:
        return False
    if target.kind == _DEPLOYMENT:
        # A Deployment names its ReplicaSets after itself and the hash of the pod template.
        suffix = (pod.metadata.labels or {}).get(_HASH_LABEL, "")
        return owner.kind == _REPLICA_SET and bool(suffix) and owner.name == f"{target.name}-{suffix}"
    return (owner.kind, owner.name) == (target.kind, target.name)
