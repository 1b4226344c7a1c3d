"""Allocation results (``status.allocation``) from chosen devices."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from dra_driver.api.meta import Uid
from dra_driver.api.resource import (
    AllocationResult,
    DeviceAllocationConfiguration,
    DeviceAllocationResult,
    DeviceRequestAllocationResult,
    NodeSelector,
    NodeSelectorRequirement,
    NodeSelectorTerm,
)
from dra_driver.structured.matching.plan import Alternative, ClaimPlan, FatalError
from dra_driver.structured.matching.problem import NodeProblem
from dra_driver.structured.model import nodeselection
from dra_driver.structured.search.search import Pick

__all__ = ["allocation_results"]


def allocation_results(
    problem: NodeProblem, picks: Sequence[Sequence[Pick]], chosen: Sequence[Sequence[int]]
) -> tuple[AllocationResult, ...]:
    """Return one result per claim.

    Raises:
        FatalError: a device has a node selector that an allocation cannot carry.
    """
    return tuple(
        claim.allocation
        if claim.allocation is not None
        else _result(
            problem,
            claim,
            picks[i],
            [r.alternatives[c] for r, c in zip(claim.requests, chosen[i], strict=True)],
        )
        for i, claim in enumerate(problem.claims)
    )


def _result(
    problem: NodeProblem, claim: ClaimPlan, picks: Sequence[Pick], alternatives: Sequence[Alternative]
) -> AllocationResult:
    return AllocationResult(
        devices=DeviceAllocationResult(
            results=tuple(_device(problem, claim, pick, i) for i, pick in enumerate(picks)),
            config=(*_class_config(alternatives), *_claim_config(claim, alternatives)),
        ),
        node_selector=_node_selector(problem, claim, picks),
    )


def _device(problem: NodeProblem, claim: ClaimPlan, pick: Pick, number: int) -> DeviceRequestAllocationResult:
    device, id_ = pick.entry.device, pick.entry.id
    binding = problem.snapshot.features.device_binding_and_status
    return DeviceRequestAllocationResult(
        request=pick.alternative.request,
        driver=id_.driver,
        pool=id_.pool,
        device=id_.device,
        admin_access=True if pick.alternative.admin else None,
        tolerations=pick.alternative.tolerations,
        binding_conditions=device.binding_conditions if binding else (),
        binding_failure_conditions=device.binding_failure_conditions if binding else (),
        share_id=_share_id(claim, pick, number) if pick.consumed is not None else None,
        consumed_capacity=pick.consumed or {},
        # The kubelet decides by the copy, also when the slice has changed or is gone.
        skip_node_operations=pick.entry.skips,
    )


def _share_id(claim: ClaimPlan, pick: Pick, number: int) -> Uid:
    """Return a UUID (version 8) for a share.

    It is a digest of the claim's UID and the result, so that the same decision gives the same ID without
    randomness in the core.
    """
    identity = "\0".join((claim.claim.metadata.uid, claim.name, str(number), *pick.entry.id))
    digits = bytearray(hashlib.sha256(identity.encode()).digest()[:16])
    digits[6] = digits[6] & 0x0F | 0x80
    digits[8] = digits[8] & 0x3F | 0x80
    text = digits.hex()
    return Uid(f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}")


def _class_config(alternatives: Sequence[Alternative]) -> list[DeviceAllocationConfiguration]:
    """Return the configuration of the classes in the order of first use, each with all its requests."""
    requests: dict[str, list[str]] = {}
    classes = {}
    for alternative in alternatives:
        name = alternative.device_class.metadata.name
        classes[name] = alternative.device_class
        requests.setdefault(name, []).append(alternative.request)
    return [
        DeviceAllocationConfiguration(
            source="FromClass", requests=tuple(requests[name]), opaque=config.opaque
        )
        for name, class_ in classes.items()
        for config in class_.spec.config
    ]


def _claim_config(
    claim: ClaimPlan, alternatives: Sequence[Alternative]
) -> list[DeviceAllocationConfiguration]:
    """Return the configuration of the claim: as in Kubernetes, once per request that an entry names."""
    configs: list[DeviceAllocationConfiguration] = []
    for config in claim.claim.spec.devices.config:
        if config.requests:
            times = sum(a.parent in config.requests or a.request in config.requests for a in alternatives)
        else:
            times = 1
        entry = DeviceAllocationConfiguration(
            source="FromClaim", requests=config.requests, opaque=config.opaque
        )
        configs += [entry] * times
    return configs


def _node_selector(problem: NodeProblem, claim: ClaimPlan, picks: Sequence[Pick]) -> NodeSelector | None:
    """Return where the devices can be used together: a single node, or the requirements of all of them."""
    fields: list[NodeSelectorRequirement] = []
    expressions: list[NodeSelectorRequirement] = []
    binding = problem.snapshot.features.device_binding_and_status
    for pick in picks:
        entry = pick.entry
        if entry.node_name:
            return nodeselection.selector_for_node(entry.node_name)
        if binding and entry.device.binds_to_node:
            return nodeselection.selector_for_node(problem.node.metadata.name)
        terms = entry.node_selector.node_selector_terms if entry.node_selector is not None else ()
        if len(terms) > 1:
            raise FatalError(
                f"claim {claim.name}: device {entry.id} has a node selector with {len(terms)} terms; an "
                "allocation can carry one"
            )
        for term in terms:
            nodeselection.merge_requirements(fields, term.match_fields)
            nodeselection.merge_requirements(expressions, term.match_expressions)
    if not fields and not expressions:
        return None
    term = NodeSelectorTerm(match_expressions=tuple(expressions), match_fields=tuple(fields))
    return NodeSelector(node_selector_terms=(term,))
