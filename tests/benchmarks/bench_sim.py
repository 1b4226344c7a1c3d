"""The embedded API server at scale: 5,000 nodes, 40,000 devices, 20,000 pods, then writes under ten watches.

Run alone: ``python tests/benchmarks/bench_sim.py``. ``BENCH_SIM_SCALE=0.1`` makes everything smaller.
The server is a process of its own. Its rate of writes is given twice: by the clock, with whatever else the
machine does, and per second of its own processor time, which is what one core can do.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

NODES, PODS, DEVICES_PER_NODE = 5000, 20_000, 8
WATCHES, CONNECTIONS, SECONDS = 10, 4, 5.0
MEMORY_MIB, WRITES = 1536, 800
"""What the embedded cluster promises."""
TICKS = os.sysconf("SC_CLK_TCK")
ROOT = Path(__file__).parents[2]


class Connection:
    """HTTP/1.1 with nothing on top: the client must not be what is measured."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def send(self, method: str, path: str, body: bytes, content_type: str = "application/json") -> None:
        """Sends a request, reads the answer.

        Raises:
            RuntimeError: it was refused.
        """
        self.writer.write(
            f"{method} {path} HTTP/1.1\r\nHost: x\r\nContent-Type: {content_type}\r\n"
            f"Content-Length: {len(body)}\r\n\r\n".encode()
            + body
        )
        head = (await self.reader.readuntil(b"\r\n\r\n")).decode()
        length = next(int(h[15:]) for h in head.split("\r\n") if h.lower().startswith("content-length:"))
        answer = await self.reader.readexactly(length)
        if not head.startswith("HTTP/1.1 20"):
            raise RuntimeError(f"{method} {path}: {answer[:300]!r}")


def _node(i: int) -> tuple[str, dict[str, Any]]:
    capacity = {"cpu": "64", "memory": "512Gi", "pods": "110"}
    return "/api/v1/nodes", {
        "metadata": {"name": f"node-{i}", "labels": {"kubernetes.io/hostname": f"node-{i}"}},
        "status": {"capacity": capacity, "allocatable": capacity},
    }


def _slice(i: int) -> tuple[str, dict[str, Any]]:
    devices = [
        {
            "name": f"gpu-0000-{d:02x}-00-0",
            "attributes": {
                "model": {"string": "H100-SXM5-80GB"},
                "uuid": {"string": f"GPU-{i:08x}-{d:04x}"},
                "index": {"int": d},
                "resource.kubernetes.io/pcieRoot": {"string": f"pci0000:{d:02x}"},
            },
            "capacity": {"memory": {"value": "80Gi"}},
        }
        for d in range(DEVICES_PER_NODE)
    ]
    pool = {"name": f"node-{i}", "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": "gpu.dra-driver.dev", "nodeName": f"node-{i}", "pool": pool, "devices": devices}
    return "/apis/resource.k8s.io/v1/resourceslices", {"metadata": {"name": f"slice-{i}"}, "spec": spec}


def _pod(i: int) -> tuple[str, dict[str, Any]]:
    spec = {
        "nodeName": f"node-{i % NODES}",
        "containers": [{"name": "c", "image": "busybox", "resources": {"claims": [{"name": "gpu"}]}}],
        "resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "gpu"}],
    }
    return "/api/v1/namespaces/default/pods", {"metadata": {"name": f"pod-{i}"}, "spec": spec}


@contextlib.contextmanager
def _server() -> Iterator[tuple[int, int]]:
    """Process id and port of a server."""
    with tempfile.TemporaryDirectory() as directory:
        command = [sys.executable, "-m", "dra_driver.cli.main", "sim", "apiserver", "--kubeconfig"]
        process = subprocess.Popen(
            [*command, f"{directory}/kubeconfig"],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        assert process.stdout is not None
        try:
            line = process.stdout.readline()
            yield process.pid, int(line.split(",")[0].rpartition(":")[2])
        finally:
            process.terminate()
            process.wait(20)
            process.stdout.close()


def _resident(pid: int) -> float:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(x for x in lines if x.startswith("VmRSS")).split()[1]) / 1024


