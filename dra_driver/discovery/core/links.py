"""Groups of devices that direct links connect."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

__all__ = ["groups"]


def groups(links: Mapping[str, Iterable[str]]) -> dict[str, str]:
    """Return device → name of its group: the first, by name, of all devices that it reaches over links.

    Args:
        links: device → its peers; ``switch`` is a peer that connects all that have it. Peers that are no
            key of the mapping are ignored, and a link counts in both directions.

    Returns:
        Only devices that have at least one link.
    """
    parent: dict[str, str] = {}

    def root(name: str) -> str:
        while parent.setdefault(name, name) != name:
            name = parent[name]
        return name

    linked: set[str] = set()
    for device, peers in links.items():
        for peer in peers:
            if peer != "switch" and peer not in links:
                continue
            linked |= {device, peer} - {"switch"}
            a, b = root(device), root(peer)
            if a != b:
                parent[max(a, b)] = min(a, b)
    # "switch" is a node of the graph, never the name of a group.
    best: dict[str, str] = {}
    for device in sorted(linked):
        best.setdefault(root(device), device)
    return {device: best[root(device)] for device in linked}
