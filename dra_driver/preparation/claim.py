"""What the node remembers of a claim."""

from __future__ import annotations

import enum
from collections.abc import Mapping

import msgspec

from dra_driver.api.meta import ObjectKey, PoolName, Uid, Wire
from dra_driver.api.own.inventory import InventoryDevice
from dra_driver.api.own.parameters import IommuBackend
from dra_driver.api.resource import DeviceAttribute
from dra_driver.cdi import ContainerEdits, Spec
from dra_driver.errors import PrepareError

__all__ = [
    "BindingRecord",
    "ClaimState",
    "DeviceSetting",
    "EffectRecord",
    "FunctionRecord",
    "PartitionRecord",
    "PodReference",
    "PreparedClaim",
    "PreparedDevice",
]


class ClaimState(enum.Enum):
    """Where the durable record of a claim stands.

    Two are never written. ``ABSENT`` is the lack of a record. ``ENDED`` is what ``PreparedClaim.ended`` says;
    it is written as ``STARTED``, which versions that do not know it undo.
    """

    ABSENT = "Absent"
    STARTED = "PrepareStarted"
    COMPLETED = "PrepareCompleted"
    ENDED = "Ended"


class PartitionRecord(Wire, frozen=True, kw_only=True):
    """A partition that a claim was given, and where on the GPU it sits.

    Attributes:
        gpu: name of the device that is cut; ``PreparedDevice.uuid`` is its UUID.
        start: first slice.
        size: number of slices.
        uuid: the vendor's identity of the instance; empty until it is made. An instance at this place with
            another identity is not managed by this driver.
        daemon: MPS runs on it, for the claim alone.
        begun: number of the instance, as the call that began it returned: what proves that it is this
            driver's before it has an identity, and while the machine is not restarted. None until then.
    """

    gpu: str
    profile: str
    profile_id: int
    start: int
    size: int
    uuid: str = ""
    daemon: bool = False
    begun: int | None = None


class FunctionRecord(Wire, frozen=True, kw_only=True):
    """A PCI function as it was before it was bound to another kernel driver.

    Attributes:
        address: PCI address.
        driver_before: that it was bound to before, and is again after; empty if it was bound to none.
        overridden: whether ``driver_override`` named that driver. What named another one was left behind, and
            is not put back: it would keep the driver from taking the function.
    """

    address: str
    driver_before: str = ""
    overridden: bool = False


class BindingRecord(Wire, frozen=True, kw_only=True):
    """A device that is bound to another kernel driver while the claim holds it.

    Attributes:
        address: PCI address.
        driver: that it is bound to for the claim.
        found: the device as discovery described it, which cannot see it meanwhile.
        nodes: device nodes that a process using it through its own driver has open.
        group: number of its IOMMU group; empty until it was looked up.
        driver_before: that it was bound to before, and is again after; empty if it was bound to none.
        overridden: see ``FunctionRecord``.
        companions: other functions of the same card that are bound to the driver with it.
        iommu: an ``IommuBackend``: by which interface the container uses it.
        api_device: whether the container gets the device node of that interface beside the device's own.
        cdev: name of its VFIO character device, if it is used by IOMMUFD; else empty. It is known only while
            it is bound, and another one after each binding.
    """

    address: str
    driver: str
    found: InventoryDevice
    nodes: tuple[str, ...] = ()
    group: str = ""
    driver_before: str = ""
    overridden: bool = False
    companions: tuple[FunctionRecord, ...] = ()
    iommu: str = IommuBackend.LEGACY_ONLY.value
    api_device: bool = True
    cdev: str = ""

    @property
    def functions(self) -> tuple[FunctionRecord, ...]:
        """All functions that are bound for the claim, the device itself first."""
        device = FunctionRecord(
            address=self.address, driver_before=self.driver_before, overridden=self.overridden
        )
        return (device, *self.companions)


class DeviceSetting(Wire, frozen=True, kw_only=True):
    """What a claim needs of a whole GPU. What all claims need of one GPU has to agree.

    Attributes:
        device: name of the GPU.
        uuid: its UUID.
        time_slice: ``Default``, ``Short``, ``Medium`` or ``Long``; if empty, it stays as it is.
        daemon: whether MPS has to run; False if it must not, because the claim's processes do not use it;
            None if either will do.
        partitioned: the mode in which the GPU is cut into partitions is on.
        own_namespace: only claims of one namespace may hold the GPU beside this one.
        whole: that mode is off. Asked for only where it was on, for every other GPU is whole anyway.
        compute_mode_before: as it was before the first claim changed it; empty until then.
        partitioned_before: likewise.
    """

    device: str
    uuid: str
    time_slice: str = ""
    daemon: bool | None = None
    partitioned: bool = msgspec.field(name="mig", default=False)
    own_namespace: bool = False
    whole: bool = False
    compute_mode_before: str = ""
    partitioned_before: bool | None = msgspec.field(name="migBefore", default=None)


class EffectRecord(Wire, frozen=True, kw_only=True):
    """What the backend of a device does to it for a claim (``ports.ClaimPreparation``).

    Attributes:
        backend: name of the backend.
        parameters: opaque parameters of a kind of the backend, as written, until it has planned; empty where
            none are given.
        settings: JSON object, as the backend has planned it. It gets it back to prepare, and to unprepare.
        seconds: that the backend may take to prepare the device; 0 if it did not say.
    """

    backend: str
    parameters: str = ""
    settings: str = ""
    seconds: float = 0.0


