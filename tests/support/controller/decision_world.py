"""Decisions about pods, fed by a test with what the controller would tell them."""

from __future__ import annotations

from typing import Any

import builders
from builders import DRIVER

from controller.allocate.decide import (
    ClaimSeen,
    Decision,
    Decisions,
    ObjectSeen,
    PodID,
    PodQuestion,
    PoolChanged,
    Settings,
)
from dra_driver.api import codec
from dra_driver.api.core import Node, Pod
from dra_driver.api.meta import ObjectKey, PoolName, Uid
from dra_driver.api.resource import DeviceClass, ResourceClaim, ResourceSlice
from dra_driver.ownership import PoolID
from dra_driver.structured import DEFAULT_POLICY

__all__ = ["DecisionWorld"]

_ROOM = {"cpu": "8", "memory": "32Gi", "pods": "110"}


class DecisionWorld:
    """The class ``gpu`` selects the devices of ours; UIDs are ``uid-`` and the name."""

    def __init__(self, *, grants: bool = False) -> None:
        self.decisions = Decisions(Settings(drivers=(DRIVER,), grants=grants), lambda: 0.0)
        self.seen(DeviceClass, builders.device_class("gpu", f'device.driver == "{DRIVER}"'))

    def seen(self, kind: type[Any], body: dict[str, Any]) -> None:
        """Have an object in the state of the decisions."""
        self.decisions.apply(ObjectSeen(codec.convert(kind, body)))

    def node(self, name: str, gpus: int, **more: Any) -> None:
        """Have a node with so many GPUs of ours."""
        self.seen(Node, builders.node(name, allocatable=_ROOM))
        devices = [builders.device(f"gpu-{i}", **more) for i in range(gpus)]
        self.seen(ResourceSlice, builders.resource_slice(name, *devices))

    def pool(self, node: str, *granted: str, is_open: bool = True, blocked: bool = False) -> None:
        """Say whether the pool of a node is open or blocked, and which of its devices are granted."""
        pool = PoolID(DRIVER, PoolName(node))
        self.decisions.apply(PoolChanged(pool, blocked, DEFAULT_POLICY, frozenset(granted), is_open))

    def claim(self, name: str, *requests: dict[str, Any], status: dict[str, Any] | None = None) -> None:
        """Have a claim."""
        body = builders.claim(name, *requests, uid=f"uid-{name}", status=status)
        self.decisions.apply(ClaimSeen(codec.convert(ResourceClaim, body)))

    def pod(self, name: str, *claims: str, **more: Any) -> None:
        """Have a pod with the gate that uses these claims."""
        self.seen(Pod, builders.pod(name, *claims, uid=f"uid-{name}", gated=True, **more))

    def decided(self, name: str, now: float = 0.0) -> Decision:
        """Return what is decided about a pod."""
        question = PodQuestion(PodID(ObjectKey(builders.NAMESPACE, name), Uid(f"uid-{name}")), now)
        return self.decisions.decide(question).decision
