"""The controller at scale: 5,000 nodes of 8 GPUs, 20,000 pods beside, on the embedded API server.

Run alone: ``python tests/benchmarks/bench_controller.py``. ``BENCH_CONTROLLER_SCALE=0.1`` makes it smaller.
API server and controller are processes of their own, the controller with its usual flags (with leader
election). Rates are given twice: by the clock, with the API server, the stand-ins and whatever else the
machine does; and per second of the controller's own processor time.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fleet_objects as fleet
from apiserver_support import MERGE_PATCH, Connection, Server, load, processor, resident, server
from cluster_standins import StandIns
from controller_process import ControllerProcess

from dra_driver.api.names import SYSTEM_NAMESPACE

NODES, PODS, CLAIMS, TEMPLATE_PODS, CHANGES = 5000, 20_000, 3000, 2000, 30
CONNECTIONS = 4
AIM = "aim"
Row = dict[str, Any]


def _row(name: str, value: float, unit: str, aim: float | None = None) -> Row:
    more = {"baseline": aim, "baseline_of": AIM} if aim is not None else {}
    return {"name": name, "value": round(value, 3), "unit": unit, **more}


class Bench:
    """One run over a loaded API server."""

    def __init__(self, api: Server, links: list[Connection], log: Path, scale: float) -> None:
        self._api = api
        self._links = links
        self._log = log
        self._size = {
            name: max(CONNECTIONS, int(full * scale))
            for name, full in (
                ("nodes", NODES),
                ("pods", PODS),
                ("claims", CLAIMS),
                ("template pods", TEMPLATE_PODS),
                ("changes", CHANGES),
            )
        }
        self.rows: list[Row] = []

    async def run(self) -> None:
        """All measurements, in an order in which each prepares the next."""
        await self.fill()
        await self._first_publication()
        await self._restart()
        await self._change()
        await self._claims_of_a_backlog()
        await self._claims_live()
        await self._pods()

    def _start(self) -> ControllerProcess:
        return ControllerProcess(self._api.kubeconfig, self._log)

    async def fill(self) -> None:
        """Nodes, their inventories, and pods beside."""
        nodes, make = self._size["nodes"], fleet.inventories()
        await self._links[0].call("POST", "/api/v1/namespaces", {"metadata": {"name": SYSTEM_NAMESPACE}})
        await load(self._links, ((fleet.NODES, fleet.node(i)) for i in range(nodes)))
        found = await self._items(fleet.NODES)
        uids = {n["metadata"]["name"]: n["metadata"]["uid"] for n in found}

        async def one(link: Connection, start: int) -> None:
            for i in range(start, nodes, len(self._links)):
                body = make(i, uids[fleet.node_name(i)])
                await link.call("POST", fleet.INVENTORIES, body)
                status = {"status": {"registration": {"registered": True, "epoch": 1}}}
                path = f"{fleet.INVENTORIES}/{body['metadata']['name']}/status"
                await link.call("PATCH", path, status, MERGE_PATCH)

        async with asyncio.TaskGroup() as group:
            for i, link in enumerate(self._links):
                group.create_task(one(link, i))
        await load(self._links, fleet.busy_pods(self._size["pods"], nodes))
        template = {"metadata": {"name": "gpu"}, "spec": {"spec": fleet.CLAIM_SPEC}}
        await self._links[0].call("POST", fleet.TEMPLATES, template)
        name = f"API server's memory with {nodes} nodes, {8 * nodes} devices, {self._size['pods']} pods"
        self.rows.append(_row(name, resident(self._api.pid), "MiB"))

    async def _items(self, path: str) -> list[dict[str, Any]]:
        items: list[dict[str, Any]] = []
        token = ""
        while True:
            page = await self._links[0].call("GET", f"{path}?limit=500&continue={token}")
            items += page["items"]
            token = page["metadata"].get("continue", "")
            if not token:
                return items

    async def _versions(self) -> dict[str, str]:
        found = [*await self._items(fleet.SLICES), *await self._items(fleet.INVENTORIES)]
        return {o["metadata"]["uid"]: o["metadata"]["resourceVersion"] for o in found}

    async def _first_publication(self) -> None:
        nodes = self._size["nodes"]
        running = self._start()
        try:
            ready = await asyncio.to_thread(running.wait_until_leading, 120)
            quiet = await asyncio.to_thread(running.wait_until_quiet, 600)
            calls = running.calls()
            spent, memory = running.processor(), resident(running.pid)
        finally:
            ended = running.stop()
        slices = len(await self._items(fleet.SLICES))
        if slices < nodes:
            raise RuntimeError(f"{slices} of {nodes} slices were published: {dict(calls)}")
        self.rows += [
            _row("first start, ready", ready, "s"),
            _row(f"first publication of {nodes} nodes", quiet, "s"),
            _row("first publication, controller's processor time", spent, "s"),
            *(_row(f"first publication, {what}", n, "writes") for what, n in _by_kind(calls).items()),
            _row("memory after first publication", memory, "MiB", 700),
            _row("SIGTERM to end", ended, "s"),
        ]

    async def _restart(self) -> None:
        before = await self._versions()
        running = self._start()
        try:
            ready = await asyncio.to_thread(running.wait_until_leading, 120)
            cpu = running.processor()
            await asyncio.to_thread(running.wait_until_quiet, 600, 3.0)
            written = sum(running.calls().values()) - _dry_runs(running.calls())
            memory = resident(running.pid)
            peak = resident(running.pid, peak=True)
        finally:
            running.stop()
        after = await self._versions()
        changed = sum(1 for uid in before.keys() | after.keys() if before.get(uid) != after.get(uid))
        self.rows += [
            _row("restart with everything in place, ready", ready, "s", 10),
            _row("restart, controller's processor time until ready", cpu, "s"),
            _row("restart, writes", written, "writes"),
            _row("restart, slices and inventories changed", changed, "objects"),
            _row("memory after restart", memory, "MiB", 700),
            _row("memory after restart, peak", peak, "MiB"),
        ]

    async def _change(self) -> None:
        """A device of one node becomes unhealthy; from the answer to that write to the slice's event."""
        seen: asyncio.Queue[tuple[str, float]] = asyncio.Queue()
        lister, watcher = await Connection.open(self._api.port), await Connection.open(self._api.port)
        with self._running() as running:
            await asyncio.to_thread(running.wait_until_leading, 120)
            await asyncio.to_thread(running.wait_until_quiet, 600)
            version = (await lister.call("GET", f"{fleet.SLICES}?limit=1"))["metadata"]["resourceVersion"]

            async def follow() -> None:
                async for event in watcher.events(f"{fleet.SLICES}?watch=1&resourceVersion={version}"):
                    seen.put_nowait((event["object"]["spec"]["nodeName"], time.monotonic()))

            task = asyncio.create_task(follow())
            seconds = [await self._one_change(lister, i, seen) for i in range(self._size["changes"])]
            task.cancel()
            await asyncio.wait({task})
        self.rows += [
            _row("change of one node to its slice, median", 1e3 * statistics.median(seconds), "ms", 100),
            _row("change of one node to its slice, slowest", 1e3 * max(seconds), "ms"),
        ]

    async def _one_change(
        self, link: Connection, number: int, seen: asyncio.Queue[tuple[str, float]]
    ) -> float:
        name = fleet.node_name(number * 7 % self._size["nodes"])
        path = f"{fleet.INVENTORIES}/{name}.gpu.dra-driver.dev"
        inventory = await link.call("GET", path)
        devices = inventory["spec"]["devices"]
        devices[0]["health"] = [{"reason": "XidError", "severity": "failed", "message": "Xid 79"}]
        await asyncio.sleep(0.05)
        started = time.monotonic()
        await link.call("PATCH", path, {"spec": {"devices": devices}}, MERGE_PATCH)
        async with asyncio.timeout(30):
            node, at = await seen.get()
        if node != name:
            raise RuntimeError(f"the slice of {node} changed, not that of {name}")
        return at - started

    @contextlib.contextmanager
    def _running(self) -> Iterator[ControllerProcess]:
        running = self._start()
        try:
            yield running
        finally:
            running.stop()

    def _waiting_pods(self, prefix: str, number: int) -> list[tuple[str, dict[str, Any]]]:
        return [
            (fleet.PODS, fleet.pod(f"{prefix}-{i}", claim={"resourceClaimName": f"{prefix}-{i}"}))
            for i in range(number)
        ]

    async def _claims_of_a_backlog(self) -> None:
        """Pods and their claims are there already when the controller starts."""
        number = self._size["claims"]
        await load(self._links, ((fleet.CLAIMS, fleet.claim(f"backlog-{i}")) for i in range(number)))
        await load(self._links, self._waiting_pods("backlog", number))
        async with self._following(live=False) as standins:
            with self._running() as running:
                await asyncio.to_thread(running.wait_until_leading, 120)
                started, cpu, theirs = time.monotonic(), running.processor(), processor(self._api.pid)
                await _until(standins.ungated, number)
                took = max(standins.ungated.values()) - started
                cpu, theirs = running.processor() - cpu, processor(self._api.pid) - theirs
        self.rows += [
            _row("claims allocated, of a backlog", number / took, "claims/s", 300),
            _row("claims allocated, of a backlog, per processor second", number / cpu, "claims/s", 300),
            _row("claims of a backlog, API server's share of a core", theirs / took, ""),
        ]
        await self._check("backlog", number)

    async def _claims_live(self) -> None:
        """Pods come one after the other, as fast as they can be created."""
        number = self._size["claims"]
        await load(self._links, ((fleet.CLAIMS, fleet.claim(f"live-{i}")) for i in range(number)))
        pods = self._waiting_pods("live", number)
        async with self._following(live=False) as standins:
            with self._running() as running:
                await asyncio.to_thread(running.wait_until_leading, 120)
                await asyncio.to_thread(running.wait_until_quiet, 120, 1.0)
                started, cpu = time.monotonic(), running.processor()
                await load(self._links, pods)
                await _until(standins.ungated, number)
                took = max(standins.ungated.values()) - started
                cpu = running.processor() - cpu
        self.rows += [
            _row("claims allocated, while their pods are created", number / took, "claims/s", 300),
            _row("claims allocated live, per processor second", number / cpu, "claims/s", 300),
        ]
        await self._check("live", number)

    async def _pods(self) -> None:
        number = self._size["template pods"]
        entry = {"resourceClaimTemplateName": "gpu"}
        pods = [(fleet.PODS, fleet.pod(f"job-{i}", claim=entry)) for i in range(number)]
        async with self._following(live=True) as standins:
            with self._running() as running:
                await asyncio.to_thread(running.wait_until_leading, 120)
                await asyncio.to_thread(running.wait_until_quiet, 120, 1.0)
                started, cpu, theirs = time.monotonic(), running.processor(), processor(self._api.pid)
                await load(self._links, pods)
                await _until(standins.running, number)
                took = max(standins.running.values()) - started
                cpu, theirs = running.processor() - cpu, processor(self._api.pid) - theirs
                memory = resident(running.pid)
        self.rows += [
            _row("pods from a template, created to running", number / took, "pods/s", 100),
            _row("pods from a template, per controller's processor second", number / cpu, "pods/s", 100),
            _row("pods from a template, API server's share of a core", theirs / took, ""),
            _row("memory at the end", memory, "MiB", 700),
        ]
        await self._check("job", number)

    @contextlib.asynccontextmanager
    async def _following(self, *, live: bool) -> Any:
        links = [await Connection.open(self._api.port) for _ in range(CONNECTIONS)]
        standins = StandIns(self._api.port, links, live=live)
        task = asyncio.create_task(standins.run())
        await standins.watching.wait()
        try:
            yield standins
        finally:
            task.cancel()
            await asyncio.wait({task})
            if not task.cancelled():
                task.result()  # a stand-in failed, and that is why something did not come

    async def _check(self, prefix: str, number: int) -> None:
        """Every claim has a device, and no device two claims."""
        held: Counter[tuple[str, str]] = Counter()
        mine = 0
        for claim in await self._items(fleet.CLAIMS):
            results = claim["status"].get("allocation", {}).get("devices", {}).get("results", ())
            held.update((r["pool"], r["device"]) for r in results)
            mine += claim["metadata"]["name"].startswith(f"{prefix}-") and len(results) == 1
        twice = [d for d, n in held.items() if n > 1]
        if twice or mine != number:
            raise RuntimeError(f"{mine} of {number} claims are allocated, doubled: {twice[:5]}")


