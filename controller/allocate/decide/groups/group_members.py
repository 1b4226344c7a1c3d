"""Which pods are a group, and the state of each of them, worked out from pods and claims alone."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from controller.allocate.decide.state.objects import (
    CLAIM_INDEX,
    GROUP_INDEX,
    GroupKey,
    called,
    claims_of,
    is_finished,
    pod_group_key,
    pod_group_of,
)
from controller.allocate.decide.state.pod_groups import is_gang
from dra_driver.api.core import Pod
from dra_driver.api.meta import ObjectKey, ObjectMeta, Uid
from dra_driver.api.names import GROUP_LABEL
from dra_driver.api.resource import ResourceClaim
from dra_driver.api.scheduling import PodGroup
from dra_driver.resourceclaim import foreign_gates, is_for_pod, is_reserved_for, pod_claims
from dra_driver.structured import (
    LARGEST_GROUP,
    GroupTerms,
    group_by_problem,
    group_name,
    group_terms,
    is_named_by_us,
    pod_group_terms,
    restart_of,
)

__all__ = ["Gang", "GroupFinder", "GroupProblem", "Standing", "signature_of_group"]

# Claims that name a group, and users of each: members have several, and each of theirs may name it.
_MOST_USES: Final = 8 * LARGEST_GROUP

FindClaim = Callable[[ObjectKey], ResourceClaim | None]
FindPodGroup = Callable[[ObjectKey], PodGroup | str]


def signature_of_group(key: GroupKey) -> bytes:
    """Return what makes all members of a group wait together."""
    return "/".join(("group", *key)).encode()


@dataclass(frozen=True, slots=True)
class Gang:
    """A group as it is now.

    Attributes:
        key: namespace and name.
        terms: what it asks for.
        members: that count, in the order of their names.
        priority: of the PodGroup, where it has one.
    """

    key: GroupKey
    terms: GroupTerms
    members: tuple[Pod, ...]
    priority: int | None = None

    @property
    def called(self) -> str:
        """The group for people: ``group train`` or ``PodGroup train``."""
        return called(self.key[1])

    @property
    def size(self) -> int:
        """The number of members, those that are missing included as far as their number is known."""
        return self.terms.size if self.terms.is_bounded else len(self.members)


@dataclass(frozen=True, slots=True)
class GroupProblem:
    """Labels that make no sense together, or a PodGroup that is not known.

    Attributes:
        key: of the group.
        message: what is wrong, for people.
        passing: whether the PodGroup may just not be there yet.
    """

    key: GroupKey
    message: str
    passing: bool = False


class GroupFinder:
    """Finds the group of a pod.

    Args:
        pods: gives the pods with a value in ``CLAIM_INDEX`` or ``GROUP_INDEX``.
        number: likewise, how many there are.
        claims: gives the claims with a value in ``GROUP_INDEX``.
        claim: gives the newest version of a claim.
        pod_group: gives a PodGroup, or says why it is not known.
        others: labels of others that make pods a group.
    """

    def __init__(
        self,
        pods: Callable[[str, Hashable], Sequence[Pod]],
        number: Callable[[str, Hashable], int],
        claims: Callable[[GroupKey], Iterable[ResourceClaim]],
        claim: FindClaim,
        pod_group: FindPodGroup,
        others: Collection[str],
    ) -> None:
        self._pods = pods
        self._number = number
        self._claims = claims
        self._claim = claim
        self._pod_group = pod_group
        self._others = others

    def of(self, pod: Pod) -> Gang | GroupProblem | None:
        """Return the group of a pod; None where it has none."""
        names, native = self._names(pod), self._native(pod)
        if isinstance(native, GroupProblem):
            return native
        if native is not None and names:
            text = f"the pod belongs to {native.called}, and it and its claims name group {', '.join(names)}"
            return GroupProblem(native.key, text)
        if native is not None or not names:
            return native
        key = (pod.metadata.namespace, names[0])
        if self._is_too_large(key):
            return GroupProblem(key, f"{called(key[1])} has more than {LARGEST_GROUP} pods")
        if len(names) > 1:
            return GroupProblem(key, f"the pod and its claims name several groups: {', '.join(names)}")
        if not is_named_by_us(key[1]) and (problem := _group_by_problem(pod)):
            return GroupProblem(key, problem)
        there = self._there(key)
        members = _after_restarts(there)
        if len(members) < len(there) and pod not in members:
            return GroupProblem(key, f"group {key[1]}: the pod is from before a restart of its JobSet")
        terms = group_terms(((m.labels or {}, m.annotations or {}) for m in self._metas(members)), key[1])
        if isinstance(terms, str):
            return GroupProblem(key, f"{called(key[1])}: {terms}")
        if len(members) > terms.size and any(p.spec.node_name and not is_finished(p) for p in members):
            # A rolling update makes new pods before the old ones go, and they go only when a new one runs.
            terms = terms.with_room_for(len(members))
        if len(members) > terms.size:
            return GroupProblem(
                key, f"{called(key[1])} has {len(members)} pods, its {terms.size_key} is {terms.size}"
            )
        return Gang(key, terms, members)

    def _native(self, pod: Pod) -> Gang | GroupProblem | None:
        """Return the PodGroup of a pod; None where it has none, or its policy is no gang."""
        if not pod.spec.pod_group:
            return None
        key = pod_group_key(ObjectKey(pod.metadata.namespace, pod.spec.pod_group))
        group = self.pod_group(pod)
        if not isinstance(group, PodGroup):
            return GroupProblem(key, f"{called(key[1])} {group or 'is not known'}", passing=True)
        if group.is_basic:
            return None
        if self._is_too_large(key):
            return GroupProblem(key, f"{called(key[1])} has more than {LARGEST_GROUP} pods")
        members = self.members(key)
        terms = pod_group_terms(group, len(members), (m.annotations or {} for m in self._metas(members)))
        if isinstance(terms, str):
            return GroupProblem(key, f"{called(key[1])}: {terms}")
        return Gang(key, terms, members, group.spec.priority) if terms is not None else None

    def pod_group(self, pod: Pod) -> PodGroup | str | None:
        """Return the PodGroup of a pod, or why it is not known; None where it has none."""
        name = pod.spec.pod_group
        return self._pod_group(ObjectKey(pod.metadata.namespace, name)) if name else None

    def beside(self, pod: Pod) -> tuple[Pod, ...]:
        """Return the pods that count in a pod's group, itself included; none where it has no group."""
        native = self._native(pod)
        if native is not None:
            return native.members if isinstance(native, Gang) else ()
        names = self._names(pod)
        key = (pod.metadata.namespace, names[0] if names else "")
        if len(names) != 1 or self._is_too_large(key):
            return ()
        return self.members(key)

    def key_of(self, pod: Pod) -> GroupKey | None:
        """Return the key of a pod's group, whether or not it can be one; None where it has none."""
        if pod.spec.pod_group and not self._is_basic(pod):
            return pod_group_key(ObjectKey(pod.metadata.namespace, pod.spec.pod_group))
        names = self._names(pod)
        return (pod.metadata.namespace, names[0]) if names else None

    def _is_basic(self, pod: Pod) -> bool:
        """Return whether the PodGroup of a pod is known to be no gang."""
        group = self.pod_group(pod)
        return isinstance(group, PodGroup) and group.is_basic

    def _names(self, pod: Pod) -> list[str]:
        """Return the names of a pod's groups. What its own labels or its claims name goes before all else."""
        if own := {(m.labels or {}).get(GROUP_LABEL, "") for m in self._metas([pod])} - {""}:
            return sorted(own)
        meta = pod.metadata
        others = () if pod.spec.pod_group else self._others
        name = group_name(meta.labels or {}, meta.annotations or {}, others)
        return [name] if name else []

    def is_gang(self, key: GroupKey) -> bool:
        """Return whether a group is allocated as a whole."""
        return is_gang(key, self._pod_group)

    def members(self, key: GroupKey) -> tuple[Pod, ...]:
        """Return the pods of a group that count, in the order of their names."""
        there = self._there(key)
        return there if pod_group_of(key) is not None else _after_restarts(there)

    def _is_too_large(self, key: GroupKey) -> bool:
        """Return whether more pods belong to a group than any can have, found out in few steps."""
        if self._number(GROUP_INDEX, key) > LARGEST_GROUP:
            return True
        left = _MOST_USES
        for claim in self._claims(key):
            users = self._number(CLAIM_INDEX, claim.key)
            left -= 1 + users
            if users > LARGEST_GROUP or left < 0:
                return True
        return False

    def _there(self, key: GroupKey) -> tuple[Pod, ...]:
        """Return the pods of a group that have not failed and are not being deleted.

        Of a PodGroup pods that have succeeded do not count: kube-scheduler does not count them either.
        """
        native = pod_group_of(key) is not None
        ended = ("Failed", "Succeeded") if native else ("Failed",)
        by_index = native or is_named_by_us(key[1])
        found = {p.key: p for p in self._pods(GROUP_INDEX, key)}
        for claim in self._claims(key):
            found.update((p.key, p) for p in self._pods(CLAIM_INDEX, claim.key))
        return tuple(
            p
            for _, p in sorted(found.items())
            if p.status.phase not in ended
            and not p.metadata.deletion_timestamp
            and (by_index or self._names(p) == [key[1]])
            and not self._is_in_both(p)
        )

    def _is_in_both(self, pod: Pod) -> bool:
        """Return whether a pod is in a PodGroup and a group by labels: it is refused, and counts in none."""
        return bool(pod.spec.pod_group and self._names(pod)) and not self._is_basic(pod)

    def _metas(self, pods: Iterable[Pod]) -> Iterator[ObjectMeta]:
        for pod in pods:
            yield pod.metadata
            for key in claims_of(pod):
                claim = self._claim(key)
                if claim is not None:
                    yield claim.metadata


