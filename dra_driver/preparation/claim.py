"""What the node remembers of a claim."""

from __future__ import annotations

import enum

from dra_driver.api.meta import ObjectKey, PoolName, Uid, Wire
from dra_driver.cdi import Spec

__all__ = ["ClaimState", "PreparedClaim", "PreparedDevice"]


class ClaimState(enum.Enum):
    """Where the durable record of a claim stands.

    ``ABSENT`` is never written: it is the lack of a record.
    """

    ABSENT = "Absent"
    STARTED = "PrepareStarted"
    COMPLETED = "PrepareCompleted"


class PreparedDevice(Wire, frozen=True, kw_only=True):
    """One allocated device of a claim, as the kubelet is told.

    Attributes:
        requests: requests of the claim that it satisfies, without the subrequest.
        uuid: the vendor's identity of the device at that time.
        cdi_device_ids: qualified CDI names.
        share_id: which share of a device that is allocated several times.
        admin_access: the claim only looks on; it excludes nobody.
    """

    requests: tuple[str, ...]
    pool: PoolName
    device: str
    uuid: str = ""
    cdi_device_ids: tuple[str, ...] = ()
    share_id: str | None = None
    admin_access: bool = False


class PreparedClaim(Wire, frozen=True, kw_only=True):
    """The record of one claim in the checkpoint.

    Attributes:
        spec: the CDI document of the claim; None for a claim without devices. It is kept whole, so that it
            can be written again without the API server and without the hardware.
    """

    uid: Uid
    namespace: str
    name: str
    state: ClaimState
    devices: tuple[PreparedDevice, ...] = ()
    spec: Spec | None = None

    @property
    def key(self) -> ObjectKey:
        """Namespace and name."""
        return ObjectKey(self.namespace, self.name)
