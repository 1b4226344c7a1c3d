"""Answers of the worker as they are sent, and which of them no worker in order sends.

Claims in answers are named, not sent: the controller has them, and an answer about a version that it has no
more is out of date.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, NamedTuple

import msgspec

from controller.allocate.decide import (
    LONGEST_LEARNED,
    Decision,
    GrantDevices,
    GrantedNode,
    GroupMembers,
    GroupWrite,
    Lane,
    Learned,
    NeedsSlowLane,
    NotYet,
    PodAnswer,
    PodID,
    PodPlacement,
    PodQuestion,
    Proceed,
    Rank,
    Refuse,
    SetAside,
    Wait,
    Write,
)
from controller.allocate.plans import LARGEST_PLAN, PlanAnswer
from controller.allocate.worker.wire import Frame
from dra_driver.api import codec
from dra_driver.api.meta import ObjectKey, Uid
from dra_driver.api.resource import (
    AllocationResult,
    ResourceClaim,
)
from dra_driver.errors import DecodeError
from dra_driver.fleet import RequestShape, ShapeCount

__all__ = [
    "Answer",
    "ClaimRef",
    "OutOfDate",
    "check_answer",
    "claims_taken",
    "counts_of",
    "decision_of",
    "packed_answer",
    "plan_of",
    "pods_placed",
]

# The longest time that a flag can set.
_LONGEST_WAIT: Final = 86_400.0
# Refusals are kept for each pod that waits, and end in Events of 1 KiB.
_LONGEST_TEXT: Final = 16_384
# More than there are devices in any cluster, and a number that JSON and Prometheus have exactly.
_MOST_COPIES: Final = 1 << 53


class ClaimRef(NamedTuple):
    """A version of a claim."""

    key: ObjectKey
    uid: Uid
    version: str


class _Wait(msgspec.Struct, frozen=True, tag="wait"):
    reason: str
    poll: float
    volumes: bool = False


class _Proceed(msgspec.Struct, frozen=True, tag="proceed"):
    node: str | None
    theirs: bool


class _Refuse(msgspec.Struct, frozen=True, tag="refuse"):
    message: str
    claims: tuple[ClaimRef, ...]
    undo: tuple[ClaimRef, ...]
    elsewhere: bool
    signature: bytes
    new_node: bool = False


class _Hard(msgspec.Struct, frozen=True, tag="hard"):
    pass


class _NotYet(msgspec.Struct, frozen=True, tag="not yet"):
    message: str
    claims: tuple[ClaimRef, ...]
    signature: bytes


class _SetAside(msgspec.Struct, frozen=True, tag="set aside"):
    rank: Rank
    places: tuple[PodPlacement, ...]


class _Grant(msgspec.Struct, frozen=True, tag="grant"):
    nodes: tuple[GrantedNode, ...]
    instead: bool
    slow: bool
    suitable: int


class _Write(msgspec.Struct, frozen=True):
    pod: PodID | None
    node: str
    allocations: tuple[tuple[ClaimRef, AllocationResult], ...]


class _Writes(msgspec.Struct, frozen=True, tag="write"):
    writes: tuple[_Write, ...]


_Packed = _Wait | _Proceed | _Refuse | _Hard | _Writes | _Grant | _SetAside | _NotYet


class Answer(msgspec.Struct, frozen=True):
    """An answer as it is sent.

    Attributes:
        version: of the last change that it knows.
        answers: with allocations that it knows.
        slow: whether it is one of the slow lane.
        decision: with claims that are named only.
        rest: what else a ``PodAnswer`` says.
    """

    version: int
    answers: int
    slow: bool
    decision: _Packed
    group: GroupMembers | None
    steps: int | None
    seconds: float
    gave_up: bool
    cut: bool
    pause: float
    avoided: tuple[tuple[str, float], ...]
    learned: Learned | None

    @property
    def allocates(self) -> bool:
        """Whether it gives devices to claims."""
        return isinstance(self.decision, _Writes)

    def with_decision(self, decision: Decision) -> PodAnswer:
        """Return the answer with the decision on claims as they are known here."""
        return PodAnswer(
            self.version,
            decision,
            self.group,
            self.steps,
            self.seconds,
            self.gave_up,
            self.cut,
            self.pause,
            self.avoided,
            self.learned,
        )


class OutOfDate(Exception):
    """An answer names a version of a claim that is not the newest."""


def packed_answer(answer: PodAnswer, version: int, answers: int, *, slow: bool) -> bytes:
    """Return the body of the message that carries an answer."""
    return codec.encode(
        Answer(
            version,
            answers,
            slow,
            _packed(answer.decision),
            answer.group,
            answer.steps,
            answer.seconds,
            answer.gave_up,
            answer.cut,
            answer.pause,
            answer.avoided,
            answer.learned,
        )
    )


def counts_of(message: Frame, shapes: Iterable[RequestShape]) -> tuple[ShapeCount, ...]:
    """Return the counts that a message carries.

    Args:
        message: that was received.
        shapes: of the settings.

    Raises:
        DecodeError: no worker in order sends it.
    """
    counts = codec.decode(tuple[ShapeCount, ...], message.body)
    if [c.shape for c in counts] != [s.name for s in shapes]:
        raise DecodeError("counts of other shapes than those of the settings")
    for count in counts:
        if not 0 <= count.fits <= count.suggested <= _MOST_COPIES or len(count.problem) > _LONGEST_TEXT:
            raise DecodeError(f"a count of {count.fits} and {count.suggested} for {count.shape}")
    return counts


def plan_of(message: Frame, version: int) -> PlanAnswer:
    """Return the plan that a message carries.

    Args:
        message: that was received.
        version: of the last change that was sent.

    Raises:
        DecodeError: no worker in order sends it.
    """
    if len(message.body) > LARGEST_PLAN + _LONGEST_TEXT:
        raise DecodeError(f"a plan of {len(message.body)} bytes")
    answer = codec.decode(PlanAnswer, message.body)
    if not 0 <= answer.version <= version or not 0 <= answer.seconds <= _LONGEST_WAIT:
        raise DecodeError(f"a plan of version {answer.version}, in {answer.seconds} s")
    if len(answer.limit) > _LONGEST_TEXT or bool(answer.limit) is not (bytes(answer.plan) == b"null"):
        raise DecodeError("a plan and a reason why there is none")
    return answer


def _packed(decision: Decision) -> _Packed:
    match decision:
        case Wait(reason, poll, volumes):
            return _Wait(reason, poll, volumes)
        case Proceed(node, theirs):
            return _Proceed(node, theirs)
        case Refuse(message, claims, undo, elsewhere, signature, new_node):
            refs = tuple(map(_ref, claims)), tuple(map(_ref, undo))
            return _Refuse(message, *refs, elsewhere, signature, new_node)
        case NeedsSlowLane():
            return _Hard()
        case NotYet(message, claims, signature):
            return _NotYet(message, tuple(map(_ref, claims)), signature)
        case SetAside(rank, places):
            return _SetAside(rank, places)
        case GrantDevices(nodes, instead, slow, suitable):
            return _Grant(nodes, instead, slow, suitable)
        case Write():
            return _Writes((_packed_write(None, decision),))
        case GroupWrite(writes):
            return _Writes(tuple(_packed_write(pod, write) for pod, write in writes))


def _packed_write(pod: PodID | None, write: Write) -> _Write:
    return _Write(pod, write.node, tuple((_ref(c), allocation) for c, allocation in write.allocations))


def _ref(claim: ResourceClaim) -> ClaimRef:
    meta = claim.metadata
    return ClaimRef(claim.key, meta.uid, meta.resource_version or "")


def decision_of(answer: Answer, known: Callable[[ObjectKey], ResourceClaim | None]) -> Decision:
    """Return the decision with the claims that it names.

    Args:
        answer: that was received.
        known: the newest version of a claim.

    Raises:
        OutOfDate: a claim that is to be written has changed since.
    """

    def newest(refs: Iterable[ClaimRef]) -> Iterator[ResourceClaim]:
        # These are only told. A refusal that is remembered names the versions of when it was worked out.
        for ref in refs:
            claim = known(ref.key)
            if claim is not None and claim.metadata.uid == ref.uid:
                yield claim

    def found(ref: ClaimRef) -> ResourceClaim:
        claim = known(ref.key)
        if claim is None or _ref(claim) != ref:
            raise OutOfDate(str(ref.key))
        return claim

    match answer.decision:
        case _Wait(reason, poll, volumes):
            return Wait(reason[:_LONGEST_TEXT], poll, volumes)
        case _Proceed(node, theirs):
            return Proceed(node, theirs)
        case _Refuse(message, claims, undo, elsewhere, signature, new_node):
            text, named = message[:_LONGEST_TEXT], tuple(newest(claims))
            return Refuse(text, named, tuple(map(found, undo)), elsewhere, signature, new_node)
        case _Hard():
            return NeedsSlowLane()
        case _NotYet(message, claims, signature):
            return NotYet(message[:_LONGEST_TEXT], tuple(newest(claims)), signature)
        case _SetAside(rank, places):
            return SetAside(rank, places)
        case _Grant(nodes, instead, slow, suitable):
            return GrantDevices(nodes, instead, slow, suitable)
        case _Writes(writes):
            pairs = [
                (w.pod, Write(w.node, tuple((found(ref), allocation) for ref, allocation in w.allocations)))
                for w in writes
            ]
            if len(pairs) == 1 and pairs[0][0] is None:
                return pairs[0][1]
            return GroupWrite(tuple((pod, write) for pod, write in pairs if pod is not None))


def check_answer(answer: Answer, question: PodQuestion, known: int, version: int, given: int) -> None:
    """Check that a worker in order can give an answer, as far as the answer shows that.

    Args:
        answer: that was received.
        question: that it is to.
        known: version that the answer before it in the fast lane knew.
        version: of the last change that was sent.
        given: answers with allocations of the fast lane so far.

    Raises:
        DecodeError: it cannot.
    """
    is_fast = question.lane is Lane.FAST
    counts = answer.answers == given if is_fast else 0 <= answer.answers <= given
    if not (known if is_fast else 0) <= answer.version <= version or not counts:
        raise DecodeError(f"version {answer.version} and {answer.answers} answers, of {version} and {given}")
    of_fast = isinstance(answer.decision, _Hard) or (answer.allocates and not answer.slow)
    if answer.slow if is_fast else of_fast:
        raise DecodeError("it is of the other lane")
    if question.set_aside:
        asked: tuple[type[Any], ...] = (_SetAside, _Refuse, _Wait, _NotYet)
    else:
        asked = (_Wait, _Proceed, _Refuse, _Hard, _Writes, _Grant, _NotYet)
    if not isinstance(answer.decision, asked):
        raise DecodeError("it answers another question")
    if isinstance(answer.decision, _Grant) and (
        not answer.decision.nodes or (answer.decision.instead and not question.grants)
    ):
        raise DecodeError("devices are granted nowhere, or for a pod for which none may be")
    waits = [answer.pause, *(seconds for _, seconds in answer.avoided)]
    if isinstance(answer.decision, _Wait):
        waits.append(answer.decision.poll)
    if not all(0 <= seconds <= _LONGEST_WAIT for seconds in waits):
        raise DecodeError(f"waits of {waits} s")
    namespace = question.pod.key.namespace
    if answer.group is not None and answer.group.namespace != namespace:
        raise DecodeError("a group in another namespace")
    if answer.learned is not None:
        _check_learned(answer.learned, question)
    if isinstance(answer.decision, _Writes):
        pods = [write.pod for write in answer.decision.writes]
        members = set(answer.group.pods) if answer.group is not None else {None}
        if not pods or len(set(pods)) < len(pods) or not members.issuperset(pods):
            raise DecodeError("allocations for pods that it is not about")


def _check_learned(learned: Learned, question: PodQuestion) -> None:
    heavy, struck, held = learned.question, learned.namespace, learned.group
    namespace, latest = question.pod.key.namespace, question.now + _LONGEST_WAIT
    if (
        (heavy is not None and (heavy.pod != question.pod.key or max(heavy.until, heavy.delay) > latest))
        or (heavy is not None and len(heavy.message) > LONGEST_LEARNED)
        or (struck is not None and (struck.namespace != namespace or struck.since > latest))
        or (held is not None and (held.namespace != namespace or held.since > latest))
    ):
        raise DecodeError("it has learned what has nothing to do with the question")


def claims_taken(answer: Answer) -> Iterator[ClaimRef]:
    """Yield the claims that an answer allocates."""
    if isinstance(answer.decision, _Writes):
        for write in answer.decision.writes:
            for ref, _ in write.allocations:
                yield ref


def pods_placed(answer: Answer, pod: PodID) -> Iterator[PodID]:
    """Yield the pods that an answer gives a node.

    Args:
        answer: that was received.
        pod: that was asked about.
    """
    if isinstance(answer.decision, _Writes):
        for write in answer.decision.writes:
            yield pod if write.pod is None else write.pod
