"""Grants: which new allocations of our devices the API server admits from others than the controller.

They stand in one object of the controller's, which an admission policy reads as its parameter whenever
somebody allocates a claim. Once the controller has written it, the policy denies by default: a device of ours
goes to nobody, unless its pool is kube-scheduler's or the claim has a grant for exactly this form of it. So a
decision of kube-scheduler, however late it is written, takes nothing that was not given to this claim: not
the whole of a device either of which others hold shares by now. An
object that no controller has written yet, as an installation brings it, refuses nothing.

The object has a key for each grant, so what a write of a claim costs the API server does not depend on how
many there are. Pools whose allocator is not the default one stand in one text, and are searched: the API
server keeps the manager of each key of an object, which makes a write of thousands of keys take seconds.

Of a pool that has become kube-scheduler's not everything is admitted at first, see ``Grants``. A form is how
a device is allocated: the name of the device, with ``SHARE`` for a share of it. One name may stand for the
whole device today and for shares tomorrow.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from dra_driver.api.meta import DriverName, PoolName
from dra_driver.api.names import EXTENDED_RESOURCE_ANNOTATION
from dra_driver.api.resource import ResourceClaim
from dra_driver.ownership.pools import PoolAllocator, PoolID, parse_device

__all__ = [
    "MAX_GRANT_BYTES",
    "MAX_LISTED",
    "SHARE",
    "VARIABLES",
    "Grants",
    "admitted",
    "chosen",
    "chosen_devices",
    "grant_key",
    "grant_key_of_pod",
]

# The API server takes a ConfigMap with 1 MiB of keys and values.
MAX_GRANT_BYTES: Final = 900 * 1024
# Pools that are exceptions, and forms that are kept or free: each is compared with each of 32 devices of a
# claim, and an expression may cost a million.
MAX_LISTED: Final = 20_000
_DEFAULT: Final = "_default"
_TURN: Final = "_turn"
_CLAIM: Final = "_claim_"
_POD: Final = "_pod_"
_EXCEPTIONS: Final = "_pools"
_KEPT: Final = "_kept"
_FREE: Final = "_free"
SHARE: Final = "#share"
"""After the name of a device: a share of it."""
_SCHEDULER: Final = PoolAllocator.SCHEDULER.value

_CHOSEN: Final = re.compile(r"\(turn \d{1,18}\) \[([^\]]*)\]")

Devices = frozenset[tuple[PoolID, str]]


def _lines(key: str) -> str:
    return f"has(params.data) && {key} in params.data ? params.data[{key}].split('\\n') : []"


VARIABLES: Final[Mapping[str, str]] = MappingProxyType(
    {
        # Under which the claim that is written has its grant.
        "key": (
            "has(object.metadata.annotations)"
            f" && '{EXTENDED_RESOURCE_ANNOTATION}' in object.metadata.annotations"
            f" && object.metadata.annotations['{EXTENDED_RESOURCE_ANNOTATION}'] == 'true'"
            " && has(object.metadata.ownerReferences) && object.metadata.ownerReferences.size() == 1"
            f" ? '{_POD}' + object.metadata.namespace + '_' + object.metadata.ownerReferences[0].uid"
            f" : '{_CLAIM}' + object.metadata.uid"
        ),
        "granted": _lines("variables.key"),
        "exceptions": _lines(f"'{_EXCEPTIONS}'"),
        "kept": _lines(f"'{_KEPT}'"),
        "free": _lines(f"'{_FREE}'"),
        # Whether pools are kube-scheduler's by default.
        "default": (
            f"!has(params.data) || !('{_DEFAULT}' in params.data)"
            f" || params.data['{_DEFAULT}'] == '{_SCHEDULER}'"
        ),
    }
)
"""The policy's variables (CEL), in their order."""


def admitted(drivers: Iterable[str]) -> str:
    """Return the policy's condition on a write of a claim's status by others than the controller (CEL).

    Args:
        drivers: whose devices are ours; those of others are no concern of the policy.
    """
    ours = ", ".join(f"'{driver}'" for driver in sorted(drivers))
    form = f"r.driver + '/' + r.pool + '/' + r.device + (has(r.shareID) ? '{SHARE}' : '')"
    return (
        "has(oldObject.status) && has(oldObject.status.allocation)"
        " || !has(object.status) || !has(object.status.allocation)"
        " || !has(object.status.allocation.devices) || !has(object.status.allocation.devices.results)"
        " || object.status.allocation.devices.results.all(r, has(r.adminAccess) && r.adminAccess"
        f" || !(r.driver in [{ours}])"
        " || (r.driver + '/' + r.pool in variables.exceptions) != variables.default"
        f" && !({form} in variables.kept)"
        f" || {form} in variables.free"
        f" || {form} in variables.granted)"
    )


def chosen(drivers: Iterable[str]) -> str:
    """Return how the policy's refusal names the devices of ours that were chosen (CEL)."""
    ours = ", ".join(f"'{driver}'" for driver in sorted(drivers))
    return (
        "' [' + object.status.allocation.devices.results.filter("
        f"r, r.driver in [{ours}]).map(r, r.driver + '/' + r.pool + '/' + r.device).join(' ') + ']'"
    )


