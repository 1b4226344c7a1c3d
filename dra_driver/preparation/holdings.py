"""Who holds which device, so that two claims never hold one exclusively."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from dra_driver.api.meta import ObjectKey, PoolName, Uid
from dra_driver.preparation.claim import PreparedClaim, PreparedDevice

__all__ = ["Conflict", "Holdings"]


@dataclass(frozen=True, slots=True)
class Conflict:
    """A device that another claim holds."""

    device: str
    holder: ObjectKey
    holder_uid: Uid

    def __str__(self) -> str:
        return f"device {self.device} is held by claim {self.holder} (UID {self.holder_uid})"


class Holdings:
    """The devices of prepared claims and of those that are being prepared.

    Admin access neither excludes nor is excluded. Different shares of one device go together; a share and an
    exclusive use do not.
    """

    def __init__(self, claims: Iterable[PreparedClaim] = ()) -> None:
        self._owners: dict[Uid, ObjectKey] = {}
        self._devices: dict[tuple[PoolName, str], dict[Uid, frozenset[str | None]]] = {}
        for claim in claims:
            self.take(claim.uid, claim.key, claim.devices)

    def conflict(self, uid: Uid, devices: Iterable[PreparedDevice]) -> Conflict | None:
        """The first device that another claim than ``uid`` holds in a way that excludes this use."""
        for device in devices:
            if device.admin_access:
                continue
            for holder, shares in self._devices.get((device.pool, device.device), {}).items():
                together = (
                    device.share_id is not None and None not in shares and device.share_id not in shares
                )
                if holder != uid and not together:
                    return Conflict(device.device, self._owners[holder], holder)
        return None

    def take(self, uid: Uid, key: ObjectKey, devices: Iterable[PreparedDevice]) -> None:
        """Notes that the claim holds the devices. The caller has asked ``conflict`` in the same step."""
        self.release(uid)
        self._owners[uid] = key
        for device in devices:
            if not device.admin_access:
                shares = self._devices.setdefault((device.pool, device.device), {})
                shares[uid] = shares.get(uid, frozenset()) | {device.share_id}

    def release(self, uid: Uid) -> None:
        """Notes that the claim holds nothing any more."""
        if self._owners.pop(uid, None) is None:
            return
        for where in [w for w, holders in self._devices.items() if uid in holders]:
            del self._devices[where][uid]
            if not self._devices[where]:
                del self._devices[where]
