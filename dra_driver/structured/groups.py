"""Groups: the claims of several pods, on several nodes, allocated all or none."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

import msgspec

from dra_driver.api import codec
from dra_driver.api.resource import (
    CelSelector,
    DeviceRequest,
    DeviceSelector,
    DeviceTaint,
    ResourceClaim,
)
from dra_driver.structured.allocator import allocate
from dra_driver.structured.explain.summaries import summary
from dra_driver.structured.matching.constraints import attribute_of
from dra_driver.structured.model.budget import Budget
from dra_driver.structured.model.snapshot import Snapshot
from dra_driver.structured.model.types import (
    Allocated,
    DoesNotFit,
    Failed,
    NodePolicy,
    Outcome,
    PoolID,
    PoolPolicies,
    Strategy,
)

__all__ = ["Domain", "GroupAllocated", "allocate_group"]

# Answers that are tried for one group in one domain when the search backtracks.
_MAX_TRIES: Final = 400


@dataclass(frozen=True, slots=True)
class Domain:
    """What all nodes of a group must have in common.

    Attributes:
        label: a label of nodes; nodes without it are in no domain.
        attribute: a qualified attribute of devices (strings only): every device that has it has the same
            value, and every node has a device with that value.
    """

    label: str = ""
    attribute: str = ""


@dataclass(frozen=True, slots=True)
class GroupAllocated:
    """All members fit.

    Attributes:
        members: one answer per member, in their order.
        domain: the value that they have in common; empty if none was asked for.
    """

    members: tuple[Allocated, ...]
    domain: str = ""


def allocate_group(
    snapshot: Snapshot,
    members: Sequence[Sequence[ResourceClaim]],
    *,
    domain: Domain | None = None,
    strategy: Strategy = Strategy.BEST_FIT,
    nodes: Collection[str] | None = None,
    ignore_taint: Callable[[DeviceTaint], bool] | None = None,
    pools: PoolPolicies | None = None,
    withheld: Mapping[PoolID, str] | None = None,
    policy: NodePolicy = NodePolicy.PACK,
    budget: Budget | None = None,
) -> GroupAllocated | DoesNotFit | Failed:
    """Find nodes and devices for all members, or for none.

    Args:
        snapshot: the cluster.
        members: the claims of one pod each: solved together, on one node. A claim that several members share
            is allocated once, and its allocation binds the others.
        domain: what the nodes have in common. Of the domains that hold the whole group the one with the
            fewest nodes is taken, then the first by name.
        strategy: how to choose for each member.
        nodes: as for ``allocate``.
        ignore_taint: as for ``allocate``.
        pools: as for ``allocate``.
        withheld: as for ``allocate``.
        policy: as for ``allocate``.
        budget: what the whole group may cost, in all domains together; if None, ``Budget()``.

    Returns:
        ``DoesNotFit`` with the reasons of the member that was not served (in the last domain that was tried).
    """
    budget = budget or Budget()
    ask = partial(
        allocate,
        strategy=strategy,
        ignore_taint=ignore_taint,
        pools=pools,
        withheld=withheld,
        policy=policy,
        budget=budget,
    )
    worst: DoesNotFit | Failed | None = None
    for value, names, narrowed in _domains(snapshot, members, domain, nodes):
        group = _Group(snapshot, narrowed, names, ask)
        found = group.solve()
        if found is not None:
            return GroupAllocated(found, value)
        if group.refusal is not None and not isinstance(worst, Failed):
            worst = group.refusal
        if budget.exhausted:
            break
    return worst if worst is not None else _no_domain()


def _no_domain() -> DoesNotFit:
    return DoesNotFit(tuple, lambda _: summary(()), lambda: summary(()))


def _domains(
    snapshot: Snapshot,
    members: Sequence[Sequence[ResourceClaim]],
    domain: Domain | None,
    nodes: Collection[str] | None,
) -> Iterator[tuple[str, Collection[str] | None, Sequence[Sequence[ResourceClaim]]]]:
    """Iterate over the domains, smallest first: value, nodes, and the claims as they are asked there."""
    if domain is None:
        yield "", nodes, members
        return
    wanted = list(snapshot.nodes) if nodes is None else sorted(nodes)
    by_value: dict[str, list[str]] = {}
    for name in wanted:
        for value in sorted(_values(snapshot, name, domain)):
            by_value.setdefault(value, []).append(name)
    for value, names in sorted(by_value.items(), key=lambda item: (len(item[1]), item[0])):
        if domain.attribute:
            yield value, names, [[_narrowed(c, domain.attribute, value) for c in m] for m in members]
        else:
            yield value, names, members


def _values(snapshot: Snapshot, name: str, domain: Domain) -> set[str]:
    node = snapshot.nodes.get(name)
    if node is None:
        return set()
    if domain.label:
        value = (node.metadata.labels or {}).get(domain.label)
        return set() if value is None else {value}
    found = set()
    for pool in snapshot.view(name).pools:
        for entry in pool.devices:
            attribute = attribute_of(entry.device, entry.id.driver, domain.attribute)
            if attribute is not None and attribute.string_value is not None:
                found.add(attribute.string_value)
    return found


def _narrowed(claim: ResourceClaim, attribute: str, value: str) -> ResourceClaim:
    """Return the claim with devices of other domains excluded, by a selector on each of its requests."""
    domain, _, name = attribute.partition("/")
    text, key = msgspec.json.encode(value).decode(), msgspec.json.encode(name).decode()
    of = f"device.attributes[{msgspec.json.encode(domain).decode()}]"
    selector = DeviceSelector(cel=CelSelector(expression=f"!({key} in {of}) || {of}[{key}] == {text}"))

    def narrow(request: DeviceRequest) -> DeviceRequest:
        exactly = request.exactly
        if exactly is not None:
            exactly = msgspec.structs.replace(exactly, selectors=(*exactly.selectors, selector))
        subs = tuple(
            msgspec.structs.replace(s, selectors=(*s.selectors, selector)) for s in request.first_available
        )
        return msgspec.structs.replace(request, exactly=exactly, first_available=subs)

    devices = claim.spec.devices
    requests = tuple(narrow(r) for r in devices.requests or ())
    spec = msgspec.structs.replace(claim.spec, devices=msgspec.structs.replace(devices, requests=requests))
    return msgspec.structs.replace(claim, spec=spec)


class _Group:
    """The search for a group in one domain.

    Args:
        snapshot: the cluster.
        members: the claims of each, as they have to be asked in the domain.
        nodes: of the domain; if None, all.
        ask: ``allocate`` with everything but a snapshot, claims and nodes.
    """

    def __init__(
        self,
        snapshot: Snapshot,
        members: Sequence[Sequence[ResourceClaim]],
        nodes: Collection[str] | None,
        ask: Callable[..., Outcome],
    ) -> None:
        self._snapshot = snapshot
        self._members = members
        self._nodes = nodes
        self._ask = ask
        self._tries = _MAX_TRIES
        self._failed = 0
        self.refusal: DoesNotFit | Failed | None = None

    def solve(self) -> tuple[Allocated, ...] | None:
        """Return one answer per member; None if none was found: ``refusal`` then says why."""
        order = sorted(range(len(self._members)), key=lambda i: -_weight(self._members[i]))
        # One after the other, the hardest first, is mostly enough. A member that did not fit goes first in
        # the next round; if it was first already, no other order serves it better.
        for _ in range(1 if self._are_equal() else len(order)):
            found = self._in_order(order)
            if found is not None or isinstance(self.refusal, Failed):
                return found
            if order[0] == self._failed:
                break
            order.remove(self._failed)
            order.insert(0, self._failed)
        # Backtracking varies the node of each member: with one member or one node there is nothing to vary.
        few = self._snapshot.nodes if self._nodes is None else self._nodes
        return None if len(order) == 1 or len(few) == 1 else self._backtrack(order)

    def _are_equal(self) -> bool:
        """Return whether all members ask for the same, and share no claim: their order does not matter."""
        if len({c.key for m in self._members for c in m}) < sum(map(len, self._members)):
            return False
        return len({codec.encode([c.spec.devices for c in m]) for m in self._members}) == 1

    def _in_order(self, order: Sequence[int]) -> tuple[Allocated, ...] | None:
        """Place one member after the other, each at its best; note the first that does not fit."""
        snapshot = self._snapshot
        found: dict[int, Allocated] = {}
        for i in order:
            outcome = self._ask(snapshot, self._claims(i, found), nodes=self._nodes)
            if not isinstance(outcome, Allocated):
                self.refusal, self._failed = outcome, i
                return None
            found[i] = outcome
            snapshot = self._after(snapshot, i, outcome, found)
        return tuple(found[i] for i in range(len(self._members)))

    def _backtrack(self, order: Sequence[int]) -> tuple[Allocated, ...] | None:
        """Try every node for every member, within the number of tries."""
        found: dict[int, Allocated] = {}

        def place(number: int, snapshot: Snapshot) -> bool:
            if number == len(order):
                return True
            i = order[number]
            left = set(self._snapshot.nodes if self._nodes is None else self._nodes)
            while self._tries > 0 and left:
                self._tries -= 1
                outcome = self._ask(snapshot, self._claims(i, found), nodes=left)
                if not isinstance(outcome, Allocated):
                    return False
                found[i] = outcome
                if place(number + 1, self._after(snapshot, i, outcome, found)):
                    return True
                del found[i]
                left.discard(outcome.node)
            return False

        return tuple(found[i] for i in range(len(order))) if place(0, self._snapshot) else None

    def _claims(self, member: int, found: dict[int, Allocated]) -> list[ResourceClaim]:
        """Return the claims of a member; those that another member shares have that one's allocation."""
        known = {
            c.key: result
            for i, outcome in found.items()
            for c, result in zip(self._members[i], outcome.results, strict=True)
        }
        claims = []
        for claim in self._members[member]:
            if claim.key in known and claim.status.allocation is None:
                status = msgspec.structs.replace(claim.status, allocation=known[claim.key])
                claim = msgspec.structs.replace(claim, status=status)  # noqa: PLW2901
            claims.append(claim)
        return claims

    def _after(
        self, snapshot: Snapshot, member: int, outcome: Allocated, found: dict[int, Allocated]
    ) -> Snapshot:
        """Return the snapshot with the member's new allocations."""
        before = {c.key for i in found if i != member for c in self._members[i]}
        made = [
            (str(c.key), r)
            for c, r in zip(self._members[member], outcome.results, strict=True)
            if c.status.allocation is None and c.key not in before
        ]
        return snapshot.with_allocated(snapshot.allocated.with_allocations(made))


def _weight(claims: Sequence[ResourceClaim]) -> int:
    """Return how hard a member is to place: devices that it asks for; "all" counts more than any number."""
    total = 0
    for claim in claims:
        for request in claim.spec.devices.requests or ():
            for spec in (request.exactly, *request.first_available):
                if spec is not None:
                    total += 100 if spec.allocation_mode == "All" else spec.count or 1
    return total
