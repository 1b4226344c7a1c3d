"""What decides whether a pod fits, without its name: pods with equal signatures get equal answers."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Sequence

from dra_driver.api import codec
from dra_driver.api.core import Pod
from dra_driver.api.names import TOPOLOGY_ANNOTATION
from dra_driver.api.resource import ResourceClaim
from dra_driver.nodefit import needs_of
from dra_driver.nodefit.volumes import NO_NEEDS, VolumeNeeds

__all__ = ["digest", "requests_of", "signature_of"]


def signature_of(
    pod: Pod,
    claims: Sequence[ResourceClaim],
    avoided: Collection[str],
    beside: bytes = b"",
    volumes: VolumeNeeds = NO_NEEDS,
    shared: Sequence[ResourceClaim] = (),
) -> bytes:
    """Return what decides whether a pod fits: equal signatures get equal answers in one state of the cluster.

    Args:
        pod: that waits.
        claims: that it needs allocated, of its own; none where its claims are shared or partly allocated:
            then the pod is a signature of its own, or of those that share them.
        avoided: nodes that are left out for this pod.
        beside: what decides where it may go beside other pods.
        volumes: what its volumes ask of a node, as far as that is looked at.
        shared: claims that it needs allocated and other pods may use, where these are all of its claims: pods
            with the same ones, of which there may be thousands, get them together.
    """
    if not (claims or shared) or avoided or pod.spec.node_name:
        return str(pod.key).encode()
    spec = pod.spec
    conditions = codec.encode(
        [spec.node_selector, spec.affinity, spec.tolerations, needs_of(pod), volumes, pod.left_out]
    )
    asked = requests_of(claims) if claims else digest(codec.encode([c.metadata.uid for c in shared]))
    return digest(asked + conditions + beside)


def requests_of(claims: Iterable[ResourceClaim]) -> bytes:
    """Return what claims ask for, without their names: the same for claims from one template."""
    return digest(
        codec.encode([[c.spec, (c.metadata.annotations or {}).get(TOPOLOGY_ANNOTATION, "")] for c in claims])
    )


def digest(content: bytes) -> bytes:
    """Return a short name for what may be a megabyte of selectors and affinity, and is kept as a key."""
    return hashlib.blake2b(content, digest_size=16).digest()
