"""From an allocated claim to what the node has to provide: checks, then grants, then the CDI document."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from dra_driver import cdi
from dra_driver.api import codec
from dra_driver.api import names as api_names
from dra_driver.api.meta import PoolName, Uid
from dra_driver.api.resource import DeviceRequestAllocationResult, ResourceClaim
from dra_driver.errors import DecodeError, PrepareError
from dra_driver.preparation import names
from dra_driver.preparation.claim import ClaimState, PreparedClaim, PreparedDevice

__all__ = ["RECORD_ANNOTATION", "Grant", "NodeDevice", "plan", "recover"]

# Annotation of our CDI documents: the claim's record, from which a lost checkpoint is rebuilt.
RECORD_ANNOTATION: Final = "dra-driver.dev/prepared-claim"

_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f]")
_NAMES_IN_MESSAGE: Final = 8
_NO_EDITS: Final = cdi.ContainerEdits()


@dataclass(frozen=True, slots=True)
class NodeDevice:
    """A device as the node sees it now.

    Attributes:
        uuid: the vendor's identity, as discovery read it last.
        published_uuid: the identity in the inventory that the API server has; None where the device is not
            in it.
        model: for the container; empty where unknown.
        memory: quantity, for the container; empty where unknown.
        edits: what a container needs to use it.
    """

    name: str
    uuid: str
    published_uuid: str | None
    model: str = ""
    memory: str = ""
    edits: cdi.ContainerEdits = _NO_EDITS


@dataclass(frozen=True, slots=True)
class Grant:
    """One allocation result of ours, with the device behind it.

    Attributes:
        request: name of the request, without the subrequest.
        index: position among the claim's devices for this request.
    """

    request: str
    index: int
    device: NodeDevice
    result: DeviceRequestAllocationResult


def plan(
    claim: ResourceClaim,
    uid: Uid,
    *,
    driver: str,
    pool: PoolName,
    devices: Mapping[str, NodeDevice],
) -> PreparedClaim:
    """What has to be remembered and written for the claim, in state STARTED.

    Args:
        claim: as the API server has it now.
        uid: the UID that the kubelet named.
        driver: whose results count; others in the same claim are their drivers' business.
        pool: the only pool whose devices this node has.
        devices: the node's devices by name.

    Raises:
        PrepareError: the claim is another one, is not allocated, or names what is not here; ``retryable``
            where the node may know better in a moment.
    """
    if claim.metadata.uid != uid:
        raise PrepareError(
            f"the claim has UID {claim.metadata.uid}, the kubelet asked for {uid}: "
            "it was deleted and created anew under the same name"
        )
    if claim.status.allocation is None:
        raise PrepareError("the claim is not allocated")
    _refuse_parameters(claim, driver)
    grants = _grants(
        [r for r in claim.status.allocation.devices.results if r.driver == driver], pool, devices
    )
    prepared = tuple(_prepared(uid, driver, grant) for grant in grants)
    record = PreparedClaim(
        uid=uid,
        namespace=claim.metadata.namespace,
        name=claim.metadata.name,
        state=ClaimState.STARTED,
        devices=prepared,
    )
    if not grants:
        return record
    return msgspec.structs.replace(record, spec=_document(driver, _variable_name(claim), grants, record))


def recover(driver: str, spec: cdi.Spec) -> PreparedClaim:
    """The record of a claim from its CDI document, for when the checkpoint is lost.

    Raises:
        DecodeError: the document is not one that ``plan`` made for this driver.
    """
    if spec.kind != api_names.cdi_kind(driver):
        raise DecodeError(f"kind is {spec.kind!r}, ours is {api_names.cdi_kind(driver)!r}")
    text = spec.annotations.get(RECORD_ANNOTATION)
    if text is None:
        raise DecodeError(f"there is no annotation {RECORD_ANNOTATION}")
    record = codec.decode(PreparedClaim, text)
    return msgspec.structs.replace(record, state=ClaimState.COMPLETED, spec=spec)


def _refuse_parameters(claim: ResourceClaim, driver: str) -> None:
    assert claim.status.allocation is not None
    for config in claim.status.allocation.devices.config:
        if config.opaque is not None and config.opaque.driver == driver:
            where = f"requests {', '.join(config.requests)}" if config.requests else "all requests"
            raise PrepareError(
                f"the claim carries opaque parameters for {driver} ({config.source}, {where}); "
                "this version of the driver understands none"
            )


def _grants(
    results: Sequence[DeviceRequestAllocationResult], pool: PoolName, devices: Mapping[str, NodeDevice]
) -> list[Grant]:
    counts: dict[str, int] = {}
    grants: list[Grant] = []
    for result in results:
        request = result.request.partition("/")[0]
        index = counts.get(request, 0)
        counts[request] = index + 1
        grants.append(Grant(request, index, _find(result, pool, devices), result))
    return grants


def _find(
    result: DeviceRequestAllocationResult, pool: PoolName, devices: Mapping[str, NodeDevice]
) -> NodeDevice:
    what = f"request {result.request}: device {result.device}"
    if result.pool != pool:
        raise PrepareError(f"{what} is of pool {result.pool}, this node has pool {pool} only")
    device = devices.get(result.device)
    if device is None:
        known = sorted(devices)
        listed = ", ".join(known[:_NAMES_IN_MESSAGE]) + (" …" if len(known) > _NAMES_IN_MESSAGE else "")
        raise PrepareError(f"{what} is not on this node; here are: {listed or 'none'}", retryable=True)
    if device.published_uuid is None:
        raise PrepareError(f"{what} is not in the node's DeviceInventory yet", retryable=True)
    if device.published_uuid != device.uuid:
        raise PrepareError(
            f"{what} was published with uuid {device.published_uuid!r}, but the hardware now says "
            f"{device.uuid!r}: it was replaced",
            retryable=True,
        )
    return device


def _prepared(uid: Uid, driver: str, grant: Grant) -> PreparedDevice:
    name = names.cdi_device_name(uid, grant.request, grant.device.name, grant.result.share_id)
    return PreparedDevice(
        requests=(grant.request,),
        pool=grant.result.pool,
        device=grant.device.name,
        uuid=grant.device.uuid,
        cdi_device_ids=(cdi.qualified_name(api_names.cdi_kind(driver), name),),
        share_id=grant.result.share_id,
        admin_access=bool(grant.result.admin_access),
    )


def _variable_name(claim: ResourceClaim) -> str:
    """The name under which the container knows the claim.

    A claim that was generated from a template has a random name; its pod calls it by the name that the
    annotation holds.
    """
    return (claim.metadata.annotations or {}).get(api_names.POD_CLAIM_ANNOTATION) or claim.metadata.name


def _document(driver: str, claim_name: str, grants: Sequence[Grant], record: PreparedClaim) -> cdi.Spec:
    shared = _shared_edits([g.device.edits for g in grants])
    spec = cdi.with_minimum_version(
        cdi.Spec(
            cdi_version="0.3.0",
            kind=api_names.cdi_kind(driver),
            annotations={RECORD_ANNOTATION: codec.encode(record).decode()},
            container_edits=shared,
            devices=tuple(
                cdi.Device(
                    name=names.cdi_device_name(record.uid, g.request, g.device.name, g.result.share_id),
                    container_edits=_edits(claim_name, g, shared),
                )
                for g in grants
            ),
        )
    )
    findings = cdi.validate(spec)
    if findings:
        raise PrepareError(f"the CDI document would be invalid: {'; '.join(findings[:3])}")
    return spec


def _shared_edits(edits: Sequence[cdi.ContainerEdits]) -> cdi.ContainerEdits:
    """Mounts and nodes that all devices need (driver libraries, control nodes): once per document."""
    if len(edits) < 2:
        return cdi.ContainerEdits()
    first, *rest = edits
    return cdi.ContainerEdits(
        mounts=tuple(m for m in first.mounts if all(m in e.mounts for e in rest)),
        device_nodes=tuple(n for n in first.device_nodes if all(n in e.device_nodes for e in rest)),
    )


def _edits(claim_name: str, grant: Grant, shared: cdi.ContainerEdits) -> cdi.ContainerEdits:
    own = msgspec.structs.replace(
        grant.device.edits,
        mounts=tuple(m for m in grant.device.edits.mounts if m not in shared.mounts),
        device_nodes=tuple(n for n in grant.device.edits.device_nodes if n not in shared.device_nodes),
    )
    return cdi.merge(own, cdi.ContainerEdits(env=_variables(claim_name, grant)))


def _variables(claim_name: str, grant: Grant) -> tuple[str, ...]:
    """``DRA_<CLAIM>__<REQUEST>__<INDEX>_{DEVICE,UUID,MODEL,MEMORY,SHARE}``; unknown facts are absent.

    Two underscores between the names: request ``b`` of claim ``c-a`` and request ``a-b`` of claim ``c`` can
    meet in one container.
    """
    claim, request = names.environment_fragment(claim_name), names.environment_fragment(grant.request)
    # A share is told what it may use, not what the device has.
    consumed = grant.result.consumed_capacity.get("memory")
    facts = {
        "DEVICE": grant.device.name,
        "UUID": grant.device.uuid,
        "MODEL": grant.device.model,
        "MEMORY": str(consumed) if consumed is not None else grant.device.memory,
        "SHARE": grant.result.share_id or "",
    }
    prefix = f"DRA_{claim}__{request}__{grant.index}"
    return tuple(f"{prefix}_{fact}={_CONTROL.sub(' ', value)}" for fact, value in facts.items() if value)
