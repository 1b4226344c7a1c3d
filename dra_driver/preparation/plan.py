"""From an allocated claim to what the node has to provide: checks, then grants, then the CDI document."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

import msgspec

from dra_driver import cdi
from dra_driver.api import codec
from dra_driver.api import names as api_names
from dra_driver.api.meta import PoolName, Uid
from dra_driver.api.own.kinds import OtherParameters
from dra_driver.api.own.parameters import DeviceType, KernelDriver, Parameters
from dra_driver.api.resource import DeviceRequestAllocationResult, ResourceClaim
from dra_driver.errors import DecodeError, InvalidParameters, PrepareError
from dra_driver.preparation import configs
from dra_driver.preparation.claim import (
    BindingRecord,
    ClaimState,
    EffectRecord,
    PartitionRecord,
    PodReference,
    PreparedClaim,
    PreparedDevice,
)
from dra_driver.preparation.files import names
from dra_driver.preparation.files.document import RECORD_ANNOTATION, annotated, documented
from dra_driver.preparation.files.metadata import metadata_mount, pod_claim_name
from dra_driver.preparation.node_device import NodeDevice
from dra_driver.preparation.passthrough import PassthroughPolicy
from dra_driver.preparation.sharing import SharingPlan, device_type, plan_sharing, settings_of

__all__ = [
    "Grant",
    "NodeDevice",
    "complete",
    "plan",
    "recover",
    "reserving_pods",
    "with_begun",
    "without_instances",
]

_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f]")
_NAMES_IN_MESSAGE: Final = 8
_BY_CLASS_ONLY: Final = PassthroughPolicy()
_NO_KINDS: Final[Mapping[tuple[str, str], str]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Grant:
    """One allocation result of ours, with the device behind it.

    Attributes:
        request: name of the request, without the subrequest.
        index: position among the claim's devices for this request.
        variables: what the names of the container's variables about it begin with.
        capabilities: of the device's driver that the claim asks for; None if it does not say.
        other: parameters of a kind that the device's backend brings; None where none are given.
    """

    request: str
    index: int
    device: NodeDevice
    result: DeviceRequestAllocationResult
    variables: str
    sharing: SharingPlan
    capabilities: tuple[str, ...] | None = None
    other: OtherParameters | None = None

    @property
    def edits(self) -> cdi.ContainerEdits:
        """What the container needs for the device; one without its own driver has none of that driver's."""
        if self.sharing.passthrough:
            return cdi.ContainerEdits()
        return self.device.parts.added_to(self.device.edits, self.capabilities)


