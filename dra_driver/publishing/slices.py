"""Steps of a plan, written to the API server."""

from __future__ import annotations

from collections.abc import Callable

import structlog

from dra_driver.api import codec
from dra_driver.api.resource import RESOURCE_SLICES, ResourceSlice
from dra_driver.errors import Conflict, DraError, NotFound
from dra_driver.ports import KubeClient
from dra_driver.resourceslice import Plan, SliceWrite, altered

__all__ = ["AlteredByServer", "delete_stale", "store"]

log = structlog.get_logger(__name__)


class AlteredByServer(DraError):
    """The API server stored something else than was sent. It is deleted."""


async def store(
    client: KubeClient, write: SliceWrite, stored: Callable[[ResourceSlice], None] = lambda _: None
) -> ResourceSlice:
    """Creates or replaces one slice.

    Args:
        client: the API server.
        write: of a plan.
        stored: told what is there now, before it is looked at.

    Raises:
        Conflict: the slice is another one by now, or gone: look again.
        AlteredByServer: it means something else than what was sent (a feature gate is off), and was deleted.
        DraError: it was not written.
    """
    body = codec.to_raw(RESOURCE_SLICES, write.slice)
    try:
        if write.replaces is None:
            answer = await client.create(RESOURCE_SLICES, body)
        else:
            answer = await client.replace(RESOURCE_SLICES, body)
    except NotFound:
        # Gone since we last looked; the informer will say so, and then the epoch decides.
        raise Conflict(f"slice {write.slice.metadata.name} is gone", code=409, reason="Conflict") from None
    stored(answer)
    if altered(write.slice.spec, answer.spec):
        await client.delete(RESOURCE_SLICES, answer.metadata.name, uid=answer.metadata.uid)
        raise AlteredByServer(
            f"the API server stored ResourceSlice {answer.metadata.name} without fields that were sent "
            "(a feature gate is off); it was deleted"
        )
    return answer


async def delete_stale(client: KubeClient, todo: Plan) -> None:
    """Slices that are no longer in the record.

    Raises:
        DraError: one was not deleted.
    """
    for slice_ in todo.deletes:
        log.info("deleting a slice that is not wanted", slice=slice_.metadata.name)
        try:
            await client.delete(
                RESOURCE_SLICES,
                slice_.metadata.name,
                uid=slice_.metadata.uid,
                resource_version=slice_.metadata.resource_version,
            )
        except (NotFound, Conflict):
            pass  # gone, or changed: the informer will bring it back to us
