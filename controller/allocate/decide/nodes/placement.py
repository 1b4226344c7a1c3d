"""Which nodes a pod could go to, apart from its claims.

kube-scheduler decides in the end. Here the same is looked at as far as nodes, volumes and the requests of
pods decide it (``dra_driver.nodefit``), so that devices are chosen where the pod can go. What is not looked
at (what storage drivers have left) costs a second or two in which devices are held in vain: kube-scheduler
reports that it cannot place the pod, and another node is tried.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Collection, Iterable, Mapping, Set
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

from controller.allocate.decide.nodes.beside import Apart, BesideOthers, Left
from controller.allocate.decide.nodes.node_usage import NodeUsage
from controller.allocate.decide.nodes.signatures import digest
from controller.allocate.decide.nodes.volume_view import VolumeView
from controller.allocate.decide.state.objects import Objects
from dra_driver.api import codec
from dra_driver.api.core import Node, Pod
from dra_driver.api.meta import ObjectKey
from dra_driver.api.resource import DeviceClass
from dra_driver.nodefit import (
    NeedsVectors,
    NodeRoom,
    PodNeeds,
    Vector,
    are_all_terms_known,
    condition_problem,
    described,
    has_many_conditions,
    needs_of,
    problem,
)
from dra_driver.nodefit.volumes import (
    NO_NEEDS,
    StorageObject,
    VolumeFit,
    VolumeNeeds,
    volume_needs,
)

__all__ = ["FreeRoom", "Placement", "Placements", "same_for_pods"]

_AVOIDED: Final = "where kube-scheduler could not place it a short while ago"
_MOST_KEPT: Final = 64
_LONGEST_LOG: Final = 1_000
# Tolerations, and requirements of node affinity with their values: a pod may have a megabyte of them, and
# each costs a comparison per node.
_MOST_CONDITIONS: Final = 512
# Of extended resources that a DeviceClass serves without naming one (KEP-5004).
_IMPLICIT_PREFIX: Final = "deviceclass.resource.kubernetes.io/"


class FreeRoom(NamedTuple):
    """What is left of nodes besides devices for some pods.

    Attributes:
        vectors: what the places of a vector stand for.
        apart: what those after them stand for.
        nodes: by name.
    """

    vectors: NeedsVectors
    apart: tuple[Apart, ...]
    nodes: Mapping[str, Vector]

    @property
    def nothing(self) -> Vector:
        """The vector of a pod that takes nothing."""
        return self.vectors.nothing + (0,) * len(self.apart)

    def needs(self, pod: Pod) -> Vector:
        """Return what one of the pods takes; nothing if it is bound, for then it counts there already."""
        if pod.spec.node_name:
            return self.nothing
        return self.vectors.of(needs_of(pod)) + tuple(a.needs.get(pod.metadata.uid, 0) for a in self.apart)


@dataclass(frozen=True, slots=True)
class Placement:
    """The nodes that are left, and why the others are not. Holds until the next change.

    Attributes:
        nodes: names.
        rejected: reason → number of nodes.
        evicting: of the rejected nodes, those that would be left if kube-scheduler evicted pods of lower
            priority, which it may do for this pod.
    """

    nodes: Set[str]
    rejected: Mapping[str, int]
    evicting: Set[str] = frozenset()

    def summary(self) -> str:
        """Return the text for the Event when no node is left."""
        total = len(self.nodes) + sum(self.rejected.values())
        if not total:
            return "there are no nodes"
        parts = ", ".join(f"{count} {reason}" for reason, count in sorted(self.rejected.items()))
        return f"{len(self.nodes)}/{total} nodes can take the pod: {parts}"


@dataclass(slots=True)
class _NodeFit:
    """What is known for pods that want the same of a node.

    Attributes:
        pod: one of them.
        needs: of each.
        conditions: whether its taints and affinity are looked at.
        seen: how much of the log of changed nodes is in it.
        reasons: nodes that cannot take the pod.
        evicting: of these, those that could if pods of lower priority were evicted.
    """

    pod: Pod
    needs: PodNeeds
    conditions: bool = True
    seen: int = 0
    fitting: set[str] = field(default_factory=set)
    reasons: dict[str, str] = field(default_factory=dict)
    evicting: set[str] = field(default_factory=set)
    rejected: Counter[str] = field(default_factory=Counter)

    def look(self, node: Node, room: NodeRoom, served: Collection[str]) -> None:
        """Work out the answer for a node."""
        needs, allocatable = self.needs, node.status.allocatable
        found = "being deleted" if node.metadata.deletion_timestamp else ""
        found = found or condition_problem(self.pod, node, looked_at=self.conditions)
        evicting = False
        if not found and (found := problem(needs, room, allocatable, served)):
            below = needs.preempts and room.has_below(needs.priority)
            evicting = below and not problem(needs, room, allocatable, served, evicting=True)
        self.put(node.metadata.name, found, evicting=evicting)

    def put(self, name: str, reason: str | None, *, evicting: bool = False) -> None:
        """Note the answer for a node; None where there is no such node."""
        old = self.reasons.pop(name, None)
        if old is not None:
            self.rejected[old] -= 1
            if not self.rejected[old]:
                del self.rejected[old]
        self.fitting.discard(name)
        self.evicting.discard(name)
        if reason:
            self.reasons[name] = reason
            self.rejected[reason] += 1
            if evicting:
                self.evicting.add(name)
        elif reason is not None:
            self.fitting.add(name)


class Placements:
    """The nodes that can take a pod, kept for pods that want the same of a node.

    A changed node, or a pod that comes or goes there, costs a look at that node for each kind of pod.
    """

    def __init__(self, nodes: Objects[Node], usage: NodeUsage) -> None:
        """Look at nodes and usage from now on.

        Args:
            nodes: all of them; ``changed`` must be called for each that changes.
            usage: what pods take.
        """
        self._nodes = nodes
        self._usage = usage
        self._kept: OrderedDict[bytes, _NodeFit] = OrderedDict()
        # Names of nodes that have changed; ``_start`` is the number of the first of them.
        self._log: list[str] = []
        self._start = 0
        # DeviceClass → the extended resources that it serves.
        self._classes: dict[str, tuple[str, ...]] = {}
        self._served: frozenset[str] = frozenset()
        self._beside = BesideOthers(nodes, usage.neighbours, lambda n, level: usage.on(n).has_below(level))
        # By what pods want besides volumes, and what their volumes ask for.
        self._with_volumes: OrderedDict[tuple[bytes, VolumeNeeds], VolumeView] = OrderedDict()
        self._volumes_known = False
        usage.changed = usage.volumes.changed = self._log.append

    def changed(self, node: str) -> None:
        """Note that a node has changed."""
        self._log.append(node)
        self._beside.changed(node)

    def class_changed(self, name: str, device_class: DeviceClass | None) -> None:
        """Note that a DeviceClass has changed, or is gone: it may serve other extended resources."""
        self._classes.pop(name, None)
        if device_class is not None:
            named = device_class.spec.extended_resource_name
            self._classes[name] = (_IMPLICIT_PREFIX + name, *([named] if named else []))
        served = frozenset(r for of in self._classes.values() for r in of)
        if served != self._served:
            self._served = served
            self._kept.clear()
            self._beside.forget()

    # --- volumes --------------------------------------------------------------------------------------------

    def know_volumes(self, known: bool) -> None:
        """Note whether all storage objects are known; else volumes are not looked at."""
        self._volumes_known = known
        self._with_volumes.clear()

    def storage_seen(self, item: StorageObject) -> None:
        """Take in a storage object that was added or changed."""
        self._usage.volumes.put(item)

    def storage_gone(self, kind: type[object], key: ObjectKey) -> None:
        """Note that a storage object is gone."""
        self._usage.volumes.remove(kind, key)

    def volume_needs(self, pod: Pod) -> VolumeNeeds:
        """Return what the volumes of a pod ask of a node, as far as that is looked at."""
        if not self._volumes_known or pod.spec.node_name or not pod.spec.volumes:
            return NO_NEEDS
        return volume_needs(pod, self._usage.volumes)

    def volumes_suit(self, pod: Pod, node: str) -> bool:
        """Return whether the volumes of a pod can be used on a node."""
        needs, known = self.volume_needs(pod), self._nodes.by_name(node)
        if needs == NO_NEEDS or known is None:
            return True
        return not (needs.problem or self._volume_fit(needs).problem(known))

    def _volume_fit(self, needs: VolumeNeeds) -> VolumeFit:
        def labels_of(name: str) -> Mapping[str, str]:
            node = self._nodes.by_name(name)
            return (node.metadata.labels or {}) if node is not None else {}

        return VolumeFit(needs, self._usage.volumes, labels_of)

    def _suiting_volumes(self, pod: Pod, needs: VolumeNeeds, wishes: bytes, found: Placement) -> Placement:
        """Return what is left of an answer that holds for all pods with these wishes."""
        if needs == NO_NEEDS:
            return found
        if needs.problem:
            return self._without_unsuitable(pod, needs, found)
        usage = self._usage.volumes
        # Where volumes are yet to be bound, what is there for one node depends on what others get.
        rests_on = (usage.version, usage.objects.version) if needs.unbound else (0, 0)
        known = self._with_volumes.get((wishes, needs))
        changed: Iterable[str]
        if known is None or known.seen < self._start or known.rests_on != rests_on:
            known = VolumeView(self._volume_fit(needs), needs_of(pod), rests_on)
            self._with_volumes[wishes, needs] = known
            changed = (*found.nodes, *found.evicting)
        else:
            changed = dict.fromkeys(self._log[known.seen - self._start :])
        known.seen = self._start + len(self._log)
        self._with_volumes.move_to_end((wishes, needs))
        if len(self._with_volumes) > _MOST_KEPT:
            self._with_volumes.popitem(last=False)
        for name in changed:
            known.look(name, self._nodes.by_name(name), self._usage.on(name), found.nodes, found.evicting)
        return _seen_by(known, found)

    def _without_unsuitable(self, pod: Pod, needs: VolumeNeeds, found: Placement) -> Placement:
        """Return an answer without the nodes on which volumes cannot be used."""
        if needs.problem:
            number = len(found.nodes) + len(found.evicting)
            return Placement(frozenset(), {**found.rejected, f"where {needs.problem}": number})
        view = VolumeView(self._volume_fit(needs), needs_of(pod))
        for name in (*found.nodes, *found.evicting):
            view.look(name, self._nodes.by_name(name), self._usage.on(name), found.nodes, found.evicting)
        return _seen_by(view, found)

    def candidates(self, pod: Pod, avoid: Collection[str] = ()) -> Placement:
        """Return the nodes that can take the pod.

        Affinity and taints of a pod with more than 512 conditions on nodes are left to kube-scheduler.

        Args:
            pod: not bound; a bound pod has one candidate, whatever that node looks like.
            avoid: nodes where kube-scheduler could not place the pod a short while ago.
        """
        if pod.spec.node_name:
            return Placement({pod.spec.node_name}, {})
        key, fit = self._fit(pod)
        # The pod's own expected place does not count against it.
        own = self._usage.place_of(pod)
        needs = self.volume_needs(pod)
        if not avoid and own is None:
            left = self._suiting_volumes(pod, needs, key, Placement(fit.fitting, fit.rejected, fit.evicting))
            return self._beside_others(pod, key, fit, left, fit.seen if needs == NO_NEEDS else None)
        mine = replace(
            fit,
            pod=pod,
            seen=0,
            fitting=set(fit.fitting),
            reasons=dict(fit.reasons),
            evicting=set(fit.evicting),
            rejected=Counter(fit.rejected),
        )
        with self._usage.without([pod]):
            for name in {*avoid, *(() if own is None else (own,))}:
                node = self._nodes.by_name(name)
                if node is None:
                    continue
                if name in avoid:
                    mine.put(name, _AVOIDED)
                else:
                    mine.look(node, self._usage.on(name), self._served)
            left = Placement(mine.fitting, mine.rejected, mine.evicting)
            if needs != NO_NEEDS:
                left = self._without_unsuitable(pod, needs, left)
            return self._beside_others(pod, key, mine, left)

    def _beside_others(
        self, pod: Pod, key: bytes, fit: _NodeFit, found: Placement, state: int | None = None
    ) -> Placement:
        """Return the nodes that are left beside other pods; as for ``BesideOthers.left``."""
        rules = self._beside.rules(pod, conditions=fit.conditions)
        if rules is None:
            return found
        left = Left(found.nodes, found.rejected, found.evicting)
        return Placement(*self._beside.left(pod, rules, left, key, state))

    def are_known(self, pod: Pod) -> bool:
        """Return whether all that a pod demands of a node, besides volumes, is looked at here."""
        return are_all_terms_known(pod) and not has_many_conditions(pod, _MOST_CONDITIONS)

    def beside(self, pod: Pod) -> bytes:
        """Return what decides where a pod may go beside other pods: the same for pods that it holds for."""
        return described(self._beside.rules(pod, conditions=not has_many_conditions(pod, _MOST_CONDITIONS)))

    def free(self, nodes: Iterable[str], pods: Collection[Pod]) -> FreeRoom:
        """Return what is left of nodes for some pods, which do not count where they are expected."""
        unbound = [pod for pod in pods if not pod.spec.node_name]
        vectors = NeedsVectors(map(needs_of, unbound))
        apart = self._beside.apart(unbound)
        found: dict[str, Vector] = {}
        with self._usage.without(pods):
            for name in nodes:
                node = self._nodes.by_name(name)
                if node is not None:
                    room = self._usage.on(name)
                    found[name] = vectors.free(room, node.status.allocatable, self._served)
                    found[name] += tuple(a.on(node) for a in apart)
        return FreeRoom(vectors, apart, found)

    def _fit(self, pod: Pod) -> tuple[bytes, _NodeFit]:
        """Return a key for what a pod wants of a node besides volumes, and what is known for that."""
        spec = pod.spec
        needs = needs_of(pod)
        affinity = spec.affinity.node_affinity if spec.affinity is not None else None
        # A digest: the affinity of a pod may be a megabyte.
        key = digest(codec.encode((spec.node_selector, affinity, spec.tolerations, needs)))
        fit = self._kept.get(key)
        end = self._start + len(self._log)
        if fit is None or fit.seen < self._start:
            looked_at = not has_many_conditions(pod, _MOST_CONDITIONS)
            fit = self._kept[key] = _NodeFit(pod, needs, looked_at)
            changed: Iterable[str] = [n.metadata.name for n in self._nodes]
        else:
            changed = dict.fromkeys(self._log[fit.seen - self._start :])
        fit.seen = end
        self._kept.move_to_end(key)
        if len(self._kept) > _MOST_KEPT:
            self._kept.popitem(last=False)
        for name in changed:
            node = self._nodes.by_name(name)
            if node is None:
                fit.put(name, None)
            else:
                fit.look(node, self._usage.on(name), self._served)
        # What has not been asked about for so long is made anew.
        if len(self._log) > max(_LONGEST_LOG, 2 * len(self._nodes)):
            self._start += len(self._log) // 2
            del self._log[: len(self._log) // 2]
        return key, fit


def _seen_by(view: VolumeView, found: Placement) -> Placement:
    """Return what a view leaves of an answer."""
    rejected = Counter(found.rejected)
    rejected.update({reason: number for reason, number in view.rejected.items() if number})
    return Placement(view.nodes, rejected, view.evicting)


def same_for_pods(old: Node, node: Node) -> bool:
    """Return whether nothing has changed that matters to pods: nodes report their health all the time."""
    return (
        old.metadata.labels == node.metadata.labels
        and old.metadata.uid == node.metadata.uid
        and old.metadata.deletion_timestamp == node.metadata.deletion_timestamp
        and old.spec == node.spec
        and old.status.allocatable == node.status.allocatable
    )
