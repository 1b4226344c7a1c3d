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
from dra_driver.errors import DecodeError, InvalidParameters, PrepareError
from dra_driver.preparation import configs, names
from dra_driver.preparation.claim import (
    BindingRecord,
    ClaimState,
    PartitionRecord,
    PodReference,
    PreparedClaim,
    PreparedDevice,
)
from dra_driver.preparation.metadata import metadata_mount, pod_claim_name
from dra_driver.preparation.node_device import NodeDevice
from dra_driver.preparation.sharing import Treatment, device_type, settings_of, treat

__all__ = [
    "RECORD_ANNOTATION",
    "Grant",
    "NodeDevice",
    "annotated",
    "complete",
    "plan",
    "recover",
    "reserving_pods",
]

# Annotation of our CDI documents: the claim's record, from which a lost checkpoint is rebuilt.
RECORD_ANNOTATION: Final = "dra-driver.dev/prepared-claim"

_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f]")
# The GPU's own node, whose number may change with MIG mode, and the capabilities of its instances.
_INSTANCE_NODE: Final = re.compile(r"/dev/nvidia[0-9]+|/dev/nvidia-caps/nvidia-cap[0-9]+")
# Nodes that belong to one device; others are of the driver and open for its other devices too.
_OWN_NODE: Final = re.compile(r"/dev/nvidia[0-9]+|/dev/dri/(?:card|renderD)[0-9]+")
_NAMES_IN_MESSAGE: Final = 8


@dataclass(frozen=True, slots=True)
class Grant:
    """One allocation result of ours, with the device behind it.

    Attributes:
        request: name of the request, without the subrequest.
        index: position among the claim's devices for this request.
        variables: what the names of the container's variables about it begin with.
    """

    request: str
    index: int
    device: NodeDevice
    result: DeviceRequestAllocationResult
    variables: str
    treatment: Treatment

    @property
    def edits(self) -> cdi.ContainerEdits:
        """What the container needs for the device; one without its own driver has none of that driver's."""
        if self.treatment.driver:
            return cdi.ContainerEdits(env=self.device.edits.env)
        return self.device.edits


def plan(
    claim: ResourceClaim,
    uid: Uid,
    *,
    driver: str,
    pool: PoolName,
    devices: Mapping[str, NodeDevice],
    metadata_directory: str = "",
) -> PreparedClaim:
    """What has to be remembered and written for the claim, in state STARTED.

    Args:
        claim: as the API server has it now.
        uid: the UID that the kubelet named.
        driver: whose results count; others in the same claim are their drivers' business.
        pool: the only pool whose devices this node has.
        devices: the node's devices by name.
        metadata_directory: where the node keeps device metadata files; empty: containers get none.

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
    grants = _grants(claim, driver, pool, devices)
    prepared = tuple(_prepared(uid, driver, grant) for grant in grants)
    record = PreparedClaim(
        uid=uid,
        namespace=claim.metadata.namespace,
        name=claim.metadata.name,
        state=ClaimState.STARTED,
        devices=prepared,
        settings=settings_of(grant.treatment for grant in grants),
        pods=reserving_pods(claim),
        pod_claim=pod_claim_name((claim.metadata.annotations or {}).get(api_names.POD_CLAIM_ANNOTATION)),
    )
    if not grants:
        return record
    return msgspec.structs.replace(record, spec=_document(driver, grants, record, metadata_directory))


def reserving_pods(claim: ResourceClaim) -> tuple[PodReference, ...]:
    """The pods that the claim is reserved for, as it was read."""
    return tuple(
        PodReference(name=r.name, uid=r.uid)
        for r in claim.status.reserved_for
        if r.resource == "pods" and not r.api_group
    )


def complete(record: PreparedClaim, made: Mapping[str, tuple[str, cdi.ContainerEdits]]) -> PreparedClaim:
    """The record and its document with what is known only when the partitions are there.

    Args:
        record: of a claim whose partitions may have been made before, with other identities.
        made: UUID and edits of each instance, by the name of its device.
    """
    if record.spec is None or not made:
        return record
    devices = []
    edits: dict[str, tuple[PreparedDevice, cdi.ContainerEdits]] = {}
    for device in record.devices:
        if device.partition is None or device.device not in made:
            devices.append(device)
            continue
        uuid, own = made[device.device]
        partition = msgspec.structs.replace(device.partition, uuid=uuid)
        devices.append(msgspec.structs.replace(device, partition=partition))
        edits[device.cdi_device_ids[0].partition("=")[2]] = (devices[-1], own)
    record = msgspec.structs.replace(record, devices=tuple(devices))
    assert record.spec is not None
    spec = msgspec.structs.replace(
        record.spec,
        devices=tuple(
            msgspec.structs.replace(d, container_edits=_with_instance(d.container_edits, *edits[d.name]))
            if d.name in edits
            else d
            for d in record.spec.devices
        ),
    )
    return annotated(msgspec.structs.replace(record, spec=cdi.with_minimum_version(spec)))


def annotated(record: PreparedClaim) -> PreparedClaim:
    """The record with itself in its document's annotation, as it is now."""
    if record.spec is None:
        return record
    # Always with the same state, or the document of a claim would change without need.
    text = codec.encode(msgspec.structs.replace(record, state=ClaimState.STARTED, spec=None)).decode()
    spec = msgspec.structs.replace(
        record.spec, annotations={**record.spec.annotations, RECORD_ANNOTATION: text}
    )
    return msgspec.structs.replace(record, spec=spec)


