"""``choose_victims``: the least removal after which a preemptor fits."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from dra_driver.api.meta import ObjectKey
from dra_driver.ownership import PoolID
from dra_driver.planning import reason_of
from dra_driver.preemption.answers import Fits, NoVictims, Removal, Victim
from dra_driver.preemption.asking import Asking
from dra_driver.preemption.onenode import Found, on_one_node
from dra_driver.preemption.question import HoldingPod, OccupiedCluster, Preemptor
from dra_driver.preemption.several import on_several_nodes
from dra_driver.preemption.units import Unit, Units, devices_of, units_of
from dra_driver.structured import Budget, BudgetExhausted, Failed, GroupAllocated, GroupRefused

__all__ = ["choose_victims"]

# Steps, where the caller does not say.
_STEPS = 2_000_000
_MOST_NAMED = 8
_TOO_LONG = "no removal was found within the budget of the question"


def choose_victims(
    cluster: OccupiedCluster, preemptor: Preemptor, budget: Budget | None = None
) -> Removal | Fits | NoVictims:
    """Choose the pods that have to go so that a preemptor fits.

    Args:
        cluster: as it is now.
        preemptor: what needs room.
        budget: what the question may cost, in steps and by its clock; if None, two million steps. When it is
            used up, the best removal found so far is returned with ``proven=False``; the last look at that
            may take a quarter more.
    """
    budget = Budget(_STEPS) if budget is None else budget
    units = units_of(cluster, preemptor)
    try:
        now = _as_it_is(cluster, preemptor, units, budget)
        if now is not None:
            return now
        asking = Asking(cluster, preemptor, units, budget)
        answer = asking.solve()
    except BudgetExhausted:
        return NoVictims(_TOO_LONG, proven=False)
    if isinstance(answer, GroupAllocated):
        return Fits(_awaited(asking, answer), answer)
    if isinstance(answer, Failed):
        # Where the allocator gives up, the preemptor may fit already.
        return NoVictims(answer.message, proven=not answer.gave_up)
    if not preemptor.preempts:
        return NoVictims("its preemptionPolicy is Never", proven=True)
    found = _search(asking) if units.removable else None
    asking.budget = budget.for_reasons()
    try:
        return _no_victims(asking, answer) if found is None else _removal(asking, found)
    except BudgetExhausted:
        return NoVictims(_TOO_LONG, proven=False)


def _as_it_is(cluster: OccupiedCluster, preemptor: Preemptor, units: Units, budget: Budget) -> Fits | None:
    """Return where the preemptor fits while pods that are being deleted are still there; None if nowhere."""
    if not any(units.going):
        return None
    still = replace(units, going=((), ()), kept=(*units.kept, *units.going[0]))
    answer = Asking(cluster, preemptor, still, budget).solve()
    return Fits((), answer) if isinstance(answer, GroupAllocated) else None


def _awaited(asking: Asking, answer: GroupAllocated) -> tuple[ObjectKey, ...]:
    """Return the pods that are being deleted and hold something of the nodes of an answer."""
    claims, pods = asking.units.going
    view = asking.cluster.snapshot.view
    pools = {pool.id for node in answer.nodes for pool in view(node).pools}
    there = {c.key for c in claims if any(PoolID(r.driver, r.pool) in pools for r in devices_of(c))}
    return tuple(
        pod.key
        for pod in pods
        if any(key in there for key in pod.claims) or (pod.node in answer.nodes and any(pod.takes))
    )


def _search(asking: Asking) -> Found | None:
    if sum(asking.counts) > 1:
        return on_several_nodes(asking)
    found = on_one_node(asking)
    if found is not None and asking.trusting and found.proven:
        try:
            trusted = isinstance(asking.solve(found.units, frozenset(found.nodes)), GroupAllocated)
        except BudgetExhausted:
            return found
        if not trusted:
            asking.distrust()
            found = on_one_node(asking)
    return found


def _removal(asking: Asking, found: Found) -> Removal | NoVictims:
    answer = asking.solve(found.units, frozenset(found.nodes) if found.nodes else None)
    if not isinstance(answer, GroupAllocated):
        return NoVictims(_TOO_LONG, proven=False)
    units = [asking.units.removable[i] for i in sorted(found.units)]
    units.sort(key=lambda u: (u.cost.highest, u.cost))
    used: Counter[str] = Counter()
    victims: list[Victim] = []
    for unit in units:
        for pod in sorted(unit.pods, key=lambda p: (p.priority, -p.started, p.key)):
            used.update(pod.budgets)
            beyond = asking.costs.violated(used)
            broken = tuple(b for b in pod.budgets if len(pod.budgets) > 1 or b in beyond)
            victims.append(Victim(pod.key, pod.priority, _reason(pod, unit), broken))
    return Removal(
        victims=tuple(victims),
        claims=tuple(c.key for unit in units for c in unit.claims),
        going=_awaited(asking, answer),
        answer=answer,
        violated=asking.costs.violated(used),
        cost=found.cost,
        proven=found.proven,
    )


def _reason(pod: HoldingPod, unit: Unit) -> str:
    held = [f"{r.pool}/{r.device}" for c in unit.claims if c.key in pod.claims for r in devices_of(c)]
    if not held:
        return f"belongs to {pod.group}"
    more = f" and {len(held) - _MOST_NAMED} more" if len(held) > _MOST_NAMED else ""
    group = f", of {pod.group}" if pod.group else ""
    return f"holds {', '.join(held[:_MOST_NAMED])}{more}{group}"


def _no_victims(asking: Asking, refused: GroupRefused) -> NoVictims:
    """Return why no removal helps, as far as that is known."""
    units = asking.units
    kept = [f"{reason} ({_pods(number)})" for reason, number in sorted(units.why.items())]
    stay = f"; what stays: {', '.join(kept)}" if kept else ""
    if not units.removable:
        return NoVictims(f"no pods of lower priority hold devices that may be taken{stay}", proven=True)
    alone = asking.solve(range(len(units.removable)))
    if isinstance(alone, GroupAllocated):
        return NoVictims(_TOO_LONG, proven=False)
    number = sum(len(u.pods) for u in units.removable)
    text = f"does not fit without {_pods(number)} of lower priority either: {reason_of(alone)}{stay}"
    return NoVictims(text, proven=not asking.unsure)


def _pods(number: int) -> str:
    return "1 pod" if number == 1 else f"{number} pods"