class PreparedDevice(Wire, frozen=True, kw_only=True):
    """One allocated device of a claim, as the kubelet learns of it.

    Attributes:
        requests: requests of the claim that it satisfies, without the subrequest.
        uuid: the vendor's identity of the device at that time.
        cdi_device_ids: qualified CDI names.
        share_id: which share of a device that is allocated several times.
        admin_access: the claim only looks on; it excludes no other claim.
        partition: where the device is a partition.
        binding: where the device is handed over as a bare PCI function.
        variables: what the names of the container's variables about this device begin with.
        enforced: of a share, what keeps it to its memory: ``mps`` or ``none``.
        attributes: of the device, as published, for the container's metadata.
        own: what the container gets for the claim's sake, whatever the nodes and files of the device are:
            variables, sharing, metadata. None in records of versions that did not keep it.
        simulated: there is no such hardware, so that its nodes and files need not be there either.
        own_nodes: paths, in the container, of the nodes that belong to the device alone; of a partition,
            those of its instance. None in records of versions that did not keep them: then those whose names
            end in a number.
        capabilities: of the device's driver that the claim asks for; None if it does not say.
        effect: what the device's backend does to it for the claim; None if it does nothing.
    """

    requests: tuple[str, ...]
    pool: PoolName
    device: str
    uuid: str = ""
    cdi_device_ids: tuple[str, ...] = ()
    share_id: str | None = None
    admin_access: bool = False
    partition: PartitionRecord | None = None
    binding: BindingRecord | None = None
    variables: str = ""
    enforced: str = ""
    attributes: Mapping[str, DeviceAttribute] = msgspec.field(default_factory=dict)
    own: ContainerEdits | None = None
    simulated: bool = False
    own_nodes: tuple[str, ...] | None = None
    capabilities: tuple[str, ...] | None = None
    effect: EffectRecord | None = None


class PodReference(Wire, frozen=True, kw_only=True):
    """A pod for which the claim was reserved when it was prepared."""

    name: str
    uid: Uid


class PreparedClaim(Wire, frozen=True, kw_only=True):
    """The record of one claim in the checkpoint.

    Attributes:
        settings: what it needs of whole GPUs, one entry for each GPU.
        spec: the CDI document of the claim; None for a claim without devices. It is kept whole, so that it
            can be compared with the file, and written again, without the API server.
        pods: those that the claim was reserved for at that time; others may have come and gone since.
        pod_claim: the name that pods have for it, of a claim that was made from a template.
        boot_id: which boot of the machine it was prepared in; empty where that is not known.
        ended: a reboot has ended what the claim had. Only which devices it was given is remembered, so that
            no other device is handed out under their names.
    """

    uid: Uid
    namespace: str
    name: str
    state: ClaimState
    devices: tuple[PreparedDevice, ...] = ()
    settings: tuple[DeviceSetting, ...] = ()
    spec: Spec | None = None
    pods: tuple[PodReference, ...] = ()
    pod_claim: str = ""
    boot_id: str = ""
    ended: bool = False

    @property
    def standing(self) -> ClaimState:
        """The state for the table of ``machine``."""
        return ClaimState.ENDED if self.ended else self.state

    def cdi_name(self, device: PreparedDevice) -> str:
        """Return the name, within the claim's CDI document, of the CDI device that stands for a device.

        Raises:
            PrepareError: the record has none.
        """
        for qualified in device.cdi_device_ids:
            return qualified.partition("=")[2]
        raise self._lacks(f"device {device.device}: its record has no CDI device name (cdiDeviceIDs)")

    def check_document(self) -> None:
        """Refuse a record by which a container would start without a device of the claim.

        This driver writes no such record: it was changed by hand, or comes from another program.

        Raises:
            PrepareError: a device has no CDI device name, or the claim has devices and no CDI document.
        """
        if self.ended:
            return
        for device in self.devices:
            self.cdi_name(device)
        if self.devices and self.spec is None:
            names = ", ".join(d.device for d in self.devices)
            raise self._lacks(f"device {names}: its record has no CDI document (spec)")

    def _lacks(self, what: str) -> PrepareError:
        return PrepareError(
            f"claim {self.key} (UID {self.uid}), {what}, so that no container can be given the device; "
            "delete the claim's pods: the claim is then unprepared, and prepared anew for new ones"
        )

    @property
    def is_for_one_pod(self) -> bool:
        """Whether it was made for one pod: it is reserved for that then, not for a PodGroup."""
        return bool(self.pods and self.pod_claim)

    @property
    def touches_hardware(self) -> bool:
        """Whether more than files has to be made for it."""
        return bool(self.settings) or any(d.partition or d.binding for d in self.devices)

    @property
    def effects(self) -> tuple[tuple[PreparedDevice, EffectRecord], ...]:
        """The devices that their backends prepare, with what these do."""
        return tuple((d, d.effect) for d in self.devices if d.effect is not None)

    @property
    def key(self) -> ObjectKey:
        """Namespace and name."""
        return ObjectKey(self.namespace, self.name)
