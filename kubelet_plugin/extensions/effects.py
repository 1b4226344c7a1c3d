"""The effects of backends on their devices: planned, made and undone as the claims' records say.

A backend is known again by its name. Whatever one of them does, or fails to do, concerns the claims whose
devices are its own.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

from dra_driver.api.own.kinds import BackendParameters, decode_kind, kinds_by_name
from dra_driver.api.own.opaque import identity_of
from dra_driver.cdi import ContainerEdits
from dra_driver.discovery.core.third_parties import rebuilt
from dra_driver.errors import ConfigurationError, PrepareError
from dra_driver.hardware import DevicePlan, DeviceUse, DeviceWork
from dra_driver.ports import ClaimPreparation, DeviceBackend
from dra_driver.preparation import (
    EffectRecord,
    NodeDevice,
    PlannedEffect,
    PreparedClaim,
    PreparedDevice,
    planned,
)
from kubelet_plugin.extensions.calls import BackendCalls

__all__ = ["PLAN_SECONDS", "WORK_SECONDS", "BackendEffects"]

# Both together, and what else a call of the kubelet needs, stay within its 45 s.
PLAN_SECONDS: Final = 5.0
WORK_SECONDS: Final = 25.0
# For a claim that is looked at without the kubelet: others are looked at after it.
_REVIEW_SECONDS: Final = 1.0


class _Backend:
    """A backend that prepares its devices, and what it understands."""

    def __init__(self, preparation: ClaimPreparation, locks: Path | None) -> None:
        self.preparation = preparation
        self.kinds = kinds_by_name(preparation.parameters)
        self.calls = BackendCalls(preparation.name, locks)

    def plan(self, use: DeviceUse, text: str) -> DevicePlan | None:
        """Decode the parameters and plan. Blocks, for both are the backend's code."""
        parameters: BackendParameters | None = None
        if text:
            identity = identity_of(text.encode())
            if identity is None or identity not in self.kinds:
                raise PrepareError("the parameters are not of a kind that this backend defines")
            parameters = decode_kind(self.kinds[identity], text.encode())
        plan = self.preparation.plan_device(dataclasses.replace(use, parameters=parameters))
        if not _is_plan(plan):
            raise PrepareError("plan_device did not return a DevicePlan")
        if plan is None:
            return None
        # A mapping of its own may raise when it is read, and a wrong type would be found only when the record
        # is read again.
        return DevicePlan(dict(plan.settings), rebuilt(ContainerEdits, plan.edits), plan.seconds)


