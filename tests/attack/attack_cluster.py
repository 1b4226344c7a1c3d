"""The embedded API server and two controllers with leader election, each a process with its usual command."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path

import yaml
from apiserver_support import Connection
from attack_api import Api, exchange

from dra_driver.api.names import DEFAULT_DRIVER_NAME, RDMA_DRIVER_NAME, SYSTEM_NAMESPACE
from dra_driver.sim.assets import own_manifests
from dra_driver.sim.cluster import CONTROLLER_ACCOUNT
from dra_driver.sim.processes import ManagedProcess, dra_driver_command

__all__ = ["Controllers", "Replica", "api_server", "children", "install_open_pools", "until"]

REPLICAS = 2
_LEADER = "dra_driver_controller_leader 1.0"
# As a kubelet, which does not start a container that ends at once again and again.
_RESTART_SECONDS = 1.0
_LEASE = f"/apis/coordination.k8s.io/v1/namespaces/{SYSTEM_NAMESPACE}/leases/dra-driver-controller"


def _free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


async def until(there: Callable[[], bool], seconds: float, what: str) -> None:
    """Wait for something to be true.

    Raises:
        TimeoutError: it is not.
    """
    deadline = time.monotonic() + seconds
    while not there():
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {seconds:g} s in vain for {what}")
        await asyncio.sleep(0.02)


def children(pid: int) -> list[int]:
    """Return all processes below a process, whether its children or theirs."""
    parents: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                parents.setdefault(int(fields[1]), []).append(int(entry.name))
    found, waiting = [], [pid]
    while waiting:
        below = parents.get(waiting.pop(), [])
        found += below
        waiting += below
    return found


@dataclass(slots=True)
class Replica:
    """One controller, and those that followed it after its end.

    Attributes:
        number: 0 or 1.
        health: port of probes and metrics.
        page: port of the page.
        webhook: port of the admission webhooks.
        process: the one that runs at present.
        began: how many processes there were so far.
        restarts: ends that no attack caused by itself.
        excused: an attack has stopped or ended this process itself: until the next one runs, and where it is
            stopped for good, it is not judged.
    """

    number: int
    health: int
    page: int
    webhook: int
    process: ManagedProcess
    began: int = 0
    restarts: int = 0
    excused: bool = False

    @property
    def pid(self) -> int:
        """Process id; 0 while it does not run."""
        return self.process.pid or 0

    async def metrics(self, seconds: float = 5.0) -> str:
        """Return its metrics; empty if it does not answer in time."""
        with contextlib.suppress(OSError, TimeoutError, EOFError, StopIteration):
            async with asyncio.timeout(seconds):
                connection = await Connection.open(self.health)
                try:
                    status, body = await exchange(connection, "GET", "/metrics")
                finally:
                    connection.writer.close()
                return body.decode() if status == 200 else ""
        return ""

    def signal(self, number: int) -> None:
        """Send a signal to the main process, whose end is the attack's own then."""
        self.excused = True
        if self.pid:
            os.kill(self.pid, number)


