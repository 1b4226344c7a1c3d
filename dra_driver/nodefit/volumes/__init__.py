"""Where a pod can go because of its volumes, as kube-scheduler's filters decide it.

Counterparts of VolumeRestrictions, NodeVolumeLimits, VolumeBinding and VolumeZone (Kubernetes 1.36). What
storage drivers have left (CSIStorageCapacity) is not looked at. Nor are volumes of plugins that once were in
Kubernetes itself where a CSI driver serves them: on which nodes they can be used then, and that they are
attached. No node is said to be unsuitable for what is not known.
"""

from __future__ import annotations

from dra_driver.nodefit.volumes.fit import VolumeFit
from dra_driver.nodefit.volumes.needs import NO_NEEDS, VolumeNeeds, volume_needs
from dra_driver.nodefit.volumes.objects import STORAGE_KINDS, StorageObject, StorageObjects
from dra_driver.nodefit.volumes.pods import NO_VOLUMES, PodVolumes, claim_keys, volumes_of
from dra_driver.nodefit.volumes.usage import User, VolumeUsage

__all__ = [
    "NO_NEEDS",
    "NO_VOLUMES",
    "STORAGE_KINDS",
    "PodVolumes",
    "StorageObject",
    "StorageObjects",
    "User",
    "VolumeFit",
    "VolumeNeeds",
    "VolumeUsage",
    "claim_keys",
    "volume_needs",
    "volumes_of",
]
