"""The volumes that a pod names."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from dra_driver.api.core import Pod, PodVolume
from dra_driver.api.meta import ObjectKey

__all__ = ["NO_VOLUMES", "ClaimUse", "Disk", "PodVolumes", "claim_keys", "volumes_of"]

# One character more than any name has.
_LONGEST_NAME: Final = 254
_MOST_MONITORS: Final = 16


class ClaimUse(NamedTuple):
    """A PersistentVolumeClaim that a pod uses.

    Attributes:
        key: its namespace and name.
        ephemeral: whether it is made for the pod, by ``volumes[].ephemeral``.
    """

    key: ObjectKey
    ephemeral: bool = False


class Disk(NamedTuple):
    """A disk that a pod itself names, and that two pods of a node cannot both write to.

    Attributes:
        identity: equal for the same disk.
        shareable: whether two pods may use it that both only read.
    """

    identity: tuple[str, ...]
    shareable: bool


class PodVolumes(NamedTuple):
    """The volumes of a pod that decide where it can go.

    Attributes:
        claims: in the order of the pod's volumes.
        disks: of volumes without a claim.
    """

    claims: tuple[ClaimUse, ...] = ()
    disks: tuple[Disk, ...] = ()


NO_VOLUMES: Final = PodVolumes()


def volumes_of(pod: Pod) -> PodVolumes:
    """Return the volumes of a pod that decide where it can go."""
    if not pod.spec.volumes:
        return NO_VOLUMES
    claims = [use for volume in pod.spec.volumes if (use := _claim(pod, volume)) is not None]
    return PodVolumes(tuple(claims), tuple(sorted(_disks(pod.spec.volumes))))


def claim_keys(pod: Pod) -> Iterable[ObjectKey]:
    """Return the keys of the PersistentVolumeClaims that a pod uses."""
    return [use.key for use in volumes_of(pod).claims]


def _claim(pod: Pod, volume: PodVolume) -> ClaimUse | None:
    namespace = pod.metadata.namespace
    if volume.persistent_volume_claim is not None:
        name = volume.persistent_volume_claim.claim_name
        return ClaimUse(ObjectKey(namespace, name[:_LONGEST_NAME]))
    if volume.ephemeral is not None:
        # The name is made by k8s.io/component-helpers/storage/ephemeral.
        name = f"{pod.metadata.name}-{volume.name}"
        return ClaimUse(ObjectKey(namespace, name[:_LONGEST_NAME]), ephemeral=True)
    return None


def _disks(volumes: Iterable[PodVolume]) -> Iterator[Disk]:
    """Yield what ``isVolumeConflict`` of VolumeRestrictions compares."""
    for volume in volumes:
        if (disk := volume.gce_persistent_disk) is not None:
            yield Disk(("gce", disk.pd_name), disk.read_only)
        if (disk := volume.aws_elastic_block_store) is not None:
            yield Disk(("aws", disk.volume_id), shareable=False)
        if (disk := volume.iscsi) is not None:
            yield Disk(("iscsi", disk.iqn), disk.read_only)
        if (disk := volume.rbd) is not None:
            for monitor in disk.monitors[:_MOST_MONITORS]:
                yield Disk(("rbd", monitor, disk.pool, disk.image), disk.read_only)