def chosen_devices(refusal: str) -> Devices:
    """Return the devices that a refusal of the policy names."""
    found = _CHOSEN.search(refusal)
    named = map(parse_device, found[1].split(" ")) if found is not None else ()
    return frozenset(one for one in named if one is not None)


def grant_key(claim: ResourceClaim) -> str:
    """Return the key of a claim's grant.

    kube-scheduler makes the claim of extended resources when it allocates it, so its grant is under the pod's
    UID. Whoever may make claims may name any pod as the owner, but the API server says in which namespace.
    """
    owners, metadata = claim.metadata.owner_references or (), claim.metadata
    if (metadata.annotations or {}).get(EXTENDED_RESOURCE_ANNOTATION) == "true" and len(owners) == 1:
        return grant_key_of_pod(metadata.namespace, owners[0].uid)
    return f"{_CLAIM}{metadata.uid}"


def grant_key_of_pod(namespace: str, uid: str) -> str:
    """Return the key of the grant for the extended resources of a pod."""
    return f"{_POD}{namespace}_{uid}"


@dataclass(frozen=True, slots=True)
class Grants:
    """What the object says.

    Attributes:
        devices: forms by the key of the claim that kube-scheduler may allocate with them.
        exceptions: pools whose allocator is not the default one.
        kept: forms that are not admitted although the pool is kube-scheduler's. The controller had allocated
            what excludes them, and kube-scheduler may have decided on them before it knew; or they are not
            published any more, and what it decides on what is published takes no account of them.
        default: who allocates from the pools of our drivers.
        turn: how often the object was written because something had to end.
        free: forms that are admitted although the pool is not listed as kube-scheduler's: in place of what
            is kept, where that would be longer.
    """

    devices: Mapping[str, Devices] = field(default_factory=lambda: MappingProxyType({}))
    exceptions: frozenset[PoolID] = frozenset()
    kept: Devices = frozenset()
    default: PoolAllocator = PoolAllocator.CONTROLLER
    turn: int = 0
    free: Devices = frozenset()

    @classmethod
    def of_data(cls, data: Mapping[str, str]) -> Grants:
        """Return what an object says, however it came to be: a line that is no device is left out."""
        turn = data.get(_TURN, "")
        granted = {k: _devices(text) for k, text in data.items() if k.startswith((_CLAIM, _POD))}
        pools = (line.partition("/") for line in data.get(_EXCEPTIONS, "").split("\n"))
        by_scheduler = data.get(_DEFAULT, _SCHEDULER) == _SCHEDULER
        return cls(
            MappingProxyType({key: devices for key, devices in granted.items() if devices}),
            frozenset(
                PoolID(DriverName(driver), PoolName(pool)) for driver, _, pool in pools if driver and pool
            ),
            _devices(data.get(_KEPT, "")),
            PoolAllocator.SCHEDULER if by_scheduler else PoolAllocator.CONTROLLER,
            int(turn) if turn.isascii() and turn.isdigit() and len(turn) <= 18 else 0,
            _devices(data.get(_FREE, "")),
        )

    def data(self) -> dict[str, str]:
        """Return the data of the object."""
        own = {
            _DEFAULT: self.default.value,
            _TURN: str(self.turn),
            _EXCEPTIONS: "\n".join(sorted(map(str, self.exceptions))),
            _KEPT: _text(self.kept),
            _FREE: _text(self.free),
        }
        return {**own, **{key: _text(devices) for key, devices in self.devices.items()}}

    def allocator(self, pool: PoolID) -> PoolAllocator:
        """Return who allocates from a pool where the claim has no grant."""
        if pool not in self.exceptions:
            return self.default
        both = PoolAllocator.CONTROLLER, PoolAllocator.SCHEDULER
        return next(one for one in both if one is not self.default)

    def admits_all(self, pool: PoolID) -> bool:
        """Return whether others may allocate everything of a pool."""
        return self.allocator(pool) is PoolAllocator.SCHEDULER and all(of != pool for of, _ in self.kept)

    def admits_some(self, pool: PoolID) -> bool:
        """Return whether others may allocate something of a pool, grants to claims apart."""
        listed = any(of == pool for of, _ in self.free)
        return listed or self.allocator(pool) is PoolAllocator.SCHEDULER

    def admits(self, key: str, pool: PoolID, form: str) -> bool:
        """Return whether others than the controller may allocate a device of ours, or a share, to a claim."""
        theirs = self.allocator(pool) is PoolAllocator.SCHEDULER and (pool, form) not in self.kept
        granted = (pool, form) in self.devices.get(key, frozenset())
        return theirs or (pool, form) in self.free or granted

    @property
    def size(self) -> int:
        """Return the bytes of all keys and values."""
        return sum(len(key) + len(text) for key, text in self.data().items())

    @property
    def fits(self) -> bool:
        """Return whether the API server stores so much, and can look through what is listed."""
        listed = len(self.exceptions) + len(self.kept) + len(self.free)
        return listed <= MAX_LISTED and self.size <= MAX_GRANT_BYTES


def _text(devices: Devices) -> str:
    return "\n".join(sorted(f"{pool}/{device}" for pool, device in devices))


def _devices(text: str) -> Devices:
    return frozenset(found for line in text.split("\n") if (found := parse_device(line)) is not None)
