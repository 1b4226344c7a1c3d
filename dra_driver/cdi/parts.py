"""Edits of which a claim can choose parts, such as the capabilities of a driver."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

import msgspec

from dra_driver.cdi.spec import ContainerEdits, merge

__all__ = ["Parts"]


@dataclass(frozen=True, slots=True)
class Parts:
    """What a container gets in addition, by the names that a claim can choose.

    Attributes:
        edits: by name.
        default: the names that count where a claim says nothing.
    """

    edits: Mapping[str, ContainerEdits] = field(default_factory=dict)
    default: tuple[str, ...] = ()

    def added_to(self, common: ContainerEdits, chosen: Collection[str] | None) -> ContainerEdits:
        """Return the common edits with the chosen parts, in the order in which this object has them.

        Hooks of parts come before the common ones, which may work on what those have made.

        Args:
            common: what a container gets in any case.
            chosen: names; if None, ``default``. Those that are not known add nothing.
        """
        names = self.default if chosen is None else chosen
        added = merge(*(edits for name, edits in self.edits.items() if name in names))
        both = merge(common, added)
        return msgspec.structs.replace(both, hooks=tuple(dict.fromkeys((*added.hooks, *common.hooks))))
