"""No write of a leader whose lease may belong to another: the fence, and the client behind it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from typing import Any, TypeVar

from dra_driver.api.meta import Resource, WireObject
from dra_driver.api.watch import ObjectList, WatchEvent
from dra_driver.errors import NotLeading
from dra_driver.ports import Clock, Guardable, KubeClient

__all__ = ["Fence", "FencedClient"]

T = TypeVar("T", bound=WireObject)
R = TypeVar("R")


class Fence:
    """Whether this process may write as the leader, by its own monotonic clock. A ``ports.WriteGuard``.

    The fence is open for ``valid_seconds`` after the request of the last successful renewal was made. Another
    process takes the lease ``lease_seconds`` after it saw that renewal, so later than ``lease_seconds`` after
    the request; the difference is for what was sent while the fence was still open.
    """

    def __init__(self, clock: Clock, valid_seconds: float, lease_seconds: float) -> None:
        """Makes a fence that is closed until ``begin`` and ``renewed``.

        Args:
            clock: its monotonic time counts.
            valid_seconds: the renew deadline.
            lease_seconds: the lease's duration.
        """
        self._clock = clock
        self._valid = valid_seconds
        self._lease = lease_seconds
        self._renewed: float | None = None
        self._held = False
        self._ended = True
        self._writing = 0
        self._changed = asyncio.Event()

    # --- the elector's side ---------------------------------------------------------------------------------

    def begin(self) -> None:
        """Start anew, closed: the process is about to ask for the lease."""
        self._renewed = None
        self._held = self._ended = False

    def renewed(self, asked: float) -> None:
        """Note a successful renewal.

        Args:
            asked: monotonic time at which its request was made, before it was sent. The answer may have taken
                long, and others count from when they see the renewal.
        """
        self._renewed = asked if self._renewed is None else max(self._renewed, asked)
        self._wake()

    def hold(self) -> None:
        """Let no new write begin: the work is about to end."""
        self._held = True

    def end(self) -> None:
        """Refuse new writes: the work is being cancelled, and with it those who wait already."""
        self._ended = True

    async def answered(self, seconds: float) -> bool:
        """Wait until every write under way has been answered; return whether that was so in time."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while self._writing:
                    await self._changed.wait()
        return not self._writing

    # --- the side of those who write ------------------------------------------------------------------------

    @property
    def age(self) -> float:
        """Seconds since the last successful renewal was asked for; infinite before the first."""
        return float("inf") if self._renewed is None else self._clock.monotonic() - self._renewed

    @property
    def is_open(self) -> bool:
        """Whether a write may leave now."""
        return not (self._held or self._ended) and self.age < self._valid

    def check(self) -> None:
        """See ``ports.WriteGuard``.

        Raises:
            NotLeading: the fence is closed.
        """
        if not self.is_open:
            raise NotLeading("not sent: this process does not hold the lease, or has not renewed it in time")

    def seconds_left(self) -> float:
        """See ``ports.WriteGuard``: until another may hold the lease."""
        return self._lease - self.age

    async def until_open(self) -> None:
        """Wait for a renewal while the fence is closed.

        The elector either renews the lease or ends the work, which cancels those who wait here. Nobody waits
        for longer than the elector tries.

        Raises:
            NotLeading: the work is over, so there will be no renewal.
        """
        while not self.is_open:
            if self._ended:
                await asyncio.sleep(0)  # what is being cancelled must hear of that, and not try again
                self.check()
            await self._changed.wait()

    @contextlib.contextmanager
    def writing(self) -> Iterator[None]:
        """Count a write until it is answered or given up."""
        self._writing += 1
        try:
            yield
        finally:
            self._writing -= 1
            self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()


class FencedClient:
    """A ``KubeClient`` whose writes leave this process only while a fence is open; reads always do.

    A write that meets a closed fence waits for the outcome of the renewal. A client that is ``Guardable``
    checks again after everything that it waits for itself, right before each attempt is sent.
    """

    def __init__(self, client: KubeClient, fence: Fence) -> None:
        self._client: KubeClient = client.guarded(fence) if isinstance(client, Guardable) else client
        self._fence = fence

    async def _write(self, write: Callable[[], Awaitable[R]]) -> R:
        while True:
            await self._fence.until_open()
            # The client found the fence closed before it sent anything: this write waits like any other.
            with contextlib.suppress(NotLeading), self._fence.writing():
                return await write()

    async def get(self, resource: Resource[T], name: str, namespace: str = "") -> T:
        """See ``KubeClient``."""
        return await self._client.get(resource, name, namespace)

    async def list(
        self,
        resource: Resource[T],
        namespace: str = "",
        *,
        label_selector: str = "",
        field_selector: str = "",
    ) -> ObjectList[T]:
        """See ``KubeClient``."""
        return await self._client.list(
            resource, namespace, label_selector=label_selector, field_selector=field_selector
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
        return await self._write(lambda: self._client.create(resource, body, namespace, dry_run=dry_run))

    async def replace(
        self, resource: Resource[T], body: Mapping[str, Any], *, subresource: str = "", dry_run: bool = False
    ) -> T:
        """See ``KubeClient``."""
        return await self._write(
            lambda: self._client.replace(resource, body, subresource=subresource, dry_run=dry_run)
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
        return await self._write(
            lambda: self._client.merge_patch(
                resource, name, patch, namespace, subresource=subresource, dry_run=dry_run
            )
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
        return await self._write(
            lambda: self._client.apply(
                resource,
                body,
                field_manager=field_manager,
                subresource=subresource,
                force=force,
                dry_run=dry_run,
            )
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
        await self._write(
            lambda: self._client.delete(
                resource,
                name,
                namespace,
                uid=uid,
                resource_version=resource_version,
                grace_period_seconds=grace_period_seconds,
            )
        )

    async def served(self, group: str, version: str) -> frozenset[str]:
        """See ``KubeClient``."""
        return await self._client.served(group, version)
