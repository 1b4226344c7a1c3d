"""A control plane of release binaries without nodes, with the driver's controller as a process beside it.

etcd, kube-apiserver, kube-controller-manager and kube-scheduler run with their defaults and an identity each;
what is installed is ``deploy/manifests``, and the controller has the rights of its own account. Nodes are
objects, so no root is needed.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import subprocess
import sys
import urllib.request
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import yaml
from local.processes import NotUpError, Processes, tail
from real_apiserver import ADMIN, VARIABLE, RealApiServer, bound_token, real_apiserver

from dra_driver.api.names import SYSTEM_NAMESPACE
from dra_driver.errors import ApiError, ApiUnavailable
from dra_driver.kube import KubeApi
from dra_driver.sim.assets import deploy_directory

__all__ = ["PROGRAMS", "Plane", "plane", "until"]

PROGRAMS = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl")
CONTROLLER, SCHEDULER, MANAGER = "dra-driver-controller", "kube-scheduler", "kube-controller-manager"
_POD = "dra-driver-controller-0"
# Nothing would serve the webhooks, nor run what makes pods.
_LEFT_OUT = (
    "DaemonSet",
    "Deployment",
    "MutatingWebhookConfiguration",
    "PodDisruptionBudget",
    "ValidatingWebhookConfiguration",
)
# Every write with its writer, when it is done; reads cost nothing here.
_AUDIT = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived"],
    "rules": [
        {"level": "None", "verbs": ["get", "list", "watch"]},
        {"level": "None", "resources": [{"group": "coordination.k8s.io"}]},
        {"level": "Metadata"},
    ],
}
_UP_SECONDS = 120.0
_INSTALL_ATTEMPTS = 20
# No kubelet reports that nodes live.
_WITHOUT = ("node-lifecycle-controller", "taint-eviction-controller")


async def until(what: str, there: Callable[[], Awaitable[Any]], seconds: float, pause: float = 0.1) -> Any:
    """Wait for something that is true; return it.

    Raises:
        TimeoutError: it does not come; names it.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + seconds
    while True:
        with contextlib.suppress(ApiError, ApiUnavailable):
            if found := await there():
                return found
        if loop.time() > deadline:
            raise TimeoutError(f"waited {seconds:.0f} s in vain for {what}")
        await asyncio.sleep(pause)


