"""A controller that may not read storage objects: kube-scheduler tells it that a pod cannot be placed."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, TypeVar

from dra_driver.api.meta import Resource, WireObject
from dra_driver.api.server.watch import WatchEvent
from dra_driver.api.storage import STORAGE_RESOURCES
from dra_driver.errors import Forbidden
from dra_driver.kube.delegating import Call, DelegatingClient

__all__ = ["WithoutStorage", "refuse_storage"]

T = TypeVar("T", bound=WireObject)
R = TypeVar("R")

_KINDS = frozenset(resource.kind for resource in STORAGE_RESOURCES)


def refuse_storage(verb: str, kind: str, name: str = "", subresource: str = "") -> None:
    """Refuse to read storage objects, as RBAC does; to be used as ``before`` of a ``FakeClient``."""
    if verb in ("get", "list", "watch") and kind in _KINDS:
        raise Forbidden("no right", code=403)


class WithoutStorage(DelegatingClient):
    """Passes everything on but reads of storage objects."""

    async def _call(self, call: Call, send: Callable[[], Awaitable[R]]) -> R:
        refuse_storage(call.verb, call.resource.kind if call.resource is not None else "")
        return await send()

    def watch(self, resource: Resource[T], *args: Any, **kwargs: Any) -> AsyncIterator[WatchEvent[T]]:
        refuse_storage("watch", resource.kind)
        return super().watch(resource, *args, **kwargs)
