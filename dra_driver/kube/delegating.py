"""The client that passes every call on, for those that add something to calls."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from dra_driver.api.core import PODS
from dra_driver.api.meta import Resource, WireObject
from dra_driver.api.server.watch import ObjectList, WatchEvent
from dra_driver.ports import KubeClient

__all__ = ["Call", "DelegatingClient"]

T = TypeVar("T", bound=WireObject)
R = TypeVar("R")

_READS: Final = frozenset({"get", "list", "watch", "discover"})


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a ``KubeClient``.

    Attributes:
        verb: as in RBAC, with ``apply`` for server-side apply and ``discover`` for the kinds that are served.
        resource: the kind; None where it is about no single one.
        dry_run: nothing will be stored.
    """

    verb: str
    resource: Resource[Any] | None
    dry_run: bool = False

    @property
    def writes(self) -> bool:
        """Whether it is a write, dry or not; every verb that is not known to read is one."""
        return self.verb not in _READS


class DelegatingClient:
    """A ``KubeClient`` on another one.

    Each method but ``watch`` goes through ``_call``, which subclasses override; so a method that is added to
    the port cannot be forgotten in one of them.
    """

    def __init__(self, client: KubeClient) -> None:
        self._client = client

    async def _call(self, call: Call, send: Callable[[], Awaitable[R]]) -> R:
        """Send a call; ``send`` passes it on, as often as it is called."""
        return await send()

    async def get(self, resource: Resource[T], name: str, namespace: str = "") -> T:
        """See ``KubeClient``."""
        return await self._call(Call("get", resource), lambda: self._client.get(resource, name, namespace))

    async def list(
        self,
        resource: Resource[T],
        namespace: str = "",
        *,
        label_selector: str = "",
        field_selector: str = "",
    ) -> ObjectList[T]:
        """See ``KubeClient``."""
        return await self._call(
            Call("list", resource),
            lambda: self._client.list(
                resource, namespace, label_selector=label_selector, field_selector=field_selector
            ),
        )

    def watch(
        self,
        resource: Resource[T],
        namespace: str = "",
        *,
        resource_version: str,
        label_selector: str = "",
        field_selector: str = "",
        timeout_seconds: int = 300,
    ) -> AsyncIterator[WatchEvent[T]]:
        """See ``KubeClient``."""
        return self._client.watch(
            resource,
            namespace,
            resource_version=resource_version,
            label_selector=label_selector,
            field_selector=field_selector,
            timeout_seconds=timeout_seconds,
        )

    async def create(
        self, resource: Resource[T], body: Mapping[str, Any], namespace: str = "", *, dry_run: bool = False
    ) -> T:
        """See ``KubeClient``."""
        return await self._call(
            Call("create", resource, dry_run),
            lambda: self._client.create(resource, body, namespace, dry_run=dry_run),
        )

    async def replace(
        self, resource: Resource[T], body: Mapping[str, Any], *, subresource: str = "", dry_run: bool = False
    ) -> T:
        """See ``KubeClient``."""
        return await self._call(
            Call("update", resource, dry_run),
            lambda: self._client.replace(resource, body, subresource=subresource, dry_run=dry_run),
        )

    async def merge_patch(
        self,
        resource: Resource[T],
        name: str,
        patch: Mapping[str, Any],
        namespace: str = "",
        *,
        subresource: str = "",
        dry_run: bool = False,
    ) -> T:
        """See ``KubeClient``."""
        return await self._call(
            Call("patch", resource, dry_run),
            lambda: self._client.merge_patch(
                resource, name, patch, namespace, subresource=subresource, dry_run=dry_run
            ),
        )

    async def apply(
        self,
        resource: Resource[T],
        body: Mapping[str, Any],
        *,
        field_manager: str,
        subresource: str = "",
        force: bool = False,
        dry_run: bool = False,
    ) -> T:
        """See ``KubeClient``."""
        return await self._call(
            Call("apply", resource, dry_run),
            lambda: self._client.apply(
                resource,
                body,
                field_manager=field_manager,
                subresource=subresource,
                force=force,
                dry_run=dry_run,
            ),
        )

    async def delete(
        self,
        resource: Resource[T],
        name: str,
        namespace: str = "",
        *,
        uid: str = "",
        resource_version: str = "",
        grace_period_seconds: int | None = None,
    ) -> None:
        """See ``KubeClient``."""
        await self._call(
            Call("delete", resource),
            lambda: self._client.delete(
                resource,
                name,
                namespace,
                uid=uid,
                resource_version=resource_version,
                grace_period_seconds=grace_period_seconds,
            ),
        )

    async def evict(self, name: str, namespace: str, *, uid: str = "", resource_version: str = "") -> None:
        """See ``KubeClient``."""
        await self._call(
            Call("evict", PODS),
            lambda: self._client.evict(name, namespace, uid=uid, resource_version=resource_version),
        )

    async def served(self, group: str, version: str) -> frozenset[str]:
        """See ``KubeClient``."""
        return await self._call(Call("discover", None), lambda: self._client.served(group, version))
