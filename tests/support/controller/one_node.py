"""Decisions about pods of a cluster with one node, which has a device of ours and one of another driver.

Where devices may be granted, the pool of ours is open.
"""

from __future__ import annotations

import builders
from builders import DRIVER, PROTECTED
from decision_world import DecisionWorld

from dra_driver.api.resource import DeviceClass, ResourceSlice

__all__ = ["RESOURCE", "OneNode"]

RESOURCE = "example.com/gpu"


class OneNode(DecisionWorld):
    """The classes ``gpu``, which ``RESOURCE`` also stands for, and ``nic`` select the devices of either."""

    def __init__(self, *, grants: bool = False) -> None:
        super().__init__(grants=grants)
        ours = builders.device_class("gpu", f'device.driver == "{DRIVER}"', extendedResourceName=RESOURCE)
        self.seen(DeviceClass, ours)
        self.seen(DeviceClass, builders.device_class("nic", 'device.driver == "nic.example"'))
        self.node("n1", 1, taints=[] if grants else [PROTECTED])
        if grants:
            self.pool("n1")
        nic = builders.resource_slice("n1", builders.device("nic-0"), driver="nic.example")
        self.seen(ResourceSlice, nic)
