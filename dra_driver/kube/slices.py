"""A publication plan, carried out at the API server."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import structlog

from dra_driver.api import codec
from dra_driver.api.own.inventory import DEVICE_INVENTORIES, DeviceInventory
from dra_driver.api.resource import RESOURCE_SLICES, Condition, ResourceSlice
from dra_driver.errors import Conflict, DraError, Forbidden, Invalid, NotFound
from dra_driver.kube.clock import rfc3339
from dra_driver.ports import Clock, KubeClient
from dra_driver.publishing import (
    Announce,
    DeleteSlice,
    NoteAttempt,
    NoteStatus,
    PublicationPlan,
    Step,
    WriteSlice,
    conditions,
)
from dra_driver.resourceslice import SliceWrite, altered

__all__ = ["AlteredByServer", "Observer", "carry_out", "show"]

log = structlog.get_logger(__name__)


class Observer(Protocol):
    """What a publisher does while its plan is carried out. None of it may wait."""

    def done(self, step: Step) -> None:
        """Take note of a step that was carried out. Events are the observer's to send."""

    def stored(self, slice_: ResourceSlice) -> None:
        """Take note of a slice as the API server has stored it, whatever it has made of it."""

    def failed(self, step: WriteSlice, error: DraError) -> None:
        """Take note of a slice that was not written, or (``ApiUnavailable``) of which that is not known."""


class AlteredByServer(DraError):
    """The API server stored something else than was sent. It is deleted."""


async def carry_out(
    client: KubeClient, plan: PublicationPlan, inventory: DeviceInventory, clock: Clock, observer: Observer
) -> DeviceInventory:
    """Carry out the steps of a plan, in order, until one fails.

    Args:
        client: the API server.
        plan: of the pool of ``inventory``.
        inventory: that the plan was computed from.
        clock: for the times of conditions.
        observer: follows.

    Returns:
        The inventory as it is now.

    Raises:
        Conflict: something is another than what was seen, or gone: look again.
        AlteredByServer: a slice means something else than what was sent (a feature gate is off). It is gone.
        DraError: a step was not carried out, or it is not known (``ApiUnavailable``).
    """
    for step in plan.steps:
        match step:
            case NoteAttempt():
                inventory = await _patch(client, inventory, {"publication": step.publication})
            case NoteStatus():
                inventory = await _patch(client, inventory, _status(step, inventory, clock))
            case WriteSlice():
                try:
                    await _write(client, step, observer)
                except (AlteredByServer, Invalid, Forbidden) as e:
                    await _note_refusal(client, inventory, step, e, clock)
                    raise
            case DeleteSlice():
                await _delete(client, step.slice)
            case Announce():
                pass
        observer.done(step)
    return inventory


async def show(
    client: KubeClient,
    inventory: DeviceInventory,
    condition: Condition,
    clock: Clock,
    publication: Mapping[str, Any] | None = None,
) -> DeviceInventory:
    """Write a condition of an inventory that no plan has; return the inventory as it is now.

    Args:
        client: the API server.
        inventory: as it was seen.
        condition: replaces the one of its type.
        clock: for its time.
        publication: fields of ``status.publication`` to write with it; if None, none.

    Raises:
        DraError: it was not written, or (``ApiUnavailable``) that is not known.
    """
    step = NoteStatus(publication or {}, condition)
    return await _patch(client, inventory, _status(step, inventory, clock))


def _status(step: NoteStatus, inventory: DeviceInventory, clock: Clock) -> dict[str, Any]:
    status: dict[str, Any] = {}
    if step.publication:
        status["publication"] = step.publication
    if step.condition is not None:
        present = inventory.status.conditions
        status["conditions"] = conditions.merged(present, step.condition, rfc3339(clock.now()))
    return status


async def _patch(client: KubeClient, inventory: DeviceInventory, status: dict[str, Any]) -> DeviceInventory:
    patch = {"metadata": {"resourceVersion": inventory.metadata.resource_version}, "status": status}
    return await client.merge_patch(DEVICE_INVENTORIES, inventory.metadata.name, patch, subresource="status")


async def _note_refusal(
    client: KubeClient, inventory: DeviceInventory, step: WriteSlice, error: DraError, clock: Clock
) -> None:
    """Note that the pool is not what the inventory says, once; the error itself is what is retried."""
    condition = conditions.not_stored(step.write.slice.metadata.name, str(error))
    if conditions.same(inventory.status.conditions, condition):
        return
    try:
        await _patch(client, inventory, _status(NoteStatus(condition=condition), inventory, clock))
    except DraError as e:
        log.info("not noted that a slice is refused", inventory=inventory.metadata.name, problem=str(e))


async def _write(client: KubeClient, step: WriteSlice, observer: Observer) -> None:
    try:
        answer = await _stored(client, step.write)
        observer.stored(answer)
        if altered(step.write.slice.spec, answer.spec):
            await client.delete(RESOURCE_SLICES, answer.metadata.name, uid=answer.metadata.uid)
            raise AlteredByServer(
                f"the API server stored ResourceSlice {answer.metadata.name} without fields that were sent "
                "(a feature gate is off); it was deleted"
            )
    except DraError as e:
        observer.failed(step, e)
        raise


async def _stored(client: KubeClient, write: SliceWrite) -> ResourceSlice:
    body = codec.to_raw(RESOURCE_SLICES, write.slice)
    try:
        if write.replaces is None:
            return await client.create(RESOURCE_SLICES, body)
        return await client.replace(RESOURCE_SLICES, body)
    except NotFound:
        # Gone since we last looked; the informer will say so, and then the epoch decides.
        raise Conflict(f"slice {write.slice.metadata.name} is gone", code=409, reason="Conflict") from None


async def _delete(client: KubeClient, slice_: ResourceSlice) -> None:
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
