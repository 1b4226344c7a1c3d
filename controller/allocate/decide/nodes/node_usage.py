"""What pods take of each node, and where a pod counts before it is bound."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import Final, NamedTuple

from controller.allocate.decide.state.objects import is_finished
from dra_driver.api.core import Pod
from dra_driver.api.meta import Uid
from dra_driver.nodefit import (
    Neighbour,
    Neighbours,
    NodeRoom,
    PodNeeds,
    needs_of,
    neighbour_of,
)
from dra_driver.nodefit.volumes import (
    NO_VOLUMES,
    PodVolumes,
    User,
    VolumeUsage,
    volumes_of,
)

__all__ = ["NodeUsage"]

_EMPTY: Final = NodeRoom()


class _Entry(NamedTuple):
    """Where a pod counts.

    Attributes:
        node: its name.
        needs: of the pod.
        volumes: that it uses.
        bound: whether it is bound there.
        neighbour: the pod as others see it.
        expected: whether its claims are allocated there; else it is bound, or kube-scheduler nominated it.
    """

    node: str
    needs: PodNeeds
    volumes: PodVolumes
    bound: bool
    neighbour: Neighbour
    expected: bool = False

    @classmethod
    def of(cls, pod: Pod, node: str, *, expected: bool = False) -> _Entry:
        """Return where a pod counts."""
        return cls(
            node, needs_of(pod), volumes_of(pod), bool(pod.spec.node_name), neighbour_of(pod), expected
        )


class NodeUsage:
    """What the pods of each node take, kept up to date pod by pod.

    A pod counts where it is bound; before that, where its devices were allocated (``place``), or where
    kube-scheduler evicts pods for it (``status.nominatedNodeName``).

    Attributes:
        neighbours: these pods, for others that have terms about them.
        volumes: storage objects, and what pods use of them.
    """

    def __init__(self) -> None:
        self.neighbours = Neighbours()
        self._pods: dict[Uid, _Entry] = {}
        self._nodes: dict[str, NodeRoom] = {}
        self.volumes = VolumeUsage()
        self.changed: Callable[[str], None] = lambda _: None
        """Called with the name of a node when what is taken of it has changed."""

    def on(self, node: str) -> NodeRoom:
        """Return what pods take of a node."""
        return self._nodes.get(node, _EMPTY)

    def place_of(self, pod: Pod) -> str | None:
        """Return the node where the pod counts."""
        entry = self._pods.get(pod.metadata.uid)
        return None if entry is None else entry.node

    def place(self, pod: Pod, node: str) -> None:
        """Count a pod on the node where it is expected."""
        self._set(pod.metadata.uid, _Entry.of(pod, node, expected=True))

    @contextlib.contextmanager
    def placing(self) -> Iterator[Callable[[Pod, str], None]]:
        """Give a ``place`` that holds until the block ends."""
        before: dict[Uid, _Entry | None] = {}

        def place(pod: Pod, node: str) -> None:
            before.setdefault(pod.metadata.uid, self._pods.get(pod.metadata.uid))
            self.place(pod, node)

        try:
            yield place
        finally:
            for uid, entry in before.items():
                self._set(uid, entry)

    @contextlib.contextmanager
    def without(self, pods: Iterable[Pod]) -> Iterator[None]:
        """Leave out pods that are not bound, until the block ends; nothing else may change meanwhile."""
        found = [(p.metadata.uid, self._pods.get(p.metadata.uid)) for p in pods if not p.spec.node_name]
        entries = [(uid, entry) for uid, entry in found if entry is not None]
        version = self.volumes.version
        for uid, entry in entries:
            self._nodes[entry.node].remove(entry.needs)
            self._count_volumes(uid, entry, -1)
            self.neighbours.remove(uid, entry.neighbour.namespace)
        try:
            yield
        finally:
            for uid, entry in entries:
                self._nodes[entry.node].add(entry.needs)
                self._count_volumes(uid, entry, 1)
                self.neighbours.add(uid, entry.node, entry.neighbour)
            self.volumes.version = version

    def seen(self, pod: Pod) -> None:
        """Take in the pod as the API server has it."""
        uid = pod.metadata.uid
        if is_finished(pod):
            self._set(uid, None)
        elif pod.spec.node_name:
            self._set(uid, _Entry.of(pod, pod.spec.node_name))
        elif (entry := self._pods.get(uid)) is not None and entry.expected:
            self._set(uid, entry._replace(neighbour=neighbour_of(pod)))
        else:
            node = pod.status.nominated_node_name
            self._set(uid, _Entry.of(pod, node) if node else None)

    def gone(self, pod: Pod) -> None:
        """Stop counting a pod that is deleted, finished or no longer expected."""
        self._set(pod.metadata.uid, None)

    def _set(self, uid: Uid, entry: _Entry | None) -> None:
        old = self._pods.get(uid)
        if old == entry:
            return
        if entry is None:
            del self._pods[uid]
        else:
            self._pods[uid] = entry
        if old is not None and (entry is None or (old.node, old.neighbour) != (entry.node, entry.neighbour)):
            self.neighbours.remove(uid, old.neighbour.namespace)
        if entry is not None and (old is None or (old.node, old.neighbour) != (entry.node, entry.neighbour)):
            self.neighbours.add(uid, entry.node, entry.neighbour)
        if old is not None and entry is not None and old[:4] == entry[:4]:
            return
        if old is not None:
            room = self._nodes[old.node]
            room.remove(old.needs)
            self._count_volumes(uid, old, -1)
            if not room:
                del self._nodes[old.node]
            self.changed(old.node)
        if entry is not None:
            self._nodes.setdefault(entry.node, NodeRoom()).add(entry.needs)
            self._count_volumes(uid, entry, 1)
            self.changed(entry.node)

    def _count_volumes(self, pod: Uid, entry: _Entry, step: int) -> None:
        if entry.volumes == NO_VOLUMES:
            return
        if step > 0:
            self.volumes.add(pod, User(entry.node, entry.volumes, entry.needs.priority, entry.bound))
        else:
            self.volumes.discard(pod)
