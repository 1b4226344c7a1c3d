"""Decisions about pods of a cluster with one node, which has a device of ours and one of another driver."""

from __future__ import annotations

from typing import Any

import builders
from builders import DRIVER, PROTECTED

from controller.allocate.decide import Decision, Decisions, ObjectSeen, PodID, PodQuestion, Settings
from dra_driver.api import codec
from dra_driver.api.core import Node
from dra_driver.api.meta import ObjectKey, Uid
from dra_driver.api.resource import DeviceClass, ResourceSlice

__all__ = ["RESOURCE", "OneNode"]

RESOURCE = "example.com/gpu"


class OneNode:
    """The classes ``gpu``, which ``RESOURCE`` also stands for, and ``nic`` select the devices of either."""

    def __init__(self, *, lends: bool = False) -> None:
        self.decisions = Decisions(Settings(drivers=(DRIVER,), lends=lends), lambda: 0.0)
        ours = builders.device_class("gpu", f'device.driver == "{DRIVER}"', extendedResourceName=RESOURCE)
        self.seen(DeviceClass, ours)
        self.seen(DeviceClass, builders.device_class("nic", 'device.driver == "nic.example"'))
        self.seen(Node, builders.node("n1", allocatable={"cpu": "8", "memory": "32Gi", "pods": "110"}))
        self.seen(ResourceSlice, builders.resource_slice("n1", builders.device("gpu-0", taints=[PROTECTED])))
        nic = builders.resource_slice("n1", builders.device("nic-0"), driver="nic.example")
        self.seen(ResourceSlice, nic)

    def seen(self, kind: type[Any], body: dict[str, Any]) -> None:
        """Have an object in the state of the decisions."""
        self.decisions.apply(ObjectSeen(codec.convert(kind, body)))

    def decided(self, name: str) -> Decision:
        """Return what is decided about a pod, whose UID is ``uid-`` and its name."""
        question = PodQuestion(PodID(ObjectKey(builders.NAMESPACE, name), Uid(f"uid-{name}")), 0.0)
        return self.decisions.decide(question).decision
