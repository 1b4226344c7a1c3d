"""What the suite can do to the embedded cluster beyond its API."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from node_traces import traces
from previous_version import NoPreviousVersion, unpack

from dra_driver.sim.cluster import EmbeddedCluster
from dra_driver.sim.processes import ManagedProcess

# Runs the command of the version in a folder, whatever is installed or in the working directory.
_OTHER = "import sys; sys.path.insert(0, {folder!r}); from dra_driver.cli.main import main; sys.exit(main())"


PREEMPTION = ("--preemption=on", "--preemption-rate=100")
BY_NODE = "--publish=node"


class EmbeddedActions:
    """Implements ``e2e_support.Actions``."""

    parts = ("plugin", "kubelet", "controller")

    def __init__(self, cluster: EmbeddedCluster) -> None:
        self._cluster = cluster
        self._present: dict[str, tuple[str, ...]] = {}

    async def kill(self, part: str, node: str) -> None:
        """See ``Actions``."""
        if part == "kubelet":
            await self._cluster.restart_kubelet(node)
            return
        process = self._cluster.controller if part == "controller" else self._cluster.nodes[node].plugin
        await self._cluster.kill(process)
        await self._cluster.start_process(process)

    async def agent(self, node: str, *, runs: bool) -> None:
        """See ``Actions``."""
        plugin = self._cluster.nodes[node].plugin
        await (self._cluster.start_process(plugin) if runs else self._cluster.kill(plugin))

    async def reboot(self, node: str, change: Callable[[], None] = lambda: None) -> None:
        """See ``Actions``."""
        change()
        await self._cluster.reboot(node)

    def hardware(self, node: str) -> Path:
        """See ``Actions``."""
        return self._cluster.nodes[node].layout.hardware

    def state(self, node: str) -> tuple[Path, Path]:
        """See ``Actions``."""
        layout = self._cluster.nodes[node].layout
        return layout.state, layout.cdi

    def pod_resources(self, node: str) -> Path:
        """See ``Actions``."""
        return self._cluster.nodes[node].layout.pod_resources

    async def previous(self) -> str:
        """See ``Actions``."""
        folder = self._cluster.root / "previous"
        try:
            commit = await asyncio.to_thread(unpack, folder)
        except NoPreviousVersion as e:
            return f"- {e}"
        code = _OTHER.format(folder=str(folder))
        # The version before has no flags that came after it.
        known = "".join(p.read_text() for p in sorted((folder / "dra_driver/cli").rglob("*.py")))
        processes = [self._cluster.controller, *(n.plugin for n in self._cluster.nodes.values())]
        for process in processes:
            await self._cluster.kill(process)
            self._present[process.name] = process.command
            start = process.command.index("-m")
            given = process.command[start + 2 :]
            names = [a.partition("=")[0].replace("--no-", "--") for a in given]
            arguments = [a for a, name in zip(given, names, strict=True) if name in known or a[0] != "-"]
            own = ("--instance-id=previous",) if process is not self._cluster.controller else ()
            process.command = (*process.command[:start], "-c", code, *arguments, *own)
            await self._cluster.start_process(process)
        await self._cluster.ready()
        return commit

    async def current(self, node: str) -> None:
        """See ``Actions``."""
        cluster = self._cluster
        for simulated in cluster.nodes.values():
            old = simulated.plugin
            command = (*self._present[old.name], "--instance-id=current")
            simulated.plugin = ManagedProcess(old.name, command, old.log)
            cluster.adopt(simulated.plugin)
            await cluster.start_process(simulated.plugin)
            # As a DaemonSet with maxSurge: the old one ends when the new one is registered.
            while len(list(simulated.layout.registry.glob("*.sock"))) < 2:
                await asyncio.sleep(0.05)
            await asyncio.sleep(0.5)
            await old.stop()
        await cluster.controller.stop()
        cluster.controller.command = self._present[cluster.controller.name]
        await cluster.start_process(cluster.controller)
        await cluster.ready()

    async def publish(self, node: str, *, by_node: bool) -> None:
        """See ``Actions``."""
        plugin = self._cluster.nodes[node].plugin
        await plugin.stop()
        others = tuple(word for word in plugin.command if word != BY_NODE)
        plugin.command = (*others, BY_NODE) if by_node else others
        await self._cluster.start_process(plugin)

    async def controllers(self, *, run: bool) -> None:
        """See ``Actions``."""
        if run:
            await self._cluster.start_process(self._cluster.controller)
        else:
            await self._cluster.controller.stop()

    async def preempt(self, *, on: bool) -> None:
        """See ``Actions``."""
        await self._set_flags(PREEMPTION, on=on)

    async def _set_flags(self, flags: tuple[str, ...], *, on: bool) -> None:
        controller = self._cluster.controller
        await controller.stop()
        others = tuple(word for word in controller.command if word not in flags)
        controller.command = (*others, *flags) if on else others
        await self._cluster.start_process(controller)

    async def uninstall(self) -> list[str]:
        """See ``Actions``."""
        nodes = list(self._cluster.nodes.values())
        for process in [p for n in nodes for p in (n.plugin, n.nic_plugin) if p is not None]:
            await process.stop()
        await self._cluster.controller.stop()
        layouts = [n.layout for n in nodes]
        return [t for layout in layouts for t in traces(layout.registry, layout.plugins, layout.cdi)]
