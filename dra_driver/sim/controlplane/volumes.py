"""The volumes of pods as the stand-in for kube-scheduler sees them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dra_driver.api.core import Node, Pod
from dra_driver.api.meta import Resource
from dra_driver.api.storage import STORAGE_RESOURCES
from dra_driver.kube import Handler, Informer
from dra_driver.nodefit.volumes import User, VolumeFit, VolumeUsage, volume_needs, volumes_of
from dra_driver.ports import KubeClient

__all__ = ["FollowedVolumes"]


class FollowedVolumes:
    """Follows storage objects.

    Args:
        api: the API server.
        nodes: all nodes.

    Attributes:
        informers: to be run.
    """

    def __init__(self, api: KubeClient, nodes: Informer[Node]) -> None:
        self._nodes = nodes
        self._usage = VolumeUsage()
        self.informers = tuple(self._informer(api, resource) for resource in STORAGE_RESOURCES)

    def _informer(self, api: KubeClient, resource: Resource[Any]) -> Informer[Any]:
        informer = Informer(api, resource)
        informer.add_handler(
            Handler(
                added=self._usage.put,
                updated=lambda _, new: self._usage.put(new),
                deleted=lambda old: self._usage.remove(type(old), old.key),
            )
        )
        return informer

    def fit_of(self, pod: Pod, by_node: Mapping[str, Sequence[Pod]]) -> VolumeFit:
        """Return what says on which nodes the volumes of a pod can be used.

        Args:
            pod: not bound.
            by_node: pods that count on nodes.
        """
        there = {p.metadata.uid: (node, p) for node, pods in by_node.items() for p in pods if p.spec.volumes}
        self._usage.clear()
        for uid, (node, other) in there.items():
            bound = bool(other.spec.node_name)
            self._usage.add(uid, User(node, volumes_of(other), other.spec.priority, bound))
        return VolumeFit(volume_needs(pod, self._usage), self._usage, self._labels)

    def _labels(self, node: str) -> Mapping[str, str]:
        known = self._nodes.get_by_name(node)
        return (known.metadata.labels or {}) if known is not None else {}
