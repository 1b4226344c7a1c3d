"""A publication plan, carried out by the controller: one pass, in the order of the plan."""

from __future__ import annotations

from typing import Literal

import structlog

from controller.publish.gates import PoolGates
from dra_driver.api.own.inventory import DEVICE_INVENTORIES, DeviceInventory
from dra_driver.api.resource import ResourceSlice
from dra_driver.errors import ApiUnavailable, DraError, Invalid
from dra_driver.kube import EventRecorder
from dra_driver.kube.slices import AlteredByServer, carry_out
from dra_driver.ports import Clock, KubeClient
from dra_driver.publishing import Announce, NoteAttempt, PublicationPlan, Step, Verdict, WriteSlice
from dra_driver.publishing.epochs import EPOCH_TRANSITIONS, EpochEffect, EpochEvent, EpochState

__all__ = ["Attempts", "Execution"]

log = structlog.get_logger(__name__)


class Attempts:
    """Epochs for which this process has begun to create slices, with the outcome of every write known."""

    def __init__(self) -> None:
        # UID of the inventory → epoch.
        self._epochs: dict[str, int] = {}

    def begun(self, inventory: DeviceInventory) -> int:
        """Return the epoch; 0: none."""
        return self._epochs.get(inventory.metadata.uid, 0)

    def begin(self, inventory: DeviceInventory, epoch: int) -> None:
        """Remember an attempt whose note is written."""
        self._epochs[inventory.metadata.uid] = epoch

    def happened(self, inventory: DeviceInventory, event: EpochEvent) -> None:
        """Forget the attempt where the event makes its outcome uncertain."""
        if EpochEffect.FORGET_ATTEMPT in EPOCH_TRANSITIONS[EpochState.BEGUN, event].effects:
            self._epochs.pop(inventory.metadata.uid, None)


class Execution:
    """Carries out plans.

    Args:
        client: for writes.
        clock: for conditions.
        recorder: for Events.
        gates: what the allocator must leave alone.
        attempts: which epochs were begun.
    """

    def __init__(
        self, client: KubeClient, clock: Clock, recorder: EventRecorder, gates: PoolGates, attempts: Attempts
    ) -> None:
        self._client = client
        self._clock = clock
        self._recorder = recorder
        self._gates = gates
        self._attempts = attempts

    async def carry_out(self, plan: PublicationPlan, inventory: DeviceInventory) -> None:
        """Carry out a plan; where it asks for that, the pool is frozen first.

        Args:
            plan: made of what is seen right now: no ``await`` may lie between the look and this call.
            inventory: that the plan was computed from.

        Raises:
            DraError: a step failed; if the pool was frozen, it stays so.
        """
        if plan.freezes:
            self._gates.begin(plan.pool)
        observer = _Observer(self._recorder, self._gates, self._attempts, inventory)
        await carry_out(self._client, plan, inventory, self._clock, observer)
        _log(plan, inventory)
        if plan.verdict in (Verdict.PUBLISHES, Verdict.LEFT_TO_NODE):
            self._gates.end(plan.pool)


class _Observer:
    """Follows one pass."""

    def __init__(
        self, recorder: EventRecorder, gates: PoolGates, attempts: Attempts, inventory: DeviceInventory
    ) -> None:
        self._recorder = recorder
        self._gates = gates
        self._attempts = attempts
        self._inventory = inventory

    def done(self, step: Step) -> None:
        match step:
            case NoteAttempt():
                self._attempts.begin(self._inventory, step.epoch)
            case Announce():
                self._event(step.type, step.reason, step.message)
            case _:
                pass

    def stored(self, slice_: ResourceSlice) -> None:
        self._gates.wrote(slice_)

    def failed(self, _: WriteSlice, error: DraError) -> None:
        match error:
            case ApiUnavailable():
                self._attempts.happened(self._inventory, EpochEvent.UNANSWERED)
            case Invalid():
                self._event("Warning", "SliceRefused", str(error))
            case AlteredByServer():
                self._event("Warning", "SliceAltered", str(error))
            case _:
                pass

    def _event(self, type_: Literal["Normal", "Warning"], reason: str, message: str) -> None:
        self._recorder.event(DEVICE_INVENTORIES, self._inventory, type_, reason, message)


def _log(plan: PublicationPlan, inventory: DeviceInventory) -> None:
    name, epoch = inventory.metadata.name, inventory.status.registration.epoch
    if plan.verdict is Verdict.REFUSED:
        log.warning("inventory refused", inventory=name, reason=plan.reason)
    match plan.state:
        case EpochState.UNCERTAIN:
            log.info("an unfinished publication is closed", inventory=name, epoch=epoch)
        case EpochState.VANISHED:
            log.debug("slices are gone; waiting for the plugin", inventory=name)
        case EpochState.ASKED | EpochState.BEGUN if plan.slices is not None and plan.desired is not None:
            log.info(
                "published",
                node=plan.desired.node_name,
                driver=plan.desired.driver,
                epoch=epoch,
                generation=plan.slices.generation,
                devices=plan.desired.devices,
                slices=len(plan.slices.names),
                created=len(plan.slices.creates),
                updated=len(plan.slices.updates),
            )
        case _:
            pass
