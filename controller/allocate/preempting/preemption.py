"""Asks which pods to remove for pods that wait, one question at a time, and carries out the rounds.

What is done in each state of a round is a table: ``rounds``. Nothing here awaits between the last look at a
victim and its removal.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Final

import msgspec
import structlog

from controller.allocate.answers.decider import Answers, WorkerEnded
from controller.allocate.answers.journal import Journal
from controller.allocate.decide import DevicesSetAside, PodID, Rank, is_ending
from controller.allocate.plans import PlanQuestion, PreemptionAnswer, PreemptionTerms
from controller.allocate.preempting.candidates import Candidate, Candidates
from controller.allocate.preempting.judging import Judge, Verdict
from controller.allocate.preempting.rate import VictimRate
from controller.allocate.preempting.removing import Outcome, Remover
from controller.allocate.preempting.rounds import Effect, Event, Round, State, step
from controller.allocate.preempting.shown import PreemptionCondition, named_for, places_of, record_of
from controller.allocate.preempting.turns import Turns, WaitingPod
from controller.allocate.state.known_pods import KnownPods
from controller.allocate.state.pool_owners import CurrentOwners
from controller.allocate.wakeups import Wakeups
from controller.config import PreemptionMode, PreemptionSettings
from controller.observe.metrics import Metrics
from dra_driver.api import codec
from dra_driver.api.core import PODS, Pod
from dra_driver.api.meta import ObjectKey, Uid
from dra_driver.api.resource import AllocationResult
from dra_driver.errors import DecodeError
from dra_driver.fleet import MOST_PREEMPTED, OPEN, shown_preemption
from dra_driver.kube import EventRecorder
from dra_driver.kube.clock import rfc3339
from dra_driver.ports import Clock
from dra_driver.resourceclaim import foreign_gates

__all__ = ["Preemption"]

log = structlog.get_logger(__name__)

_LOOK_SECONDS: Final = 0.5
# CPU time of one question, in a copy of the worker.
_QUESTION_SECONDS: Final = 5.0
# Between two questions: at least, and as a multiple of the CPU time of the last one; a dry run, which is the
# default, has more time.
_PAUSE_SECONDS: Final = 1.0
_PAUSE: Final = 10.0
_DRY_PAUSE: Final = 20.0
# In a dry run, until the same is asked again where the answer was another one, and where it was the same.
_DRY_RUN_SECONDS: Final = 60.0
_SAME_DRY_RUN_SECONDS: Final = 300.0
# For so long after a start dry runs stand of which it is not known whether their pods still wait.
_ADOPTED_SECONDS: Final = 60.0
# As a multiple of the time-out: for so long nobody tries again to remove a pod whose removal was refused
# throughout a round. Others may be removed in its place.
_REFUSED: Final = 2.0
# Of those that wait, for one question: the members of each group are looked at.
_MOST_LOOKS: Final = 32


class Preemption:
    """Preempts, or says whom it would."""

    def __init__(
        self,
        settings: PreemptionSettings,
        terms: Callable[[], PreemptionTerms | None],
        budgets_known: Callable[[], bool],
        changes: Callable[[], int],
        answers: Answers,
        journal: Journal,
        candidates: Candidates,
        judge: Judge,
        remover: Remover,
        condition: PreemptionCondition,
        owners: CurrentOwners,
        wakeups: Wakeups,
        recorder: EventRecorder,
        metrics: Metrics,
        clock: Clock,
        pods: KnownPods,
    ) -> None:
        """Connect the parts.

        Args:
            settings: mode, time-out and rate.
            terms: returns what decides besides pods and devices; None while that is not known.
            budgets_known: returns whether budgets may be read.
            changes: returns another number whenever the terms may be others.
            answers: works out who would have to go.
            journal: learns which devices are set aside.
            candidates: finds the pods that may preempt.
            judge: looks at victims.
            remover: removes them.
            condition: shows rounds and dry runs.
            owners: know whose a pool is.
            wakeups: know the pods that wait, and look at them again.
            recorder: for Events.
            metrics: to report to.
            clock: for time-outs.
            pods: all namespaces.
        """
        self._settings = settings
        self._terms = terms
        self._budgets_known = budgets_known
        self._changes = changes
        self._answers = answers
        self._journal = journal
        self._candidates = candidates
        self._judge = judge
        self._remover = remover
        self._condition = condition
        self._owners = owners
        self._wakeups = wakeups
        self._recorder = recorder
        self._metrics = metrics
        self._clock = clock
        self._pods = pods
        self._rate = VictimRate(settings.per_minute, clock.monotonic())
        self._rounds: dict[Hashable, Round] = {}
        self._turns = Turns()
        # Pods whose removal was refused, until when that is believed.
        self._refused: dict[Uid, float] = {}
        self._started = clock.monotonic()

    def under_way(self) -> int:
        """Return how many rounds have not come to an end yet."""
        return sum(r.state not in (State.RESTING, State.OVER) for r in self._rounds.values())

    def makes_room_for(self, pod: Uid) -> bool:
        """Return whether others are being removed for a pod, or for its group."""
        return any(
            pod in r.members and r.state not in (State.RESTING, State.OVER) for r in self._rounds.values()
        )

    def dry_runs(self) -> int:
        """Return for how many pods or groups others would be preempted in a dry run."""
        return len(self._condition.dry_runs())

    async def run(self) -> None:
        """Work until cancelled."""
        self._started = self._clock.monotonic()
        match self._settings.mode:
            case PreemptionMode.ON:
                self._adopt()
            case PreemptionMode.DRY_RUN:
                self._condition.adopt_dry_runs()
            case PreemptionMode.OFF:
                pass
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._condition.run(self._is_open))
            if self._settings.mode is not PreemptionMode.OFF:
                tasks.create_task(self._look_again_and_again())
                tasks.create_task(self._ask_again_and_again())

    async def _look_again_and_again(self) -> None:
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            with _going_on():
                await self.look()

    async def _ask_again_and_again(self) -> None:
        pause = _PAUSE_SECONDS
        times = _PAUSE if self._settings.mode is PreemptionMode.ON else _DRY_PAUSE
        while True:
            await asyncio.sleep(pause)
            with _going_on():
                pause = max(_PAUSE_SECONDS, times * await self.ask())

    # --- questions ------------------------------------------------------------------------------------------

    async def ask(self) -> float:
        """Ask about the pod whose turn it is; return the CPU time that it took."""
        now = self._clock.monotonic()
        waiting = self._candidates.waiting(now)
        self._forget(waiting, now)
        terms = self._terms()
        candidate = (self._found(now) or self._next(waiting, now)) if terms is not None else None
        if candidate is None or terms is None:
            return 0.0
        uid = candidate.pod.metadata.uid
        self._turns.take(candidate.pod.key, uid, now, self._progress())
        self._refused = {uid: until for uid, until in self._refused.items() if now < until}
        terms = msgspec.structs.replace(terms, refused=tuple(self._refused))
        answer, seconds = await self._answer(candidate, terms)
        now = self._clock.monotonic()
        known = self._round_of(candidate)
        if answer is None:
            self._turns.miss(uid, now)
        elif known is not None:
            if known.state is State.FOUND:
                await self._solved_again(known, answer)
        elif not answer.victims:
            self._condition.end(uid)
            self._turns.miss(uid, now)
        elif self._settings.mode is PreemptionMode.ON:
            await self._begin(candidate, answer)
        else:
            is_news = self._show_dry_run(candidate, answer)
            self._turns.again(uid, now + (_DRY_RUN_SECONDS if is_news else _SAME_DRY_RUN_SECONDS))
        return seconds

    def _found(self, now: float) -> Candidate | None:
        """Return the preemptor of a round that is to be solved again, if there is one."""
        found = (
            self._again(r) for r in self._rounds.values() if r.state is State.FOUND and self._is_settled(r)
        )
        # One that is not answered must not keep the others from being asked about.
        return next((c for c in found if c and self._turns.is_due(c.pod.metadata.uid, now, None)), None)

    def _is_settled(self, round_: Round) -> bool:
        """Return whether it is known whose the devices of a round are.

        A process that has just started allocates from no open pool before the policy is proved. Until then
        the question has another answer than before, and the round would end with half of its victims gone.
        """
        places = places_of(round_.record, (round_.pod,))
        return not any(self._owners.may_become_ours(a) for p in places for a in p.allocations)

    def _next(self, waiting: Sequence[WaitingPod], now: float) -> Candidate | None:
        """Return the one whose turn it is, of those that may preempt."""
        if self._settings.mode is PreemptionMode.ON and self._rate.wait(now) > 0:
            return None
        busy = {uid for round_ in self._rounds.values() for uid in round_.members}
        idle = (one for one in waiting if one.uid not in busy)
        for one in self._turns.next(idle, now, self._progress(), _MOST_LOOKS):
            found = self._candidates.of(one.key, one.uid)
            if found and self._candidates.is_above_others(found) and self._round_of(found) is None:
                return found
            self._turns.pass_over(one.key, one.uid, now)
            self._condition.end(one.uid)
        return None

    async def _answer(
        self, candidate: Candidate, terms: PreemptionTerms
    ) -> tuple[PreemptionAnswer | None, float]:
        try:
            planned = await self._answers.plan(PlanQuestion(candidate.id, _QUESTION_SECONDS, terms))
        except WorkerEnded:
            return None, _QUESTION_SECONDS
        if planned.limit:
            log.debug("who would have to go is not known", pod=str(candidate.id.key), limit=planned.limit)
            return None, planned.seconds
        try:
            answer = codec.decode(PreemptionAnswer, bytes(planned.plan))
        except DecodeError as e:
            self._answers.restart_worker(f"an answer about preemption that makes no sense: {e}")
            return None, planned.seconds
        log.debug("asked about preemption", pod=str(candidate.id.key), reason=answer.reason)
        return answer, planned.seconds

    def _round_of(self, candidate: Candidate) -> Round | None:
        """Return the round of a preemptor, also if it belongs to another group since, or to one at last."""
        known = self._rounds.get(candidate.case)
        if known is None and self._rounds:
            uids = {m.metadata.uid for m in candidate.members}
            known = next((r for r in self._rounds.values() if not r.members.isdisjoint(uids)), None)
        return known

    def _progress(self) -> object:
        """Return another value whenever something has changed that may lead to another answer."""
        return self._wakeups.progress, self._changes()

    def _forget(self, waiting: Sequence[WaitingPod], now: float) -> None:
        """Forget what is known of pods that do not wait any more."""
        pods = {one.uid for one in waiting}
        if now >= self._started + _ADOPTED_SECONDS:
            for pod in self._condition.dry_runs() - pods:
                self._condition.end(pod)
        pods.update(uid for round_ in self._rounds.values() for uid in round_.members)
        self._turns.keep(pods, {one.key.namespace for one in waiting})

    def _again(self, round_: Round) -> Candidate | None:
        """Return the preemptor of a round as a candidate; None where it may not preempt now."""
        key = next((key for key in round_.keys if key in self._wakeups.pending), None)
        pod = self._pods.get(key) if key is not None else None
        found = self._candidates.of(pod.key, pod.metadata.uid) if pod is not None else None
        return found if found is not None and found.case == round_.case else None

    # --- dry run --------------------------------------------------------------------------------------------

    def _show_dry_run(self, candidate: Candidate, answer: PreemptionAnswer) -> bool:
        """Show who would be preempted for a pod; return whether that is news."""
        if len(answer.victims) > MOST_PREEMPTED or not self._condition.show_dry_run(
            candidate.pod, record_of(answer)
        ):
            return False
        text = named_for(candidate.pod, answer.victims)
        self._metrics.preemption_dry_runs.inc()
        log.info("would preempt", pod=str(candidate.pod.key), victims=text)
        if not self._budgets_known():
            text += "; PodDisruptionBudgets may not be read, so these may keep some"
        self._recorder.event(PODS, candidate.pod, "Normal", "WouldPreempt", f"would preempt {text}")
        return True

    # --- rounds ---------------------------------------------------------------------------------------------

    def _adopt(self) -> None:
        """Take over the rounds of a process before this one, which are not over."""
        now, time = self._clock.monotonic(), self._clock.now()
        for pod in self._pods:
            shown = shown_preemption(pod)
            age = max(0.0, time - shown.seconds) if shown is not None else 0.0
            if shown is None or not shown.is_round or age >= self._settings.seconds:
                continue
            case, members = self._candidates.case_of(pod)
            known = self._rounds.get(case)
            if known is not None and known.begun >= now - age:
                continue
            places = places_of(shown.record, [PodID(m.key, m.metadata.uid) for m in members])
            round_ = Round(
                case=case,
                pod=PodID(pod.key, pod.metadata.uid),
                members=frozenset(m.metadata.uid for m in members),
                keys=tuple(m.key for m in members),
                priority=min((m.spec.priority for m in members), default=pod.spec.priority),
                begun=now - age,
                since=shown.since,
                record=shown.record,
                places=tuple(p for p in places if not any(map(self._are_theirs, p.allocations))),
                left=[],
                state=State.FOUND if shown.reason == OPEN else State.RESTING,
            )
            if known is not None:
                self._release(known)
            self._rounds[case] = round_
            self._rate.take(len(shown.record.victims), now)
            if round_.state is State.FOUND:
                self._set_aside(round_)
            log.info("a round of preemption is taken over", pod=str(pod.key), state=round_.state.value)

    def _are_theirs(self, allocation: AllocationResult) -> bool:
        return not (self._owners.are_ours(allocation) or self._owners.may_become_ours(allocation))

    async def _begin(self, candidate: Candidate, answer: PreemptionAnswer) -> None:
        """Begin a round, if what the answer rests on still holds; ``look`` alone removes its victims."""
        now, uid = self._clock.monotonic(), candidate.pod.metadata.uid
        fresh = self._candidates.of(*candidate.id)
        victims = [v.pod for v in answer.victims]
        if fresh is None or fresh.members != candidate.members or len(victims) > MOST_PREEMPTED:
            self._turns.miss(uid, now)
            self._turns.has_changed(uid)
            return
        if any(verdict is not Verdict.GOES for verdict in self._judge.look(victims, fresh, victims)):
            self._turns.miss(uid, now)
            self._turns.has_changed(uid)
            return
        round_ = Round(
            case=fresh.case,
            pod=fresh.id,
            members=frozenset(m.metadata.uid for m in fresh.members),
            keys=tuple(m.key for m in fresh.members),
            priority=fresh.priority,
            begun=now,
            since=rfc3339(self._clock.now()),
            record=record_of(answer),
            places=answer.places,
            # One that a budget may keep goes first: where it stays, the others need not go.
            left=sorted(answer.victims, key=lambda v: not v.guarded),
            state=State.RECORDING,
            victims=tuple(victims),
        )
        self._rounds[round_.case] = round_
        text = named_for(fresh.pod, answer.victims)
        log.info("preempting", pod=str(fresh.pod.key), victims=[str(v.key) for v in victims])
        await self._happen(round_, await self._condition.write(fresh.pod, round_.record, round_.since))
        if round_.state is State.REMOVING:
            # Not before: decisions that cannot be written down must not use up what others need.
            self._rate.take(len(victims), self._clock.monotonic())
            self._recorder.event(PODS, fresh.pod, "Normal", "Preempting", f"preempts {text}")

    async def _solved_again(self, round_: Round, answer: PreemptionAnswer) -> None:
        """Go on with a round that was found, if its question has the same answer as before."""
        if answer.places:
            round_.places = answer.places
        if answer.fits:
            await self._happen(round_, Event.ENOUGH)
        elif answer.victims and {v.pod.uid for v in answer.victims} <= set(round_.record.victims):
            round_.left = list(answer.victims)
            uids = set(round_.record.victims)
            pods = (PodID(pod.key, pod.metadata.uid) for pod in self._pods)
            round_.victims = tuple(pod for pod in pods if pod.uid in uids)
            await self._happen(round_, Event.SAME)
        else:
            await self._happen(round_, Event.OTHER)

    async def look(self) -> None:
        """Look at what has become of each round, and remove what is left to be removed."""
        for round_ in list(self._rounds.values()):
            event = self._news(round_, self._clock.monotonic())
            if event is not None:
                await self._happen(round_, event)
            if round_.state is State.REMOVING:
                await self._remove(round_)

    def _news(self, round_: Round, now: float) -> Event | None:
        if now >= round_.begun + self._settings.seconds:
            return Event.TIMED_OUT
        found = [p for key in round_.keys if (p := self._pods.get(key)) is not None]
        pods = [p for p in found if p.metadata.uid in round_.members and not is_ending(p)]
        if not pods:
            return Event.GONE
        if round_.state is State.RESTING:
            return None
        if len(pods) < len(round_.members) or any(map(foreign_gates, pods)):
            return Event.CHANGED
        if min(p.spec.priority for p in pods) < round_.priority:
            return Event.CHANGED
        waits = any(p.key in self._wakeups.pending or self._pods.lacks_devices(p) for p in pods)
        return None if waits else Event.SERVED

    async def _happen(self, round_: Round, event: Event) -> None:
        before = round_.state
        round_.state, effects = step(before, event)
        if round_.state is before and not effects:
            return
        log.info("round of preemption", pod=str(round_.pod.key), news=event.value, state=round_.state.value)
        if round_.state in (State.RESTING, State.OVER) and before is not State.RESTING:
            self._metrics.preemption_rounds.labels(event.value).inc()
        if event is Event.TIMED_OUT and before is State.REMOVING and round_.is_refused and round_.left:
            until = self._clock.monotonic() + _REFUSED * self._settings.seconds
            self._refused[round_.left[0].pod.uid] = until
        if round_.state is State.OVER and self._rounds.get(round_.case) is round_:
            del self._rounds[round_.case]
            ended = self._turns.miss if event is Event.NOT_RECORDED else self._turns.again
            ended(round_.pod.uid, self._clock.monotonic())
            self._turns.has_changed(round_.pod.uid)
        for effect in effects:
            match effect:
                case Effect.SET_ASIDE:
                    self._set_aside(round_)
                case Effect.RELEASE:
                    self._release(round_)
                case Effect.REMOVE:
                    round_.next_try = self._clock.monotonic()
                case Effect.CLOSE:
                    await self._condition.close(round_.pod)

    def _is_open(self, pod: Uid) -> bool:
        """Return whether a round that is written down on a pod goes on."""
        return any(
            r.pod.uid == pod and r.state not in (State.RESTING, State.OVER) for r in self._rounds.values()
        )

    def _set_aside(self, round_: Round) -> None:
        if round_.places:
            # Before all pods of its priority: others of it must not take what it was preempted for.
            rank = Rank(-round_.priority, "", ObjectKey("", ""))
            self._journal.apply(DevicesSetAside(rank, round_.places, round_.pod.uid))
            round_.kept_aside = True

    def _release(self, round_: Round) -> None:
        if round_.kept_aside:
            self._journal.apply(DevicesSetAside(None, (), round_.pod.uid))
            round_.kept_aside = False
            self._wakeups.wake()

    # --- removals -------------------------------------------------------------------------------------------

    async def _remove(self, round_: Round) -> None:
        """Remove the victims that are left, each after a last look, until one stays for now."""
        while round_.left and round_.state is State.REMOVING:
            if self._clock.monotonic() < round_.next_try:
                return
            if not await self._condition.stands(round_.pod, round_.since):
                round_.next_try = self._clock.monotonic() + round_.backoff.next()
                return
            preemptor = self._again(round_)
            if preemptor is None or round_.state is not State.REMOVING:
                return
            # All of them each time: where one may not go any more, the others would go in vain.
            verdicts = self._judge.look([v.pod for v in round_.left], preemptor, round_.victims)
            if Verdict.STAYS in verdicts:
                await self._happen(round_, Event.OTHER)
                return
            victim, verdict = round_.left[0], verdicts[0]
            pod = self._pods.get(victim.pod.key)
            if verdict in (Verdict.IS_GOING, Verdict.NEEDLESS) or pod is None:
                self._metrics.preemption_victims.labels("gone").inc()
                round_.left.pop(0)
                continue
            violates = bool(victim.violates) and self._settings.violates_budgets
            outcome = await self._remover.remove(pod, self._reason(pod, preemptor), violates=violates)
            round_.is_refused = outcome is Outcome.KEPT
            if outcome is not Outcome.REMOVED:
                self._metrics.preemption_victims.labels(outcome.value).inc()
                round_.next_try = self._clock.monotonic() + round_.backoff.next()
                return
            self._metrics.preemption_victims.labels("deleted" if violates else "evicted").inc()
            round_.left.remove(victim)
        if not round_.left:
            await self._happen(round_, Event.REMOVED)

    def _reason(self, victim: Pod, preemptor: Candidate) -> str:
        """Return why a pod is removed, for those who may read it."""
        name = f"pod {preemptor.pod.metadata.uid}"
        if victim.metadata.namespace == preemptor.pod.metadata.namespace:
            name = f"pod {preemptor.pod.metadata.name}"
        return f"preempted by {name} of priority {preemptor.priority}, which waits for its devices"


@contextlib.contextmanager
def _going_on() -> Iterator[None]:
    """Log what fails: pods get their devices without preemption, too, so it must not end the controller."""
    try:
        yield
    except Exception:
        log.exception("a look at preemption has failed")
