"""The API server: HTTP around the registry."""

from __future__ import annotations

import asyncio
import contextlib
import os
import ssl
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml
from aiohttp import web

from dra_driver.errors import ConfigurationError, DraError
from dra_driver.sim.apiserver.http.handlers import Handlers
from dra_driver.sim.apiserver.http.injection import Injector
from dra_driver.sim.apiserver.objects.releases import DEFAULT, served
from dra_driver.sim.apiserver.objects.status import Raw, StatusError
from dra_driver.sim.apiserver.storage.journal import Journal
from dra_driver.sim.apiserver.storage.store import HISTORY, Key, Store
from dra_driver.sim.apiserver.writing.options import Options
from dra_driver.sim.apiserver.writing.registry import Registry
from dra_driver.sim.apiserver.writing.webhooks import Services
from dra_driver.sim.faults import FaultPlan

__all__ = ["ApiServer"]

_NAMESPACES = ("default", "kube-system", "kube-public", "kube-node-lease")
_SHUTDOWN_SECONDS = 1.0
_BODY_LIMIT = 3 * 1024 * 1024  # as the real server's


class ApiServer:
    """An API server in this process.

    Attributes:
        store: its objects; tests may read them, writers should use HTTP.
        registry: the verbs without HTTP, for callers in the same process.
        url: where it listens; empty before ``start``.

    Args:
        token: bearer token that every request must carry; if None, none is needed.
        tls: context for HTTPS; if None, it serves HTTP.
        history: number of events per kind that are kept for watches and for lists of older versions.
        clock: returns seconds since the epoch, for timestamps.
        faults: plan that is in force from the start on.
        services: ``NAMESPACE/NAME`` of a Service → the ``HOST:PORT`` behind it, for webhooks.
        data: file that keeps the objects over restarts; if None, they are kept in memory.
        audit: called with every request when its head has arrived, before it is handled.
        answered: called with every request and the status of its answer, in the step that does a write.
        kubernetes: release of Kubernetes that it serves the API of, see ``releases``.
        gates: its feature gates that are on, of those that are off by default.

    Raises:
        ConfigurationError: the file cannot be used, or there is no such release or gate.
    """

    def __init__(
        self,
        *,
        token: str | None = None,
        tls: ssl.SSLContext | None = None,
        history: int = HISTORY,
        clock: Callable[[], float] = time.time,
        faults: FaultPlan | None = None,
        services: Services | None = None,
        data: Path | None = None,
        audit: Callable[[web.BaseRequest], None] = lambda _: None,
        answered: Callable[[web.BaseRequest, int], None] = lambda _request, _status: None,
        kubernetes: str = DEFAULT,
        gates: Iterable[str] = (),
    ) -> None:
        offered = served(kubernetes, gates)
        self._journal = Journal(data) if data is not None else None
        self.store = Store(history, self._journal)
        self._jumped = 0.0
        self.registry = Registry(self.store, lambda: clock() + self._jumped + self._jumping(), offered)
        self.url = ""
        self._address = ("", 0)
        self._token = token
        self._tls = tls
        self._audit = audit
        self._answered = answered
        self._handlers = Handlers(self.registry, token, services if services is not None else {})
        self._listening: tuple[asyncio.Server, _Server] | None = None
        self._faults = faults
        self._disturbing: asyncio.Task[None] | None = None
        self._outage_under_way: asyncio.Task[None] | None = None
        self.registry.restore()
        for name in _NAMESPACES:
            self._install_one({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})

    def set_pod_log(self, pod_log: Callable[[str, str, str], str]) -> None:
        """Set the function from which ``kubectl logs`` gets its text, by namespace, name and container."""
        self._handlers.pod_log = pod_log

    # --- faults ---

    def set_faults(self, plan: FaultPlan | None, *, exempt: tuple[str, ...] = ()) -> Injector | None:
        """Put a fault plan in force from now on, in the place of an earlier one.

        Jumps of the clock stay, and an outage that has begun ends when it would have. Statements for other
        processes and for disks are ignored.

        Args:
            plan: the plan; if None, no fault strikes any more.
            exempt: prefixes of User-Agents that no fault strikes.

        Raises:
            ConfigurationError: the plan names resources that are not served.
        """
        made = Injector(plan, self.store, self._handlers.watches, exempt) if plan is not None else None
        if made is not None:
            made.check(self.registry.kinds)
        self._jumped += self._jumping()
        if self._disturbing is not None:
            self._disturbing.cancel()
            self._disturbing = None
        self._handlers.injector = made
        if made is not None:
            self._disturbing = asyncio.get_running_loop().create_task(made.run(self._outage))
        return made

    def _jumping(self) -> float:
        injector = self._handlers.injector
        return injector.offset if injector is not None else 0.0

    async def _outage(self, seconds: float | None) -> None:
        """Stop as if killed: connections are cut and the port is closed. Objects stay, as etcd keeps them."""
        if self._outage_under_way is not None:
            await asyncio.wait({self._outage_under_way})
        # A task of its own: who ends the plan meanwhile must not leave the server down for ever.
        self._outage_under_way = asyncio.get_running_loop().create_task(self._be_down(seconds))
        await asyncio.shield(self._outage_under_way)

    async def _be_down(self, seconds: float | None) -> None:
        host, port = self._address
        await self._close(cut=True)
        if seconds is not None:
            await asyncio.sleep(seconds)
            self._handlers.stopping = False
            await self._listen(host, port)

    # --- life ---

    async def start(self, host: str = "127.0.0.1", port: int = 0) -> None:
        """Listen on an address; port 0 is any free one.

        Raises:
            ConfigurationError: the plan of faults names what is not there.
            DraError: the address cannot be used.
        """
        await self._listen(host, port)
        if self._faults is not None:
            try:
                self.set_faults(self._faults)
            except BaseException:
                await self.stop()
                raise

    async def _listen(self, host: str, port: int) -> None:
        server = _Server(self._handle, request_factory=_request, access_log=None, handler_cancellation=True)
        try:
            listening = await asyncio.get_running_loop().create_server(
                server, host, port, ssl=self._tls, backlog=128, reuse_address=True
            )
        except OSError as e:
            raise DraError(f"the API server cannot listen on {host}:{port}: {e.strerror or e}") from e
        self._listening = listening, server
        bound = listening.sockets[0].getsockname()
        self._address = (bound[0], bound[1])
        self.url = f"{'https' if self._tls else 'http'}://{bound[0]}:{bound[1]}"

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        self._audit(request)
        answer = await self._handlers.handle(request)
        self._answered(request, answer.status)
        return answer

    async def stop(self) -> None:
        """End every watch and close the connections."""
        for task in (self._disturbing, self._outage_under_way):
            if task is not None:
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task
        self._disturbing = self._outage_under_way = None
        await self._close()
        await self._handlers.webhooks.close()
        if self._journal is not None:
            self._journal.close()

    async def _close(self, *, cut: bool = False) -> None:
        self._handlers.stopping = True
        for collection in self.store.collections():
            collection.wake()
        if self._listening is None:
            return
        (listening, server), self._listening = self._listening, None
        server.closed = True
        if cut:
            for connection in server.connections:
                if connection.transport is not None:
                    connection.transport.abort()
        await _close_port(listening)
        server.pre_shutdown()
        await server.shutdown(_SHUTDOWN_SECONDS)

    async def __aenter__(self) -> ApiServer:
        if not self.url:
            await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    def kubeconfig(self, account: tuple[str, str] | None = None) -> Raw:
        """Return a kubeconfig as data.

        Args:
            account: namespace and name of the service account whose it is; if None, an administrator's.
        """
        cluster: Raw = {"server": self.url}
        if self._tls is not None:
            cluster["insecure-skip-tls-verify"] = True
        token = self._token if account is None else self._handlers.token_of(*account)
        user: Raw = {"token": token} if token else {}
        return {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "sim", "cluster": cluster}],
            "users": [{"name": "admin", "user": user}],
            "contexts": [
                {"name": "sim", "context": {"cluster": "sim", "user": "admin", "namespace": "default"}}
            ],
            "current-context": "sim",
        }

    def write_kubeconfig(self, path: Path, account: tuple[str, str] | None = None) -> None:
        """Write a kubeconfig that only its owner can read, in one step.

        Args:
            path: of the file.
            account: as in ``kubeconfig``.

        Raises:
            ConfigurationError: the file cannot be written.
        """
        temporary = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            with os.fdopen(descriptor, "w") as f:
                yaml.safe_dump(self.kubeconfig(account), f, sort_keys=False)
            temporary.replace(path)
        except OSError as e:
            temporary.unlink(missing_ok=True)
            raise ConfigurationError(f"--kubeconfig {path}: cannot be written: {e.strerror or e}") from e

    async def install(self, manifests: Iterable[Mapping[str, Any]]) -> None:
        """Create or replace objects, without HTTP; objects without a namespace go into ``default``.

        Raises:
            StatusError: the server refuses one of them.
        """
        for manifest in manifests:
            self._install_one(manifest)

    def _install_one(self, manifest: Mapping[str, Any]) -> None:
        kind = self.registry.kinds.by_kind(str(manifest.get("apiVersion")), str(manifest.get("kind")))
        if kind is None:
            raise StatusError.bad_request(
                f"no kind {manifest.get('kind')!r} in version {manifest.get('apiVersion')!r}"
            )
        metadata = manifest.get("metadata") or {}
        namespace = (metadata.get("namespace") or "default") if kind.namespaced else ""
        options = Options(manager="dra-driver-sim")
        body = dict(manifest)
        if self.registry.collection(kind).get(Key(namespace, str(metadata.get("name", "")))) is None:
            self.registry.create(kind, namespace, body, options)
        else:
            self.registry.patch(kind, namespace, metadata["name"], "merge", body, options)


class _Server(web.Server):
    """Ends connections that were accepted before the port was closed and are made after it.

    Nothing else would: whoever shuts the server down ends the connections that there are.

    Attributes:
        closed: whether no more connections are wanted.
    """

    closed = False

    def connection_made(self, handler: Any, transport: asyncio.Transport) -> None:
        super().connection_made(handler, transport)
        if self.closed:
            transport.abort()


async def _close_port(listening: asyncio.Server) -> None:
    """Close a port, once all that were accepted are connections of the server.

    Python 3.11 drops one that is accepted in the turns of the loop before, without closing it (gh-109564).
    """
    loop = asyncio.get_running_loop()
    for sock in listening.sockets:
        loop.remove_reader(sock.fileno())
    for _ in range(3):
        await asyncio.sleep(0)
    listening.close()


def _request(message: Any, payload: Any, protocol: Any, writer: Any, task: Any) -> web.BaseRequest:
    return web.BaseRequest(
        message, payload, protocol, writer, task, protocol._loop, client_max_size=_BODY_LIMIT
    )