async def _until(seen: dict[str, float], number: int, seconds: float = 300.0) -> None:
    deadline = time.monotonic() + seconds
    while len(seen) < number:
        if time.monotonic() > deadline:
            raise RuntimeError(f"only {len(seen)} of {number} pods came so far in {seconds:g} s")
        await asyncio.sleep(0.01)


def _dry_runs(calls: Counter[tuple[str, str, str]]) -> int:
    """The controller asks by three dry runs what the server keeps."""
    return min(
        3, sum(n for (verb, kind, _), n in calls.items() if (verb, kind) == ("create", "resourceslices"))
    )


def _by_kind(calls: Counter[tuple[str, str, str]]) -> dict[str, int]:
    found: Counter[str] = Counter()
    for (verb, kind, code), number in sorted(calls.items()):
        found[f"{verb} {kind} {code}"] += number
    return found


async def _measure(api: Server, log: Path, scale: float) -> list[Row]:
    links = [await Connection.open(api.port) for _ in range(CONNECTIONS)]
    bench = Bench(api, links, log, scale)
    try:
        await bench.run()
    except BaseException:
        print(log.read_text(errors="replace")[-4000:])
        for row in bench.rows:
            print(row)
        raise
    finally:
        for link in links:
            link.writer.close()
    return bench.rows


def run() -> list[Row]:
    """The rows."""
    scale = float(os.environ.get("BENCH_CONTROLLER_SCALE", "1"))
    with tempfile.TemporaryDirectory() as directory, server() as api:
        return asyncio.run(_measure(api, Path(directory, "controller.log"), scale))


if __name__ == "__main__":
    print(f"load average {os.getloadavg()[0]:.2f}")
    for row in run():
        aim = f" (aim {row['baseline']})" if "baseline" in row else ""
        print(f"{row['name']}: {row['value']:,} {row['unit']}{aim}")
    print(f"load average {os.getloadavg()[0]:.2f}")
