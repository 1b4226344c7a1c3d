"""The cluster of a plan: a snapshot, who holds what of it, and what pods leave of its nodes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from typing import Final, Protocol, overload

import msgspec

from controller.allocate.decide import is_finished
from dra_driver.api import codec
from dra_driver.api.core import Node, Pod
from dra_driver.api.meta import ObjectKey, ObjectMeta
from dra_driver.api.resource import (
    DeviceClass,
    DeviceTaintRule,
    ResourceClaim,
    ResourceClaimStatus,
    ResourceSlice,
)
from dra_driver.nodefit import NeedsVectors, PodNeeds, Vector, condition_problem, needs_of
from dra_driver.ownership import is_controller_taint
from dra_driver.planning import Holder, PlannedCluster, Template
from dra_driver.resourceclaim import classes_by_resource, consumer_names, pod_claims
from dra_driver.structured import AllocatedState, GroupMember, Snapshot, with_rules

__all__ = ["ClusterBuilder", "ClusterObjects", "claims_like"]

# Kinds of existing nodes of which more are considered.
_MOST_TEMPLATES: Final = 3


class ClusterObjects(Protocol):
    """Objects of a cluster."""

    @property
    def nodes(self) -> Sequence[Node]:
        """Nodes; those that only slices name are added."""
        ...

    @property
    def slices(self) -> Sequence[ResourceSlice]:
        """Slices as they are published."""
        ...

    @property
    def classes(self) -> Iterable[DeviceClass]:
        """Classes of devices."""
        ...

    @property
    def claims(self) -> Sequence[ResourceClaim]:
        """Claims; those that hold devices count."""
        ...

    @property
    def pods(self) -> Sequence[Pod]:
        """Pods, as far as they are known."""
        ...

    @property
    def rules(self) -> Sequence[DeviceTaintRule]:
        """Rules that add taints to the slices."""
        ...

    @property
    def pods_known(self) -> bool:
        """Whether pods were looked for: without them, nothing is known about CPU and memory."""
        ...


class _Members(Sequence[GroupMember]):
    """Members of a holder, made when they are looked at: few holders are tried elsewhere."""

    def __init__(self, make: Callable[[], tuple[GroupMember, ...]]) -> None:
        self._make = make

    @cached_property
    def _made(self) -> tuple[GroupMember, ...]:
        return self._make()

    @overload
    def __getitem__(self, index: int) -> GroupMember: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[GroupMember]: ...

    def __getitem__(self, index: int | slice) -> GroupMember | Sequence[GroupMember]:
        return self._made[index]

    def __len__(self) -> int:
        return len(self._made)


class ClusterBuilder:
    """Makes the planned cluster of the objects of one.

    Args:
        objects: of the cluster.
        snapshot: of the same objects; if None, it is made of them.
    """

    def __init__(self, objects: ClusterObjects, snapshot: Snapshot | None = None) -> None:
        self.objects = objects
        self._snapshot = snapshot
        slices = [with_rules(s, objects.rules) for s in objects.slices] if objects.rules else objects.slices
        self.slices: Sequence[ResourceSlice] = slices
        known = {n.metadata.name for n in objects.nodes}
        named = {s.spec.node_name for s in slices if s.spec.node_name}
        named |= {d.node_name for s in slices for d in s.spec.devices if d.node_name}
        implied = [Node(metadata=ObjectMeta(name=name)) for name in sorted(named - known)]
        self.nodes = [*objects.nodes, *implied]
        self._nodes = {n.metadata.name: n for n in self.nodes}
        self._asked: set[ObjectKey] = set()
        self._asking: list[PodNeeds] = []
        self._served = frozenset(classes_by_resource(objects.classes))
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

    def needs_of(self, pod: Pod) -> PodNeeds:
        """Return what a pod that is asked about takes of a node; it counts in ``vectors`` from now on."""
        needs = needs_of(pod)
        self._asking.append(needs)
        return needs

    @cached_property
    def vectors(self) -> NeedsVectors:
        """What is looked at besides devices: what the pods ask for, then what pods that hold devices do.

        All pods that are asked about must be known.
        """
        holding = (needs for pod, needs in self._running.values() if pod.spec.resource_claims)
        return NeedsVectors(self._asking, holding)

    @cached_property
    def _running(self) -> dict[ObjectKey, tuple[Pod, PodNeeds]]:
        """The pods that are not finished, with what they take."""
        pods = {pod.key: pod for pod in self.objects.pods if not is_finished(pod)}
        return {key: (pod, needs_of(pod)) for key, pod in pods.items()}

    def taken_by(self, pod: Pod) -> Vector:
        """Return what a pod takes of its node: nothing where it is finished."""
        known = self._running.get(pod.key)
        return self.vectors.nothing if known is None else self.vectors.of(known[1])

    @cached_property
    def free(self) -> dict[str, Vector]:
        """What pods leave of nodes besides devices; no nodes where pods are not known."""
        if not self.objects.pods_known:
            return {}
        on_node: dict[str, list[PodNeeds]] = {}
        for pod, needs in self._running.values():
            if (node := _node_of(pod)) and pod.key not in self._asked:
                on_node.setdefault(node, []).append(needs)
        return {n.metadata.name: self._left(n, on_node.get(n.metadata.name, ())) for n in self.nodes}

    @cached_property
    def coupled(self) -> bool:
        """Whether nodes share devices, or counters that devices of theirs take from."""
        node_of_pool: dict[object, str] = {}
        for spec in (s.spec for s in self.slices):
            if spec.node_name is None:
                if spec.devices:
                    return True
            elif node_of_pool.setdefault((spec.driver, spec.pool.name), spec.node_name) != spec.node_name:
                return True
        return False

    def _left(self, node: Node, pods: Iterable[PodNeeds]) -> Vector:
        return self.vectors.left(pods, node.status.allocatable, self._served)

    def build(self, *, not_held: Iterable[ObjectKey] = ()) -> PlannedCluster:
        """Return the cluster.

        Args:
            not_held: allocated claims that are asked about, so that they may not be freed.
        """
        own = frozenset(not_held)
        objects = self.objects
        claims = [c for c in objects.claims if c.status.allocation is not None]
        snapshot = self._snapshot or Snapshot.build(
            slices=self.slices,
            classes=objects.classes,
            nodes=self.nodes,
            allocated=AllocatedState.from_claims(claims),
        )
        return PlannedCluster(
            snapshot=snapshot,
            holders=tuple(self._holders([c for c in claims if c.key not in own])),
            kept=tuple(c for c in claims if c.key in own),
            free=self.free,
            resources=self.vectors.names,
            coupled=self.coupled,
        )

    # --- holders --------------------------------------------------------------------------------------------

    def _holders(self, claims: Sequence[ResourceClaim]) -> Iterable[Holder]:
        by_key = {c.key: c for c in claims if c.status.allocation and c.status.allocation.devices.results}
        users: dict[ObjectKey, list[Pod]] = {key: [] for key in by_key}
        for pod, _ in self._running.values():
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
        gives: dict[str, tuple[int, ...]] = {}
        for pod in pods:
            node = _node_of(pod)
            if node and pod.key not in self._asked:
                before = gives.get(node, self.vectors.nothing)
                gives[node] = tuple(a + b for a, b in zip(before, self.taken_by(pod), strict=True))
        names = tuple(str(p.key) for p in pods) or _reserved_for(claims)
        return Holder(
            name=names[0] if names else str(claims[0].key),
            claims=tuple(claims),
            pods=names,
            priority=max((p.spec.priority for p in pods), default=0),
            members=_Members(lambda: self._again(claims, pods)),
            gives=gives,
        )

    def _again(self, claims: Sequence[ResourceClaim], pods: Sequence[Pod]) -> tuple[GroupMember, ...]:
        """Return pods that hold claims as they would ask elsewhere."""
        asked = {c.key: msgspec.structs.replace(c, status=ResourceClaimStatus()) for c in claims}
        if not pods:
            return tuple(GroupMember((claim,), None, self.vectors.nothing) for claim in asked.values())
        return tuple(
            GroupMember(
                tuple(asked[u.key] for u in pod_claims(pod) if u.key is not None and u.key in asked),
                self.nodes_for(pod),
                self.taken_by(pod),
            )
            for pod in pods
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
        healthy = [min(names, key=lambda n: (self._troubles(n, of_node[n]), n)) for names in most]
        return [self.template(name, tuple(of_node[name])) for name in healthy]

    def _troubles(self, name: str, slices: Iterable[ResourceSlice]) -> int:
        """Return the number of things that keep pods and claims off a node, and that a new one has not."""
        node = self._nodes[name]
        taints = sum(taint.key.startswith("node.kubernetes.io/") for taint in node.spec.taints)
        tainted = sum(
            any(not is_controller_taint(taint) for taint in device.taints)
            for slice_ in slices
            for device in slice_.spec.devices
        )
        return node.spec.unschedulable + bool(node.metadata.deletion_timestamp) + taints + tainted

    def template(self, name: str, slices: tuple[ResourceSlice, ...]) -> Template:
        """Return a kind of node made of one that there is."""
        node = self._nodes[name]
        room = self._left(node, ()) if self.objects.pods_known else ()
        return Template(name, node, slices, room)


def claims_like(claims: Iterable[ResourceClaim], number: int) -> tuple[ResourceClaim, ...]:
    """Return claims that ask for the same as those of another pod; those that are allocated are shared."""
    return tuple(
        claim
        if claim.status.allocation is not None
        else msgspec.structs.replace(
            claim,
            metadata=msgspec.structs.replace(
                claim.metadata, name=f"{claim.metadata.name}+{number + 1}", uid=""
            ),
        )
        for claim in claims
    )


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
    names = {f"{c.metadata.namespace}/{name}" for c in claims for name in consumer_names(c)}
    return tuple(sorted(names))


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
