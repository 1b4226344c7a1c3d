"""Kinds that an API server may serve or not, in one version or another."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

import structlog

from dra_driver.api.meta import Resource, WireObject
from dra_driver.errors import DraError
from dra_driver.kube import Backoff, Informer
from dra_driver.ports import KubeClient

__all__ = ["informer_when_served", "newest_served"]

T = TypeVar("T", bound=WireObject)

log = structlog.get_logger(__name__)


async def newest_served(client: KubeClient, group: str, plural: str, versions: Sequence[str]) -> str | None:
    """Return the first of some versions in which a kind is served; None where it is in none.

    Args:
        client: asks the API server.
        group: of the kind.
        plural: name of the kind in paths.
        versions: newest first.

    Raises:
        ApiError, ApiUnavailable: the API server does not say.
    """
    for version in versions:
        if plural in await client.served(group, version):
            return version
    return None


async def informer_when_served(
    client: KubeClient, find: Callable[[KubeClient], Awaitable[Resource[T] | None]], newest: Resource[T]
) -> Informer[T]:
    """Return an informer that is not started, and that looks for the kind while it is not served.

    The API server is asked until it answers.

    Args:
        client: lists and watches.
        find: returns the version of the kind that is served, if any.
        newest: the kind in its newest version.
    """
    backoff = Backoff(base=0.5, cap=10.0)
    while True:
        try:
            resource = await find(client)
        except DraError as e:
            delay = backoff.next()
            log.error("cannot ask the API server for its kinds", error=str(e), retry_in=round(delay, 2))
            await asyncio.sleep(delay)
        else:
            return Informer(client, resource or newest, find=find, served=resource is not None)
