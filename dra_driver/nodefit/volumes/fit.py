"""Whether the volumes of a pod can be used on a node."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final

from dra_driver.api.core import Node
from dra_driver.api.storage import TOPOLOGY_LABELS, CSINode, TopologyTerm
from dra_driver.nodefit.volumes.matching import request_of
from dra_driver.nodefit.volumes.needs import VolumeNeeds, Zone
from dra_driver.nodefit.volumes.pods import ClaimUse
from dra_driver.nodefit.volumes.usage import VolumeUsage
from dra_driver.structured.model.nodeselection import selector_matches_labels

__all__ = ["VolumeFit"]

_GENERAL_LABELS: Final = dict(zip(TOPOLOGY_LABELS[:2], TOPOLOGY_LABELS[2:], strict=True))
_NO_DISK: Final = "that had no available disk"
_IN_USE: Final = (
    "unavailable due to PersistentVolumeClaim with ReadWriteOncePod access mode already in-use by another pod"
)
_FULL: Final = "that exceed max volume count"
_AFFINITY: Final = "that didn't match PersistentVolume's node affinity"
_UNBOUND: Final = "that didn't find available persistent volumes to bind"
_ZONE: Final = "that had no available volume zone"


class VolumeFit:
    """Looks at nodes for pods with equal needs; holds until something changes.

    Args:
        needs: what they ask for.
        usage: what other pods use.
        labels_of: gives the labels of a node by its name.

    Attributes:
        needs: of the pods.
    """

    def __init__(
        self, needs: VolumeNeeds, usage: VolumeUsage, labels_of: Callable[[str], Mapping[str, str]]
    ) -> None:
        self.needs = needs
        self._usage = usage
        self._available = [usage.available(of.request) for of in needs.unbound]
        self._planned = _planned(usage, labels_of) if any(self._available) else frozenset()
        self._drivers: dict[str, list[tuple[str, int]]] = {}
        for driver, volume, number in needs.handles:
            self._drivers.setdefault(driver, []).append((volume, number))

    def problem(self, node: Node, least: int | None = None) -> str:
        """Return why a node does not suit, as what it is, in kube-scheduler's words; empty where it does.

        Args:
            node: to be looked at.
            least: pods of lower priority than this count as evicted.
        """
        name, labels = node.metadata.name, node.metadata.labels or {}
        known = self._usage.objects.nodes.get(name)
        return (
            (_NO_DISK if self._disk_conflicts(name, least) else "")
            or (_IN_USE if self._is_in_use(name, least) else "")
            or (_FULL if known is not None and self._is_full(known, least) else "")
            or ("" if self._affinities_match(labels, known) else _AFFINITY)
            or ("" if self._binds(name, labels) else _UNBOUND)
            or ("" if _zones_match(self.needs.zones, labels) else _ZONE)
        )

    def _disk_conflicts(self, node: str, least: int | None) -> bool:
        if not self.needs.disks:
            return False
        mine = {disk.identity: disk.shareable for disk in self.needs.disks}
        return any(
            disk.identity in mine
            and not (disk.shareable and mine[disk.identity])
            and (least is None or priority >= least)
            for disk, priority in self._usage.disks(node)
        )

    def _is_in_use(self, node: str, least: int | None) -> bool:
        """Return whether claims for one pod are in use, wherever; evicted are pods of this node only."""
        conflicts = len(self.needs.exclusive)
        if conflicts and least is not None:
            for key in self.needs.exclusive:
                for user in self._usage.users(key).values():
                    if user.node == node and user.priority < least:
                        conflicts -= user.volumes.claims.count(ClaimUse(key))
        return conflicts > 0

    def _is_full(self, node: CSINode, least: int | None) -> bool:
        for driver, volumes in self._drivers.items():
            limit = node.limit(driver)
            if limit is None:
                continue
            there = self._usage.attached(node.metadata.name, driver)
            new = sum(n for v, n in volumes if there is None or not there.is_used(v, least))
            if new and new + (there.number(least) if there is not None else 0) > limit:
                return True
        return False

    def _affinities_match(self, labels: Mapping[str, str], node: CSINode | None) -> bool:
        return all(
            (affinity.plugin and node is not None and affinity.plugin in node.migrated)
            or selector_matches_labels(affinity.selector, labels)
            for affinity in self.needs.affinities
        )

    def _binds(self, node: str, labels: Mapping[str, str]) -> bool:
        """Return whether there are volumes for all unbound claims, or they can be made."""
        chosen: set[str] = set()
        for claim, available in zip(self.needs.unbound, self._available, strict=True):
            if claim.nodes:
                if node not in claim.nodes:
                    return False
                if not claim.only_made:
                    continue  # it is bound there for another pod
            elif available.unsure:
                continue
            elif volume := available.smallest(labels, self._planned | chosen if chosen else self._planned):
                chosen.add(volume)
                continue
            if not (claim.made and _topology_matches(claim.topologies, labels)):
                return False
        return True


def _planned(usage: VolumeUsage, labels_of: Callable[[str], Mapping[str, str]]) -> frozenset[str]:
    """Return the volumes that claims of pods get which are expected on nodes and not bound yet."""
    planned: set[str] = set()
    objects = usage.objects
    for user in usage.expected():
        claims = [c for use in user.volumes.claims if (c := objects.claims.get(use.key)) is not None]
        for claim in sorted(claims, key=lambda c: c.size):
            if (
                claim.is_bound
                or claim.selected_node is not None
                or claim.storage_class not in objects.classes
            ):
                continue
            available = usage.available(request_of(claim, objects))
            volume = available.smallest(labels_of(user.node), planned) if available else ""
            if volume:
                planned.add(volume)
    return frozenset(planned)


def _topology_matches(terms: Iterable[TopologyTerm], labels: Mapping[str, str]) -> bool:
    """Return whether a term holds (``MatchTopologySelectorTerms``); without any there is no condition."""
    terms = tuple(terms)
    return not terms or any(
        term.match_label_expressions
        and all(labels.get(r.key) in r.values for r in term.match_label_expressions)
        for term in terms
    )


def _zones_match(zones: Iterable[Zone], labels: Mapping[str, str]) -> bool:
    if not any(key in labels for key in TOPOLOGY_LABELS):
        return True  # as in clusters of one zone
    return all(
        labels.get(zone.key, labels.get(_GENERAL_LABELS.get(zone.key, zone.key))) in zone.values
        for zone in zones
    )
