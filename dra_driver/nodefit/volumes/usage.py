"""The volumes that the pods of each node use."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping
from typing import Final, NamedTuple, TypeVar

from dra_driver.api.meta import ObjectKey, Uid
from dra_driver.api.storage import CSINode, PersistentVolume, VolumeAttachment
from dra_driver.nodefit.volumes.matching import Available, ClaimRequest, available_for
from dra_driver.nodefit.volumes.objects import StorageObject, StorageObjects
from dra_driver.nodefit.volumes.pods import Disk, PodVolumes

__all__ = ["Attached", "User", "VolumeUsage"]

_K = TypeVar("_K", bound=Hashable)
_MOST_KEPT: Final = 64


class User(NamedTuple):
    """A pod that has volumes, on the node where it counts.

    Attributes:
        node: its name.
        volumes: that the pod names.
        priority: ``spec.priority``.
        bound: whether it is bound there; else it is expected there.
    """

    node: str
    volumes: PodVolumes
    priority: int
    bound: bool


class Attached(NamedTuple):
    """The volumes of one driver on a node, by their handles.

    Attributes:
        used: by pods, with the highest priority of these.
        attached: by VolumeAttachments, whoever uses them.
    """

    used: dict[str, int]
    attached: set[str]

    def is_used(self, volume: str, least: int | None = None) -> bool:
        """Return whether a pod, or one of at least this priority, uses a volume."""
        priority = self.used.get(volume)
        return priority is not None and (least is None or priority >= least)

    def number(self, least: int | None = None) -> int:
        """Return how many volumes there are, where only pods of at least this priority count."""
        if least is None:
            return len(self.used.keys() | self.attached)
        return len({v for v, priority in self.used.items() if priority >= least} | self.attached)


class VolumeUsage:
    """Which pods use which volumes where.

    Attributes:
        objects: the storage objects.
        version: another number after each change of pods.
        changed: called with the name of a node on which a storage object may change what can be used there.
    """

    def __init__(self) -> None:
        self.changed: Callable[[str], None] = lambda _: None
        self.objects = StorageObjects()
        self.version = 0
        self._users: dict[Uid, User] = {}
        self._nodes: dict[str, dict[Uid, User]] = {}
        self._claims: dict[ObjectKey, dict[Uid, User]] = {}
        # Of the pods that are not bound, in the order in which they came.
        self._expected: dict[Uid, User] = {}
        # Node → driver → its volumes there, as far as that is known.
        self._attached: dict[str, dict[str, Attached]] = {}
        # For the version of the objects.
        self._available: dict[ClaimRequest, Available] = {}
        self._available_at = -1

    # --- changes --------------------------------------------------------------------------------------------

    def put(self, item: StorageObject) -> None:
        """Add or replace a storage object."""
        self._stale_for(type(item), item.key)
        self._stale(self.objects.put(item))
        self._stale_for(type(item), item.key)

    def remove(self, kind: type[object], key: ObjectKey) -> None:
        """Forget a storage object."""
        self._stale_for(kind, key)
        self._stale(self.objects.remove(kind, key))

    def add(self, pod: Uid, user: User) -> None:
        """Count a pod that has volumes."""
        self.version += 1
        self._users[pod] = user
        self._nodes.setdefault(user.node, {})[pod] = user
        for use in user.volumes.claims:
            self._claims.setdefault(use.key, {})[pod] = user
        if not user.bound:
            self._expected[pod] = user
        self._attached.pop(user.node, None)

    def discard(self, pod: Uid) -> None:
        """Stop counting a pod, if it was counted."""
        user = self._users.pop(pod, None)
        if user is None:
            return
        self.version += 1
        self._expected.pop(pod, None)
        _without(self._nodes, user.node, pod)
        for key in {use.key for use in user.volumes.claims}:
            _without(self._claims, key, pod)
        self._attached.pop(user.node, None)

    def clear(self) -> None:
        """Stop counting any pod."""
        for pod in tuple(self._users):
            self.discard(pod)

    def _stale(self, claims: set[ObjectKey] | None) -> None:
        """Note that the volumes of claims, or of all, may be counted in another way now."""
        users = (
            (u for key in claims for u in self._claims.get(key, {}).values()) if claims is not None else ()
        )
        for node in tuple(self._nodes) if claims is None else {user.node for user in users}:
            self._attached.pop(node, None)
            self.changed(node)

    def _stale_for(self, kind: type[object], key: ObjectKey) -> None:
        nodes: set[str] = set()
        if kind is VolumeAttachment:
            nodes = {self.objects.attachment_node(key.name)} - {""}
        elif kind is PersistentVolume:
            nodes = self.objects.nodes_attached(key.name)
        elif kind is CSINode:
            nodes = {key.name}
        for node in nodes:
            self._attached.pop(node, None)
            self.changed(node)

    # --- questions ------------------------------------------------------------------------------------------

    def users(self, claim: ObjectKey) -> Mapping[Uid, User]:
        """Return the pods that count on some node and use a claim."""
        return self._claims.get(claim, {})

    def expected(self) -> Iterator[User]:
        """Yield the pods with volumes that are expected on nodes and not bound, the first that came first."""
        return iter(self._expected.values())

    def disks(self, node: str) -> Iterator[tuple[Disk, int]]:
        """Yield the disks that pods of a node name themselves, each with the priority of the pod."""
        for user in self._nodes.get(node, {}).values():
            for disk in user.volumes.disks:
                yield disk, user.priority

    def attached(self, node: str, driver: str) -> Attached | None:
        """Return the volumes of a driver that are in use or attached on a node; None where none are."""
        known = self._attached.get(node)
        if known is None:
            known = self._attached[node] = self._count(node)
        return known.get(driver)

    def _count(self, node: str) -> dict[str, Attached]:
        found: dict[str, Attached] = {}
        for user in self._nodes.get(node, {}).values():
            for use in user.volumes.claims:
                handle = self.objects.handle(use.key)
                if handle is not None:
                    used = found.setdefault(handle.driver, Attached({}, set())).used
                    used[handle.volume] = max(user.priority, used.get(handle.volume, user.priority))
        for handle in self.objects.attached_to(node):
            found.setdefault(handle.driver, Attached({}, set())).attached.add(handle.volume)
        return found

    def available(self, request: ClaimRequest) -> Available:
        """Return the volumes that would do for an unbound claim."""
        if self._available_at != self.objects.version or len(self._available) > _MOST_KEPT:
            self._available.clear()
            self._available_at = self.objects.version
        found = self._available.get(request)
        if found is None:
            found = self._available[request] = available_for(request, self.objects)
        return found


def _without(index: dict[_K, dict[Uid, User]], key: _K, pod: Uid) -> None:
    users = index[key]
    users.pop(pod, None)
    if not users:
        del index[key]
