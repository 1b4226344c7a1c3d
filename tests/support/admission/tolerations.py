"""Every kind of device toleration in every kind of request, and whether it covers our taint.

The verdict is that of ``dra_driver.structured`` on the very taint that is published. What the admission
policy and the controller find is compared with it.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from dra_driver.api import codec
from dra_driver.api.resource import DeviceToleration
from dra_driver.ownership import PROTECTION_TAINT, tolerates

TAINT = PROTECTION_TAINT
KEYS = ("", TAINT.key, "example.com/sick")
OPERATORS = ("", "Exists", "Equal", "Weird")
VALUES = ("", TAINT.value, "other")
EFFECTS = ("", "NoSchedule", "NoExecute", "None")
SHAPES = ("exactly", "firstAvailable", "adminAccess")


@dataclass(frozen=True)
class Case:
    """One request with one toleration.

    Attributes:
        covers: the toleration covers our taint, and the request would take the device away from others.
        keyless: the toleration is one of every key.
    """

    shape: str
    class_name: str
    toleration: tuple[tuple[str, str], ...]
    covers: bool
    keyless: bool

    @property
    def spec(self) -> dict[str, Any]:
        """The spec of a claim. A harmless request comes first."""
        asked = {"deviceClassName": self.class_name, "tolerations": [SICK, dict(self.toleration)]}
        request: dict[str, Any] = {"name": "r"}
        match self.shape:
            case "exactly":
                request["exactly"] = asked
            case "adminAccess":
                request["exactly"] = asked | {"adminAccess": True}
            case "firstAvailable":
                plain = {"name": "a", "deviceClassName": self.class_name}
                request["firstAvailable"] = [plain, {"name": "b", **asked}]
            case _:
                raise AssertionError(self.shape)
        first = {"name": "first", "exactly": {"deviceClassName": self.class_name}}
        return {"devices": {"requests": [first, request]}}


SICK = {"key": "example.com/sick", "operator": "Exists"}


def cases(*classes: str) -> Iterator[Case]:
    """The whole table."""
    for shape, class_name in itertools.product(SHAPES, classes):
        for key, operator, value, effect in itertools.product(KEYS, OPERATORS, VALUES, EFFECTS):
            toleration = {"key": key, "operator": operator, "value": value, "effect": effect}
            given = tuple((k, v) for k, v in toleration.items() if v)
            covers = tolerates([codec.convert(DeviceToleration, dict(given))], TAINT)
            yield Case(shape, class_name, given, covers and shape != "adminAccess", not key)


def claim(name: str, spec: dict[str, Any], namespace: str = "default") -> dict[str, Any]:
    """A ResourceClaim."""
    metadata = {"name": name, "namespace": namespace}
    return {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": metadata, "spec": spec}


def template(name: str, spec: dict[str, Any], namespace: str = "default") -> dict[str, Any]:
    """A ResourceClaimTemplate of such claims."""
    return {**claim(name, {"spec": spec}, namespace), "kind": "ResourceClaimTemplate"}
