"""Which claims hold a device, so that two never hold one exclusively or want a GPU in two ways."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from dra_driver.api.meta import ObjectKey, PoolName, Uid
from dra_driver.preparation.claim import DeviceSetting, PreparedClaim, PreparedDevice

__all__ = ["Conflict", "Holdings", "gathered"]

_OTHER: Final = "ask for another device, or wait until that claim has ended"
# Without this mode a process that does not use MPS could take the memory that MPS limits others to.
_EXCLUSIVE: Final = "under MPS a GPU is in mode EXCLUSIVE_PROCESS, in which nothing else runs on it"
_UNDER_MPS: Final = f"{_EXCLUSIVE}; leave enforcement None and timeSlicing out, or {_OTHER}"
_WITHOUT_MPS: Final = (
    f"{_EXCLUSIVE}; give this claim a ShareConfig with enforcement None, as that one has, or {_OTHER}"
)


@dataclass(frozen=True, slots=True)
class Conflict:
    """A device that another claim holds.

    Its text goes to the Event of a pod, and names the other claim only if it is of the pod's namespace.

    Attributes:
        namespace: of the claim that is refused.
        why: what of it is held in another way; empty where the device itself is held.
        advice: why both cannot be had, and what can be done, as a clause; empty where waiting helps.
    """

    device: str
    holder: ObjectKey
    holder_uid: Uid
    namespace: str
    why: str = ""
    advice: str = ""

    def __str__(self) -> str:
        how = f" {self.why}" if self.why else ""
        whose = self.holder.name if self.holder.namespace == self.namespace else "of another namespace"
        advice = f": {self.advice}" if self.advice else ""
        return f"device {self.device} is held{how} by another claim ({whose}){advice}"


@dataclass(frozen=True, slots=True)
class _Holder:
    key: ObjectKey
    devices: tuple[PreparedDevice, ...]
    settings: tuple[DeviceSetting, ...]


class Holdings:
    """The devices of prepared claims and of those that are being prepared.

    Admin access neither excludes nor is excluded. Different shares of one device go together, and so do
    partitions of one GPU that do not overlap; a share or a partition and an exclusive use do not.
    """

    def __init__(self, claims: Iterable[PreparedClaim] = ()) -> None:
        self._holders: dict[Uid, _Holder] = {}
        # Physical device, by name → claims that use it or a part of it. Devices and GPUs of settings alike.
        self._users: dict[tuple[PoolName, str], set[Uid]] = {}
        self._settings: dict[str, dict[Uid, DeviceSetting]] = {}
        self._begun: set[Uid] = set()
        for claim in claims:
            if not claim.ended:
                self.take(claim.uid, claim.key, claim.devices, claim.settings)
                self.begun(claim.uid)

    def conflict(
        self,
        uid: Uid,
        namespace: str,
        devices: Iterable[PreparedDevice],
        settings: Iterable[DeviceSetting] = (),
    ) -> Conflict | None:
        """Return the first device that another claim than ``uid`` holds in a way that excludes this use."""
        for device in devices:
            if device.admin_access:
                continue
            for holder in sorted(self._users.get(_place(device), set()) - {uid}):
                held = self._holders[holder]
                for other in held.devices:
                    if _place(other) == _place(device) and _exclude(device, other):
                        return Conflict(device.device, held.key, holder, namespace)
        for setting in settings:
            for holder, theirs in self._settings.get(setting.uuid, {}).items():
                key = self._holders[holder].key
                why, advice = _disagreement(setting, theirs, own=key.namespace == namespace)
                if holder != uid and why:
                    return Conflict(setting.device, key, holder, namespace, why, advice)
        return None

    def take(
        self,
        uid: Uid,
        key: ObjectKey,
        devices: Iterable[PreparedDevice],
        settings: Iterable[DeviceSetting] = (),
    ) -> None:
        """Note that the claim holds the devices. The caller has asked ``conflict`` in the same step."""
        self.release(uid)
        held = _Holder(key, tuple(d for d in devices if not d.admin_access), tuple(settings))
        self._holders[uid] = held
        for device in held.devices:
            self._users.setdefault(_place(device), set()).add(uid)
        for setting in held.settings:
            self._settings.setdefault(setting.uuid, {})[uid] = setting

    def begun(self, uid: Uid) -> None:
        """Note that the claim has a durable record: what it needs will be undone, whatever happens."""
        self._begun.add(uid)

    def ending(self, uid: Uid) -> None:
        """Note that the claim undoes what it needs: two that end at once must not leave it to each other."""
        self._begun.discard(uid)

    def release(self, uid: Uid) -> None:
        """Note that the claim holds nothing any more."""
        self._begun.discard(uid)
        held = self._holders.pop(uid, None)
        if held is None:
            return
        for place in {_place(d) for d in held.devices}:
            self._users[place].discard(uid)
            if not self._users[place]:
                del self._users[place]
        for setting in held.settings:
            of_gpu = self._settings.get(setting.uuid, {})
            of_gpu.pop(uid, None)
            if not of_gpu:
                self._settings.pop(setting.uuid, None)

    def others(self, uid: Uid, gpu: str) -> Sequence[DeviceSetting]:
        """Return what other claims need of the GPU with this UUID."""
        return [s for holder, s in self._settings.get(gpu, {}).items() if holder != uid]

    def successors(self, uid: Uid, gpu: str) -> Sequence[DeviceSetting]:
        """Return those of ``others`` for whom a setting may stay, because they undo it one day.

        A claim without a durable record is none: it sets what it needs after it has one, and if it never has,
        nobody else would know that there is something to undo. Nor is one that is ending itself.
        """
        of_gpu = self._settings.get(gpu, {})
        return [s for holder, s in of_gpu.items() if holder != uid and holder in self._begun]

    def partitions(self, gpu: str) -> Iterator[PreparedDevice]:
        """Return the partitions that claims hold of the GPU with this UUID."""
        for held in self._holders.values():
            yield from (d for d in held.devices if d.partition is not None and d.uuid == gpu)


def gathered(
    *sources: Iterable[PreparedClaim],
) -> tuple[Sequence[PreparedClaim], Sequence[PreparedClaim]]:
    """Return the records that count of sources that may contradict each other, and those that do not.

    Args:
        sources: records, the more reliable source first. Of several records of a claim the first one counts;
            one whose devices another claim has by an earlier one does not.
    """
    kept: dict[Uid, PreparedClaim] = {}
    dropped: list[PreparedClaim] = []
    held = Holdings()
    for record in (r for source in sources for r in source):
        if record.uid in kept:
            continue
        if not record.ended:
            if held.conflict(record.uid, record.namespace, record.devices, record.settings) is not None:
                dropped.append(record)
                continue
            held.take(record.uid, record.key, record.devices, record.settings)
        kept[record.uid] = record
    return tuple(kept.values()), tuple(r for r in dropped if r.uid not in kept)


def _place(device: PreparedDevice) -> tuple[PoolName, str]:
    return device.pool, device.partition.gpu if device.partition is not None else device.device


def _exclude(a: PreparedDevice, b: PreparedDevice) -> bool:
    """Return whether two uses of one physical device cannot be at once."""
    if a.partition is not None and b.partition is not None:
        first, second = sorted((a.partition, b.partition), key=lambda p: p.start)
        return second.start < first.start + first.size
    if a.partition is not None or b.partition is not None:
        return True
    return a.share_id is None or b.share_id is None or a.share_id == b.share_id


def _disagreement(mine: DeviceSetting, theirs: DeviceSetting, *, own: bool) -> tuple[str, str]:
    """Return how a GPU is held, if this claim needs it otherwise, and advice; empty if both can be had.

    Args:
        mine: of the claim that asks.
        theirs: of a claim that holds the GPU.
        own: whether both are of one namespace.
    """
    if mine.partitioned != theirs.partitioned:
        return ("cut into partitions" if theirs.partitioned else "as a whole"), ""
    if not own and theirs.own_namespace:
        return "for its namespace alone (sharedWith OwnNamespace)", _OTHER
    if not own and mine.own_namespace:
        return "with other namespaces", "this claim or its class demands sharedWith OwnNamespace; " + _OTHER
    if mine.daemon is not None and theirs.daemon is not None and mine.daemon != theirs.daemon:
        return ("under MPS", _UNDER_MPS) if theirs.daemon else ("without MPS", _WITHOUT_MPS)
    if mine.time_slice and theirs.time_slice and mine.time_slice != theirs.time_slice:
        return f"with time slice {theirs.time_slice} (this claim asks for {mine.time_slice})", ""
    return "", ""
