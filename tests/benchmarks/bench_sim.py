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
import time
from typing import Any

from apiserver_support import Connection, load, processor, resident, server

NODES, PODS, DEVICES_PER_NODE = 5000, 20_000, 8
WATCHES, CONNECTIONS, SECONDS = 10, 4, 5.0
MEMORY_MIB, WRITES = 1536, 800
"""What the embedded cluster promises."""


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
    links = [await Connection.open(port) for _ in range(CONNECTIONS + WATCHES)]
    connections, watches = links[:CONNECTIONS], links[CONNECTIONS:]
    started = time.monotonic()
    loaded = await load(connections, map(_node, range(nodes)))
    loaded += await load(connections, map(_slice, range(nodes)))
    loaded += await load(connections, map(_pod, range(pods)))
    loading = time.monotonic() - started
    memory = resident(pid)
    tasks = [asyncio.create_task(_watch(w)) for w in watches]
    await asyncio.sleep(3.0)  # every watch gets all pods first
    before, started = processor(pid), time.monotonic()
    written = await _writes(connections, pods)
    wall, spent = time.monotonic() - started, processor(pid) - before
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
            "value": round(written / spent, 1),
            "unit": "writes/s",
            "baseline": WRITES,
            **promised,
        },
    ]


def run() -> list[dict[str, Any]]:
    """The rows."""
    scale = float(os.environ.get("BENCH_SIM_SCALE", "1"))
    with server() as api:
        return asyncio.run(_measure(api.pid, api.port, scale))


if __name__ == "__main__":
    for row in run():
        print(f"{row['name']}: {row['value']:,} {row['unit']}")
