"""Keeps the DeviceInventory of this node: what was found, and the handshake around publishing.

One loop, level-triggered: read the object, compare with what is here, write the difference under its
resourceVersion. The epoch lives in the object only, so that a plugin that starts anew goes on counting.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, Final

import msgspec
import structlog

from dra_driver.api import codec
from dra_driver.api.core import NODES
from dra_driver.api.meta import DriverName, ObjectMeta, OwnerReference
from dra_driver.api.own.inventory import (
    DEVICE_INVENTORIES,
    LARGEST_CAPACITY,
    NODE_PUBLISHES,
    Activity,
    BackendProblem,
    DeviceHealth,
    DeviceInventory,
    DeviceInventorySpec,
    Discovery,
    InventoryDevice,
    Publication,
    Registration,
    inventory_name,
)
from dra_driver.api.quantity import Quantity
from dra_driver.api.resource import RESOURCE_SLICES, Condition
from dra_driver.discovery import DRIVER_ABSENT, BackendReport
from dra_driver.errors import Conflict, DraError, NotFound
from dra_driver.kube import Backoff, Handler, Informer, SystemClock
from dra_driver.kube.clock import rfc3339
from dra_driver.ownership import lacks_slices
from dra_driver.ports import Clock, KubeClient
from dra_driver.publishing import conditions, epochs
from kubelet_plugin.core.endurance import endure
from kubelet_plugin.core.notices import DRIVER_HANGING, DRIVER_MISSING
from kubelet_plugin.core.registration import RegistrationState
from kubelet_plugin.core.signals import Changes
from kubelet_plugin.devices.activity import ActivityWatch
from kubelet_plugin.devices.gone_claims import GoneClaims
from kubelet_plugin.devices.publishing import NodePublisher
from kubelet_plugin.devices.table import UNMANAGED_PARTITIONS, DeviceTable
from kubelet_plugin.usage.claim_use import ClaimUse

__all__ = ["DISCOVERED", "MAX_BYTES", "MAX_DEVICES", "InventoryKeeper", "discovery_condition", "fit"]

# etcd stores 1.5 MiB; managed fields and the status come on top of what we write.
MAX_BYTES: Final = 1024 * 1024
MAX_DEVICES: Final = 1024
# Of one device; the CRD refuses the whole object for more.
_MOST_CONDITIONS: Final = 16
_MOST_MESSAGE: Final = 1024
_WORST_FIRST: Final = ("failed", "degraded", "info")

DISCOVERED: Final = "Discovered"
# What the state of a backend is called where people and programs see it.
_REASONS: Final = {
    "driverless": DRIVER_MISSING,
    "failed": "DiscoveryFailed",
    "hanging": DRIVER_HANGING,
    "vanished": DRIVER_ABSENT,
}

_RESYNC_SECONDS: Final = 300.0
_FOLLOW_SECONDS: Final = 5.0
_GONE_SECONDS: Final = 30.0

log = structlog.get_logger(__name__)


def fit(spec: DeviceInventorySpec, limit: int = MAX_BYTES, most: int = MAX_DEVICES) -> DeviceInventorySpec:
    """Return the spec with as many devices, from the first on, as the API server stores; count the rest.

    Health conditions are cut to what the CRD takes: backends may be of third parties.
    """
    room = limit - len(codec.encode(msgspec.structs.replace(spec, devices=(), truncated=10**9)))
    kept: list[InventoryDevice] = []
    for device in map(_bounded, spec.devices[:most]):
        room -= len(codec.encode(device)) + 1
        if room < 0:
            break
        kept.append(device)
    return msgspec.structs.replace(spec, devices=tuple(kept), truncated=len(spec.devices) - len(kept))


class InventoryKeeper:
    """Writes the object and raises the epoch.

    Args:
        leads: whether this instance speaks for the node; during a rolling update only one of two does.
        publisher: publishes the slices of the node; if None, the controller does.
        settle_seconds: how long slices must be gone before that counts: the kubelet removes one after the
            other, and the controller replaces them one after the other.
        activity: source of device utilisation; if None, none is reported.
        use: which devices stay with claims that are gone; if None, none do.
        gone_claims: keeps the list of such claims; if None, there is none.
    """

    def __init__(
        self,
        *,
        client: KubeClient,
        node_name: str,
        driver: str,
        table: DeviceTable,
        registration: RegistrationState,
        leads: Callable[[], bool] = lambda: True,
        publisher: NodePublisher | None = None,
        settle_seconds: float = 1.0,
        activity: ActivityWatch | None = None,
        use: ClaimUse | None = None,
        gone_claims: GoneClaims | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._use = use
        self._gone_claims = gone_claims
        self._clock = clock or SystemClock()
        self._client = client
        self._node_name = node_name
        self._driver = DriverName(driver)
        self._name = inventory_name(node_name, driver)
        self._table = table
        self._registration = registration
        self._leads = leads
        self._settle = settle_seconds
        self._publisher = publisher
        self._others = publisher.others if publisher is not None else None
        self._activity = activity
        self._slice_selector = f"spec.nodeName={node_name},spec.driver={driver}"
        self._slices = Informer(client, RESOURCE_SLICES, field_selector=self._slice_selector)
        self._inventory = Informer(client, DEVICE_INVENTORIES, field_selector=f"metadata.name={self._name}")
        self._wake = Changes()
        self._written_confirmations = 0
        # Slices that seem to be gone: as published how, and when that is believed.
        self._suspicion: tuple[Publication, float] | None = None
        self._raises = Backoff(base=1.0, cap=60.0)
        self._last_raise = float("-inf")
        # What we sent and what the server made of it, where that differs.
        self._altered: tuple[DeviceInventorySpec, DeviceInventorySpec] | None = None
        self._altered_status: tuple[Discovery, Activity] | None = None
        self._altered_condition: Condition | None = None

    async def run(self) -> None:
        """Work until cancelled."""
        for handler_owner in (self._slices, self._inventory):
            handler_owner.add_handler(_waking(self._wake))
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(endure("watch of slices", self._slices.run))
            tasks.create_task(endure("watch of the inventory", self._inventory.run))
            if self._others is not None:
                tasks.create_task(endure("other drivers", partial(self._others.run, self._wake.notify)))
            tasks.create_task(self._forward(self._table.changes))
            tasks.create_task(self._forward(self._registration.changes))
            if self._activity is not None:
                tasks.create_task(self._forward(self._activity.changes))
            if self._use is not None:
                tasks.create_task(self._forward(self._use.changes))
            tasks.create_task(endure("inventory", self._loop))

    async def withdraw(self, seconds: float) -> None:
        """Note in the object that the plugin is gone; try again for so many seconds.

        Nothing is noted where another instance has taken over.
        """
        backoff = Backoff(base=0.1, cap=1.0)
        error = ""
        try:
            async with asyncio.timeout(seconds):
                while self._leads():
                    try:
                        await self._note_withdrawn()
                        return
                    except NotFound:
                        return
                    except DraError as e:  # a conflict too: the controller writes the status as well
                        error = str(e)
                    await asyncio.sleep(backoff.next())
        except TimeoutError:
            log.warning("the inventory still says that the plugin is registered", error=error or "timed out")

    async def _note_withdrawn(self) -> None:
        current = await self._client.get(DEVICE_INVENTORIES, self._name)
        if current.status.registration.registered:
            wanted = msgspec.structs.replace(current.status.registration, registered=False)
            await self._write_registration(current, wanted)

    # --- the loop -------------------------------------------------------------------------------------------

    async def _forward(self, changes: Changes) -> None:
        seen = 0
        while True:
            seen = await changes.wait_beyond(seen)
            self._wake.notify()

    async def _loop(self) -> None:
        backoff = Backoff(base=0.2, cap=30.0)
        seen = 0
        while True:
            seen = await self._wake.wait(seen, self._patience())
            while True:
                try:
                    await self.reconcile()
                    backoff.reset()
                    break
                except Conflict:
                    await asyncio.sleep(min(0.5, backoff.next()))
                except DraError as e:
                    delay = backoff.next()
                    log.warning("the inventory could not be written", error=str(e), retry_in=round(delay, 2))
                    await asyncio.sleep(delay)

    def _patience(self) -> float:
        """Return seconds until the next round although nothing has changed."""
        if not self._leads():
            return _FOLLOW_SECONDS  # there is no event when the instance that leads dies
        if self._use is not None and self._use.asked:
            return _GONE_SECONDS  # another instance, whose calls do not wake this one, may unprepare them
        return (self._publisher.again if self._publisher is not None else 0.0) or _RESYNC_SECONDS

    async def reconcile(self) -> None:
        """Make one round; raise what the API server raised."""
        if not self._table.looked_once and not self._table.devices:
            return  # nothing is known yet, not even that a look does not end
        if not self._leads():
            with contextlib.suppress(NotFound):
                self._note_published(await self._client.get(DEVICE_INVENTORIES, self._name))
            return
        current = await self._read_or_create()
        current = await self._sync_spec(current)
        self._note_published(current)
        current = await self._sync_observations(current)
        current = await self._sync_condition(current)
        current = await self._sync_registration(current)
        if self._gone_claims is not None:
            current = await self._gone_claims.sync(current)
        known = self._slices.synced.is_set() and (self._others is None or self._others.known)
        if self._publisher is not None and known:
            current = await self._publisher.publish(current, self._slices.items())
        await self._look_for_slices(current)

    def _note_published(self, current: DeviceInventory) -> None:
        stored = {d.name for d in current.spec.devices}
        self._table.published({d.device.name: d.uuid for d in self._table.devices if d.device.name in stored})

    async def _read_or_create(self) -> DeviceInventory:
        try:
            return await self._client.get(DEVICE_INVENTORIES, self._name)
        except NotFound:
            pass
        body = codec.to_raw(
            DEVICE_INVENTORIES,
            DeviceInventory(
                metadata=ObjectMeta(name=self._name, owner_references=(await self._owner(),)),
                spec=self._wanted_spec(()),
            ),
        )
        created = await self._client.create(DEVICE_INVENTORIES, body)
        log.info("inventory created", name=self._name, devices=len(created.spec.devices))
        # A new object counts from 0: a confirmation from before has to be written down again.
        self._written_confirmations = 0
        return created

    async def _owner(self) -> OwnerReference:
        node = await self._client.get(NODES, self._node_name)
        return OwnerReference(api_version="v1", kind="Node", name=self._node_name, uid=node.metadata.uid)

    def _wanted_spec(self, stored: Sequence[InventoryDevice]) -> DeviceInventorySpec:
        devices = tuple(d.device for d in self._table.devices)
        if not self._table.occupied_known:
            devices = tuple(_still_occupied(devices, stored))
        kept = self._use.conditions() if self._use is not None else {}
        devices = tuple(
            msgspec.structs.replace(d, health=(*d.health, kept[d.name])) if d.name in kept else d
            for d in devices
        )
        if not self._table.complete.is_set() or any(r.unnamed for r in self._table.reports):
            found = {d.name for d in devices}
            # Whose backend has not answered since the start is not withdrawn because another one has; nor is
            # one that may be there without saying which it is.
            devices += tuple(_unconfirmed(d) for d in stored if d.name not in found)
        spec = fit(
            DeviceInventorySpec(
                node_name=self._node_name,
                driver=self._driver,
                devices=devices,
                publisher=NODE_PUBLISHES if self._publisher is not None else "",
            ),
        )
        if spec.truncated:
            log.error(
                "the inventory does not hold all devices; the rest cannot be allocated",
                left_out=spec.truncated,
                most_bytes=MAX_BYTES,
                most_devices=MAX_DEVICES,
            )
        return spec

    async def _sync_spec(self, current: DeviceInventory) -> DeviceInventory:
        wanted = self._wanted_spec(current.spec.devices)
        patch: dict[str, Any] = {}
        if current.spec != wanted and self._altered != (wanted, current.spec):
            # What has its default is absent from the encoding, and a merge patch keeps what is absent.
            patch["spec"] = {**codec.plain(wanted), "devices": codec.plain(wanted).get("devices", [])}
            patch["spec"]["truncated"] = wanted.truncated
            patch["spec"]["publisher"] = wanted.publisher
        if not current.metadata.owner_references:
            patch["metadata"] = {"ownerReferences": [codec.plain(await self._owner())]}
        if not patch:
            return current
        patch.setdefault("metadata", {})["resourceVersion"] = current.metadata.resource_version
        written = await self._client.merge_patch(DEVICE_INVENTORIES, self._name, patch)
        log.info("inventory written", name=self._name, devices=len(wanted.devices))
        if written.spec != wanted:
            # Written again and again it would come back altered again and again.
            self._altered = (wanted, written.spec)
            log.error("the API server stores the inventory altered; is the CRD older than this plugin?")
        return written

    async def _sync_observations(self, current: DeviceInventory) -> DeviceInventory:
        """Write what else the plugin reports: backends in trouble, and which devices are busy."""
        said = None if self._activity is None else self._activity.current
        wanted = (_discovery(self._table.reports), current.status.activity if said is None else said)
        held = (current.status.discovery, current.status.activity)
        if wanted == held or wanted == self._altered_status:
            return current
        discovery, activity = wanted
        patch = {
            "metadata": {"resourceVersion": current.metadata.resource_version},
            "status": {
                "discovery": {"problems": [codec.plain(p) for p in discovery.problems]},
                "activity": {"busy": list(activity.busy), "idle": list(activity.idle)},
            },
        }
        written = await self._client.merge_patch(DEVICE_INVENTORIES, self._name, patch, subresource="status")
        if (written.status.discovery, written.status.activity) != wanted:
            # A CRD that is older than this plugin drops the fields: what is lost there is not vital.
            self._altered_status = wanted
        return written

    async def _sync_condition(self, current: DeviceInventory) -> DeviceInventory:
        """Write the condition ``Discovered`` when a backend is in trouble, and when none is any more."""
        wanted = discovery_condition(self._table.reports)
        held = current.status.conditions
        if conditions.same(held, wanted) or self._altered_condition == wanted:
            return current
        if wanted.status == "True" and all(c.type != wanted.type for c in held):
            return current
        patch = {
            "metadata": {"resourceVersion": current.metadata.resource_version},
            # The others are the publisher's; they stay as they are.
            "status": {"conditions": conditions.merged(held, wanted, rfc3339(self._clock.now()))},
        }
        written = await self._client.merge_patch(DEVICE_INVENTORIES, self._name, patch, subresource="status")
        self._altered_condition = None if conditions.same(written.status.conditions, wanted) else wanted
        return written

    async def _sync_registration(self, current: DeviceInventory) -> DeviceInventory:
        confirmations, registered = self._registration.confirmations, self._registration.registered
        held = current.status.registration
        new = confirmations - self._written_confirmations
        wanted = self._promised(epochs.confirmed(held, registered=registered, anew=bool(new)))
        if wanted != held:
            current = await self._write_registration(current, wanted)
            log.info("registration written", registered=wanted.registered, epoch=wanted.epoch)
        self._written_confirmations = confirmations
        return current

    async def _write_registration(self, current: DeviceInventory, wanted: Registration) -> DeviceInventory:
        # All are written out, also where they are false or 0 and the encoding leaves them out.
        registration = {
            "registered": wanted.registered,
            "epoch": wanted.epoch,
            "goneClaimsEpoch": wanted.gone_claims_epoch,
        }
        patch = {
            "metadata": {"resourceVersion": current.metadata.resource_version},
            "status": {"registration": registration},
        }
        written = await self._client.merge_patch(DEVICE_INVENTORIES, self._name, patch, subresource="status")
        if self._gone_claims is not None:
            self._gone_claims.stored(written.status.registration)
        return written

    def _promised(self, registration: Registration) -> Registration:
        """Return the registration with what is promised in its epoch."""
        return registration if self._gone_claims is None else self._gone_claims.promised(registration)

    # --- slices that are gone -------------------------------------------------------------------------------

    async def _look_for_slices(self, current: DeviceInventory) -> None:
        """Raise the epoch if slices published for it are gone although the kubelet has the plugin."""
        if not self._slices.synced.is_set() or not self._is_missing(current, self._names_seen()):
            self._suspicion = None
            return
        loop = asyncio.get_running_loop()
        published = current.status.publication
        if self._suspicion is None or self._suspicion[0] != published:
            if loop.time() - self._last_raise > 5 * self._raises.cap:
                self._raises.reset()
            # Slices that are deleted again and again come back more and more slowly.
            delay = max(self._settle, self._raises.next() - 1.0)
            self._suspicion = (published, loop.time() + delay)
            loop.call_later(delay, self._wake.notify)
            return
        if loop.time() < self._suspicion[1]:
            return
        self._suspicion = None
        listed = await self._client.list(RESOURCE_SLICES, field_selector=self._slice_selector)
        again = await self._client.get(DEVICE_INVENTORIES, self._name)
        names = frozenset(s.metadata.name for s in listed.items) | {u.key.name for u in listed.unreadable}
        if again.status != current.status or not self._is_missing(again, names):
            return  # the controller was in the middle of it; the change wakes us
        held = again.status.registration
        gone = sorted(set(again.status.publication.slices) - names)
        await self._write_registration(again, self._promised(epochs.asks_again(held)))
        self._last_raise = loop.time()
        log.warning("slices are gone; asked for them again", gone=gone[:8], epoch=held.epoch + 1)

    def _names_seen(self) -> frozenset[str]:
        return frozenset(s.metadata.name for s in self._slices.items()) | {
            key.name for key in self._slices.unreadable
        }

    def _is_missing(self, inventory: DeviceInventory, names: frozenset[str]) -> bool:
        status = inventory.status
        return self._registration.live and lacks_slices(status.registration, status.publication, names)


def _bounded(device: InventoryDevice) -> InventoryDevice:
    """Return the device as the CRD takes it, with conditions that say what was left out.

    Of too many conditions the worst are kept. Amounts that no device has, as a broken backend may find them,
    are left out: for one of them the whole inventory would be refused.
    """
    device = _plausible(device)
    health = device.health
    if len(health) > _MOST_CONDITIONS:
        health = tuple(sorted(health, key=_badness)[:_MOST_CONDITIONS])
    if any(len(h.message) > _MOST_MESSAGE for h in health):
        health = tuple(msgspec.structs.replace(h, message=h.message[:_MOST_MESSAGE]) for h in health)
    return device if health is device.health else msgspec.structs.replace(device, health=health)


def _plausible(device: InventoryDevice) -> InventoryDevice:
    wrong = [f"{name} {c.value}" for name, c in sorted(device.capacity.items()) if not _is_amount(c.value)]
    cut = [p for p in device.partitions if not all(_is_amount(c.value) for c in p.capacity.values())]
    wrong += [f"the capacity of partition {p.name}" for p in cut]
    if not wrong:
        return device
    health = DeviceHealth(
        reason="ImplausibleCapacity",
        severity="degraded",
        message=f"its backend reports impossible values, so it is left out: {', '.join(wrong)[:900]}",
    )
    return msgspec.structs.replace(
        device,
        capacity={name: c for name, c in device.capacity.items() if _is_amount(c.value)},
        partitions=tuple(p for p in device.partitions if p not in cut),
        health=(*(h for h in device.health if h.reason != health.reason), health),
    )


def _is_amount(amount: Quantity) -> bool:
    return Quantity.of(0) <= amount <= LARGEST_CAPACITY


def _badness(health: DeviceHealth) -> int:
    return _WORST_FIRST.index(health.severity) if health.severity in _WORST_FIRST else len(_WORST_FIRST)


def _unconfirmed(device: InventoryDevice) -> InventoryDevice:
    health = DeviceHealth(
        reason="NotConfirmed",
        severity="degraded",
        message="it was found before the plugin was restarted; its backend cannot scan now",
    )
    others = (h for h in device.health if h.reason != health.reason)
    return msgspec.structs.replace(device, health=(*others, health))


def _still_occupied(
    devices: Iterable[InventoryDevice], stored: Iterable[InventoryDevice]
) -> Iterator[InventoryDevice]:
    """Yield the devices with the conditions of partitions that no claim held when the agent ended."""
    before = {d.name: [h for h in d.health if h.reason == UNMANAGED_PARTITIONS] for d in stored}
    for device in devices:
        health = before.get(device.name, ())
        yield msgspec.structs.replace(device, health=(*device.health, *health)) if health else device


def _discovery(reports: Sequence[BackendReport]) -> Discovery:
    return Discovery(
        problems=tuple(
            BackendProblem(
                backend=r.backend[:63],
                state=r.state if r.state == "vanished" else "failed",
                reason=_REASONS[r.state],
                message=r.message[:1000],
            )
            for r in reports
            if r.broken
        )[:32]
    )


def discovery_condition(reports: Sequence[BackendReport]) -> Condition:
    """Return the condition ``Discovered``: false with a backend in trouble, unknown with one that hangs."""
    broken = [r for r in reports if r.broken]
    hanging = [r for r in broken if r.state == "hanging"]
    worst = (*hanging, *broken)[:1]
    status = "True" if not broken else "Unknown" if hanging else "False"
    return Condition(
        type=DISCOVERED,
        status=status,
        reason=_REASONS[worst[0].state] if worst else DISCOVERED,
        message=conditions.cut("; ".join(r.message for r in broken)),
        last_transition_time="",
    )


def _waking(wake: Changes) -> Handler[Any]:
    return Handler(
        added=lambda _: wake.notify(), updated=lambda _o, _n: wake.notify(), deleted=lambda _: wake.notify()
    )
