"""What the annotation ``dra-driver.dev/group-domain`` asks for: the levels of topology that a group shares.

Its items are separated by commas, the widest level first: ``LABEL`` or ``attribute:NAME``, with ``required:``
or ``preferred:`` before it; ``required`` is the default.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from dra_driver.structured import Level

__all__ = ["described", "levels_of", "node_sets"]

# Each combination of their values is a domain.
_MOST: Final = 4
_MOST_ATTRIBUTES: Final = 1
_LONGEST_SHOWN: Final = 80


def levels_of(text: str) -> tuple[Level, ...] | str:
    """Return the levels that an annotation names, or what is wrong with it."""
    levels: list[Level] = []
    for item in text.split(",") if text.strip() else ():
        kind, _, name = item.strip().rpartition(":")
        strictness, _, what = kind.partition(":")
        if strictness == "attribute" and not what:
            strictness, what = "", "attribute"
        if strictness not in ("", "required", "preferred") or what not in ("", "attribute") or not name:
            return (
                f"{item.strip()[:_LONGEST_SHOWN]!r} is not understood; a node label is, or attribute:NAME of "
                "devices, with required: or preferred: before it"
            )
        required = strictness != "preferred"
        levels.append(
            Level(attribute=name, required=required) if what else Level(label=name, required=required)
        )
    if len(levels) > _MOST:
        return f"more than {_MOST} levels are named"
    if sum(bool(level.attribute) for level in levels) > _MOST_ATTRIBUTES:
        return f"more than {_MOST_ATTRIBUTES} attribute of devices is named"
    return tuple(levels)


def described(levels: Sequence[Level]) -> str:
    """Return the levels that all members must share, for people; empty if there is none."""
    return " and one ".join(level.name for level in levels if level.required)


def node_sets(
    levels: Sequence[Level], labels: Mapping[str, Mapping[str, str]], held: set[str]
) -> list[set[str] | None]:
    """Return sets of nodes of which one must hold a group, as far as labels decide; None for all nodes.

    Args:
        levels: that the group shares.
        labels: of each node.
        held: nodes of members that have devices already, which decide for the others.
    """
    required = [level.label for level in levels if level.required and level.label]
    if not required:
        return [None]
    found: dict[tuple[str, ...], set[str]] = {}
    for name, of in labels.items():
        if all(label in of for label in required):
            found.setdefault(tuple(of[label] for label in required), set()).add(name)
    fitting = ((len(nodes), values) for values, nodes in found.items() if held <= nodes)
    return [found[values] for _, values in sorted(fitting)]
