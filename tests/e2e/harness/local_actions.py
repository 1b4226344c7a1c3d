"""What the suite can do to the cluster that ``python -m local`` started, beyond its API.

It runs in the cluster's own namespaces, so the node's files and processes are at hand; what belongs to the
harness is asked of it through a socket.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

from node_traces import traces

from dra_driver.api.core import PODS
from dra_driver.api.names import DEFAULT_DRIVER_NAME, SYSTEM_NAMESPACE
from dra_driver.kube import KubeApi

KUBELET = Path("/var/lib/kubelet")


class LocalActions:
    """Implements ``e2e_support.Actions``."""

    parts = ("plugin", "kubelet", "controller", "runtime")

    def __init__(self, api: KubeApi) -> None:
        self._api = api
        self._killing: asyncio.Task[None] | None = None

    async def kill(self, part: str, node: str) -> None:
        """See ``Actions``."""
        if part in ("kubelet", "runtime"):
            await ask("restart", name="containerd" if part == "runtime" else part)
            return
        words = ["dra-driver", "kubelet-plugin" if part == "plugin" else part]
        before = processes(*words, f"--driver-name={DEFAULT_DRIVER_NAME}")
        assert before, f"no process of {part}"
        for pid in before:
            os.kill(pid, signal.SIGKILL)
        while len(processes(*words, f"--driver-name={DEFAULT_DRIVER_NAME}") - before) < len(before):
            await asyncio.sleep(0.1)

    async def agent(self, node: str, *, runs: bool) -> None:
        """See ``Actions``."""
        if not runs:
            self._killing = asyncio.get_running_loop().create_task(self._kill_again())
            return
        if self._killing is not None:
            self._killing.cancel()
            await asyncio.wait([self._killing])
        # Another pod has no back-off.
        found = await self._api.list(
            PODS, SYSTEM_NAMESPACE, label_selector="app.kubernetes.io/component=kubelet-plugin"
        )
        for pod in found.items:
            if pod.spec.node_name == node:
                await self._api.delete(PODS, pod.metadata.name, SYSTEM_NAMESPACE)

    async def _kill_again(self) -> None:
        # An agent needs longer than that to register.
        while True:
            for pid in processes("dra-driver", "kubelet-plugin", f"--driver-name={DEFAULT_DRIVER_NAME}"):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            await asyncio.sleep(0.1)

    async def reboot(self, node: str, change: Callable[[], None] = lambda: None) -> None:
        """See ``Actions``."""
        await ask("shut_down")
        change()
        await ask("boot")

    def hardware(self, node: str) -> Path:
        """See ``Actions``."""
        return Path(os.environ["E2E_FILES"], "gpus.yaml")

    def state(self, node: str) -> tuple[Path, Path]:
        """See ``Actions``."""
        return KUBELET / "plugins" / DEFAULT_DRIVER_NAME, Path("/var/run/cdi")

    def pod_resources(self, node: str) -> Path:
        """See ``Actions``."""
        return KUBELET / "pod-resources" / "kubelet.sock"

    async def previous(self) -> str:
        """See ``Actions``."""
        return str(await ask("previous"))

    async def current(self, node: str) -> None:
        """See ``Actions``."""
        await ask("current")

    async def publish(self, node: str, *, by_node: bool) -> None:
        """See ``Actions``."""
        # The manifests as they are say nothing, which is the controller.
        await (ask("agent_flag", flag="--publish=node") if by_node else ask("current"))

    async def controllers(self, *, run: bool) -> None:
        """See ``Actions``."""
        await ask("controllers", number="2" if run else "0")

    async def preempt(self, *, on: bool) -> None:
        """See ``Actions``."""
        await ask("preempt" if on else "current")

    async def uninstall(self) -> list[str]:
        """See ``Actions``."""
        await ask("uninstall")
        return traces(KUBELET / "plugins_registry", KUBELET / "plugins", Path("/var/run/cdi"))


def processes(*words: str) -> set[int]:
    """Processes whose command lines have all these words, at the end of a path or whole."""
    found: set[int] = set()
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            arguments = [a.rpartition("/")[2] for a in file.read_text().split("\0")]
        except (OSError, UnicodeDecodeError):
            continue
        if all(word in arguments for word in words):
            found.add(int(file.parent.name))
    return found


async def ask(do: str, **arguments: str) -> Any:
    """Has the harness do something, and waits for it."""
    reader, writer = await asyncio.open_unix_connection(os.environ["E2E_CONTROL"])
    try:
        writer.write(json.dumps({"do": do, **arguments}).encode() + b"\n")
        await writer.drain()
        answer = json.loads(await reader.readline())
    finally:
        writer.close()
    assert "error" not in answer, answer["error"]
    return answer["done"]
