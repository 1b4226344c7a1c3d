"""For which pods others are preempted, or would be: what the controller records on the preemptor.

It is a condition of the pod, whose message is JSON for programs. Conditions are in the pod's status, which
those who may create pods cannot write: they could choose victims otherwise. The message is read strictly and
with bounds all the same. Victims are named by UID, because whoever reads a pod may not know of pods in other
namespaces.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Final

import msgspec

from dra_driver.api.core import Pod
from dra_driver.api.names import PREEMPTING_CONDITION

__all__ = [
    "CLOSED",
    "MOST_PREEMPTED",
    "NOT_PREEMPTING",
    "OPEN",
    "WOULD_PREEMPT",
    "PreemptionRecord",
    "PreemptionRow",
    "PreemptionShown",
    "preemptions_of",
    "shown_preemption",
]

OPEN: Final = "Preempting"
"""Reason of the condition, which is True: pods are being removed, or have been for this one."""
CLOSED: Final = "Closed"
"""It is False: there was a round, after which there is none for a while."""
WOULD_PREEMPT: Final = "WouldPreempt"
"""It is False: the mode is dry run."""
NOT_PREEMPTING: Final = "NotPreempting"
"""It is False, and says nothing more."""

MOST_PREEMPTED: Final = 256
"""Most victims for one preemptor; where more were needed, none is preempted."""
_MOST_DEVICES: Final = 1_024
_LONGEST: Final = 512 << 10
_UID: Final = re.compile(r"[0-9A-Za-z-]{1,64}")
_Name = Annotated[str, msgspec.Meta(min_length=1, max_length=253)]


class PreemptionRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The decision whom to remove for a pod.

    Attributes:
        victims: UIDs of the pods to be removed.
        devices: that the preemptor would get: node, driver, pool and device of each; none where these are
            more than 1,024.
    """

    victims: Annotated[tuple[str, ...], msgspec.Meta(max_length=MOST_PREEMPTED)]
    devices: Annotated[
        tuple[tuple[_Name, _Name, _Name, _Name], ...], msgspec.Meta(max_length=_MOST_DEVICES)
    ] = ()

    @classmethod
    def of(cls, victims: tuple[str, ...], devices: tuple[tuple[str, str, str, str], ...]) -> PreemptionRecord:
        """Return the record of a decision."""
        return cls(victims, devices if len(devices) <= _MOST_DEVICES else ())

    @property
    def message(self) -> str:
        """The message of the condition."""
        return msgspec.json.encode(self).decode()


class PreemptionShown(msgspec.Struct, frozen=True):
    """What a pod's condition says.

    Attributes:
        reason: ``OPEN``, ``CLOSED`` or ``WOULD_PREEMPT``.
        since: RFC 3339.
        seconds: the same in seconds since 1970.
        record: the decision.
    """

    reason: str
    since: str
    seconds: float
    record: PreemptionRecord

    @property
    def is_round(self) -> bool:
        """Whether it is about a round, which may be closed."""
        return self.reason in (OPEN, CLOSED)


class PreemptionRow(msgspec.Struct, frozen=True, rename="camel"):
    """Pods that are removed for another, or would be.

    Attributes:
        pod: ``namespace/name`` of the preemptor.
        state: ``OPEN``, or ``WOULD_PREEMPT`` in a dry run.
        since: RFC 3339.
        victims: ``namespace/name`` of those that are still there.
        gone: number of those that are not.
    """

    pod: str
    state: str
    since: str
    victims: tuple[str, ...]
    gone: int

    @property
    def whom(self) -> str:
        """The victims, for people."""
        return ", ".join([*self.victims, *([f"{self.gone} gone"] if self.gone else [])])

    @property
    def sentence(self) -> str:
        """What is happening, for people."""
        verb = "preempts" if self.state == OPEN else "would preempt"
        return f"{verb} {self.whom}, since {self.since}"


def preemptions_of(pods: Sequence[Pod]) -> Iterator[PreemptionRow]:
    """Yield for which of all pods others are preempted, or would be."""
    names = {str(pod.metadata.uid): str(pod.key) for pod in pods}
    for pod in pods:
        shown = shown_preemption(pod)
        if shown is not None and shown.reason in (OPEN, WOULD_PREEMPT):
            there = tuple(sorted(names[uid] for uid in shown.record.victims if uid in names))
            gone = len(shown.record.victims) - len(there)
            yield PreemptionRow(str(pod.key), shown.reason, shown.since, there, gone)


_decoder = msgspec.json.Decoder(PreemptionRecord)
# The status with which each reason makes sense.
_STATUS: Final[Mapping[str, str]] = {OPEN: "True", CLOSED: "False", WOULD_PREEMPT: "False"}


def shown_preemption(pod: Pod) -> PreemptionShown | None:
    """Return what is written down on a pod; None where nothing is, or nothing that makes sense."""
    condition = next((c for c in pod.status.conditions if c.get("type") == PREEMPTING_CONDITION), None)
    if condition is None:
        return None
    reason, since, text = (str(condition.get(f) or "") for f in ("reason", "lastTransitionTime", "message"))
    if _STATUS.get(reason) != condition.get("status") or len(text) > _LONGEST:
        return None
    try:
        record = _decoder.decode(text)
        seconds = datetime.datetime.fromisoformat(since).timestamp()
    except (msgspec.DecodeError, ValueError, OverflowError):
        return None
    if not all(map(_UID.fullmatch, record.victims)):
        return None
    return PreemptionShown(reason, since, seconds, record)
