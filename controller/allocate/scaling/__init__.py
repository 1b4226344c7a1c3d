"""Pods that only another node could serve are shown to whatever adds nodes: their gate is lifted.

A cluster autoscaler looks at pods that kube-scheduler reports as unschedulable, and at none that a gate holds
back. So a pod loses its gate before it has devices where a DevicePolicy says that such nodes may come
(``AddedNodes``), a while after it began to wait, not too many at a time, and the members of a group together
(``ScaleUp``). It goes on waiting here with the rank that it had: whoever has devices first, this controller
or kube-scheduler in its own pools, serves it.
"""

from __future__ import annotations

from controller.allocate.scaling.added_nodes import AddedNodes
from controller.allocate.scaling.scale_up import ScaleUp

__all__ = ["AddedNodes", "ScaleUp"]