class BackendEffects:
    """The backends of a node that prepare their devices.

    Attributes:
        kinds: names of the backends by the kinds of parameters that they understand.
        released: why nothing can be done to devices now, as a clause; empty if it can.

    Args:
        backends: all backends of the node; those that prepare nothing are left out.
        locks: folder for the locks of devices, see ``BackendCalls``.
        seconds: that one call to prepare or to unprepare may take, where the plan says nothing else; for so
            long a call of the kubelet waits for all its devices.

    Raises:
        ConfigurationError: a backend brings no kind where it says so, or two have one name or one kind; all
            findings at once.
    """

    def __init__(
        self,
        backends: Sequence[DeviceBackend] = (),
        *,
        locks: Path | None = None,
        seconds: float = WORK_SECONDS,
    ) -> None:
        self._seconds = seconds
        self._locks = locks
        self._backends: dict[str, _Backend] = {}
        self.kinds: dict[tuple[str, str], str] = {}
        self.released = ""
        findings: list[str] = []
        for backend in backends:
            if isinstance(backend, ClaimPreparation):
                findings += self._add(backend)
        if findings:
            raise ConfigurationError(findings)

    def _add(self, backend: ClaimPreparation) -> Sequence[str]:
        name = backend.name
        if name in self._backends:
            return [f"--backend {name}: named twice; its work on devices could not be distinguished"]
        try:
            added = _Backend(backend, self._locks)
        except ConfigurationError as e:
            return [f"--backend {name}: {finding}" for finding in e.findings]
        taken = [k for k in added.kinds if k in self.kinds]
        if taken:
            return [f"--backend {name}: backend {self.kinds[k]} brings {' '.join(k)} as well" for k in taken]
        self._backends[name] = added
        self.kinds |= dict.fromkeys(added.kinds, name)
        return []

    async def plan(
        self, driver: str, record: PreparedClaim, devices: Mapping[str, NodeDevice]
    ) -> PreparedClaim:
        """Return the record, and its document, with what the backends plan.

        Raises:
            PrepareError: a backend refuses the claim, or cannot be asked.
        """
        plans: dict[int, PlannedEffect | None] = {}
        for position, device in enumerate(record.devices):
            if device.effect is None:
                continue
            backend = self._of(device.effect)
            use = _use(record, device)
            key = _key(device)
            plan = await backend.calls.call(key, PLAN_SECONDS, backend.plan, use, device.effect.parameters)
            plans[position] = None if plan is None else PlannedEffect(plan.settings, plan.edits, plan.seconds)
        return planned(driver, record, plans, devices)

    async def prepare(self, record: PreparedClaim, *, asked: bool = True) -> None:
        """Let the backends do what the record says.

        Args:
            record: of the claim.
            asked: whether the kubelet waits for it; if not, its end is waited for a moment only.

        Raises:
            StillPreparing: one of them needs longer than the kubelet waits; call it again.
            PrepareError: one of them has failed, or cannot be asked.
        """
        await self.go_on(record, asked=asked)
        for device, effect in record.effects:
            self._of(effect).calls.settle(_key(device), _work(record, device, effect))

    async def go_on(self, record: PreparedClaim, *, asked: bool = True) -> None:
        """Do what ``prepare`` does, and keep the results for it.

        Args:
            record: likewise.
            asked: as for ``prepare``.

        Raises:
            StillPreparing: as ``prepare``.
            PrepareError: likewise.
        """
        loop = asyncio.get_running_loop()
        end = loop.time() + (self._seconds if asked else min(self._seconds, _REVIEW_SECONDS))
        for device, effect in record.effects:
            backend = self._of(effect)
            work = _work(record, device, effect)
            left = end - loop.time()
            seconds = effect.seconds or self._seconds
            await backend.calls.go_on(_key(device), left, seconds, backend.preparation.prepare_device, work)

    def is_preparing(self, record: PreparedClaim) -> bool:
        """Return whether ``prepare`` of this record was begun by this process, and can be called again."""
        return any(
            backend.calls.goes_on(_key(device), _work(record, device, effect))
            for device, effect in record.effects
            if (backend := self._backends.get(effect.backend)) is not None
        )

    def forget(self) -> None:
        """Forget what is being prepared: another instance may have undone it."""
        for backend in self._backends.values():
            backend.calls.forget()

    async def unprepare(self, record: PreparedClaim) -> None:
        """Let the backends undo what the record says, the last first; each is asked, whatever others do.

        Raises:
            PrepareError: one of them has failed, or cannot be asked.
        """
        failed: PrepareError | None = None
        for device, effect in reversed(record.effects):
            try:
                backend = self._of(effect)
                undo = backend.preparation.unprepare_device
                await backend.calls.undo(_key(device), self._seconds, undo, _work(record, device, effect))
            except PrepareError as e:
                failed = failed or e
        if failed is not None:
            raise failed

    def close(self) -> None:
        """Take no more calls; one that hangs is not waited for."""
        for backend in self._backends.values():
            backend.calls.close()

    def _of(self, effect: EffectRecord) -> _Backend:
        if self.released:
            raise PrepareError(f"the devices cannot be prepared now: {self.released}", retryable=True)
        backend = self._backends.get(effect.backend)
        if backend is None:
            raise PrepareError(
                f"backend {effect.backend} has prepared devices of this claim, and this node agent runs "
                "without it: start the agent with this backend again",
                retryable=True,
            )
        return backend


def _use(record: PreparedClaim, device: PreparedDevice) -> DeviceUse:
    return DeviceUse(
        claim_uid=record.uid,
        namespace=record.namespace,
        claim=record.name,
        request=device.requests[0] if device.requests else "",
        device=device.device,
        uuid=device.uuid,
        profile=device.partition.profile if device.partition is not None else "",
        share_id=device.share_id or "",
    )


def _work(record: PreparedClaim, device: PreparedDevice, effect: EffectRecord) -> DeviceWork:
    return DeviceWork(
        claim_uid=record.uid,
        namespace=record.namespace,
        claim=record.name,
        device=device.device,
        uuid=device.uuid,
        share_id=device.share_id or "",
        settings=msgspec.json.decode(effect.settings) if effect.settings else {},
    )


def _is_plan(value: object) -> bool:
    """Return whether a third party's code returned what its signature says."""
    if not isinstance(value, DevicePlan):
        return value is None
    parts: tuple[object, object] = (value.settings, value.edits)
    return isinstance(parts[0], Mapping) and isinstance(parts[1], ContainerEdits)


def _key(device: PreparedDevice) -> str:
    """Return what calls are about: shares of one device are prepared one after the other."""
    return device.device
