"""Collections of a live cluster, with every right that is missing to read them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any, Final, Protocol, TypeAlias, TypeVar

from dra_driver.api.meta import Resource, WireObject
from dra_driver.errors import Forbidden, NotFound
from dra_driver.kube import Handler, Informer
from dra_driver.ports import KubeClient

__all__ = ["Informers", "Lister", "Source", "missing_right"]

T = TypeVar("T", bound=WireObject)
# Plural and field selector → the kind, and the namespace that is read.
Read: TypeAlias = dict[tuple[str, str], tuple[Resource[Any], str]]

_ROLE: Final = "dra-driver-view"
# 403; 401 says that the credentials are not valid, which no right helps against.
_DENIED: Final = 403
_MOST_NAMED: Final = 5


class Source(Protocol):
    """Where objects come from."""

    async def all(
        self,
        resource: Resource[T],
        *,
        without: str = "",
        or_in: str = "",
        in_part: str = "",
        fields: str = "",
        optional: bool = False,
    ) -> tuple[T, ...]:
        """Return all objects of a kind.

        Args:
            resource: the kind.
            without: what the answer lacks if they may not be read; if empty, they are needed.
            or_in: the namespace that is read if the whole cluster may not be.
            in_part: what the answer lacks then.
            fields: field selector.
            optional: whether the API server may lack the kind.

        Raises:
            Forbidden: they are needed and may not be read.
        """
        ...

    def note(self, text: str) -> None:
        """Take note of something else that answers lack, for people."""
        ...


def missing_right(resource: Resource[Any], verb: str, namespace: str = "") -> str:
    """Return which right is missing, in the words of a Role's rule."""
    name = f"{resource.plural}.{resource.group}".rstrip(".")
    where = f"in namespace {namespace}" if namespace else "in the whole cluster"
    return f"{verb} {name} {where}"


class Lister:
    """Implements ``Source`` by one list for each kind.

    Attributes:
        reading: what is being read, for people.
        notes: what the answers lack, for people.
        read: what was read, with the namespace, or an empty text for the whole cluster.
    """

    def __init__(self, client: KubeClient) -> None:
        self._client = client
        self.reading = ""
        self.notes: list[str] = []
        self.read: Read = {}

    async def all(
        self,
        resource: Resource[T],
        *,
        without: str = "",
        or_in: str = "",
        in_part: str = "",
        fields: str = "",
        optional: bool = False,
    ) -> tuple[T, ...]:
        """See ``Source.all``."""
        try:
            return await self._list(resource, "", fields)
        except NotFound:
            if not optional:
                raise
            return ()
        except Forbidden as e:
            if e.code != _DENIED:
                raise
            denied = e
        right = missing_right(resource, "list")
        if or_in and resource.namespaced:
            try:
                items = await self._list(resource, or_in, fields)
            except Forbidden:
                right = missing_right(resource, "list", or_in)
            else:
                self.note(f"may not {right}: {in_part or f'those of {or_in} are looked at'}")
                return items
        if without:
            self.note(f"may not {right}: {without}")
            return ()
        text = (
            f"the right to {right} is needed ({denied}); the chart adds it to the ClusterRole view ({_ROLE})"
        )
        raise Forbidden(text, code=_DENIED, reason="Forbidden") from denied

    async def _list(self, resource: Resource[T], namespace: str, fields: str) -> tuple[T, ...]:
        self.reading = f"{resource.plural} of {namespace or 'the cluster'}"
        found = await self._client.list(resource, namespace, field_selector=fields)
        self.read[resource.plural, fields] = resource, namespace
        for unreadable in found.unreadable[:_MOST_NAMED]:
            self.note(f"{resource.kind} {unreadable.key} cannot be read: {unreadable.problem}")
        if len(found.unreadable) > _MOST_NAMED:
            self.note(f"{len(found.unreadable) - _MOST_NAMED} more of {resource.plural} cannot be read")
        return found.items

    def note(self, text: str) -> None:
        """See ``Source.note``."""
        if text not in self.notes:
            self.notes.append(text)


class Informers:
    """Implements ``Source`` by informers: each object is sent once, and then its changes.

    Args:
        client: of the cluster.
        read: what a ``Lister`` could read.
    """

    def __init__(self, client: KubeClient, read: Read) -> None:
        self._changed = asyncio.Event()
        self._informers: dict[tuple[str, str], Informer[Any]] = {}
        for (plural, fields), (resource, namespace) in read.items():
            informer = self._informers[plural, fields] = Informer(
                client, resource, namespace=namespace, field_selector=fields
            )
            informer.add_handler(Handler(self._note, self._note, self._note))

    async def all(
        self,
        resource: Resource[T],
        *,
        without: str = "",
        or_in: str = "",
        in_part: str = "",
        fields: str = "",
        optional: bool = False,
    ) -> tuple[T, ...]:
        """See ``Source.all``; of kinds that could not be read at the beginning, nothing."""
        informer = self._informers.get((resource.plural, fields))
        return informer.items() if informer is not None else ()

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Follow everything; begins when all of it is there."""
        try:
            async with asyncio.TaskGroup() as tasks:
                running = [tasks.create_task(informer.run()) for informer in self._informers.values()]
                try:
                    for informer in self._informers.values():
                        await informer.synced.wait()
                    yield
                finally:
                    for task in running:
                        task.cancel()
        except ExceptionGroup as e:
            # Informers raise none: this is what was done meanwhile, and the error's kind is the exit status.
            raise e.exceptions[0] from None

    def note(self, text: str) -> None:
        """See ``Source.note``; what is lacking was said at the beginning."""

    async def changed(self) -> None:
        """Wait until something has changed since the last call."""
        await self._changed.wait()
        self._changed.clear()

    def _note(self, *_: object) -> None:
        self._changed.set()
