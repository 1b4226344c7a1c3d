"""A real kube-scheduler beside a real API server, behind a proxy that can hold back its requests.

Nodes are objects only: pods are bound and never run. What kube-scheduler writes, and when, is all that these
tests look at.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import socket
import ssl
import subprocess
from collections.abc import AsyncIterator
from http import HTTPStatus
from pathlib import Path

import aiohttp
import yaml
from aiohttp import web
from real_apiserver import ADMIN, RealApiServer, binaries

__all__ = ["RealScheduler", "real_scheduler"]

_DROPPED = ("host", "transfer-encoding", "content-length", "connection")


class RealScheduler:
    """A running kube-scheduler.

    Attributes:
        slow_binding: seconds by which each reservation of a claim (``PreBind``) is held back.
        writes: method and path of every request but reads, in the order in which they came.
        refused: paths of writes that the API server has refused.
        log: of the process.
    """

    def __init__(self, url: str, folder: Path, *flags: str) -> None:
        self.slow_binding = 0.0
        self._flags = flags
        self.writes: list[tuple[str, str]] = []
        self.refused: list[str] = []
        self.log = folder / "scheduler.log"
        self._url = url
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        self._session: aiohttp.ClientSession | None = None
        self._port = 0

    # --- the proxy ------------------------------------------------------------------------------------------

    @contextlib.asynccontextmanager
    async def proxying(self) -> AsyncIterator[None]:
        """Serve the proxy while the block runs."""
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        connector = aiohttp.TCPConnector(ssl=context, limit=0)
        timeout = aiohttp.ClientTimeout(total=None)
        async with aiohttp.ClientSession(
            connector=connector, timeout=timeout, auto_decompress=False
        ) as session:
            self._session = session
            runner = web.ServerRunner(web.Server(self._pass_on), shutdown_timeout=0.1)
            await runner.setup()
            with socket.socket() as bound:
                bound.bind(("127.0.0.1", 0))
                self._port = bound.getsockname()[1]
                await web.SockSite(runner, bound).start()
                try:
                    yield
                finally:
                    await runner.cleanup()

    async def _pass_on(self, request: web.BaseRequest) -> web.StreamResponse:
        assert self._session is not None
        body = await request.read()
        if request.method != "GET":
            self.writes.append((request.method, request.path))
        if request.method == "PUT" and re.search(r"/resourceclaims/[^/]+/status$", request.path):
            await asyncio.sleep(self.slow_binding)
        headers = {k: v for k, v in request.headers.items() if k.lower() not in _DROPPED}
        headers["Authorization"] = f"Bearer {ADMIN}"
        async with self._session.request(
            request.method,
            self._url + str(request.rel_url),
            data=body or None,
            headers=headers,
        ) as answer:
            if request.method != "GET" and answer.status == HTTPStatus.FORBIDDEN:
                self.refused.append(request.path)
            kept = {k: v for k, v in answer.headers.items() if k.lower() not in _DROPPED}
            response = web.StreamResponse(status=answer.status, headers=kept)
            await response.prepare(request)
            async for chunk in answer.content.iter_any():
                await response.write(chunk)
            await response.write_eof()
            return response

    # --- the process ----------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the process."""
        server = {"server": f"http://127.0.0.1:{self._port}"}
        config = self._folder / "scheduler.kubeconfig"
        body = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "real", "cluster": server}],
            "users": [{"name": "user", "user": {"token": ADMIN}}],
            "contexts": [{"name": "real", "context": {"cluster": "real", "user": "user"}}],
            "current-context": "real",
        }
        config.write_text(yaml.safe_dump(body))
        command = [
            str(binaries() / "kube-scheduler"),
            f"--kubeconfig={config}",
            "--leader-elect=false",
            "--secure-port=0",
            "--v=3",
            *self._flags,
        ]
        with self.log.open("ab") as out:
            self._process = subprocess.Popen(command, stdout=out, stderr=out)

    def stop(self) -> None:
        """End the process with SIGKILL, if it still runs."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(signal.SIGKILL)
            self._process.wait()
            self._process = None

    @property
    def runs(self) -> bool:
        """Whether the process has not ended by itself."""
        return self._process is not None and self._process.poll() is None


@contextlib.asynccontextmanager
async def real_scheduler(server: RealApiServer, folder: Path, *flags: str) -> AsyncIterator[RealScheduler]:
    """Run a kube-scheduler with its default configuration, but for the flags, while the block runs."""
    assert os.access(binaries() / "kube-scheduler", os.X_OK)
    scheduler = RealScheduler(server.url, folder, *flags)
    async with scheduler.proxying():
        scheduler.start()
        try:
            yield scheduler
        finally:
            scheduler.stop()
