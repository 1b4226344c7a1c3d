"""Carries out what the table of ``dra_driver.preparation.machine`` says, and counts what fails."""

from __future__ import annotations

from collections import Counter
from typing import Final

import msgspec
import structlog

from dra_driver.api.meta import Uid
from dra_driver.errors import DeviceNodeAbsent
from dra_driver.preparation import (
    ClaimState,
    Effect,
    Event,
    Holdings,
    PreparedClaim,
    ended,
    metadata_files,
    transition,
)
from kubelet_plugin.claims.host_files import Host
from kubelet_plugin.claims.metadata_directory import Metadata
from kubelet_plugin.claims.stores import Checkpoints, Specs
from kubelet_plugin.gpu.hardware import Hardware

__all__ = ["Transactions"]

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
}


class Transactions:
    """The effects of one driver on one node.

    Attributes:
        holdings: who holds which device; whoever reads the records again replaces it.
        failures: how often what was durable failed, by what it was.

    Args:
        metadata: where device metadata files go, and ``metadata_directory`` under which name of the host.
        host: what is there of what documents name.
    """

    def __init__(
        self,
        *,
        driver: str,
        checkpoints: Checkpoints,
        specs: Specs,
        hardware: Hardware,
        metadata: Metadata,
        metadata_directory: str,
        host: Host,
    ) -> None:
        self._driver = driver
        self._checkpoints = checkpoints
        self._specs = specs
        self._hardware = hardware
        self._metadata = metadata
        self._metadata_directory = metadata_directory
        self._host = host
        self.holdings = Holdings()
        self.failures: Counter[str] = Counter()

    async def carry_out(
        self, uid: Uid, record: PreparedClaim | None, state: ClaimState, event: Event
    ) -> tuple[ClaimState, PreparedClaim | None]:
        """The new state, and the record with what is known only after the effects.

        Raises:
            DraError: an effect could not be made; those before it are.
            OSError: likewise.
        """
        step = transition(state, event)
        for effect in step.effects:
            try:
                record = await self._one_effect(effect, uid, record, step.state)
            except Exception:
                self.failures[_FAILURES.get(effect, "hardware")] += 1
                raise
        return step.state, record

    async def _one_effect(
        self, effect: Effect, uid: Uid, record: PreparedClaim | None, state: ClaimState
    ) -> PreparedClaim | None:
        match effect:
            case Effect.SAVE | Effect.NOTE:
                assert record is not None
                await self._save(effect, record, state)
            case Effect.FORGET:
                await self._checkpoints.forget(uid)
                self._given_back(record)
            case Effect.WRITE_SPEC | Effect.VERIFY_SPEC | Effect.KEEP_SPEC:
                if record is not None and record.spec is not None:
                    await self._document(effect, record)
            case Effect.REMOVE_SPEC:
                await self._specs.remove(uid)
            case Effect.WRITE_METADATA:
                if record is not None and self._metadata_directory:
                    await self._metadata.write(uid, metadata_files(self._driver, record))
            case Effect.REMOVE_METADATA:
                await self._metadata.remove(uid)
            case _:
                if record is not None and record.touches_hardware:
                    return await self._touch(effect, record)
        return record

    async def _save(self, effect: Effect, record: PreparedClaim, state: ClaimState) -> None:
        if state is ClaimState.ENDED:
            await self._checkpoints.save(ended(record))
            self._given_back(record)
            return
        record = msgspec.structs.replace(record, state=state)
        if effect is Effect.SAVE or self._checkpoints.current.get(record.uid) != record:
            await self._checkpoints.save(record)

    def _given_back(self, record: PreparedClaim | None) -> None:
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

    async def _touch(self, effect: Effect, record: PreparedClaim) -> PreparedClaim:
        match effect:
            case Effect.CONFIGURE_DEVICES:
                # Its record is durable.
                self.holdings.begun(record.uid)
                await self._hardware.configure(record)
            case Effect.RESTORE_DEVICES:
                await self._hardware.restore(record, self.holdings)
            case Effect.CREATE_PARTITIONS:
                return await self._hardware.create_partitions(record)
            case Effect.DESTROY_PARTITIONS:
                await self._hardware.destroy_partitions(record)
            case Effect.START_DAEMONS:
                await self._hardware.start_daemons(record)
            case Effect.STOP_DAEMONS:
                # The first step of undoing.
                self.holdings.ending(record.uid)
                await self._hardware.stop_daemons(record, self.holdings)
            case Effect.BIND_DRIVERS:
                await self._hardware.bind_drivers(record)
            case Effect.RESTORE_DRIVERS:
                await self._hardware.restore_drivers(record)
            case _:
                raise AssertionError(f"{effect.name} is no effect on hardware")
        return record
