"""The effect on kernel drivers: devices of a claim are bound to another one, and back when the claim ends."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Final

import msgspec
import structlog

from dra_driver.api.own.inventory import DeviceHealth
from dra_driver.api.own.parameters import IommuBackend
from dra_driver.discovery.core.bus.pci_binding import PciFunctions
from dra_driver.errors import DriverRefused, PrepareError
from dra_driver.hardware import DiscoveredDevice
from dra_driver.ports import Pausable
from dra_driver.preparation import (
    BindingRecord,
    FunctionFacts,
    FunctionRecord,
    PreparedClaim,
    PreparedDevice,
    annotated,
    bound,
)

__all__ = ["PASSED_THROUGH", "Bindings", "bindings_of", "elsewhere"]

# Health entry of a device that its vendor's driver does not have because a claim has it.
PASSED_THROUGH: Final = "PassedThrough"
_NEEDED: Final = (
    "IOMMUFD needs Linux 6.6 with CONFIG_IOMMUFD and CONFIG_VFIO_DEVICE_CDEV, and the module iommufd loaded"
)

# How long unprepare may fail because a driver does not take a function back. The kubelet repeats it every 10
# to 15 s; after that the pod ends all the same, so that a broken device does not hold up a drain of the node.
_REFUSED_SECONDS: Final = 120.0

log = structlog.get_logger(__name__)


class Bindings:
    """Bindings of PCI functions. All blocks, and may be done again after a crash at any point.

    Args:
        functions: the machine's.
        libraries: what holds devices open and has to close them for a moment.
        now: a clock, in seconds.
    """

    def __init__(
        self,
        functions: PciFunctions,
        libraries: Iterable[Pausable] = (),
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._functions = functions
        self._libraries = tuple(libraries)
        self._now = now
        # Since when drivers have not taken functions back, by the address of the function.
        self._refused: dict[str, float] = {}

    def look(self, record: PreparedClaim) -> PreparedClaim:
        """Note groups and present drivers in the record and its document, before anything is changed.

        Raises:
            PrepareError: a device cannot be passed through.
        """
        ours: set[str] = set()
        for _, binding in bindings_of(record):
            ours |= {binding.address, *self._functions.companions(binding.address)}
        facts: dict[str, FunctionFacts] = {}
        for device, binding in bindings_of(record):
            try:
                self._functions.check(binding.address, binding.driver, ours)
            except PrepareError as e:
                raise PrepareError(f"device {device.device}: {e}", retryable=e.retryable) from e
            if binding.iommu == IommuBackend.IOMMUFD_ONLY.value and not self._functions.iommufd:
                raise PrepareError(
                    f"device {device.device}: the claim asks for {binding.iommu}, but this node has no "
                    f"/dev/iommu: {_NEEDED}"
                )
            facts[device.device] = FunctionFacts(
                group=self._functions.group(binding.address),
                before=self._before(binding),
                cdev=self._cdev(binding),
            )
        return annotated(bound(record, facts)) if facts else record

    def locate(self, record: PreparedClaim) -> PreparedClaim:
        """Return the record and its document with the groups and character devices of the functions now.

        Raises:
            PrepareError: a function is in no group, or is not there.
        """
        facts: dict[str, FunctionFacts] = {}
        for device, binding in bindings_of(record):
            group = self._functions.group(binding.address)
            if not group:
                raise PrepareError(
                    f"device {device.device}: PCI function {binding.address} is in no IOMMU group now",
                    retryable=True,
                )
            facts[device.device] = FunctionFacts(
                group=group, before=binding.functions, cdev=self._cdev(binding)
            )
        return annotated(bound(record, facts))

    def bind(self, record: PreparedClaim) -> bool:
        """Bind what is not bound yet, and return whether there was anything.

        Raises:
            PrepareError: a device is in use, the kernel refuses, or does not offer what the claim asks for.
        """
        changed = self._bind(record)
        for device, binding in bindings_of(record):
            cdev = self._cdev(binding)
            if binding.iommu == IommuBackend.IOMMUFD_ONLY.value and not cdev:
                raise PrepareError(
                    f"device {device.device}: the claim asks for {binding.iommu}, but the kernel gives PCI "
                    f"function {binding.address} no character device: {_NEEDED}"
                )
            self._functions.await_node(f"devices/{cdev}" if cdev else self._functions.group(binding.address))
        return changed

    def _bind(self, record: PreparedClaim) -> bool:
        changed = False
        with contextlib.ExitStack() as stack:
            for device, binding in bindings_of(record):
                todo = [f for f in binding.functions if self._functions.driver(f.address) != binding.driver]
                if todo:
                    if not changed:
                        for library in self._libraries:
                            stack.enter_context(library.paused())
                    changed = True
                    nodes = {n for f in todo for n in self._functions.open_nodes(f.address)}
                    self._refuse_users(device, f"bound to {binding.driver}", nodes | set(binding.nodes))
                for function in binding.functions:
                    if function.driver_before == binding.driver and function not in todo:
                        continue  # somebody else's binding, as on a node that is only for virtual machines
                    # Also one that is bound: undoing it may have been interrupted after its first step.
                    self._functions.bind(function.address, binding.driver)
                if todo:
                    log.info(
                        "bound to another driver",
                        device=device.device,
                        driver=binding.driver,
                        functions=[f.address for f in todo],
                    )
        return changed

    def restore(self, record: PreparedClaim) -> bool:
        """Give the devices back to their drivers, and return whether there were any.

        One that its driver has not taken back for two minutes is left bound to nothing.

        Raises:
            PrepareError: one is still in use, cannot be taken from the driver that it was bound to, or is not
                taken back by the one that it was bound to before.
        """
        found = bindings_of(record)
        refused: list[DriverRefused] = []
        for device, binding in found:
            ours = [f for f in binding.functions if f.driver_before != binding.driver]
            held = [f for f in ours if self._functions.driver(f.address) == binding.driver]
            if held:
                # As above: a virtual machine that does not end would hold up every other call.
                nodes = {n for f in held for n in self._functions.nodes(f.address)}
                self._refuse_users(device, f"taken from {binding.driver}", nodes)
            for function in reversed(ours):
                try:
                    why = self._restore(function, binding.driver)
                except DriverRefused as e:
                    refused.append(e)  # the other functions need not wait for it
                    continue
                if why:
                    log.error(
                        "a device is not what it was before",
                        device=device.device,
                        function=function.address,
                        why=why,
                    )
        if refused:
            raise refused[0]
        return bool(found)

    def _restore(self, function: FunctionRecord, driver: str) -> str:
        """Give one function back; return why it is not what it was before, where that is final."""
        try:
            why = self._functions.restore(
                function.address, driver, function.driver_before, overridden=function.overridden
            )
        except DriverRefused as e:
            if self._now() < self._refused.setdefault(function.address, self._now()) + _REFUSED_SECONDS:
                raise
            why = str(e)
        self._refused.pop(function.address, None)
        return why

    def _before(self, binding: BindingRecord) -> tuple[FunctionRecord, ...]:
        """Return how all functions are that have to be bound for a device."""
        found: list[FunctionRecord] = []
        for address in (binding.address, *self._functions.companions(binding.address)):
            driver = self._functions.driver(address)
            if found and driver == binding.driver:
                continue  # a companion that somebody else has bound
            overridden = bool(driver) and self._functions.override(address) == driver
            found.append(FunctionRecord(address=address, driver_before=driver, overridden=overridden))
        return tuple(found)

    def _cdev(self, binding: BindingRecord) -> str:
        """Return the character device by which the claim is to use the function; empty: by its group.

        Which of both is decided when it is bound: before, nothing shows whether the kernel has such devices.
        """
        if binding.iommu == IommuBackend.LEGACY_ONLY.value or not self._functions.iommufd:
            return ""
        return self._functions.cdev(binding.address)

    def _refuse_users(self, device: PreparedDevice, what: str, nodes: Collection[str]) -> None:
        """Refuse a change that would wait in the kernel until processes have closed the device."""
        users = self._functions.users(nodes)
        if users:
            raise PrepareError(
                f"device {device.device} is in use by process {', '.join(users[:8])}; it cannot be {what}",
                retryable=True,
            )


def bindings_of(record: PreparedClaim) -> Sequence[tuple[PreparedDevice, BindingRecord]]:
    """Return the devices of a claim that are bound to another driver for it."""
    return [(d, d.binding) for d in record.devices if d.binding is not None]


def elsewhere(claims: Iterable[PreparedClaim]) -> Sequence[DiscoveredDevice]:
    """Return devices that discovery cannot find because claims have them, as they were found before."""
    found = []
    for claim in claims:
        for device, binding in bindings_of(claim):
            health = DeviceHealth(
                reason=PASSED_THROUGH,
                severity="info",
                message=f"bound to {binding.driver} for a claim; its own driver does not see it",
            )
            kept = msgspec.structs.replace(binding.found, health=(health,))
            found.append(DiscoveredDevice(device=kept, uuid=device.uuid))
    return found
