"""On which of a pod's nodes its volumes can be used, kept up to date node by node."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container
from dataclasses import dataclass, field

from dra_driver.api.core import Node
from dra_driver.nodefit import NodeRoom, PodNeeds
from dra_driver.nodefit.volumes import VolumeFit

__all__ = ["VolumeView"]


@dataclass(slots=True)
class VolumeView:
    """Of the nodes that can take pods but for their volumes, those on which these can be used.

    Attributes:
        fit: of their volumes.
        needs: of each pod besides.
        rests_on: another value when all nodes are to be looked at again.
        seen: how much of the log of changed nodes is in it.
        nodes: that are left.
        evicting: that would be left if pods of lower priority were evicted.
        reasons: nodes that are left out.
        rejected: reason → number of nodes.
    """

    fit: VolumeFit
    needs: PodNeeds
    rests_on: tuple[int, int] = (0, 0)
    seen: int = 0
    nodes: set[str] = field(default_factory=set)
    evicting: set[str] = field(default_factory=set)
    reasons: dict[str, str] = field(default_factory=dict)
    rejected: Counter[str] = field(default_factory=Counter)

    def look(
        self, name: str, node: Node | None, room: NodeRoom, fitting: Container[str], evicting: Container[str]
    ) -> None:
        """Work out the answer for a node.

        Args:
            name: of the node.
            node: None where it is gone.
            room: what is taken of it.
            fitting: nodes that can take the pods but for their volumes.
            evicting: likewise, if pods of lower priority were evicted.
        """
        if (old := self.reasons.pop(name, None)) is not None:
            self.rejected[old] -= 1
        self.nodes.discard(name)
        self.evicting.discard(name)
        has_room = name in fitting
        if node is None or not (has_room or name in evicting):
            return
        reason = self.fit.problem(node)
        if not reason:
            (self.nodes if has_room else self.evicting).add(name)
            return
        if has_room:
            self.reasons[name] = reason
            self.rejected[reason] += 1
        below = self.needs.preempts and room.has_below(self.needs.priority)
        if below and not self.fit.problem(node, self.needs.priority):
            self.evicting.add(name)
