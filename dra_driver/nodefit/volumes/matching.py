"""Which of the volumes that are there an unbound claim would get on a node.

The rules are those of ``FindMatchingVolume`` in ``k8s.io/component-helpers/storage/volume``: a volume that is
kept for the claim, else the smallest one that has what the claim asks for. Of two that are equally small the
first by name is taken here; kube-scheduler takes either.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from dra_driver.api.resource import NodeSelector, NodeSelectorRequirement
from dra_driver.api.storage import PersistentVolume, PersistentVolumeClaim
from dra_driver.nodefit.volumes.objects import StorageObjects
from dra_driver.structured.model.nodeselection import requirements_hold, selector_matches_labels

__all__ = ["Available", "ClaimRequest", "available_for", "request_of"]

_FILESYSTEM = "Filesystem"


class ClaimRequest(NamedTuple):
    """What a claim asks of a volume.

    Attributes:
        storage_class: name.
        size: bytes × 1e9.
        modes: of access, that the volume must have all.
        mode: of the volume: ``Filesystem`` or ``Block``.
        attributes: VolumeAttributesClass; empty: none.
        selector: requirements on labels of the volume.
        kept: names of volumes that are kept for this very claim and are as it asks for.
        unsure: its selector is not known.
    """

    storage_class: str
    size: int
    modes: tuple[str, ...]
    mode: str
    attributes: str
    selector: tuple[NodeSelectorRequirement, ...]
    kept: tuple[str, ...]
    unsure: bool


def request_of(claim: PersistentVolumeClaim, objects: StorageObjects) -> ClaimRequest:
    """Return what a claim asks of a volume."""
    spec = claim.spec
    request = ClaimRequest(
        claim.storage_class,
        claim.size,
        spec.access_modes,
        spec.volume_mode or _FILESYSTEM,
        spec.volume_attributes_class_name or "",
        spec.selector.requirements if spec.selector is not None else (),
        (),
        claim.left_out,
    )
    kept = tuple(
        v.metadata.name
        for v in objects.kept_for(claim)
        if v.storage_class == request.storage_class and _is_large_enough(v, request)
    )
    return request._replace(kept=kept)


def _is_large_enough(volume: PersistentVolume, request: ClaimRequest) -> bool:
    """Return whether a volume is as asked for, whoever it is for."""
    return (
        volume.size >= request.size
        and (volume.spec.volume_mode or _FILESYSTEM) == request.mode
        and (volume.spec.volume_attributes_class_name or "") == request.attributes
        and not volume.metadata.deletion_timestamp
    )


def _is_available(volume: PersistentVolume, request: ClaimRequest) -> bool:
    return (
        volume.spec.claim_ref is None
        and volume.status.phase == "Available"
        and _is_large_enough(volume, request)
        and (volume.left_out or requirements_hold(request.selector, volume.metadata.labels or {}))
        and set(request.modes) <= set(volume.spec.access_modes)
    )


class _Ranked(NamedTuple):
    size: int
    name: str


@dataclass(frozen=True, slots=True)
class Available:
    """The volumes that would do for a claim on some node, ordered so that one node takes few looks.

    Attributes:
        unsure: of some volume it is not known whether it would do.
        pinned: label of nodes and its value → volumes that nodes with it can use, smallest first.
        others: volumes with other conditions on nodes, smallest first.
    """

    unsure: bool
    pinned: Mapping[tuple[str, str], tuple[_Ranked, ...]]
    keys: tuple[str, ...]
    others: tuple[tuple[_Ranked, NodeSelector | None], ...]

    def __bool__(self) -> bool:
        return self.unsure or bool(self.pinned) or bool(self.others)

    def smallest(self, labels: Mapping[str, str], excluded: Collection[str]) -> str:
        """Return the name of the volume that the claim gets on a node; empty where there is none.

        Args:
            labels: of the node.
            excluded: names of volumes that other claims get.
        """
        found = list(self._first_pinned(labels, excluded))
        best = min(found, default=None)
        for ranked, selector in self.others:
            if best is not None and best < ranked:
                break
            if ranked.name not in excluded and (
                selector is None or selector_matches_labels(selector, labels)
            ):
                best = ranked
                break
        return "" if best is None else best.name

    def _first_pinned(self, labels: Mapping[str, str], excluded: Collection[str]) -> Iterator[_Ranked]:
        for key in self.keys:
            volumes = self.pinned.get((key, labels.get(key, "\0")), ())
            first = next((ranked for ranked in volumes if ranked.name not in excluded), None)
            if first is not None:
                yield first


def available_for(request: ClaimRequest, objects: StorageObjects) -> Available:
    """Return the volumes that would do for a claim: one that is kept for it alone, if there is one."""
    volumes: Iterable[PersistentVolume]
    if request.kept:
        volumes = [objects.volumes[request.kept[0]]]
    else:
        volumes = (v for v in objects.volumes_of_class(request.storage_class) if _is_available(v, request))
    pinned: dict[tuple[str, str], list[_Ranked]] = {}
    others: list[tuple[_Ranked, NodeSelector | None]] = []
    unsure = request.unsure
    for volume in volumes:
        unsure = unsure or volume.left_out
        affinity = volume.spec.node_affinity
        selector = affinity.required if affinity is not None else None
        ranked = _Ranked(volume.size, volume.metadata.name)
        places = _pins(selector)
        for place in places:
            pinned.setdefault(place, []).append(ranked)
        if not places:
            others.append((ranked, selector))
    return Available(
        unsure,
        {place: tuple(sorted(of)) for place, of in pinned.items()},
        tuple(sorted({key for key, _ in pinned})),
        tuple(sorted(others, key=lambda pair: pair[0])),
    )


def _pins(selector: NodeSelector | None) -> list[tuple[str, str]]:
    """Return the label of which a node needs one of these values, where that is all that it needs."""
    if selector is None or len(selector.node_selector_terms) != 1:
        return []
    (term,) = selector.node_selector_terms
    if term.match_fields or len(term.match_expressions) != 1:
        return []
    (requirement,) = term.match_expressions
    if requirement.operator != "In":
        return []
    return [(requirement.key, value) for value in dict.fromkeys(requirement.values)]
