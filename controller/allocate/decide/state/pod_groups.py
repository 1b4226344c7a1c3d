"""PodGroups as decisions know them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from controller.allocate.decide.state.objects import GroupKey, Objects, pod_group_of
from dra_driver.api.meta import ObjectKey
from dra_driver.api.scheduling import PodGroup

__all__ = ["MISSING", "PodGroupView", "is_gang"]

MISSING: Final = "does not exist (yet)"
"""What is wrong with a PodGroup that a pod names, where all of them are known."""


def is_gang(key: GroupKey, find: Callable[[ObjectKey], PodGroup | str]) -> bool:
    """Return whether a group is allocated as a whole: all are, but PodGroups with the policy basic.

    Args:
        key: of the group.
        find: gives a PodGroup, or says why it is not known.
    """
    name = pod_group_of(key)
    group = find(name) if name is not None else MISSING
    return not isinstance(group, PodGroup) or not group.is_basic


class PodGroupView:
    """All PodGroups.

    Attributes:
        objects: their newest versions.
        unknown: why they cannot be read; empty where they can.
    """

    def __init__(self) -> None:
        self.objects: Objects[PodGroup] = Objects()
        self.unknown = ""

    def is_gang(self, key: GroupKey) -> bool:
        """Return whether a group is allocated as a whole."""
        return is_gang(key, self.find)

    def find(self, key: ObjectKey) -> PodGroup | str:
        """Return a PodGroup, or why it is not known."""
        return self.unknown or self.objects.get(key) or MISSING
