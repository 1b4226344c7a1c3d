"""Claims, validated and prepared for the search. Nothing here depends on a node."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from dra_driver.api import names
from dra_driver.api.resource import (
    AllocationResult,
    DeviceClass,
    DeviceConstraint,
    DeviceRequest,
    DeviceSelector,
    DeviceSubRequest,
    DeviceToleration,
    ExactDeviceRequest,
    ResourceClaim,
)
from dra_driver.structured.matching.capacity import Amounts
from dra_driver.structured.matching.constraints import ANY_DOMAIN, TOPOLOGY
from dra_driver.structured.model.types import Features
from dra_driver.suggestions import did_you_mean

__all__ = [
    "MAX_RESULTS",
    "Alternative",
    "ClaimPlan",
    "DerivedAttributeError",
    "FatalError",
    "RequestPlan",
    "compile_claims",
]

# AllocationResultsMaxSize of the API: devices of one claim.
MAX_RESULTS: Final = 32


class FatalError(Exception):
    """A reason for which the search cannot go on; becomes ``Failed``."""

    def __init__(self, message: str, *, only_this_node: bool = False) -> None:
        super().__init__(message)
        self.only_this_node = only_this_node


class DerivedAttributeError(FatalError):
    """A derived attribute cannot be evaluated on a device: the claim is not allocated on any (KEP-6080)."""


@dataclass(frozen=True, slots=True, eq=False)
class Alternative:
    """A request, or one of the subrequests of ``firstAvailable``.

    Attributes:
        claim_index: position of its claim among the claims of the pod.
        claim: ``namespace/name``.
        request: name in results, ``request`` or ``request/subrequest``.
        parent: name of the request.
        selectors: CEL expressions, those of the class first.
        class_selectors: how many of them are the class's.
        count: number of devices; None for all of them (allocation mode All).
        consumes: whether it takes its devices from others. With admin access it does not: what is in use is
            no obstacle for it, nor is it one for others (``Features.admin_access_in_use``).
        constraints: indices of the claim's constraints that cover it.
        derived: of these the ones that compare an attribute which the request derives, with its expression.
    """

    claim_index: int
    claim: str
    request: str
    parent: str
    device_class: DeviceClass
    selectors: tuple[str, ...]
    class_selectors: int
    count: int | None
    admin: bool
    consumes: bool
    tolerations: tuple[DeviceToleration, ...]
    capacity: Amounts
    constraints: tuple[int, ...]
    derived: tuple[tuple[int, str], ...] = ()

    def __str__(self) -> str:
        return f"claim {self.claim}, request {self.request}"


@dataclass(frozen=True, slots=True, eq=False)
class RequestPlan:
    """A request with its alternatives in order of preference; one if there is no ``firstAvailable``."""

    name: str
    alternatives: tuple[Alternative, ...]


@dataclass(frozen=True, slots=True, eq=False)
class ClaimPlan:
    """A claim; one that is allocated has no requests to solve.

    Attributes:
        index: position among the claims of the pod.
        name: ``namespace/name``.
        constraints: those of the claim and those that its topology annotation requires.
        preferred: levels of ``TOPOLOGY`` that the annotation prefers.
    """

    index: int
    name: str
    claim: ResourceClaim
    requests: tuple[RequestPlan, ...]
    constraints: tuple[DeviceConstraint, ...]
    allocation: AllocationResult | None = None
    preferred: tuple[str, ...] = ()


def compile_claims(
    claims: Sequence[ResourceClaim], classes: Mapping[str, DeviceClass], features: Features
) -> tuple[ClaimPlan, ...]:
    """Validate claims against the classes that exist, and return their plans.

    Raises:
        FatalError: a class does not exist, or a field asks for something that is not supported or known.
    """
    return tuple(_claim(i, claim, classes, features) for i, claim in enumerate(claims))


def _claim(
    index: int, claim: ResourceClaim, classes: Mapping[str, DeviceClass], features: Features
) -> ClaimPlan:
    name = str(claim.key)
    if claim.status.allocation is not None:
        return ClaimPlan(index, name, claim, (), (), claim.status.allocation)
    if claim.newer:
        raise FatalError(f"claim {name}: needs a newer controller: {claim.newer} is not known to this one")
    required, preferred = _topology(name, claim)
    constraints = (
        *claim.spec.devices.constraints,
        *(DeviceConstraint(match_attribute=ANY_DOMAIN + level) for level in required),
    )
    requests = tuple(
        RequestPlan(request.name, tuple(_alternatives(index, name, request, constraints, classes, features)))
        for request in claim.spec.devices.requests or ()
    )
    for i, constraint in enumerate(constraints):
        if constraint.match_attribute is None and constraint.distinct_attribute is None:
            raise FatalError(f"claim {name}, constraint #{i}: neither matchAttribute nor distinctAttribute")
    return ClaimPlan(index, name, claim, requests, constraints, preferred=preferred)


def _alternatives(
    index: int,
    claim: str,
    request: DeviceRequest,
    constraints: Sequence[DeviceConstraint],
    classes: Mapping[str, DeviceClass],
    features: Features,
) -> list[Alternative]:
    if request.first_available:
        if not features.prioritized_list:
            raise FatalError(
                f"claim {claim}, request {request.name}: has subrequests (firstAvailable), but the "
                "DRAPrioritizedList feature is disabled"
            )
        return [
            _alternative(index, claim, request.name, sub.name, sub, constraints, classes, features)
            for sub in request.first_available
        ]
    exactly = request.exactly or ExactDeviceRequest(device_class_name="")
    return [_alternative(index, claim, request.name, "", exactly, constraints, classes, features)]


def _alternative(
    index: int,
    claim: str,
    parent: str,
    sub: str,
    spec: ExactDeviceRequest | DeviceSubRequest,
    constraints: Sequence[DeviceConstraint],
    classes: Mapping[str, DeviceClass],
    features: Features,
) -> Alternative:
    name = f"{parent}/{sub}" if sub else parent
    where = f"claim {claim}, request {name}"
    admin = isinstance(spec, ExactDeviceRequest) and bool(spec.admin_access)
    requested = _expressions(spec.selectors, where)
    _check_features(spec, where, features, admin=admin)
    if not spec.device_class_name:
        raise FatalError(f"{where}: no device class is named; exactly or firstAvailable must name one")
    device_class = classes.get(spec.device_class_name)
    if device_class is None:
        known = ", ".join(sorted(classes)[:8]) or "none"
        meant = did_you_mean(spec.device_class_name, classes)
        raise FatalError(
            f"{where}: DeviceClass {spec.device_class_name!r} does not exist (there are: {known}){meant}"
        )
    if device_class.newer:
        raise FatalError(
            f"{where}: needs a newer controller: {device_class.newer} of DeviceClass "
            f"{spec.device_class_name!r} is not known to this one"
        )
    class_expressions = _expressions(device_class.spec.selectors, f"class {spec.device_class_name}")
    covering = tuple(
        i for i, c in enumerate(constraints) if not c.requests or parent in c.requests or name in c.requests
    )
    derived = {one.name: one.expression for one in spec.derived_attributes}
    compared = [c.match_attribute or c.distinct_attribute or "" for c in constraints]
    return Alternative(
        claim_index=index,
        claim=claim,
        request=name,
        parent=parent,
        device_class=device_class,
        selectors=class_expressions + requested,
        class_selectors=len(class_expressions),
        count=_count(spec, where),
        admin=admin,
        consumes=not (admin and features.admin_access_in_use),
        tolerations=spec.tolerations,
        capacity=spec.capacity.requests if spec.capacity is not None else {},
        constraints=covering,
        derived=tuple((i, derived[compared[i]]) for i in covering if compared[i] in derived),
    )


def _topology(name: str, claim: ResourceClaim) -> tuple[list[str], tuple[str, ...]]:
    """Return the topology levels on which all devices must, and on which they should, have the same value.

    Raises:
        FatalError: the annotation has another form.
    """
    levels: dict[str, list[str]] = {"required": [], "preferred": []}
    text = (claim.metadata.annotations or {}).get(names.TOPOLOGY_ANNOTATION, "")
    for item in text.split(",") if text.strip() else ():
        kind, _, level = item.strip().partition(":")
        if kind not in levels or level not in TOPOLOGY:
            raise FatalError(
                f"claim {name}: annotation {names.TOPOLOGY_ANNOTATION}: {item.strip()[:80]!r} is not "
                f"understood; required:LEVEL and preferred:LEVEL are, with LEVEL one of {', '.join(TOPOLOGY)}"
            )
        levels[kind].append(level)
    return levels["required"], tuple(levels["preferred"])


def _expressions(selectors: Sequence[DeviceSelector], where: str) -> tuple[str, ...]:
    expressions: list[str] = []
    for i, selector in enumerate(selectors):
        if selector.cel is None:
            raise FatalError(f"{where}, selector #{i}: has no CEL expression, and no other kind is known")
        expressions.append(selector.cel.expression)
    return tuple(expressions)


def _check_features(
    spec: ExactDeviceRequest | DeviceSubRequest, where: str, features: Features, *, admin: bool
) -> None:
    if admin and not features.admin_access:
        raise FatalError(f"{where}: asks for admin access, but the DRAAdminAccess feature is disabled")
    if spec.capacity is not None and spec.capacity.requests and not features.consumable_capacity:
        raise FatalError(f"{where}: asks for capacity, but the DRAConsumableCapacity feature is disabled")


def _count(spec: ExactDeviceRequest | DeviceSubRequest, where: str) -> int | None:
    match spec.allocation_mode:
        case "" | "ExactCount":
            if spec.count < 0:
                raise FatalError(f"{where}: asks for {spec.count} devices; 1 or more are allowed")
            # The API server writes the defaults; manifests that are read from files lack them.
            return spec.count or 1
        case "All":
            return None
        case mode:
            raise FatalError(f"{where}: unknown allocation mode {mode!r}; ExactCount and All are supported")
