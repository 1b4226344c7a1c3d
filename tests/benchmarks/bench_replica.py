"""Memory of all processes of a leading replica of the controller: what the chart's request is set from.

The controller, the process that decides and the one that reviews, a while after the start, with nodes of 8
GPUs and four pods on each. ``BENCH_REPLICA_NODES=500`` measures that size of fleet alone.
"""

from __future__ import annotations

import asyncio
import json
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from apiserver_support import Connection, Server, server
from bench_controller import CONNECTIONS, NODES, Bench
from controller_process import ControllerProcess

Row = dict[str, Any]
FLEETS = (0, 100, 500, 1000)
DEADLINE = 600.0
_REST_SECONDS = 15.0  # by then the allocator has returned what was needed only to decode the lists


def _tree(pid: int) -> list[int]:
    """Return a process and all below it."""
    threads = Path(f"/proc/{pid}/task").iterdir()
    children = [child for thread in threads for child in (thread / "children").read_text().split()]
    return [pid, *(found for child in children for found in _tree(int(child)))]


def _memory(pids: list[int]) -> float:
    """Return what a container with these processes takes, in MiB: their own memory, and mapped files once."""
    own, files = 0, 0
    for pid in pids:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text()
        size = {line.split()[0]: int(line.split()[1]) for line in text.splitlines()[1:]}
        own += size["Pss_Anon:"] + size["Pss_Shmem:"]
        files = max(files, size["Rss:"] - size["Anonymous:"])
    return (own + files) / 1024


async def _fill(api: Server, log: Path, nodes: int) -> None:
    links = [await Connection.open(api.port) for _ in range(CONNECTIONS)]
    try:
        if nodes:
            await Bench(api, links, log, nodes / NODES).fill()
    finally:
        for link in links:
            link.writer.close()


def _measure(api: Server, log: Path, nodes: int) -> Iterator[Row]:
    asyncio.run(_fill(api, log, nodes))
    reviews = ("--admission-host=127.0.0.1", "--admission-port=0")
    running = ControllerProcess(api.kubeconfig, log, "--no-leader-elect", *reviews)
    try:
        running.wait_until_leading(DEADLINE)
        running.wait_until_quiet(3 * DEADLINE)
        time.sleep(_REST_SECONDS)
        yield _row(running, nodes)
    finally:
        running.stop()


def _row(running: ControllerProcess, nodes: int) -> Row:
    pids = _tree(running.pid)
    if len(pids) < 3:
        raise RuntimeError(f"the replica has only the processes {pids}")
    name = f"memory of a leading replica at rest, {nodes} nodes"
    return {"name": name, "value": round(_memory(pids), 1), "unit": "MiB"}


def run() -> Iterator[Row]:
    """Measure one size of fleet after the other, each on an API server of its own."""
    only = os.environ.get("BENCH_REPLICA_NODES")
    for nodes in (int(only),) if only else FLEETS:
        with tempfile.TemporaryDirectory() as directory, server() as api:
            yield from _measure(api, Path(directory, "controller.log"), nodes)


if __name__ == "__main__":
    for row in run():
        print(json.dumps(row), flush=True)
