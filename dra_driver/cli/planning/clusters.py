"""The cluster of a plan: a snapshot, who holds what of it, and what pods leave of its nodes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from controller.allocate.decide import is_finished
from dra_driver.api import codec
from dra_driver.api.core import Node, Pod
from dra_driver.api.meta import ObjectKey, ObjectMeta
from dra_driver.api.resource import ResourceClaim, ResourceClaimStatus, ResourceSlice
from dra_driver.cli.planning.inputs import Objects
from dra_driver.nodefit import NeedsVectors, NodeRoom, PodNeeds, condition_problem, needs_of
from dra_driver.planning import Holder, PlannedCluster, Template
from dra_driver.resourceclaim import pod_claims
from dra_driver.structured import AllocatedState, GroupMember, Snapshot, with_rules

__all__ = ["NEEDS", "ClusterBuilder"]

NEEDS: Final = NeedsVectors([PodNeeds(tuple((n, 1) for n in ("cpu", "ephemeral-storage", "memory", "pods")))])
"""What is looked at of pods besides devices and conditions on nodes."""

# Kinds of existing nodes of which more are considered.
_MOST_TEMPLATES: Final = 3


class ClusterBuilder:
    """Makes the planned cluster of the objects of one.

    Args:
        objects: nodes that only slices name are added.
    """

    def __init__(self, objects: Objects) -> None:
        self.objects = objects
        slices = [with_rules(s, objects.rules) for s in objects.slices] if objects.rules else objects.slices
        self.slices: Sequence[ResourceSlice] = slices
        known = {n.metadata.name for n in objects.nodes}
        named = {s.spec.node_name for s in slices if s.spec.node_name}
        named |= {d.node_name for s in slices for d in s.spec.devices if d.node_name}
        implied = [Node(metadata=ObjectMeta(name=name)) for name in sorted(named - known)]
        self.nodes = [*objects.nodes, *implied]
        self._nodes = {n.metadata.name: n for n in self.nodes}
        self._asked: set[ObjectKey] = set()
        self._allowed: dict[bytes, frozenset[str] | None] = {}

    def nodes_for(self, pod: Pod) -> frozenset[str] | None:
        """Return the nodes that can take a pod by selector, affinity and taints; None for all of them."""
        spec = pod.spec
        key = codec.encode((spec.node_selector, spec.affinity, spec.tolerations))
        if key not in self._allowed:
            found = frozenset(
                n.metadata.name
                for n in self.nodes
                if not (n.metadata.deletion_timestamp or condition_problem(pod, n))
            )
            self._allowed[key] = None if len(found) == len(self.nodes) else found
        return self._allowed[key]

    def ask_about(self, pod: Pod) -> None:
        """Leave a pod of the cluster out of what pods take of nodes, for it is asked where it would be."""
        self._asked.add(pod.key)

    def build(self, *, not_held: Iterable[ObjectKey] = ()) -> PlannedCluster:
        """Return the cluster.

        Args:
            not_held: allocated claims that are asked about, so that they may not be freed.
        """
        own = frozenset(not_held)
        objects = self.objects
        claims = [c for c in objects.claims if c.status.allocation is not None]
        snapshot = Snapshot.build(
            slices=self.slices,
            classes=objects.classes,
            nodes=self.nodes,
            allocated=AllocatedState.from_claims(claims),
        )
        free: dict[str, tuple[int, ...]] = {}
        if objects.pods_known:
            rooms = self._rooms()
            free = {
                n.metadata.name: NEEDS.free(rooms.get(n.metadata.name, NodeRoom()), n.status.allocatable)
                for n in self.nodes
                if n.status.allocatable
            }
        return PlannedCluster(
            snapshot=snapshot,
            holders=tuple(self._holders([c for c in claims if c.key not in own])),
            kept=tuple(c for c in claims if c.key in own),
            free=free,
            coupled=any(s.spec.node_name is None and s.spec.devices for s in self.slices),
        )

    def _rooms(self) -> dict[str, NodeRoom]:
        found: dict[str, NodeRoom] = {}
        for pod in self.objects.pods:
            node = _node_of(pod)
            if node and pod.key not in self._asked and not is_finished(pod):
                found.setdefault(node, NodeRoom()).add(needs_of(pod))
        return found

    # --- holders --------------------------------------------------------------------------------------------

    def _holders(self, claims: Sequence[ResourceClaim]) -> Iterable[Holder]:
        by_key = {c.key: c for c in claims if c.status.allocation and c.status.allocation.devices.results}
        users: dict[ObjectKey, list[Pod]] = {key: [] for key in by_key}
        for pod in self.objects.pods:
            if is_finished(pod):
                continue
            for used in pod_claims(pod):
                if used.key in users:
                    users[used.key].append(pod)
        seen: set[ObjectKey] = set()
        for key in sorted(by_key):
            if key not in seen:
                together, pods = _connected(key, users)
                seen |= together
                yield self._holder([by_key[k] for k in sorted(together)], pods)

    def _holder(self, claims: Sequence[ResourceClaim], pods: Sequence[Pod]) -> Holder:
        asked = {c.key: _again(c) for c in claims}
        members: list[GroupMember] = []
        gives: dict[str, tuple[int, ...]] = {}
        for pod in pods:
            mine = tuple(asked[u.key] for u in pod_claims(pod) if u.key is not None and u.key in asked)
            needs = NEEDS.of(needs_of(pod))
            members.append(GroupMember(mine, self.nodes_for(pod), needs))
            node = _node_of(pod)
            if node and pod.key not in self._asked:
                before = gives.get(node, NEEDS.nothing)
                gives[node] = tuple(a + b for a, b in zip(before, needs, strict=True))
        if not pods:
            members = [GroupMember((claim,), None, NEEDS.nothing) for claim in asked.values()]
        names = tuple(str(p.key) for p in pods) or _reserved_for(claims)
        return Holder(
            name=names[0] if names else str(claims[0].key),
            claims=tuple(claims),
            pods=names,
            priority=max((p.spec.priority for p in pods), default=0),
            members=tuple(members),
            gives=gives,
        )

    # --- kinds of nodes -------------------------------------------------------------------------------------

    def templates(self) -> list[Template]:
        """Return the kinds of nodes that the cluster has most of, by their devices."""
        of_node: dict[str, list[ResourceSlice]] = {}
        for slice_ in self.slices:
            if slice_.spec.node_name:
                of_node.setdefault(slice_.spec.node_name, []).append(slice_)
        kinds: dict[object, list[str]] = {}
        for name in sorted(of_node):
            kinds.setdefault(_likeness(of_node[name]), []).append(name)
        most = sorted(kinds.values(), key=lambda names: (-len(names), names[0]))[:_MOST_TEMPLATES]
        return [self.template(names[0], tuple(of_node[names[0]])) for names in most]

    def template(self, name: str, slices: tuple[ResourceSlice, ...]) -> Template:
        """Return a kind of node made of one that there is."""
        node = self._nodes[name]
        room: tuple[int, ...] = ()
        if self.objects.pods_known and node.status.allocatable:
            room = NEEDS.free(NodeRoom(), node.status.allocatable)
        return Template(name, node, slices, room)


def _node_of(pod: Pod) -> str:
    """Return the node on which a pod counts: before it is bound that for which it is nominated."""
    return pod.spec.node_name or pod.status.nominated_node_name


def _connected(key: ObjectKey, users: dict[ObjectKey, list[Pod]]) -> tuple[set[ObjectKey], list[Pod]]:
    """Return the claims that stand and fall with one, and the pods that use them."""
    together, waiting = {key}, [key]
    pods: dict[ObjectKey, Pod] = {}
    while waiting:
        for pod in users[waiting.pop()]:
            pods[pod.key] = pod
            for used in pod_claims(pod):
                if used.key is not None and used.key in users and used.key not in together:
                    together.add(used.key)
                    waiting.append(used.key)
    return together, [pods[k] for k in sorted(pods)]


def _reserved_for(claims: Sequence[ResourceClaim]) -> tuple[str, ...]:
    names = {
        f"{c.metadata.namespace}/{r.name}"
        for c in claims
        for r in c.status.reserved_for
        if r.resource == "pods"
    }
    return tuple(sorted(names))


def _again(claim: ResourceClaim) -> ResourceClaim:
    """Return the claim as it would ask elsewhere."""
    return msgspec.structs.replace(claim, status=ResourceClaimStatus())


def _likeness(slices: Sequence[ResourceSlice]) -> object:
    """Return what makes nodes of a kind: number, model and capacity of their devices."""
    found: dict[object, int] = {}
    for slice_ in slices:
        for device in slice_.spec.devices:
            texts = tuple(
                (name.rpartition("/")[2], a.string_value)
                for name, a in sorted(device.attributes.items())
                if name.rpartition("/")[2] in ("model", "productName", "type", "profile")
            )
            amounts = tuple((n, c.value.nano) for n, c in sorted(device.capacity.items()))
            key = (slice_.spec.driver, texts, amounts)
            found[key] = found.get(key, 0) + 1
    return frozenset(found.items())
