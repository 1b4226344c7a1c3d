"""Decisions about pods of a cluster with one node, which has a device of ours and one of another driver.

Where devices may be granted, the pool of ours is open.
"""

from __future__ import annotations

from typing import Any

import builders
from builders import DRIVER, PROTECTED

from controller.allocate.decide import (
    Decision,
    Decisions,
    ObjectSeen,
    PodID,
    PodQuestion,
    PoolChanged,
    Settings,
)
from dra_driver.api import codec
from dra_driver.api.core import Node
from dra_driver.api.meta import ObjectKey, PoolName, Uid
from dra_driver.api.resource import DeviceClass, ResourceSlice
from dra_driver.ownership import PoolID
from dra_driver.structured import DEFAULT_POLICY

__all__ = ["RESOURCE", "OneNode"]

RESOURCE = "example.com/gpu"


class OneNode:
    """The classes ``gpu``, which ``RESOURCE`` also stands for, and ``nic`` select the devices of either."""

    def __init__(self, *, grants: bool = False) -> None:
        self.decisions = Decisions(Settings(drivers=(DRIVER,), grants=grants), lambda: 0.0)
        ours = builders.device_class("gpu", f'device.driver == "{DRIVER}"', extendedResourceName=RESOURCE)
        self.seen(DeviceClass, ours)
        self.seen(DeviceClass, builders.device_class("nic", 'device.driver == "nic.example"'))
        self.seen(Node, builders.node("n1", allocatable={"cpu": "8", "memory": "32Gi", "pods": "110"}))
        taints = [] if grants else [PROTECTED]
        self.seen(ResourceSlice, builders.resource_slice("n1", builders.device("gpu-0", taints=taints)))
        if grants:
            pool = PoolID(DRIVER, PoolName("n1"))
            self.decisions.apply(PoolChanged(pool, False, DEFAULT_POLICY, open=True))
        nic = builders.resource_slice("n1", builders.device("nic-0"), driver="nic.example")
        self.seen(ResourceSlice, nic)

    def seen(self, kind: type[Any], body: dict[str, Any]) -> None:
        """Have an object in the state of the decisions."""
        self.decisions.apply(ObjectSeen(codec.convert(kind, body)))

    def decided(self, name: str) -> Decision:
        """Return what is decided about a pod, whose UID is ``uid-`` and its name."""
        question = PodQuestion(PodID(ObjectKey(builders.NAMESPACE, name), Uid(f"uid-{name}")), 0.0)
        return self.decisions.decide(question).decision