@dataclass(slots=True)
class Controllers:
    """Both replicas."""

    api: Api
    replicas: list[Replica] = field(default_factory=list)
    log: Callable[[str], None] = print

    @classmethod
    def at(cls, api: Api, kubeconfig: Path, folder: Path, *, open_pools: bool) -> Controllers:
        """Return controllers that are not started yet.

        Args:
            api: of the API server.
            kubeconfig: with which they are started.
            folder: for their logs.
            open_pools: whether their pools are to be open.
        """
        made = cls(api)
        for number in range(REPLICAS):
            health, page, webhook = _free_port(), _free_port(), _free_port()
            command = dra_driver_command(
                "controller",
                f"--kubeconfig={kubeconfig}",
                f"--driver-name={DEFAULT_DRIVER_NAME}",
                f"--driver-name={RDMA_DRIVER_NAME}",
                f"--health-port={health}",
                f"--web-port={page}",
                "--admission-host=127.0.0.1",
                f"--admission-port={webhook}",
                # No configuration has the API server call them. Honest reviews are asked here.
                "--log-level=warning",
                *(["--open-pools"] if open_pools else []),
            )
            name = f"controller-{number}"
            process = ManagedProcess(name, command, folder / f"{name}.log")
            made.replicas.append(Replica(number, health, page, webhook, process))
        return made

    async def keep(self) -> None:
        """Start what does not run, again and again, until cancelled."""
        while True:
            for replica in self.replicas:
                if replica.process.running:
                    continue
                if replica.began:
                    if not replica.excused:
                        replica.restarts += 1
                        self.log(f"  replica {replica.number} ended:\n{replica.process.tail(4)}")
                    await asyncio.sleep(_RESTART_SECONDS)
                replica.began += 1
                replica.excused = False
                await replica.process.start()
            await asyncio.sleep(0.05)

    async def leading(self) -> Replica | None:
        """Return the replica that works at present, if there is one."""
        for replica in self.replicas:
            if _LEADER in await replica.metrics(1.0):
                return replica
        return None

    async def leader(self, seconds: float = 60.0, *, after: int = 0) -> Replica:
        """Wait for a leader that is not the process ``after``.

        Raises:
            TimeoutError: nobody leads.
        """
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            for replica in self.replicas:
                if replica.pid != after and _LEADER in await replica.metrics(1.0):
                    return replica
            await asyncio.sleep(0.1)
        raise TimeoutError(f"no controller leads after {seconds:g} s")

    async def replace(self) -> None:
        """Kill both and let the next ones lead at once."""
        for replica in self.replicas:
            replica.signal(signal.SIGKILL)
        await self.api.call("DELETE", _LEASE)
        await self.leader(120.0)

    async def stop(self) -> None:
        """End both."""
        for replica in self.replicas:
            if replica.process.running:
                replica.signal(signal.SIGCONT)
                await replica.process.stop(grace=5)


async def install_open_pools(api: Api, kubeconfig: Path, folder: Path) -> Path:
    """Install what open pools need; return a kubeconfig of the controller's account.

    The policy that keeps devices for the controller knows it by that account. All others stay an
    administrator here, whom the policy refuses as it does everybody.

    Raises:
        RuntimeError: the API server refuses something.
    """
    for manifest in own_manifests(open_pools=True):
        if manifest["kind"] == "CustomResourceDefinition":
            continue  # the API server of ``dra-driver sim`` has them
        status, answer = await api.create(manifest)
        if status not in (201, 409):
            raise RuntimeError(f"{manifest['kind']} {manifest['metadata']['name']}: {answer}")
    namespace, name = CONTROLLER_ACCOUNT
    path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{name}/token"
    request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
    status, made = await api.call("POST", path, request)
    if status != 201:
        raise RuntimeError(f"token of the controller's account: {made}")
    config = yaml.safe_load(kubeconfig.read_text())
    config["users"][0]["user"] = {"token": made["status"]["token"]}
    found = folder / "kubeconfig-of-the-controller"
    found.touch(0o600)
    found.write_text(yaml.safe_dump(config))
    return found


@contextlib.asynccontextmanager
async def api_server(folder: Path) -> AsyncIterator[tuple[Api, Path]]:
    """Run the API server in a process of its own; yield a client and the kubeconfig."""
    kubeconfig = folder / "kubeconfig"
    command = dra_driver_command("sim", "apiserver", f"--kubeconfig={kubeconfig}")
    process = ManagedProcess("API server", command, folder / "apiserver.log")
    await process.start()
    try:
        await until(lambda: kubeconfig.exists() or not process.running, 60, "the API server")
        if not process.running:
            raise RuntimeError(process.tail())
        url = yaml.safe_load(kubeconfig.read_text())["clusters"][0]["cluster"]["server"]
        api = Api(int(url.rpartition(":")[2]))
        yield api, kubeconfig
        api.close()
    finally:
        process.signal(signal.SIGKILL)  # giving gigabytes back one by one would take a while
        await process.stop()
