"""Carries out what the table of ``dra_driver.preparation.machine`` says, and counts what fails.

The order of the effects is the table's, and its reasons are there. Records go to the claim's ``Reservation``,
documents to the CDI directory, metadata to their own directory, what backends of third parties do to these,
and everything else to the hardware.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Final

import msgspec
import structlog

from dra_driver.errors import DeviceNodeAbsent, StillPreparing
from dra_driver.preparation import (
    ClaimState,
    Effect,
    Event,
    NodeDevice,
    PreparedClaim,
    check_nodes,
    metadata_files,
    transition,
)
from kubelet_plugin.claims.cdi_directory import Specs
from kubelet_plugin.claims.host_files import Host
from kubelet_plugin.claims.metadata_directory import Metadata
from kubelet_plugin.claims.reservations import Reservation
from kubelet_plugin.extensions.effects import BackendEffects
from kubelet_plugin.gpu.hardware import Hardware

__all__ = ["Effects"]

log = structlog.get_logger(__name__)

# Whose failure an effect's failure is; others are the hardware's.
_FAILURES: Final = {
    Effect.SAVE: "checkpoint",
    Effect.NOTE: "checkpoint",
    Effect.FORGET: "checkpoint",
    Effect.WRITE_SPEC: "cdi",
    Effect.VERIFY_SPEC: "cdi",
    Effect.KEEP_SPEC: "cdi",
    Effect.REMOVE_SPEC: "cdi",
    Effect.WRITE_METADATA: "metadata",
    Effect.REMOVE_METADATA: "metadata",
    Effect.PREPARE_DEVICES: "backend",
    Effect.UNPREPARE_DEVICES: "backend",
}


class Effects:
    """The effects of one driver on one node.

    Attributes:
        failures: how often what was durable failed, by what it was.

    Args:
        backends: those that prepare their devices themselves.
        metadata: where device metadata files go, and ``metadata_directory`` under which name of the host;
            if the name is empty, none are written.
        host: what is there of what documents name.
        devices: the node's devices by name.
        held: the records of the claims that hold something.
    """

    def __init__(
        self,
        *,
        driver: str,
        specs: Specs,
        hardware: Hardware,
        backends: BackendEffects,
        metadata: Metadata,
        metadata_directory: str,
        host: Host,
        devices: Callable[[], Mapping[str, NodeDevice]],
        held: Callable[[], Iterable[PreparedClaim]],
    ) -> None:
        self._driver = driver
        self._specs = specs
        self._hardware = hardware
        self._backends = backends
        self._metadata = metadata
        self._metadata_directory = metadata_directory
        self._host = host
        self._devices = devices
        self._held = held
        self.failures: Counter[str] = Counter()

    async def carry_out(
        self, claim: Reservation, record: PreparedClaim | None, state: ClaimState, event: Event
    ) -> tuple[ClaimState, PreparedClaim | None]:
        """Carry out what an event means in a state.

        Args:
            claim: the claim's reservation, in a transaction.
            record: the claim as it is to be; None where there are only files of it.
            state: the state that it is in.
            event: what has happened.

        Returns:
            The new state, and the record with what is known only after the effects.

        Raises:
            StillPreparing: a backend needs longer; the effects before it are made, and noted.
            DraError: an effect could not be made; those before it are.
            OSError: likewise.
        """
        step = transition(state, event)
        for effect in step.effects:
            try:
                record = await self._one_effect(effect, claim, record, step.state, event)
            except StillPreparing:
                # What was made before is known only here, and the process may end before it goes on.
                if record is not None and step.state is ClaimState.STARTED:
                    await self._save(Effect.NOTE, claim, record, step.state)
                raise
            except Exception:
                self.failures[_FAILURES.get(effect, "hardware")] += 1
                raise
        return step.state, record

    async def go_on(self, record: PreparedClaim) -> None:
        """Wait for what backends are at work on for a claim; PREPARE_DEVICES finds it done then.

        Raises:
            StillPreparing: one of them needs longer.
            PrepareError: one of them has failed, or cannot be asked.
        """
        try:
            await self._backends.go_on(record)
        except StillPreparing:
            raise
        except Exception:
            self.failures[_FAILURES[Effect.PREPARE_DEVICES]] += 1
            raise

    async def _one_effect(
        self,
        effect: Effect,
        claim: Reservation,
        record: PreparedClaim | None,
        state: ClaimState,
        event: Event,
    ) -> PreparedClaim | None:
        match effect:
            case Effect.SAVE | Effect.NOTE:
                assert record is not None
                await self._save(effect, claim, record, state)
            case Effect.FORGET:
                await claim.forget()
                self._given_back(record)
            case Effect.STRIKE_PARTITIONS:
                if record is not None and record.touches_hardware:
                    return await self._strike(claim, record, state)
            case Effect.WRITE_SPEC | Effect.VERIFY_SPEC | Effect.KEEP_SPEC:
                if record is not None and record.spec is not None:
                    await self._document(effect, record)
            case Effect.REMOVE_SPEC:
                await self._specs.remove(claim.uid)
            case Effect.WRITE_METADATA:
                if record is not None and self._metadata_directory:
                    await self._metadata.write(claim.uid, metadata_files(self._driver, record))
            case Effect.REMOVE_METADATA:
                await self._metadata.remove(claim.uid)
            case Effect.PREPARE_DEVICES:
                if record is not None:
                    await self._backends.prepare(record, asked=event is not Event.REVIEW)
            case Effect.UNPREPARE_DEVICES:
                if record is not None:
                    await self._backends.unprepare(record)
            case _:
                if record is not None and record.touches_hardware:
                    return await self._touch(effect, claim, record, state, event)
        return record

    async def _save(
        self, effect: Effect, claim: Reservation, record: PreparedClaim, state: ClaimState
    ) -> None:
        if state is ClaimState.ENDED:
            await claim.end(record)
            self._given_back(record)
            return
        record = msgspec.structs.replace(record, state=state)
        await (claim.save(record) if effect is Effect.SAVE else claim.note(record))

    async def _strike(self, claim: Reservation, record: PreparedClaim, state: ClaimState) -> PreparedClaim:
        left = await self._hardware.drop_missing_partitions(record)
        if left != record:
            await self._save(Effect.SAVE, claim, left, state)
        return left

    def _given_back(self, record: PreparedClaim | None) -> None:
        """Let discovery look again, after the record that kept a device away from it is gone."""
        if record is not None and record.touches_hardware:
            self._hardware.forgotten(record)

    async def _document(self, effect: Effect, record: PreparedClaim) -> None:
        try:
            spec = await self._host.document(record)
        except DeviceNodeAbsent:
            # It would name what is another device's by now, or nothing.
            await self._specs.remove(record.uid)
            raise
        if effect is Effect.WRITE_SPEC:
            await self._specs.write(record.uid, spec)
        elif effect is Effect.KEEP_SPEC:
            if not await self._specs.holds(record.uid, spec):
                await self._specs.remove(record.uid)
        elif await self._specs.verify(record.uid, spec):
            log.warning("the CDI file of a claim was missing or changed; written again", uid=record.uid)

    async def _touch(
        self, effect: Effect, claim: Reservation, record: PreparedClaim, state: ClaimState, event: Event
    ) -> PreparedClaim:
        match effect:
            case Effect.CONFIGURE_DEVICES:
                # The record is durable, so that other claims of the GPU may leave its settings to this one.
                # Noted at each repetition: an unprepare that failed half-way has noted the opposite.
                claim.begin()
                await self._hardware.configure(record)
            case Effect.RESTORE_DEVICES:
                await self._hardware.restore(record, claim.holdings)
            case Effect.CREATE_PARTITIONS:
                note = functools.partial(self._save, Effect.SAVE, claim, state=state)
                record = await self._hardware.create_partitions(record, note)
                # Not where a document is renewed: after devices have exchanged their names, the records of
                # others may still have the names of before, and each claim would wait for the other.
                others = () if record.state is ClaimState.COMPLETED else self._held()
                check_nodes(record, self._devices(), others)
                return record
            case Effect.DESTROY_PARTITIONS:
                await self._hardware.destroy_partitions(record, rebooted=event is Event.REBOOT)
            case Effect.START_DAEMONS:
                await self._hardware.start_daemons(record)
            case Effect.STOP_DAEMONS:
                # The first step of undoing that other claims of the GPU have to know of: of two claims that
                # end at once, one at least must set the GPU back.
                claim.end_settings()
                await self._hardware.stop_daemons(record, claim.holdings)
            case Effect.BIND_DRIVERS:
                return await self._hardware.bind_drivers(record)
            case Effect.RESTORE_DRIVERS:
                await self._hardware.restore_drivers(record)
            case _:
                raise AssertionError(f"{effect.name} is no effect on hardware")
        return record