def plan(
    claim: ResourceClaim,
    uid: Uid,
    *,
    driver: str,
    pool: PoolName,
    devices: Mapping[str, NodeDevice],
    metadata_directory: str = "",
    boot_id: str = "",
    passthrough: PassthroughPolicy = _BY_CLASS_ONLY,
    kinds: Mapping[tuple[str, str], str] = _NO_KINDS,
) -> PreparedClaim:
    """Return what has to be remembered and written for the claim, in state STARTED.

    What the backends of devices do to them is not planned here: ``effects`` of the record are what they are
    to plan (``preparation.effects``).

    Args:
        claim: as the API server has it now.
        uid: the UID that the kubelet named.
        driver: whose results count; others in the same claim are their drivers' business.
        pool: the only pool whose devices this node has.
        devices: the node's devices by name.
        metadata_directory: where the node keeps device metadata files; if empty, containers get none.
        boot_id: which boot of the machine this is; empty where that is not known.
        passthrough: whose claims may have devices as bare PCI functions.
        kinds: names of the backends that bring further kinds of parameters, by ``apiVersion`` and ``kind``.

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
    grants = _grants(claim, driver, pool, devices, passthrough, kinds)
    record = PreparedClaim(
        uid=uid,
        namespace=claim.metadata.namespace,
        name=claim.metadata.name,
        state=ClaimState.STARTED,
        settings=settings_of(grant.sharing for grant in grants),
        pods=reserving_pods(claim),
        pod_claim=pod_claim_name((claim.metadata.annotations or {}).get(api_names.POD_CLAIM_ANNOTATION)),
        boot_id=boot_id,
    )
    if not grants:
        return record
    prepared = tuple(_prepared(driver, grant, record, metadata_directory) for grant in grants)
    record = msgspec.structs.replace(record, devices=prepared)
    return documented(driver, record, [grant.edits for grant in grants])


def reserving_pods(claim: ResourceClaim) -> tuple[PodReference, ...]:
    """Return the pods that the claim is reserved for, as it was read."""
    return tuple(
        PodReference(name=r.name, uid=r.uid)
        for r in claim.status.reserved_for
        if r.resource == "pods" and not r.api_group
    )


def complete(record: PreparedClaim, made: Mapping[str, tuple[str, cdi.ContainerEdits]]) -> PreparedClaim:
    """Return the record and its document with what is known only when the partitions are there.

    Args:
        record: of a claim whose partitions may have been made before, with other identities.
        made: UUID and edits of each instance, by the name of its device.
    """
    if record.spec is None or not made:
        return record
    devices = []
    parts: dict[str, PreparedDevice] = {}
    for device in record.devices:
        if device.partition is None or device.device not in made:
            devices.append(device)
            continue
        uuid, instance = made[device.device]
        partition = msgspec.structs.replace(device.partition, uuid=uuid)
        nodes = tuple(n.path for n in instance.device_nodes)
        devices.append(msgspec.structs.replace(device, partition=partition, own_nodes=nodes))
        parts[record.cdi_name(device)] = device
    record = msgspec.structs.replace(record, devices=tuple(devices))
    assert record.spec is not None
    spec = msgspec.structs.replace(
        record.spec,
        devices=tuple(
            msgspec.structs.replace(
                d, container_edits=_with_instance(d.container_edits, part, *made[part.device])
            )
            if (part := parts.get(d.name)) is not None
            else d
            for d in record.spec.devices
        ),
    )
    return annotated(msgspec.structs.replace(record, spec=cdi.with_minimum_version(spec)))


def without_instances(record: PreparedClaim, gone: Collection[str]) -> PreparedClaim:
    """Return the record without the identities of the instances of these devices, which are gone."""

    def struck(device: PreparedDevice) -> PreparedDevice:
        if device.partition is None or device.device not in gone:
            return device
        partition = msgspec.structs.replace(device.partition, uuid="", begun=None)
        return msgspec.structs.replace(device, partition=partition)

    return msgspec.structs.replace(record, devices=tuple(map(struck, record.devices)))


def with_begun(record: PreparedClaim, device: str, instance: int) -> PreparedClaim:
    """Return the record with the number of an instance that is begun for a device."""

    def noted(found: PreparedDevice) -> PreparedDevice:
        if found.partition is None or found.device != device or found.admin_access:
            return found
        return msgspec.structs.replace(
            found, partition=msgspec.structs.replace(found.partition, begun=instance)
        )

    return msgspec.structs.replace(record, devices=tuple(map(noted, record.devices)))


def _with_instance(
    edits: cdi.ContainerEdits, device: PreparedDevice, uuid: str, instance: cdi.ContainerEdits
) -> cdi.ContainerEdits:
    """Return a partition's edits with what its instance adds, in place of what an earlier instance added.

    Args:
        edits: of the document.
        device: as the record had it: its own nodes are those of the earlier instance.
        uuid: of the instance.
        instance: what a container needs for it.
    """
    name = f"{device.variables}_UUID="
    earlier = cdi.own_nodes(edits, device.own_nodes)
    kept = msgspec.structs.replace(
        edits,
        env=tuple(v for v in edits.env if not v.startswith(name)),
        device_nodes=tuple(n for n in edits.device_nodes if n not in earlier),
    )
    return cdi.merge(kept, instance, cdi.ContainerEdits(env=(f"{name}{uuid}",)))


def recover(driver: str, spec: cdi.Spec) -> PreparedClaim:
    """Return the record of a claim from its CDI document, for when the checkpoint is lost.

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
    claim: ResourceClaim,
    driver: str,
    pool: PoolName,
    devices: Mapping[str, NodeDevice],
    passthrough: PassthroughPolicy,
    kinds: Mapping[tuple[str, str], str],
) -> list[Grant]:
    assert claim.status.allocation is not None
    allocated = claim.status.allocation.devices
    found = [(r, _find(r, pool, devices)) for r in allocated.results if r.driver == driver]
    types = [device_type(device, result.share_id) for result, device in found]
    chosen, others = _parameters(claim, driver, found, types, passthrough, kinds)
    name = _variable_name(claim)
    counts: dict[str, int] = {}
    grants: list[Grant] = []
    for position, (result, device) in enumerate(found):
        request = result.request.partition("/")[0]
        index = counts.get(request, 0)
        counts[request] = index + 1
        # Admin access must not reconfigure the device.
        sharing = (
            SharingPlan()
            if result.admin_access
            else plan_sharing(
                device,
                types[position],
                chosen[position],
                position=position,
                memory=result.consumed_capacity.get("memory"),
            )
        )
        prefix = _variable_prefix(name, request, index)
        asked = _capabilities(device, chosen[position])
        grants.append(Grant(request, index, device, result, prefix, sharing, asked, others[position]))
    return grants


