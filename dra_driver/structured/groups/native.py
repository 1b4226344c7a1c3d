"""What a PodGroup of ``scheduling.k8s.io`` asks of a group."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from dra_driver.api.names import GROUP_DOMAIN_ANNOTATION, GROUP_MIN_LABEL, GROUP_SIZE_LABEL
from dra_driver.api.scheduling import PodGroup
from dra_driver.structured.groups.members import Level
from dra_driver.structured.groups.terms import LARGEST_GROUP, GroupTerms, group_terms, levels_of

__all__ = ["pod_group_terms"]


def pod_group_terms(
    group: PodGroup, number: int, annotations: Iterable[Mapping[str, str]]
) -> GroupTerms | str | None:
    """Return what a PodGroup asks for, what of it is not supported, or None where its policy is no gang.

    More pods than ``minCount`` may belong to it: they join the others, as members of an elastic group do.

    kube-scheduler tries a group with a topology constraint in each domain in turn, and in every wrong one its
    plugin deallocates what its pods have been allocated in another. So levels stand in the annotation only.

    Args:
        group: as it was read.
        number: of its pods that count.
        annotations: of each member, and of each claim that a member uses.
    """
    parent, gang = group.spec.parent_composite_pod_group_name, group.spec.scheduling_policy.gang
    if group.spec.newer:
        return f"needs a newer controller: {group.spec.newer} is not known to this one"
    if parent:
        return (
            f"needs a newer controller: spec.parentCompositePodGroupName makes it a part of {parent}, and "
            "groups of groups are not allocated together"
        )
    if gang is None:
        return None
    if not 1 <= gang.min_count <= LARGEST_GROUP:
        return f"its minCount is {gang.min_count}, expected 1 to {LARGEST_GROUP}"
    constraints = group.spec.scheduling_constraints
    if constraints is not None and constraints.topology:
        return (
            "its topology constraint cannot be kept: kube-scheduler deallocates claims while it tries other "
            f"domains; name the level in the annotation {GROUP_DOMAIN_ANNOTATION} of its pods instead"
        )
    of_members = list(annotations)
    size, parts = max(number, gang.min_count), _parts(of_members)
    if parts is not None:
        if gang.min_count % parts.count:
            return (
                f"its minCount is {gang.min_count}, expected a multiple of {parts.count}: "
                f"{GROUP_DOMAIN_ANNOTATION} has so many members share each {parts.name}"
            )
        # As many as are there now say nothing about how many there will be.
        size = min(size + -size % parts.count, LARGEST_GROUP - LARGEST_GROUP % parts.count)
    labels = {GROUP_SIZE_LABEL: str(size), GROUP_MIN_LABEL: str(gang.min_count)}
    return group_terms([(labels, {}), *(({}, notes) for notes in of_members)])


def _parts(annotations: Iterable[Mapping[str, str]]) -> Level | None:
    """Return the level with a count of members for each domain, if any member names one."""
    texts = {notes.get(GROUP_DOMAIN_ANNOTATION, "") for notes in annotations}
    found = (
        level for levels in map(levels_of, sorted(texts)) if not isinstance(levels, str) for level in levels
    )
    return next((level for level in found if level.count), None)