def _group_by_problem(pod: Pod) -> str:
    """Return what is wrong with the labels that are to name a pod's group; empty if nothing is."""
    return group_by_problem(pod.metadata.labels or {}, pod.metadata.annotations or {})


def _after_restarts(pods: tuple[Pod, ...]) -> tuple[Pod, ...]:
    """Return the pods without those from before a restart of their JobSet, which is about to delete them."""
    restarts = [restart_of(pod.metadata.labels or {}) for pod in pods]
    newest: dict[str, int] = {}
    for job_set, number in filter(None, restarts):
        newest[job_set] = max(number, newest.get(job_set, 0))
    return tuple(pod for pod, of in zip(pods, restarts, strict=True) if of is None or of[1] == newest[of[0]])


@dataclass(frozen=True, slots=True)
class Standing:
    """How far the members of a group are.

    Attributes:
        gang: the group.
        there: members that no other controller holds back.
        served: those that need no device any more.
        running: those that are bound, or about to be: kube-scheduler has reserved a claim for them; and those
            that have ended.
    """

    gang: Gang
    there: tuple[Pod, ...]
    served: Mapping[Uid, Pod]
    running: Mapping[Uid, Pod]

    @classmethod
    def of(
        cls, gang: Gang, find: FindClaim, is_theirs: Callable[[ResourceClaim], bool] = lambda _: False
    ) -> Standing:
        """Return how far the members are.

        Args:
            gang: the group.
            find: gives the newest version of a claim.
            is_theirs: whether kube-scheduler allocates a claim that is not allocated.
        """
        served: dict[Uid, Pod] = {}
        running: dict[Uid, Pod] = {}
        for pod in gang.members:
            uid = pod.metadata.uid
            has_devices, runs = _look(pod, find, is_theirs)
            if has_devices:
                served[uid] = pod
            if runs:
                running[uid] = pod
        return cls(gang, tuple(p for p in gang.members if not foreign_gates(p)), served, running)

    @property
    def has_started(self) -> bool:
        """Whether as many members have devices as the group needs."""
        return len(self.served) >= self.gang.terms.least

    @property
    def pending(self) -> list[Pod]:
        """The members that need devices, in the order in which an elastic group gets them."""
        return sorted((p for p in self.there if p.metadata.uid not in self.served), key=_natural)

    @property
    def keeps(self) -> bool:
        """Whether members keep devices that are not bound yet, although others have none: some run."""
        return self.has_started or (bool(self.running) and not self.gang.terms.release)


def _look(pod: Pod, find: FindClaim, is_theirs: Callable[[ResourceClaim], bool]) -> tuple[bool, bool]:
    """Return whether a pod needs no device any more, and whether it is bound or about to be."""
    if is_finished(pod):
        return True, True
    has_devices, runs = True, bool(pod.spec.node_name)
    for used in pod_claims(pod):
        if not used.entry:
            continue  # made by kube-scheduler for extended resources: none of ours
        claim = find(used.key) if used.key is not None else None
        if claim is None or not is_for_pod(pod, claim):
            has_devices = False
        elif claim.status.allocation is None:
            has_devices = has_devices and is_theirs(claim)
        elif not runs and claim.status.reserved_for:
            runs = is_reserved_for(claim, pod.metadata.uid)
    return has_devices, runs


def _natural(pod: Pod) -> tuple[str, int, str]:
    """Return a key by which ``worker-2`` comes before ``worker-10``."""
    name = pod.metadata.name
    stem = name.rstrip("0123456789")
    digits = name[len(stem) :]
    return stem, int(digits or 0), name