def _with_instance(
    edits: cdi.ContainerEdits, device: PreparedDevice, own: cdi.ContainerEdits
) -> cdi.ContainerEdits:
    assert device.partition is not None
    name = f"{device.variables}_UUID="
    # Another instance of the same partition has been there before, as after a reboot.
    kept = msgspec.structs.replace(
        edits,
        env=tuple(v for v in edits.env if not v.startswith(name)),
        device_nodes=tuple(n for n in edits.device_nodes if not _of_instance(n.path)),
    )
    told = cdi.ContainerEdits(env=(f"{name}{device.partition.uuid}",))
    return cdi.merge(kept, own, told)


def _of_instance(path: str) -> bool:
    return bool(_INSTANCE_NODE.fullmatch(path))


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


def _grants(
    claim: ResourceClaim, driver: str, pool: PoolName, devices: Mapping[str, NodeDevice]
) -> list[Grant]:
    assert claim.status.allocation is not None
    allocated = claim.status.allocation.devices
    found = [(r, _find(r, pool, devices)) for r in allocated.results if r.driver == driver]
    kinds = [device_type(device, result.share_id) for result, device in found]
    try:
        chosen = configs.resolve(
            allocated.config, driver, [(r.request, k) for (r, _), k in zip(found, kinds, strict=True)]
        )
    except InvalidParameters as e:
        raise PrepareError(str(e)) from e
    name = _variable_name(claim)
    counts: dict[str, int] = {}
    grants: list[Grant] = []
    for position, (result, device) in enumerate(found):
        request = result.request.partition("/")[0]
        index = counts.get(request, 0)
        counts[request] = index + 1
        # Who only looks on changes nothing.
        treatment = (
            Treatment()
            if result.admin_access
            else treat(
                device,
                kinds[position],
                chosen[position],
                position=position,
                memory=result.consumed_capacity.get("memory"),
            )
        )
        prefix = _variable_prefix(name, request, index)
        grants.append(Grant(request, index, device, result, prefix, treatment))
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
    if device.away and not result.admin_access:
        raise PrepareError(
            f"{what} is bound to another kernel driver for another claim, or not back from there yet",
            retryable=True,
        )
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
        partition=_with_daemon(grant),
        binding=_binding(grant),
        variables=grant.variables if grant.device.partition is not None else "",
        enforced=grant.treatment.enforced,
        attributes=grant.device.attributes,
    )


def _binding(grant: Grant) -> BindingRecord | None:
    device = grant.device
    if not grant.treatment.driver or device.found is None:
        return None
    return BindingRecord(
        address=device.address,
        driver=grant.treatment.driver,
        found=msgspec.structs.replace(device.found, health=()),
        nodes=tuple(n.path for n in device.edits.device_nodes if _OWN_NODE.fullmatch(n.path)),
    )


def _with_daemon(grant: Grant) -> PartitionRecord | None:
    partition = grant.device.partition
    if partition is None or not grant.treatment.daemon:
        return partition
    return msgspec.structs.replace(partition, daemon=True)