def _capabilities(device: NodeDevice, parameters: Parameters | None) -> tuple[str, ...] | None:
    """Return the capabilities of its driver that a claim asks for.

    Raises:
        PrepareError: a container cannot have one of them on this node.
    """
    asked = parameters.capabilities if parameters is not None else None
    if asked is None or device.simulated:
        return asked
    known = device.parts.edits
    missing = [name for name in asked if name not in known]
    if missing:
        raise PrepareError(
            f"device {device.name}: driverCapabilities {', '.join(missing)}: not available here; "
            + (f"there are {', '.join(known)}" if known else "its driver is not divided by capabilities")
        )
    return asked


def _parameters(
    claim: ResourceClaim,
    driver: str,
    results: Sequence[tuple[DeviceRequestAllocationResult, NodeDevice]],
    types: Sequence[DeviceType],
    passthrough: PassthroughPolicy,
    kinds: Mapping[tuple[str, str], str],
) -> tuple[Sequence[Parameters | None], Sequence[OtherParameters | None]]:
    """Return the parameters that hold for each result, if the claim may have what they ask for.

    Those of a kind that the device's backend brings are apart.
    """
    assert claim.status.allocation is not None
    given = claim.status.allocation.devices.config
    asked = [(result.request, kind) for (result, _), kind in zip(results, types, strict=True)]
    backends = [device.prepared_by for _, device in results]
    try:
        chosen = configs.resolve(given, driver, asked, kinds=kinds, backends=backends)
        of_classes = configs.resolve(
            [c for c in given if c.source == configs.FROM_CLASS],
            driver,
            asked,
            kinds=kinds,
            backends=backends,
        )
    except InvalidParameters as e:
        raise PrepareError(str(e)) from e
    for i, of_class in enumerate(of_classes):
        parameters = chosen[i]
        # What the class demands of the neighbours, a claim's own parameters do not take back.
        if isinstance(of_class, Parameters) and isinstance(parameters, Parameters):
            demanded = parameters.own_namespace or of_class.own_namespace
            chosen[i] = dataclasses.replace(parameters, own_namespace=demanded)
    for (result, _), parameters, of_class in zip(results, chosen, of_classes, strict=True):
        if result.admin_access or not isinstance(parameters, Parameters):
            continue
        if parameters.driver is KernelDriver.DEFAULT:
            continue
        by_class = isinstance(of_class, Parameters) and of_class.driver is parameters.driver
        if refusal := passthrough.refusal(claim.metadata.namespace, by_class=by_class):
            raise PrepareError(f"request {result.request}: {refusal}")
    return (
        [p if isinstance(p, Parameters) else None for p in chosen],
        [p if isinstance(p, OtherParameters) else None for p in chosen],
    )


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


