"""Whether pools can be open: what sets the gate, and the policy that keeps devices for the controller."""

from __future__ import annotations

from controller.publish.gated import GatedNamespaces
from controller.publish.gates import PoolGates
from controller.publish.grants import PoolGrants
from dra_driver.ownership import PoolID
from dra_driver.publishing.seen import Guarding

__all__ = ["OpenPools"]


class OpenPools:
    """What the publisher has to know of a pool, and what follows at once where it changes.

    Args:
        grants: the policy, and what is granted.
        gated: whether every pod gets the gate.
        gates: told at once what the allocator must leave alone.
    """

    def __init__(self, grants: PoolGrants, gated: GatedNamespaces, gates: PoolGates) -> None:
        self._grants = grants
        self._gated = gated
        grants.guard_changed.listen(gates.look_at_open)
        grants.changed.listen(gates.look_at_open)

    def guarding(self, pool: PoolID) -> Guarding:
        """Return whether the API server keeps the devices of a pool for the controller."""
        return Guarding(
            gates=self._gated.everywhere(),
            policy=self._grants.in_force(),
            closed=self._grants.refuses_others(pool),
            problem=self.problem(),
        )

    def possible(self) -> bool:
        """Return whether pools are open, or may be within seconds."""
        return self._gated.everywhere() is not False and self._grants.in_force() is not False

    def problem(self) -> str:
        """Return why pools cannot be open; empty if they can, or if that is not known yet."""
        return self._grants.problem or self._gated.refusal()