def _variable_name(claim: ResourceClaim) -> str:
    """The name under which the container knows the claim.

    A claim that was generated from a template has a random name; its pod calls it by the name that the
    annotation holds.
    """
    return (claim.metadata.annotations or {}).get(api_names.POD_CLAIM_ANNOTATION) or claim.metadata.name


def _document(driver: str, grants: Sequence[Grant], record: PreparedClaim, metadata: str) -> cdi.Spec:
    shared = _shared_edits([g.edits for g in grants])
    spec = cdi.with_minimum_version(
        cdi.Spec(
            cdi_version="0.3.0",
            kind=api_names.cdi_kind(driver),
            annotations={RECORD_ANNOTATION: codec.encode(record).decode()},
            container_edits=shared,
            devices=tuple(
                cdi.Device(
                    name=names.cdi_device_name(record.uid, g.request, g.device.name, g.result.share_id),
                    container_edits=cdi.merge(
                        _edits(g, shared), _metadata_edits(metadata, driver, g, record)
                    ),
                )
                for g in grants
            ),
        )
    )
    findings = cdi.validate(spec)
    if findings:
        raise PrepareError(f"the CDI document would be invalid: {'; '.join(findings[:3])}")
    return spec


def _metadata_edits(directory: str, driver: str, grant: Grant, record: PreparedClaim) -> cdi.ContainerEdits:
    if not directory:
        return cdi.ContainerEdits()
    mount = metadata_mount(directory, driver, record.uid, record.name, record.pod_claim, grant.request)
    return cdi.ContainerEdits(mounts=(mount,))


def _shared_edits(edits: Sequence[cdi.ContainerEdits]) -> cdi.ContainerEdits:
    """Mounts and nodes that all devices need (driver libraries, control nodes): once per document."""
    if len(edits) < 2:
        return cdi.ContainerEdits()
    first, *rest = edits
    return cdi.ContainerEdits(
        mounts=tuple(m for m in first.mounts if all(m in e.mounts for e in rest)),
        device_nodes=tuple(n for n in first.device_nodes if all(n in e.device_nodes for e in rest)),
        hooks=tuple(h for h in first.hooks if all(h in e.hooks for e in rest)),
    )


def _edits(grant: Grant, shared: cdi.ContainerEdits) -> cdi.ContainerEdits:
    own = msgspec.structs.replace(
        grant.edits,
        mounts=tuple(m for m in grant.edits.mounts if m not in shared.mounts),
        device_nodes=tuple(n for n in grant.edits.device_nodes if n not in shared.device_nodes),
        hooks=tuple(h for h in grant.edits.hooks if h not in shared.hooks),
    )
    return cdi.merge(own, grant.treatment.edits, cdi.ContainerEdits(env=_variables(grant)))


def _variable_prefix(claim_name: str, request: str, index: int) -> str:
    return f"DRA_{names.environment_fragment(claim_name)}__{names.environment_fragment(request)}__{index}"


def _variables(grant: Grant) -> tuple[str, ...]:
    """``DRA_<CLAIM>__<REQUEST>__<INDEX>_<FACT>``; unknown facts are absent.

    Two underscores between the names: request ``b`` of claim ``c-a`` and request ``a-b`` of claim ``c`` can
    meet in one container.
    """
    # A share is told what it may use, not what the device has.
    partition = grant.device.partition
    consumed = grant.result.consumed_capacity.get("memory")
    facts = {
        "DEVICE": grant.device.name,
        # Of a partition it is known when the partition is there.
        "UUID": grant.device.uuid if partition is None else "",
        "PARENT": "" if partition is None else grant.device.uuid,
        "PROFILE": "" if partition is None else partition.profile,
        "MODEL": grant.device.model,
        "MEMORY": str(consumed) if consumed is not None else grant.device.memory,
        "SHARE": grant.result.share_id or "",
        "ENFORCED": grant.treatment.enforced,
        "PCI_ADDRESS": grant.device.address if grant.treatment.driver else "",
    }
    return tuple(
        f"{grant.variables}_{fact}={_CONTROL.sub(' ', value)}" for fact, value in facts.items() if value
    )
