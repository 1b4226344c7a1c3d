"""Devices that are recalled: the API server refuses an allocation of them that is not the controller's.

They stand in one object of the controller's, one to a line, which an admission policy reads as its parameter
whenever somebody allocates a claim. So a decision of kube-scheduler, however late it is written, takes no
device that is no longer lent. The object changes with every recall, even where the devices are in it already:
what an earlier leader may still have under way then fails at its resourceVersion.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from dra_driver.ownership.pools import PoolID, parse_device

__all__ = ["ADMITTED", "MAX_RECALLED", "MAX_RECALLED_OF_POOL", "RECALLED", "Recalls"]

# Each device takes up to 381 bytes, and a policy looks through all of them for each device that is allocated.
MAX_RECALLED: Final = 512
# Of one pool: what a node has noted or untainted on its own must leave room for what is lent of others. A GPU
# with all of its partitions fits.
MAX_RECALLED_OF_POOL: Final = 192
_DEVICES: Final = "devices"
_TURN: Final = "turn"

RECALLED: Final = "has(params.data) && 'devices' in params.data ? params.data['devices'].split('\\n') : []"
"""The policy's variable ``recalled`` (CEL)."""

ADMITTED: Final = (
    "has(oldObject.status) && has(oldObject.status.allocation)"
    " || !has(object.status) || !has(object.status.allocation)"
    " || !has(object.status.allocation.devices) || !has(object.status.allocation.devices.results)"
    " || object.status.allocation.devices.results.all(r, has(r.adminAccess) && r.adminAccess"
    " || !(r.driver + '/' + r.pool + '/' + r.device in variables.recalled))"
)
"""The policy's condition on a write of a claim's status by others than the controller (CEL).

A search in a list costs what it has entries, and one in a text the product of both lengths.
"""


@dataclass(frozen=True, slots=True)
class Recalls:
    """What is recalled.

    Attributes:
        devices: names by pool; the policy refuses an allocation of these, and of no others.
        turn: how often something was recalled.
    """

    devices: frozenset[tuple[PoolID, str]] = frozenset()
    turn: int = 0

    @classmethod
    def of_data(cls, data: Mapping[str, str]) -> Recalls:
        """Return what an object says, however it came to be: a line that is no device is left out."""
        turn = data.get(_TURN, "")
        return cls(
            frozenset(filter(None, map(parse_device, data.get(_DEVICES, "").split("\n")))),
            int(turn) if turn.isascii() and turn.isdigit() and len(turn) <= 18 else 0,
        )

    def data(self) -> dict[str, str]:
        """Return the data of the object."""
        lines = sorted(f"{pool}/{device}" for pool, device in self.devices)
        return {_DEVICES: "\n".join(lines), _TURN: str(self.turn)}

    def recall(self, pool: PoolID, devices: Iterable[str]) -> Recalls | None:
        """Return them with some more; None if there is no room, for the pool or at all."""
        more = self.devices | {(pool, device) for device in devices}
        of_pool = sum(known == pool for known, _ in more)
        fits = len(more) <= MAX_RECALLED and of_pool <= MAX_RECALLED_OF_POOL
        return Recalls(more, self.turn + 1) if fits else None

    def admit(self, pool: PoolID, devices: Iterable[str]) -> Recalls:
        """Return them without some: kube-scheduler may allocate these."""
        return Recalls(self.devices - {(pool, device) for device in devices}, self.turn)
