"""What is answered: the pods to remove, that there is nothing to remove, or why no removal helps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from dra_driver.api.meta import ObjectKey
from dra_driver.structured import GroupAllocated

__all__ = ["Cost", "Fits", "NoVictims", "Removal", "Victim", "devices_of"]

_MOST_NAMED = 8


class Cost(NamedTuple):
    """What a set of victims costs; less is better, place by place.

    Attributes:
        violations: disruptions beyond what budgets allow. A pod with several budgets counts as one more, for
            the Eviction API refuses it.
        highest: the highest priority among the victims.
        pods: number of victims.
        priorities: sum of the victims' priorities.
        work: less the sum of the victims' start times: of as many victims, the youngest.
        devices: number of devices that they lose, without admin access.
    """

    violations: int
    highest: int
    pods: int
    priorities: int
    work: int
    devices: int


@dataclass(frozen=True, slots=True)
class Victim:
    """A pod to be removed.

    Attributes:
        key: of the pod.
        priority: its own.
        reason: for people, such as ``holds gpu-0 of n1`` or ``is of the group ns/g``.
        budgets: that its removal violates, together with the victims before it.
    """

    key: ObjectKey
    priority: int
    reason: str
    budgets: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Removal:
    """Victims, without which the preemptor fits.

    Attributes:
        victims: in the order in which they should go: by group, then the lowest priority first.
        claims: that the victims hold, all of which have to be deallocated.
        going: pods that are being deleted already, on whose claims the answer rests as well.
        answer: of the allocator, for the cluster without all of these.
        violated: by how many disruptions each budget is exceeded.
        cost: of the victims.
        proven: whether no other choice costs less; otherwise the time was too short, or what victims have in
            common (groups over several nodes, budgets) was too much to try all.
    """

    victims: tuple[Victim, ...]
    claims: tuple[ObjectKey, ...]
    going: tuple[ObjectKey, ...]
    answer: GroupAllocated
    violated: Mapping[str, int]
    cost: Cost
    proven: bool

    @property
    def devices(self) -> dict[str, tuple[str, ...]]:
        """The devices that the preemptor would get, by node."""
        return devices_of(self.answer)

    def summary(self) -> str:
        """Return one sentence for people."""
        pods = [f"{v.key} (priority {v.priority})" for v in self.victims[:_MOST_NAMED]]
        if len(self.victims) > _MOST_NAMED:
            pods.append(f"{len(self.victims) - _MOST_NAMED} more")
        text = f"would preempt {', '.join(pods)}; {_places(self.devices)}"
        if self.violated:
            text += f"; violates the PodDisruptionBudgets {', '.join(sorted(self.violated))}"
        return text


@dataclass(frozen=True, slots=True)
class Fits:
    """Nothing has to be removed.

    Attributes:
        going: pods being deleted, after which the preemptor fits; none where it fits as things are.
        answer: of the allocator, without their claims.
    """

    going: tuple[ObjectKey, ...]
    answer: GroupAllocated

    def summary(self) -> str:
        """Return one sentence for people."""
        if not self.going:
            return f"fits; {_places(devices_of(self.answer))}"
        pods = [str(key) for key in self.going[:_MOST_NAMED]]
        if len(self.going) > _MOST_NAMED:
            pods.append(f"{len(self.going) - _MOST_NAMED} more")
        return f"waits for pods that are being deleted: {', '.join(pods)}"


@dataclass(frozen=True, slots=True)
class NoVictims:
    """No removal is known that helps.

    Attributes:
        reason: why, for people.
        proven: whether no removal helps; otherwise none was found within the budget.
    """

    reason: str
    proven: bool

    def summary(self) -> str:
        """Return one sentence for people."""
        return self.reason


def devices_of(answer: GroupAllocated) -> dict[str, tuple[str, ...]]:
    """Return the devices of an answer, by node; of allocated claims too."""
    found: dict[str, dict[str, None]] = {}
    for member in answer.members:
        for result in member.results if member is not None else ():
            of = found.setdefault(member.node, {}) if member is not None else {}
            of.update(dict.fromkeys(r.device for r in result.devices.results))
    return {node: tuple(of) for node, of in sorted(found.items())}


def _places(devices: Mapping[str, Sequence[str]]) -> str:
    nodes = [f"on node {node}: {', '.join(of)}" for node, of in list(devices.items())[:_MOST_NAMED]]
    if len(devices) > _MOST_NAMED:
        nodes.append(f"on {len(devices) - _MOST_NAMED} more nodes")
    return "; ".join(nodes)