class Plane:
    """A running control plane.

    Attributes:
        api: a client that may do everything.
        audit: the file to which the API server writes a line for each write.
    """

    def __init__(
        self, server: RealApiServer, api: KubeApi, folder: Path, *, open_pools: bool = False
    ) -> None:
        self._open_pools = open_pools
        self.api = api
        self.audit = folder / "audit.log"
        self._server = server
        self._folder = folder
        self._processes = Processes(folder, os.environ)
        self._port = 0
        self._controls = False

    @property
    def record(self) -> str:
        """What inventories say of who allocates where the controller does."""
        return "open" if self._open_pools else "controller"

    def log(self, name: str) -> Path:
        """Return the log of a process."""
        return self._processes.log(name)

    def check(self) -> None:
        """Assert that everything runs.

        Raises:
            NotUpError: something has ended by itself; with the end of its log.
        """
        dead = [n for n in self._processes.dead() if self._controls or not n.startswith(CONTROLLER)]
        if dead:
            logs = [f"{name}:\n{tail(self.log(name.split()[0]))}" for name in dead]
            raise NotUpError("\n".join(["ended by themselves:", *logs]))

    def cpu_seconds(self, name: str) -> float:
        """Return the CPU time that a process has had so far."""
        fields = Path(f"/proc/{self._processes.pid(name)}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def stop(self) -> None:
        """End all processes but etcd and the API server."""
        self._processes.stop_all()

    # --- Kubernetes -----------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Start the other components, and install the driver's objects."""
        programs = Path(os.environ[VARIABLE])
        await self._install(programs)
        for name, more in (
            (MANAGER, self._manager_flags()),
            (SCHEDULER, ["--secure-port=0"]),
        ):
            config = self._server.kubeconfig(f"token-of-{name}")
            command = [str(programs / name), f"--kubeconfig={config}", "--leader-elect=false", *more]
            self._processes.start(name, command)

        async def account() -> Any:
            return await self.api._call(
                "GET", f"/api/v1/namespaces/{SYSTEM_NAMESPACE}/configmaps/kube-root-ca.crt"
            )

        await until("the controller-manager", account, _UP_SECONDS)

    def _manager_flags(self) -> list[str]:
        return [
            "--use-service-account-credentials=true",
            f"--service-account-private-key-file={self._folder / 'sa.key'}",
            f"--root-ca-file={self._folder / 'certificates' / 'apiserver.crt'}",
            "--secure-port=0",
            f"--controllers=*,{','.join('-' + name for name in _WITHOUT)}",
        ]

    async def _install(self, programs: Path) -> None:
        folder, optional = deploy_directory("manifests"), deploy_directory("optional")
        crds, rest = sorted((folder / "crds").glob("*.yaml")), sorted(folder.glob("*.yaml"))
        # Else pools are tainted, and kube-scheduler alone meets no gate: namespaces are labelled for one.
        rest.append(folder / "gate-policy" / "gating.yaml")
        if not self._open_pools:
            rest.append(optional / "labelled-namespaces.yaml")
        more = ["preemption"]
        for paths in (crds, rest, *(sorted((optional / name).glob("*.yaml")) for name in more)):
            found = [d for p in paths for d in yaml.safe_load_all(p.read_text(encoding="utf-8")) if d]
            file = self._folder / "install.yaml"
            file.write_text(yaml.safe_dump_all([d for d in found if d["kind"] not in _LEFT_OUT]))
            command = [str(programs / "kubectl"), f"--kubeconfig={self._server.kubeconfig()}"]
            command += ["apply", "--server-side", "--filename", str(file)]
            # While kinds are new, the API server has no schemas for a moment, which kubectl asks for.
            for left in reversed(range(_INSTALL_ATTEMPTS)):
                done = await asyncio.to_thread(
                    subprocess.run, command, capture_output=True, text=True, check=False
                )
                if not done.returncode:
                    break
                if not left:
                    raise NotUpError(f"deploy/manifests cannot be installed:\n{done.stderr.strip()}")
                await asyncio.sleep(1)

    # --- the controller -------------------------------------------------------------------------------------

    async def start_controller(self, allocator: str) -> None:
        """Start the driver's controller with its own account; return when it leads."""
        pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": _POD, "namespace": SYSTEM_NAMESPACE},
            "spec": {
                "serviceAccountName": CONTROLLER,
                "schedulerName": "nobody",
                "containers": [{"name": "controller", "image": "none"}],
            },
        }
        with contextlib.suppress(ApiError):  # it is there already
            await self.api._call("POST", f"/api/v1/namespaces/{SYSTEM_NAMESPACE}/pods", body=pod)
        reference = {"kind": "Pod", "apiVersion": "v1", "name": _POD}
        token = await bound_token(self.api, SYSTEM_NAMESPACE, CONTROLLER, reference)
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            self._port = int(s.getsockname()[1])
        command = [sys.executable, "-m", "dra_driver.cli.main", "controller"]
        command += ["--kubeconfig", str(self._server.kubeconfig(token)), "--pod-name", _POD]
        command += ["--health-port", str(self._port), "--allocator", allocator, "--node-labels", "own"]
        command += ["--preemption", "on", *(["--open-pools"] if self._open_pools else [])]
        self._controls = True
        self._processes.start(CONTROLLER, [*command, "--log-level", "info", "--log-format", "json"])
        await asyncio.to_thread(
            self._processes.wait, CONTROLLER, "readiness", self._controller_is_ready, _UP_SECONDS
        )

    def _controller_is_ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self._port}/metrics", timeout=5) as answer:
                return b"dra_driver_controller_leader 1.0" in answer.read()
        except OSError:
            return False

    def stop_controller(self) -> None:
        """End the controller; what it has published stays."""
        self._controls = False
        self._processes.stop(CONTROLLER)


@contextlib.asynccontextmanager
async def plane(folder: Path, *, open_pools: bool = False) -> AsyncIterator[Plane]:
    """Start a control plane below ``folder``, which holds its logs, and end all of it.

    Args:
        folder: of data and logs.
        open_pools: whether pools are open.

    Raises:
        NotUpError: something does not come up; with the end of its log.
    """
    folder.mkdir(parents=True)
    policy, users = folder / "audit.yaml", folder / "users.csv"
    policy.write_text(yaml.safe_dump(_AUDIT))
    identities = [f"token-of-{name},system:{name},{name}" for name in (MANAGER, SCHEDULER)]
    users.write_text("\n".join([f'{ADMIN},admin,admin,"system:masters"', *identities]) + "\n")
    flags = [
        f"--token-auth-file={users}",
        f"--audit-policy-file={policy}",
        f"--audit-log-path={folder / 'audit.log'}",
    ]
    with real_apiserver(folder, *flags) as server:
        async with await server.client(user_agent="comparison") as api:
            made = Plane(server, api, folder, open_pools=open_pools)
            try:
                await made.start()
                yield made
            finally:
                await asyncio.to_thread(made.stop)