def _prepared(driver: str, grant: Grant, record: PreparedClaim, metadata: str) -> PreparedDevice:
    name = names.cdi_device_name(record.uid, grant.request, grant.device.name, grant.result.share_id)
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
        enforced=grant.sharing.enforced,
        attributes=grant.device.attributes,
        own=_own(driver, grant, record, metadata),
        simulated=grant.device.simulated,
        own_nodes=tuple(n.path for n in cdi.own_nodes(grant.edits, grant.device.own_nodes)),
        capabilities=grant.capabilities,
        effect=_effect(grant),
    )


def _effect(grant: Grant) -> EffectRecord | None:
    """Return what the device's backend is to plan; nothing for one that is looked at, or that it has not."""
    if not grant.device.prepared_by or grant.result.admin_access or grant.sharing.passthrough:
        return None
    text = grant.other.data.decode() if grant.other is not None else ""
    return EffectRecord(backend=grant.device.prepared_by, parameters=text)


def _own(driver: str, grant: Grant, record: PreparedClaim, metadata: str) -> cdi.ContainerEdits:
    # The variables of a driver that does not have the device now cannot be learned again.
    env = grant.device.edits.env if grant.sharing.passthrough else ()
    mounts: tuple[cdi.Mount, ...] = ()
    if metadata:
        mounts = (metadata_mount(metadata, driver, record.uid, record.name, record.pod_claim, grant.request),)
    return cdi.merge(
        cdi.ContainerEdits(env=env),
        grant.sharing.edits,
        cdi.ContainerEdits(env=_variables(grant), mounts=mounts),
    )


def _binding(grant: Grant) -> BindingRecord | None:
    device, asked = grant.device, grant.sharing.passthrough
    if asked is None or device.found is None:
        return None
    # Which of its names a process shows depends on where the process has opened it.
    own = cdi.own_nodes(device.edits, device.own_nodes)
    return BindingRecord(
        address=device.address,
        driver=asked.driver.value,
        iommu=asked.iommu.value,
        api_device=asked.api_device,
        found=msgspec.structs.replace(device.found, health=()),
        nodes=tuple(dict.fromkeys(path for n in own for path in (n.path, n.host_path or n.path))),
    )


def _with_daemon(grant: Grant) -> PartitionRecord | None:
    partition = grant.device.partition
    if partition is None or not grant.sharing.daemon:
        return partition
    return msgspec.structs.replace(partition, daemon=True)


def _variable_name(claim: ResourceClaim) -> str:
    """Return the name under which the container knows the claim.

    A claim that was generated from a template has a random name; its pod calls it by the name that the
    annotation holds.
    """
    return (claim.metadata.annotations or {}).get(api_names.POD_CLAIM_ANNOTATION) or claim.metadata.name


def _variable_prefix(claim_name: str, request: str, index: int) -> str:
    return f"DRA_{names.environment_fragment(claim_name)}__{names.environment_fragment(request)}__{index}"


def _variables(grant: Grant) -> tuple[str, ...]:
    """Return ``DRA_<CLAIM>__<REQUEST>__<INDEX>_<FACT>=VALUE``; unknown facts are absent.

    Two underscores between the names: request ``b`` of claim ``c-a`` and request ``a-b`` of claim ``c`` can
    meet in one container.
    """
    # The container of a share sees the capacity that it may use, not that of the device.
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
        "ENFORCED": grant.sharing.enforced,
        "PCI_ADDRESS": grant.device.address if grant.sharing.passthrough else "",
    }
    return tuple(
        f"{grant.variables}_{fact}={_CONTROL.sub(' ', value)}" for fact, value in facts.items() if value
    )
