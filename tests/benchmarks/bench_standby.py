"""Memory of standby replicas of the controller, without the page and with it.

Nodes of 8 GPUs with their MIG profiles, four pods on each. The Lease of the measurement belongs to nobody and
does not expire, so the replicas stay standbys however busy the machine is. The figures are those after the
first request for the page; the history of hours (24 MiB at most) comes on top. ``BENCH_STANDBY_NODES=1000``
measures that size of fleet alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from apiserver_support import Connection, Server, resident, server
from bench_controller import CONNECTIONS, NODES, Bench
from controller_process import ControllerProcess

from dra_driver.api.names import SYSTEM_NAMESPACE

Row = dict[str, Any]
FLEETS = (1000, 5000)
LEASE = "dra-driver-controller"
DEADLINE = 600.0


def _free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


@contextlib.contextmanager
def _replica(api: Server, log: Path, *flags: str) -> Iterator[ControllerProcess]:
    running = ControllerProcess(api.kubeconfig, log, *flags)
    try:
        yield running
    finally:
        running.stop()


def _open_page(port: int, nodes: int) -> None:
    """Read all that is shown, once the replica has it."""
    deadline = time.monotonic() + DEADLINE
    while time.monotonic() < deadline:
        with (
            contextlib.suppress(OSError),
            urllib.request.urlopen(f"http://127.0.0.1:{port}/fleet", timeout=60) as answer,
        ):
            if json.load(answer)["nodes"] == nodes:
                return
        time.sleep(0.5)
    raise RuntimeError(f"the page does not show {nodes} nodes after {DEADLINE:g} s")


async def _fill(api: Server, log: Path, nodes: int) -> None:
    links = [await Connection.open(api.port) for _ in range(CONNECTIONS)]
    try:
        await Bench(api, links, log, nodes / NODES).fill()
        now = datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
        held = {
            "holderIdentity": "other_",
            "leaseDurationSeconds": 86400,
            "acquireTime": now,
            "renewTime": now,
        }
        path = f"/apis/coordination.k8s.io/v1/namespaces/{SYSTEM_NAMESPACE}/leases"
        await links[0].call("POST", path, {"metadata": {"name": LEASE}, "spec": held})
    finally:
        for link in links:
            link.writer.close()


def _measure(api: Server, log: Path, nodes: int) -> Iterator[Row]:
    asyncio.run(_fill(api, log, nodes))
    with _replica(api, log, "--no-leader-elect") as publisher:
        publisher.wait_until_leading(DEADLINE)
        publisher.wait_until_quiet(3 * DEADLINE)
    port = _free_port()
    with _replica(api, log) as plain, _replica(api, log, "--web-port", str(port)) as page:
        _open_page(port, nodes)
        time.sleep(10)  # by then the allocator has returned what was needed only to decode the lists
        for what, replica in (("without the page", plain), ("with the page", page)):
            value, most = resident(replica.pid), resident(replica.pid, peak=True)
            name = f"memory of a standby {what}, {nodes} nodes"
            yield {"name": name, "value": round(value, 1), "unit": "MiB", "peak": round(most, 1)}


def run() -> Iterator[Row]:
    """Measure one size of fleet after the other, each on an API server of its own."""
    only = os.environ.get("BENCH_STANDBY_NODES")
    for nodes in (int(only),) if only else FLEETS:
        with tempfile.TemporaryDirectory() as directory, server() as api:
            yield from _measure(api, Path(directory, "controller.log"), nodes)


if __name__ == "__main__":
    for row in run():
        print(json.dumps(row), flush=True)
