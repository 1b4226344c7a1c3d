"""What is allocated: whole devices, shares of devices, and the capacity that the shares consume."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from dra_driver.api.quantity import Quantity
from dra_driver.api.resource import AllocationResult, ResourceClaim
from dra_driver.ownership import PoolID
from dra_driver.structured.model.persistent import PersistentMap
from dra_driver.structured.model.types import DeviceID

__all__ = ["EMPTY_POOL", "AllocatedState", "PoolState"]

_EMPTY: Mapping[str, Quantity] = {}


@dataclass(frozen=True, slots=True)
class PoolState:
    """What is allocated of one pool, by name of the device.

    Attributes:
        devices: devices that are allocated as a whole → the claim that holds it.
        shares: devices of which shares are allocated → the claims that hold them, one entry per share.
        capacity: what the shares of a device consume together, by name of the capacity.
    """

    devices: Mapping[str, str] = field(default_factory=dict)
    shares: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    capacity: Mapping[str, Mapping[str, Quantity]] = field(default_factory=dict)


EMPTY_POOL = PoolState()


@dataclass(frozen=True, slots=True)
class AllocatedState:
    """What is allocated, by pool. Immutable; the ``with_…`` methods return the next state.

    Attributes:
        pools: pools without allocations are absent.
    """

    pools: PersistentMap[PoolID, PoolState] = field(default_factory=PersistentMap)

    @classmethod
    def from_claims(cls, claims: Iterable[ResourceClaim]) -> AllocatedState:
        """Return the allocations of these claims. Results with admin access allocate nothing."""
        return cls().with_allocations(
            (str(claim.key), claim.status.allocation)
            for claim in claims
            if claim.status.allocation is not None
        )

    def pool(self, pool: PoolID) -> PoolState:
        """Return what is allocated of one pool."""
        return self.pools.get(pool) or EMPTY_POOL

    def with_allocations(self, allocations: Iterable[tuple[str, AllocationResult]]) -> AllocatedState:
        """Return a state with some more allocations, each with its holder's ``namespace/name``."""
        changed: dict[PoolID, PoolState] = {}
        for holder, allocation in allocations:
            for result in allocation.devices.results:
                if result.admin_access:
                    continue
                pool = PoolID(result.driver, result.pool)
                state = changed.get(pool)
                if state is None:
                    old = self.pool(pool)
                    state = changed[pool] = PoolState(dict(old.devices), dict(old.shares), dict(old.capacity))
                _add(state, result.device, holder, result.share_id is not None, result.consumed_capacity)
        return AllocatedState(self.pools.updated(changed)) if changed else self

    def with_pool(self, pool: PoolID, state: PoolState) -> AllocatedState:
        """Return a state with another content of one pool."""
        if state.devices or state.shares or state.capacity:
            return AllocatedState(self.pools.updated({pool: state}))
        return AllocatedState(self.pools.updated({}, [pool]))

    def with_devices(
        self, devices: Iterable[tuple[DeviceID, str]], shares: Iterable[tuple[DeviceID, str]] = ()
    ) -> AllocatedState:
        """Return a state with some more devices, allocated as a whole or shared, each with its holder."""
        changed: dict[PoolID, PoolState] = {}

        def state_of(pool: PoolID) -> PoolState:
            if pool not in changed:
                old = self.pool(pool)
                changed[pool] = PoolState(dict(old.devices), dict(old.shares), dict(old.capacity))
            return changed[pool]

        for device, holder in devices:
            _add(state_of(device.pool_id), device.device, holder, False, _EMPTY)
        for device, holder in shares:
            _add(state_of(device.pool_id), device.device, holder, True, _EMPTY)
        return AllocatedState(self.pools.updated(changed))

    def with_capacity(self, capacity: Mapping[DeviceID, Mapping[str, Quantity]]) -> AllocatedState:
        """Return a state with some more consumed capacity of devices."""
        changed: dict[PoolID, PoolState] = {}
        for device, amounts in capacity.items():
            old = changed.get(device.pool_id) or self.pool(device.pool_id)
            state = PoolState(old.devices, old.shares, dict(old.capacity))
            _add_capacity(state, device.device, amounts)
            changed[device.pool_id] = state
        return AllocatedState(self.pools.updated(changed))


def _add(state: PoolState, device: str, holder: str, shared: bool, amounts: Mapping[str, Quantity]) -> None:
    # The dicts of a state under construction are its own: PoolState promises a Mapping to readers only.
    assert isinstance(state.devices, dict)
    assert isinstance(state.shares, dict)
    if shared:
        state.shares[device] = (*state.shares.get(device, ()), holder)
        _add_capacity(state, device, amounts)
    else:
        state.devices[device] = holder


def _add_capacity(state: PoolState, device: str, amounts: Mapping[str, Quantity]) -> None:
    assert isinstance(state.capacity, dict)
    total = dict(state.capacity.get(device, _EMPTY))
    for name, amount in amounts.items():
        total[name] = total[name] + amount if name in total else amount
    state.capacity[device] = total
