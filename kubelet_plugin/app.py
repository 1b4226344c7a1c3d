"""Puts the node agent together: start, run, orderly end."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import structlog

from dra_driver import discovery
from dra_driver.api.core import NODES
from dra_driver.api.meta import DriverName, PoolName, Uid
from dra_driver.api.own.policy import PUBLISH
from dra_driver.discovery.core.bus.pci_binding import PciFunctions
from dra_driver.errors import ConfigurationError, DraError
from dra_driver.hardware import GpuInstance
from dra_driver.kube import KubeApi, SystemClock
from dra_driver.ports import Clock, DeviceBackend, KubeClient
from kubelet_plugin.claims.cdi_directory import CdiDirectory
from kubelet_plugin.claims.checkpoint_file import CheckpointFile
from kubelet_plugin.claims.host_files import HostFiles
from kubelet_plugin.claims.leftovers import Leftovers
from kubelet_plugin.claims.locks import StateLock
from kubelet_plugin.claims.metadata_directory import MetadataDirectory
from kubelet_plugin.claims.planning import Timing
from kubelet_plugin.claims.preparer import Preparer
from kubelet_plugin.claims.reconciliation import Intervals, Reconciler
from kubelet_plugin.claims.reservations import DeviceReservations
from kubelet_plugin.config import Configuration, Timings
from kubelet_plugin.core import files
from kubelet_plugin.core.endurance import endure
from kubelet_plugin.core.instances import Instances, remove_stale_socket
from kubelet_plugin.core.notices import Notices
from kubelet_plugin.core.registration import RegistrationState
from kubelet_plugin.devices.activity import ActivityWatch
from kubelet_plugin.devices.gone_claims import GoneClaims
from kubelet_plugin.devices.hotplug import RELEASE_FILE, Hotplug, watched
from kubelet_plugin.devices.inventory import InventoryKeeper
from kubelet_plugin.devices.other_drivers import OtherDrivers
from kubelet_plugin.devices.publishing import NodePublisher
from kubelet_plugin.devices.table import DeviceTable
from kubelet_plugin.extensions.effects import BackendEffects
from kubelet_plugin.gpu import owned_partitions
from kubelet_plugin.gpu.bindings import elsewhere
from kubelet_plugin.gpu.setup import completion, set_up
from kubelet_plugin.grpc import services
from kubelet_plugin.grpc.sockets import SocketServer
from kubelet_plugin.health.memory import HealthFile
from kubelet_plugin.telemetry.observation import Observation
from kubelet_plugin.usage import claim_use

__all__ = ["Plugin", "open_backends", "run"]

log = structlog.get_logger(__name__)


def open_backends(configuration: Configuration) -> tuple[DeviceBackend, ...]:
    """Open the backends that the configuration names.

    Raises:
        ConfigurationError: one of them is unknown or has a wrong argument; all findings at once.
    """
    return discovery.open_backends(
        configuration.backends or discovery.hardware_backends(configuration.driver_name),
        **configuration.roots,
        node_name=configuration.node_name,
    )


async def run(configuration: Configuration, stop: asyncio.Event) -> None:
    """Run the node agent until ``stop`` is set.

    Raises:
        ConfigurationError: the settings are wrong; all findings at once, nothing was started.
        DraError: it cannot go on.
    """
    findings: list[str] = []
    backends: Sequence[DeviceBackend] = ()
    try:
        backends = open_backends(configuration)
    except ConfigurationError as e:
        findings += e.findings
    findings = [*configuration.findings(backends), *findings]
    api: KubeApi | None = None
    try:
        api = await KubeApi.connect(configuration.kubeconfig)
    except ConfigurationError as e:
        findings += e.findings
    if findings or api is None:
        if api is not None:
            await api.close()
        raise ConfigurationError(findings)
    async with api:
        await Plugin(configuration, client=api, backends=backends).run(stop)


class Plugin:
    """One node agent. The client, backends and times are given, so that tests decide them.

    Attributes:
        ready: set when the kubelet can find and call the plugin.
        observation: health, metrics and what else is watched.
        notices: what was found and put in order.
    """

    def __init__(
        self,
        configuration: Configuration,
        *,
        client: KubeClient,
        backends: Sequence[DeviceBackend],
        clock: Clock | None = None,
        timing: Timing | None = None,
        timings: Timings | None = None,
        intervals: Intervals | None = None,
        settle_seconds: float = 1.0,
        functions: PciFunctions | None = None,
    ) -> None:
        self._configuration = configuration
        self._pool = PoolName(configuration.node_name)
        self._client = client
        self._clock = clock or SystemClock()
        self._timings = timings or Timings()
        self._io = ThreadPoolExecutor(8, thread_name_prefix="io")
        self._boot_id = _boot_id(configuration.procfs_root)
        self._setup = set_up(configuration, backends, functions=functions)
        self._effects = BackendEffects(backends, locks=configuration.state / "backends")
        self.notices = Notices(client, self._clock, configuration.node_name)
        self._memory = HealthFile(
            configuration.health_memory, backends, self._io, boot_id=self._boot_id, report=self.notices.report
        )
        self._node_lock = StateLock(configuration.state / "state.lock")
        self._instances = Instances(configuration.state, configuration.instance, self._clock)
        self._reservations = DeviceReservations(
            CheckpointFile(configuration.checkpoint, self._io, self._instances.alone, self._node_lock.check),
            node_lock=self._node_lock,
            boot_id=self._boot_id,
        )
        self._table = self._new_table(backends)
        self._setup.hardware.calls.found_by = self._table.control_of
        self._setup.hardware.calls.is_found = self._table.is_found
        self._use = claim_use.set_up(
            configuration,
            clock=self._clock,
            records=lambda: self._reservations.records,
            executor=self._io,
            report=self.notices.report,
        )
        self._preparer = self._new_preparer(timing)
        self._calls = services.Calls(self._preparer, observe=self._observe)
        self._dra = SocketServer(configuration.dra_socket)
        self._registrar = SocketServer(configuration.registrar_socket)
        self._state = RegistrationState(
            lambda: self._registrar.present and self._dra.present, self._instances.registered
        )
        self._health = services.Health(
            pool=self._pool,
            table=self._table,
            state=self._state,
            clock=self._clock,
            # From one look to the next, which may take as long as the deadline.
            timeout_seconds=configuration.rescan_seconds + configuration.scan_deadline + 30.0,
            claims=lambda: self._preparer.claims,
        )
        self._activity = ActivityWatch(
            self._clock, threshold=configuration.busy_percent / 100, seconds=configuration.busy_seconds
        )
        self._keeper = self._new_keeper(settle_seconds)
        self._reconciler = self._new_reconciler(intervals)
        self._leftovers = Leftovers(
            preparer=self._preparer,
            hardware=self._setup.hardware,
            table=self._table,
            leads=self._instances.leads,
            report=self.notices.report,
        )
        self._hotplug = Hotplug(
            table=self._table,
            file=configuration.state / RELEASE_FILE,
            hints=watched(configuration.sysfs_root, backends),
            hold=self._hold_hardware,
        )
        self._scanned = asyncio.Event()
        self.ready = asyncio.Event()
        self.observation = self._new_observation(backends)

    # --- parts ----------------------------------------------------------------------------------------------

    def _new_table(self, backends: Sequence[DeviceBackend]) -> DeviceTable:
        settings = self._configuration
        return DeviceTable(
            backends,
            clock=self._clock,
            optional=not settings.backends,
            controls=self._setup.controls,
            daemons=self._setup.daemons,
            complete=completion(settings),
            keep=self._memory.keep,
            elsewhere=lambda: elsewhere(self._reservations.held),
            passthrough=settings.passthrough,
            deadline=settings.scan_deadline,
            report=self.notices.report,
            in_iommu_group=lambda address: bool(self._setup.functions.group(address)),
        )

    def _new_preparer(self, timing: Timing | None) -> Preparer:
        settings = self._configuration
        return Preparer(
            driver=settings.driver_name,
            pool=self._pool,
            client=self._client,
            reservations=self._reservations,
            specs=CdiDirectory(settings.cdi_dir, settings.driver_name, self._io),
            devices=lambda: self._table.for_prepare,
            looked=lambda: self._table.looked,
            look=self._setup.hardware.changes.notify,
            hardware=self._setup.hardware,
            backends=self._effects,
            timing=timing,
            metadata=MetadataDirectory(settings.metadata_dir, self._io),
            metadata_directory=str(settings.metadata_dir) if settings.device_metadata else "",
            host=HostFiles(
                dev_root=settings.dev_root,
                host_root=settings.host_root,
                mounts=settings.procfs_root / "self/mountinfo",
                executor=self._io,
            ),
            passthrough=settings.passthrough_policy,
            complete=self._table.complete.is_set,
            in_use=self._use,
            report=self.notices.report,
        )

    async def _listen(self, server: SocketServer) -> None:
        """Start the server that the kubelet calls, or the one by which it finds the plugin."""
        settings = self._configuration
        if server is self._dra:
            served = (
                services.DraV1(self._calls),
                services.DraV1beta1(self._calls),
                services.HealthV1(self._health),
                services.HealthV1alpha1(self._health),
            )
            await server.start(lambda s: services.register(s, served))
        else:
            registrar = services.Registrar(settings.driver_name, str(settings.dra_socket), self._state)
            await server.start(lambda s: services.register(s, (registrar,)))

    def _new_keeper(self, settle_seconds: float) -> InventoryKeeper:
        settings = self._configuration
        publisher: NodePublisher | None = None
        if settings.publish == "node":
            publisher = NodePublisher(
                self._client,
                DriverName(settings.driver_name),
                settings.node_name,
                self._state,
                beside_device_plugin=settings.beside_device_plugin,
                others=self._new_other_drivers(),
                clock=self._clock,
                report=self.notices.report,
            )
        return InventoryKeeper(
            client=self._client,
            node_name=settings.node_name,
            driver=settings.driver_name,
            table=self._table,
            registration=self._state,
            leads=self._instances.leads,
            publisher=publisher,
            settle_seconds=settle_seconds,
            activity=self._activity,
            use=self._use,
            gone_claims=GoneClaims(self._client, self._use, self._may_hold),
            clock=self._clock,
        )

    async def _may_hold(self, uid: Uid) -> bool:
        # Of a call that another instance is at work on, its record alone is seen here.
        return not self._instances.alone() or await self._preparer.holds(uid)

    def _new_other_drivers(self) -> OtherDrivers | None:
        settings = self._configuration
        if settings.beside_other_driver == PUBLISH:
            return None
        driver = DriverName(settings.driver_name)
        return OtherDrivers(self._client, driver, settings.node_name, self._use.list)

    def _new_reconciler(self, intervals: Intervals | None) -> Reconciler:
        return Reconciler(
            preparer=self._preparer,
            # As the kubelet calls it: counted, logged, and waited for at the end.
            unprepare=self._calls.unprepare,
            client=self._client,
            driver=self._configuration.driver_name,
            pool=self._pool,
            live=lambda: self._state.live and self._instances.leads(),
            use=self._use,
            intervals=intervals,
            report=self.notices.report,
        )

    def _new_observation(self, backends: Sequence[DeviceBackend]) -> Observation:
        return Observation(
            self._configuration,
            engine=self._preparer,
            table=self._table,
            state=self._state,
            leads=self._instances.leads,
            ready=self.ready,
            client=self._client,
            backends=backends,
            clock=self._clock,
            use=self._use,
            reconciled=lambda: self._reconciler.unprepared,
            unmanaged=lambda: self._leftovers.unmanaged,
            findings=lambda: self.notices.counts,
        )

    # --- life -----------------------------------------------------------------------------------------------

    async def run(self, stop: asyncio.Event) -> None:
        """Run until ``stop`` is set, then end in order.

        Raises:
            DraError: it cannot go on.
        """
        try:
            self._configuration.create_directories()
            async with self._instances.entered(self._timings.lock):
                self._remove_sockets_of_killed_instances()
                await self._memory.load()
                self._hotplug.begin()
                # What is not put in order by then is when the devices are known, or when it is asked for.
                with self._setup.hardware.calls.within(self._timings.restoring):
                    await self._preparer.restore()
                async with asyncio.TaskGroup() as group:
                    background = group.create_task(self._background())
                    try:
                        await self._start()
                        await stop.wait()
                    finally:
                        await self._end()
                        background.cancel()
        except BaseExceptionGroup as e:
            raise _first(e) from e
        finally:
            await self._node_lock.end()
            self._setup.close()
            self._effects.close()
            await self._table.end(self._timings.closing)
            self._io.shutdown(wait=True)

    def _hold_hardware(self, held: bool) -> None:
        file = self._configuration.state / RELEASE_FILE
        why = f"an administrator has released them ({file})" if held else ""
        self._setup.hardware.calls.released = self._effects.released = why

    def _observe(self, operation: str, result: str, seconds: float) -> None:
        self.observation.call(operation, result, seconds)

    def _remove_sockets_of_killed_instances(self) -> None:
        """Remove the sockets of killed instances: the kubelet would try them again and again."""
        for name in self._instances.dead():
            remove_stale_socket(self._configuration.registrar_socket_of(name))
            remove_stale_socket(self._configuration.dra_socket_of(name))

    async def _background(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._calls.run())
            tasks.create_task(self._warn_if_not_registered())
            # These care for their own shortages, beside what must not begin again: a port, for example.
            tasks.create_task(self._keeper.run())
            tasks.create_task(self.observation.run())
            t = self._timings
            for work, name in (
                (self._reconciler.run, "reconciliation"),
                (
                    partial(self._leftovers.run, t.first_leftovers, t.leftovers, t.confirm_leftovers),
                    "leftovers",
                ),
                (partial(self._leftovers.sweep, t.leftovers), "directories of ended daemons"),
                (self._watch_partitions, "partitions"),
                (self.notices.run, "notices"),
                (partial(self._activity.run, self.observation.samples), "activity"),
                (self._scan, "discovery"),
                (self._rescan_after_changes, "discovery after changes"),
                (self._follow_devices, "renewal of documents"),
                (self._hotplug.run, "hotplug"),
                (self._guard, "sockets"),
            ):
                tasks.create_task(endure(name, work))

    async def _scan(self) -> None:
        await self._table.scan()
        # Before the kubelet can ask: what it thinks is prepared has its documents again.
        await self._renew_documents()
        if self._configuration.destroy_unowned_partitions and not self._scanned.is_set():
            await self._destroy_unowned_partitions()
        self._scanned.set()
        await self._table.scan_forever(self._configuration.rescan_seconds)

    async def _destroy_unowned_partitions(self) -> None:
        if not self._instances.alone():
            log.info("no partition is destroyed: another instance of the plugin runs")
            return
        file = self._configuration.state / owned_partitions.FILE

        async def owner(gpu: str, instance: GpuInstance) -> str:
            node = await self._client.get(NODES, self._configuration.node_name)
            return owned_partitions.owner(gpu, instance, labels=node.metadata.labels or {}, file=file)

        await self._leftovers.destroy_unowned(owner)

    async def _watch_partitions(self) -> None:
        await self._scanned.wait()
        await self._leftovers.watch(self._timings.occupied)

    async def _rescan_after_changes(self) -> None:
        """Look again after each change: a GPU that is cut into partitions is another one to discovery."""
        seen = 0
        while True:
            seen = await self._setup.hardware.changes.wait_beyond(seen)
            self._preparer.partitions_changed()
            if self._scanned.is_set() and self._preparer.unsettled:
                await self._renew_documents()
            await self._table.scan()

    async def _follow_devices(self) -> None:
        """Renew documents when discovery finds something else; try again those that could not be written."""
        seen = 0
        await self._scanned.wait()
        while True:
            await self._renew_documents()
            pause = self._timings.renew_again if self._preparer.unsettled else self._timings.renew
            seen = await self._table.changes.wait(seen, pause)

    async def _renew_documents(self) -> None:
        try:
            await self._preparer.renew()
        except (OSError, DraError) as e:
            log.error("CDI files could not be compared with the devices", error=str(e))

    async def _start(self) -> None:
        # A plugin that registers before it knows its devices gets claims that it cannot serve yet.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._timings.first_scan):
                await self._scanned.wait()
        # The kubelet calls as soon as it finds the registrar.
        await self._listen(self._dra)
        await self._listen(self._registrar)
        self.ready.set()
        log.info(
            "ready",
            driver=self._configuration.driver_name,
            node=self._configuration.node_name,
            devices=len(self._table.devices),
            registrar=str(self._configuration.registrar_socket),
        )

    async def _end(self) -> None:
        self.ready.clear()
        loop = asyncio.get_running_loop()
        end = loop.time() + self._timings.shutdown
        # The kubelet closes its connection when the registrar goes. A call that is cut off is repeated only
        # after more than a minute, however well it ended here.
        await self._calls.answered(self._timings.shutdown)
        await self._registrar.stop(1.0)
        self._state.withdrawn()
        if not self._instances.leads():
            await asyncio.sleep(self._timings.handover)
        self._health.stop()
        await self._dra.stop(max(1.0, end - loop.time()))
        # What does not end by then ends with the process, and is finished or undone at the next start.
        await self._calls.drain(max(0.0, end - loop.time()))
        await self._keeper.withdraw(min(self._timings.withdrawal, max(1.0, end - loop.time())))
        log.info("stopped")

    async def _guard(self) -> None:
        """Put back sockets that were removed: the kubelet drops a plugin whose socket is gone."""
        while True:
            await asyncio.sleep(self._timings.guard)
            for server, path in (
                (self._dra, self._configuration.dra_socket),
                (self._registrar, self._configuration.registrar_socket),
            ):
                if not self.ready.is_set() or server.present:
                    continue
                log.warning("a socket is gone; listening anew", path=str(path))
                self._state.withdrawn()
                try:
                    files.make_directory(path.parent, 0o755)
                    await server.restart()
                except (OSError, DraError) as e:
                    log.error("cannot listen", path=str(path), error=str(e))

    async def _warn_if_not_registered(self) -> None:
        await self.ready.wait()
        await asyncio.sleep(self._timings.silence)
        if self._state.registered is None:
            log.warning(
                "no kubelet has asked for the plugin; is this the directory that it watches?",
                registry=str(self._configuration.registry_dir),
                seconds=self._timings.silence,
            )
            self._state.silent()


def _boot_id(procfs: Path) -> str:
    """Return the boot ID of the machine; empty if it cannot be read."""
    path = procfs / "sys/kernel/random/boot_id"
    try:
        return path.read_text(encoding="ascii").strip()[:64]
    except (OSError, UnicodeDecodeError) as e:
        log.warning(
            "the boot ID cannot be read; a reboot is taken for a restart", path=str(path), error=str(e)
        )
        return ""


def _first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """Return the first exception that is no group; the others are in the traceback."""
    inner = group.exceptions[0]
    return _first(inner) if isinstance(inner, BaseExceptionGroup) else inner
