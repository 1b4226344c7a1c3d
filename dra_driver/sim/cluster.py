"""The embedded cluster: everything around the driver is simulated, the driver runs as real processes.

::

    one process                                     child processes
    ┌────────────────────────────────────────┐      ┌──────────────────────┐
    │ API server ◀─HTTP─ claim controller,   │◀HTTP─┤ dra-driver controller│
    │                    garbage collector,  │      ├──────────────────────┤
    │                    scheduler,          │◀HTTP─┤ dra-driver           │
    │                    N kubelets ─────────┼─gRPC─┤ kubelet-plugin × N   │
    └────────────────────────────────────────┘      └──────────────────────┘
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import shutil
import signal
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

import structlog
import yaml

from dra_driver.api.core import NODES
from dra_driver.api.names import RDMA_DRIVER_NAME, SYSTEM_NAMESPACE
from dra_driver.api.own.inventory import DEVICE_INVENTORIES, inventory_name
from dra_driver.api.resource import RESOURCE_SLICES, ResourceSlice
from dra_driver.discovery.simulated import layout as simulated_layout
from dra_driver.discovery.simulated import profile as simulated_profile
from dra_driver.errors import ApiUnavailable, ConfigurationError, DraError, NotFound
from dra_driver.kube import KubeApi
from dra_driver.sim import assets, profiles
from dra_driver.sim.apiserver import ApiServer
from dra_driver.sim.apiserver.http.injection import at_moments
from dra_driver.sim.cluster_config import ClusterConfig, NodeConfig
from dra_driver.sim.controlplane.controllers import ClaimController, GarbageCollector
from dra_driver.sim.controlplane.eviction import TaintEviction
from dra_driver.sim.controlplane.node_lifecycle import NodeLifecycle
from dra_driver.sim.controlplane.scheduler import Scheduler
from dra_driver.sim.faults import Fault, FaultPlan, FullDisk, Kill, Target
from dra_driver.sim.kubelet import NodeLayout, SimKubelet
from dra_driver.sim.kubelet.runtime import SimRuntime
from dra_driver.sim.kubelet.settings import SOCKET_PATH_BYTES
from dra_driver.sim.node import SimNode
from dra_driver.sim.processes import ManagedProcess, ProcessFailed, dra_driver_command

__all__ = ["ClusterConfig", "ClusterFailed", "EmbeddedCluster", "NodeConfig"]

log = structlog.get_logger(__name__)

T = TypeVar("T")

POLL = 0.03
ADMIN_AGENT = "dra-driver-demo"
CONTROLLER_ACCOUNT = (SYSTEM_NAMESPACE, "dra-driver-controller")


class ClusterFailed(DraError):
    """The cluster did not reach the expected state; the text has the ends of the logs."""


class EmbeddedCluster:
    """A cluster: ``async with EmbeddedCluster(config) as cluster``, then ``await cluster.ready()``.

    Leaving the block ends all child processes, waits for them, and removes the directory.

    Attributes:
        root: the cluster's directory, below the system's temporary directory.
        kubeconfig: path of the kubeconfig.
        api: an administrator's client.
        server: the API server.
        nodes: the nodes by name.
        controller: the controller's process.
    """

    root: Path
    kubeconfig: Path
    api: KubeApi
    server: ApiServer
    controller: ManagedProcess

    def __init__(self, config: ClusterConfig | None = None) -> None:
        self.config = config or ClusterConfig()
        self.nodes: dict[str, SimNode] = {}
        self._stack = contextlib.AsyncExitStack()
        self._tasks: set[asyncio.Task[None]] = set()
        self._clients: list[KubeApi] = []
        self._failures: list[str] = []
        self._processes: list[ManagedProcess] = []

    # --- start and end --------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        try:
            await self._start()
        except BaseException:
            await self._close()
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._close()

    async def _start(self) -> None:
        # A short path: those of the sockets of a node's plugin must not be longer than 107 bytes.
        self.root = Path(tempfile.mkdtemp(prefix="dra-"))
        self._stack.callback(shutil.rmtree, self.root, ignore_errors=True)
        self._refuse_long_paths()
        self.kubeconfig = self.config.kubeconfig or self.root / "kubeconfig"
        _refuse_foreign(self.kubeconfig)
        self.server = server = ApiServer(kubernetes=self.config.kubernetes, gates=self.config.gates)
        server.set_pod_log(self._pod_log)
        server.registry.collected = GarbageCollector.KINDS
        own = assets.own_manifests(open_pools=self.config.opens_pools)
        await server.install([*own, *self.config.manifests])
        await server.start()
        self._stack.push_async_callback(server.stop)
        server.write_kubeconfig(self.kubeconfig)
        if self.config.kubeconfig is not None:
            # The kubeconfig names a server that is about to end.
            self._stack.callback(self.kubeconfig.unlink, missing_ok=True)
        self._stack.push_async_callback(self._close_clients)
        self._stack.push_async_callback(self._cancel_tasks)
        self._stack.push_async_callback(self._stop_processes)
        self.api = await self._connect(ADMIN_AGENT)
        self._run("claim controller", ClaimController(await self._connect("resource-claim-controller")).run())
        self._run("garbage collector", GarbageCollector(await self._connect("garbage-collector")).run())
        self._run("taint eviction", TaintEviction(await self._connect("taint-eviction")).run())
        self._run("node lifecycle", NodeLifecycle(await self._connect("node-controller")).run())
        self._run("scheduler", Scheduler(await self._connect("kube-scheduler")).run())
        for i, node in enumerate(self.config.nodes, start=1):
            await self.add_node(f"node{i}", node)
        if self.config.run_controller:
            self.controller = self._process("controller", self._controller_command())
            await self.start_process(self.controller)

    def _refuse_long_paths(self) -> None:
        layout = NodeLayout(self.root / f"node{len(self.config.nodes)}")
        longest = max(
            (layout.plugins / d / "dra.sock" for d in self.config.drivers), key=lambda p: len(str(p))
        )
        if len(str(longest).encode()) > SOCKET_PATH_BYTES:
            raise ConfigurationError(
                f"the socket {longest} would have more than {SOCKET_PATH_BYTES} bytes, the most that Unix "
                "sockets can have: set TMPDIR to a shorter directory"
            )

    async def _connect(self, agent: str) -> KubeApi:
        client = await KubeApi.connect(self.kubeconfig, user_agent=agent)
        self._clients.append(client)
        return client

    async def _close_clients(self) -> None:
        for client in self._clients:
            await client.close()

    async def _close(self) -> None:
        # The clean-up has to be completed even if a second Ctrl-C arrives meanwhile.
        closing = asyncio.get_running_loop().create_task(self._stack.aclose())
        while not closing.done():
            try:
                await asyncio.shield(closing)
            except asyncio.CancelledError:
                if closing.cancelled():
                    raise

    async def _cancel_tasks(self) -> None:
        for task in self._tasks:
            task.cancel()
        for task in list(self._tasks):
            with contextlib.suppress(asyncio.CancelledError):
                await task

    async def _stop_processes(self) -> None:
        async with asyncio.TaskGroup() as group:
            for process in self._processes:
                group.create_task(process.stop())

    def _run(self, name: str, work: Awaitable[None]) -> asyncio.Task[None]:
        """Run a part of the cluster; if it fails, the cluster fails."""

        async def guarded() -> None:
            try:
                await work
            except ProcessFailed as e:
                self._failures.append(str(e))
            except Exception as e:
                log.exception("a part of the cluster failed", part=name)
                self._failures.append(f"{name} failed: {type(e).__name__}: {e}")

        task = asyncio.get_running_loop().create_task(guarded(), name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    # --- nodes ----------------------------------------------------------------------------------------------

    async def add_node(self, name: str, config: NodeConfig) -> None:
        """Start a node with its kubelet and its plugins, beside those that there are."""
        layout = NodeLayout(self.root / name)
        layout.create()
        kubelet = await self._kubelet(name, layout, config)
        gpus = [f"--backend={spec}" for spec in config.backends]
        if config.profile:
            profiles.write_profile(config.profile, layout.hardware)
            gpus += [*self.config.plugin_flags, f"--backend=simulated={layout.hardware}"]
        # What this computer has needs its own files and device nodes.
        gpus += ["--procfs-root=/proc"] if config.backends else [f"--dev-root={layout.dev}"]
        plugin = self._process(
            f"plugin-{name}", self._plugin_command(name, layout, self.config.driver_name, *gpus)
        )
        node = SimNode(name, config, layout, kubelet, plugin)
        if config.nics:
            node.nic_plugin = self._nic_plugin(name, layout, config.nics)
        node.task = self._run(f"kubelet of {name}", kubelet.run())
        self.nodes[name] = node
        await self.start_process(plugin)
        if node.nic_plugin is not None:
            await self.start_process(node.nic_plugin)

    async def _kubelet(
        self, name: str, layout: NodeLayout, config: NodeConfig, runtime: SimRuntime | None = None
    ) -> SimKubelet:
        api = await self._connect(f"kubelet-{name}")
        return SimKubelet(
            api,
            name,
            layout,
            self.config.kubelet,
            runtime=runtime,
            labels=config.labels,
            taints=config.taints,
        )

    def _nic_plugin(self, name: str, layout: NodeLayout, nics: str) -> ManagedProcess:
        simulated_layout.build(simulated_profile.load(nics), layout.nics)
        roots = (f"--sysfs-root={layout.nics / 'sys'}", f"--dev-root={layout.nics / 'dev'}")
        command = self._plugin_command(name, layout, RDMA_DRIVER_NAME, "--backend=rdma", *roots)
        return self._process(f"nic-plugin-{name}", command)

    def _pod_log(self, namespace: str, pod: str, container: str) -> str:
        for node in self.nodes.values():
            for sandbox in node.kubelet.runtime.sandboxes.values():
                if (sandbox.namespace, sandbox.pod) == (namespace, pod):
                    found = sandbox.containers.get(container) if container else None
                    shown = found or next(iter(sandbox.containers.values()), None)
                    return shown.output() if shown is not None else ""
        return ""

    def _plugin_command(self, name: str, layout: NodeLayout, driver: str, *more: str) -> tuple[str, ...]:
        state = layout.state if driver == self.config.driver_name else layout.state / "nics"
        return dra_driver_command(
            "kubelet-plugin",
            f"--node-name={name}",
            f"--kubeconfig={self.kubeconfig}",
            f"--driver-name={driver}",
            f"--plugins-dir={layout.plugins}",
            f"--registry-dir={layout.registry}",
            f"--kubelet-dir={layout.kubelet}",
            f"--cdi-dir={layout.cdi}",
            f"--state-dir={state}",
            f"--procfs-root={layout.proc}",
            f"--cgroup-root={layout.cgroups}",
            f"--log-level={self.config.log_level}",
            *more,
        )

    def _controller_command(self) -> tuple[str, ...]:
        kubeconfig, opens = self.kubeconfig, self.config.opens_pools
        if opens:
            # The policy that keeps devices for the controller knows it by its account.
            kubeconfig = self.root / "kubeconfig-of-the-controller"
            self.server.write_kubeconfig(kubeconfig, CONTROLLER_ACCOUNT)
        return dra_driver_command(
            "controller",
            f"--kubeconfig={kubeconfig}",
            *(f"--driver-name={name}" for name in self.config.drivers),
            *(["--open-pools"] if opens else []),
            f"--allocator={self.config.allocator}",
            "--no-leader-elect",
            f"--log-level={self.config.log_level}",
            *self.config.controller_flags,
        )

    def _process(self, name: str, command: Sequence[str]) -> ManagedProcess:
        process = ManagedProcess(name, command, self.root / f"{name}.log", spawn=self.config.spawn)
        self._processes.append(process)
        return process

    def adopt(self, process: ManagedProcess) -> None:
        """Add a process to those that end with the cluster."""
        self._processes.append(process)

    async def start_process(self, process: ManagedProcess) -> None:
        """Start a process of the cluster, for the first time or again."""
        await process.start()
        self._run(process.name, process.supervise())

    async def stop_kubelet(self, name: str) -> None:
        """End the kubelet of a node as if killed; its containers run on."""
        task, self.nodes[name].task = self.nodes[name].task, None
        if task is not None:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    async def restart_kubelet(self, name: str) -> None:
        """Stop the kubelet of a node, and start a new one while the containers run on."""
        await self.stop_kubelet(name)
        node = self.nodes[name]
        node.kubelet = await self._kubelet(name, node.layout, node.config, node.kubelet.runtime)
        node.task = self._run(f"kubelet of {name}", node.kubelet.run())

    async def reboot(self, name: str) -> None:
        """Reboot a node: its processes and containers end, its tmpfs is emptied, its boot ID changes."""
        node = self.nodes[name]
        await self.stop_kubelet(name)
        plugins = [p for p in (node.plugin, node.nic_plugin) if p is not None]
        for process in plugins:
            await self.kill(process)
        for path in node.layout.cdi.iterdir():
            path.unlink()
        node.layout.boot()
        node.kubelet = await self._kubelet(name, node.layout, node.config)
        node.task = self._run(f"kubelet of {name}", node.kubelet.run())
        for process in plugins:
            await self.start_process(process)

    async def kill_plugin(self, name: str) -> None:
        """Kill a node's plugin (SIGKILL) and wait for its end; its files stay as they are."""
        await self.kill(self.nodes[name].plugin)

    async def kill(self, process: ManagedProcess) -> None:
        """Kill a process (SIGKILL) and wait for its end."""
        process.signal(signal.SIGKILL)
        await process.stop()

    # --- faults ---------------------------------------------------------------------------------------------

    def inject(self, plan: FaultPlan) -> None:
        """Put a fault plan in force from now on, beside what earlier ones still do to processes and disks.

        No fault strikes the administrator's client (``api``), so that tests see what is there.

        Raises:
            ConfigurationError: the plan names nodes, parts or resources that are not there.
        """
        for fault in plan.for_cluster():
            self._check_fault(fault)
        self.server.set_faults(plan.for_server(), exempt=(ADMIN_AGENT,))
        start = asyncio.get_running_loop().time()
        for fault in plan.for_cluster():
            act = functools.partial(self._strike, fault)
            moments = at_moments(fault.timing, lambda: asyncio.get_running_loop().time() - start, act)
            self._run(f"fault {fault}", moments)

    def _check_fault(self, fault: Fault) -> None:
        node = fault.node if isinstance(fault, FullDisk) else ""
        if isinstance(fault, Kill):
            node = fault.target.node
            if fault.target.part == "controller" and not self.config.run_controller:
                raise ConfigurationError(f"faults, in {str(fault)!r}: this cluster runs no controller")
        if node and node not in self.nodes:
            known = ", ".join(self.nodes)
            raise ConfigurationError(f"faults, in {str(fault)!r}: no such node; there are {known}")

    async def _strike(self, fault: Fault) -> None:
        log.info("fault", fault=str(fault))
        match fault:
            case FullDisk(node=node):
                process = self.nodes[node].plugin
                process.limit_file_size(0)
                if fault.timing.duration is not None:
                    await asyncio.sleep(fault.timing.duration)
                    process.limit_file_size(None)
            case Kill(target=Target(part="kubelet", node=node)):
                await self.stop_kubelet(node)
                if fault.timing.duration is not None:
                    await asyncio.sleep(fault.timing.duration)
                    await self.restart_kubelet(node)
            case Kill(target=target):
                process = self.nodes[target.node].plugin if target.node else self.controller
                await self.kill(process)
                if fault.timing.duration is not None:
                    await asyncio.sleep(fault.timing.duration)
                    if not process.running:  # another plan may have killed it
                        await self.start_process(process)
            case _:
                raise AssertionError(fault)

    # --- waiting --------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Raise ``ClusterFailed`` if a part or a process has ended by itself."""
        if self._failures:
            raise ClusterFailed("\n".join(self._failures))

    @property
    def failures(self) -> Sequence[str]:
        """What ``check`` complains about, in the order in which it happened."""
        return tuple(self._failures)

    async def wait_for(
        self, what: str, condition: Callable[[], Awaitable[T | None]], seconds: float = 120.0
    ) -> T:
        """Poll until ``condition`` returns something true, and return that.

        Raises:
            ClusterFailed: it did not within ``seconds``, or a part of the cluster failed.
        """
        deadline = asyncio.get_running_loop().time() + seconds
        while True:
            self.check()
            try:
                result = await condition()
            except ApiUnavailable:  # a fault may have stopped the API server
                result = None
            if result:
                return result
            if asyncio.get_running_loop().time() >= deadline:
                tails = "\n".join(p.tail(8) for p in self._processes)
                raise ClusterFailed(f"waited {seconds:g} s in vain for: {what}\n{tails}")
            await asyncio.sleep(POLL)

    async def ready(self, seconds: float = 120.0) -> None:
        """Wait until every node has its devices published."""
        async for _ in self.published(seconds):
            pass

    async def published(self, seconds: float = 120.0) -> AsyncIterator[tuple[SimNode, list[ResourceSlice]]]:
        """Yield each node and its slices as soon as they are complete for the plugin's present epoch."""
        waiting = dict(self.nodes)
        deadline = asyncio.get_running_loop().time() + seconds
        while waiting:
            for name, node in list(waiting.items()):
                slices = await self._slices(name)
                if slices:
                    del waiting[name]
                    yield node, slices
            if waiting:
                left = deadline - asyncio.get_running_loop().time()
                check = functools.partial(self._any_slices, tuple(waiting))
                await self.wait_for(f"ResourceSlices of {', '.join(waiting)}", check, left)

    async def _any_slices(self, names: Sequence[str]) -> bool:
        for name in names:
            if await self._slices(name):
                return True
        return False

    async def _slices(self, node: str) -> list[ResourceSlice] | None:
        """Return the slices of a node's pools; None until they are those of the present epochs."""
        drivers = [self.config.driver_name]
        if self.nodes[node].nic_plugin is not None:
            drivers.append(RDMA_DRIVER_NAME)
        found: list[ResourceSlice] = []
        for driver in drivers:
            slices = await self._pool(node, driver)
            if slices is None:
                return None
            found += slices
        return found

    async def _pool(self, node: str, driver: str) -> list[ResourceSlice] | None:
        try:
            await self.api.get(NODES, node)
            inventory = await self.api.get(DEVICE_INVENTORIES, inventory_name(node, driver))
        except NotFound:
            return None
        registration, publication = inventory.status.registration, inventory.status.publication
        if not registration.registered or publication.epoch != registration.epoch:
            return None
        listed = await self.api.list(RESOURCE_SLICES, field_selector=f"spec.nodeName={node}")
        slices = [s for s in listed.items if s.spec.driver == driver]
        if not slices or len(slices) != slices[0].spec.pool.resource_slice_count:
            return None
        return slices


def _refuse_foreign(kubeconfig: Path) -> None:
    """Refuse to overwrite, and later remove, a kubeconfig of another cluster."""
    if not kubeconfig.exists():
        return
    try:
        content = yaml.safe_load(kubeconfig.read_text(encoding="utf-8"))
        contexts = [c["name"] for c in content["contexts"]]
    except (OSError, UnicodeDecodeError, yaml.YAMLError, TypeError, KeyError):
        contexts = []
    if contexts != ["sim"]:
        raise ConfigurationError(
            f"--kubeconfig {kubeconfig}: exists and is not of an earlier embedded cluster; choose another"
        )