def _processor(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


async def _load(connections: list[Connection], requests: Iterable[tuple[str, dict[str, Any]]]) -> int:
    waiting = iter(requests)
    done = 0

    async def work(connection: Connection) -> None:
        nonlocal done
        for path, body in waiting:
            await connection.send("POST", path, json.dumps(body).encode())
            done += 1

    async with asyncio.TaskGroup() as group:
        for connection in connections:
            group.create_task(work(connection))
    return done


async def _watch(connection: Connection) -> int:
    """Bytes of events until cancelled."""
    connection.writer.write(b"GET /api/v1/pods?watch=1&resourceVersion=0 HTTP/1.1\r\nHost: x\r\n\r\n")
    seen = 0
    with contextlib.suppress(asyncio.CancelledError):
        while data := await connection.reader.read(1 << 20):
            seen += len(data)
    return seen


async def _writes(connections: list[Connection], pods: int) -> int:
    end = time.monotonic() + SECONDS
    done = 0

    async def work(connection: Connection, index: int) -> None:
        nonlocal done
        while time.monotonic() < end:
            path = f"/api/v1/namespaces/default/pods/pod-{(done * 7 + index) % pods}/status"
            body = json.dumps({"status": {"message": str(done)}}).encode()
            await connection.send("PATCH", path, body, "application/merge-patch+json")
            done += 1

    async with asyncio.TaskGroup() as group:
        for i, connection in enumerate(connections):
            group.create_task(work(connection, i))
    return done


async def _measure(pid: int, port: int, scale: float) -> list[dict[str, Any]]:
    nodes, pods = max(1, int(NODES * scale)), max(CONNECTIONS, int(PODS * scale))
    links = [
        Connection(*await asyncio.open_connection("127.0.0.1", port, limit=1 << 22))
        for _ in range(CONNECTIONS + WATCHES)
    ]
    connections, watches = links[:CONNECTIONS], links[CONNECTIONS:]
    started = time.monotonic()
    loaded = await _load(connections, map(_node, range(nodes)))
    loaded += await _load(connections, map(_slice, range(nodes)))
    loaded += await _load(connections, map(_pod, range(pods)))
    loading = time.monotonic() - started
    memory = _resident(pid)
    tasks = [asyncio.create_task(_watch(w)) for w in watches]
    await asyncio.sleep(3.0)  # every watch gets all pods first
    before, started = _processor(pid), time.monotonic()
    written = await _writes(connections, pods)
    wall, processor = time.monotonic() - started, _processor(pid) - before
    for task in tasks:
        task.cancel()
    for task in tasks:
        await task
    for link in links:
        link.writer.close()
    promised = {"baseline_of": "promise"}
    size = f"{nodes} nodes, {nodes * DEVICES_PER_NODE} devices, {pods} pods"
    return [
        {
            "name": f"memory with {size}",
            "value": round(memory, 1),
            "unit": "MiB",
            "baseline": MEMORY_MIB,
            **promised,
        },
        {"name": "creating them", "value": round(loaded / loading, 1), "unit": "objects/s"},
        {
            "name": f"writes with {WATCHES} watches, by the clock",
            "value": round(written / wall, 1),
            "unit": "writes/s",
            "baseline": WRITES,
            **promised,
        },
        {
            "name": f"writes with {WATCHES} watches, per processor second",
            "value": round(written / processor, 1),
            "unit": "writes/s",
            "baseline": WRITES,
            **promised,
        },
    ]


def run() -> list[dict[str, Any]]:
    """The rows."""
    scale = float(os.environ.get("BENCH_SIM_SCALE", "1"))
    with _server() as (pid, port):
        return asyncio.run(_measure(pid, port, scale))


if __name__ == "__main__":
    for row in run():
        print(f"{row['name']}: {row['value']:,} {row['unit']}")
