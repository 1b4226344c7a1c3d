"""Thousands of connections that stop half-way, at webhooks in a process, and honest reviews beside."""

from __future__ import annotations

import asyncio
import base64
import json
import ssl
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
from connecting import (
    Begin,
    Crowd,
    allow_many_files,
    body_half_sent,
    handshake_half_done,
    handshake_half_sent,
    header_half_sent,
    idle_after_handshake,
    silent,
)

HERE = Path(__file__).parent
SUPPORT = HERE.parents[2] / "support"
MOST_MORE = 100 << 20
# As other pods than the API server have addresses of their own.
OTHERS = "127.0.0.9"

REVIEW = json.dumps(
    {
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "request": {
            "uid": "u",
            "kind": {"group": "resource.k8s.io", "version": "v1", "kind": "ResourceClaim"},
            "operation": "CREATE",
            "object": {"spec": {"devices": {}}},
        },
    }
).encode()


class Webhooks:
    """The processes: the controller's, and the one that reviews."""

    def __init__(
        self, process: asyncio.subprocess.Process, reviewer: int, port: int, authority: bytes
    ) -> None:
        self.process = process
        self.pids = (process.pid, reviewer)
        self.address = ("127.0.0.1", port)
        self.context = ssl.create_default_context(cadata=authority.decode())

    def memory(self) -> int:
        """What they have of their own and their part of what they share, in bytes (PSS)."""
        lines = [
            line
            for pid in self.pids
            for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
            if line.startswith("Pss:")
        ]
        assert len(lines) == len(self.pids)
        return sum(int(line.split()[1]) << 10 for line in lines)

    async def review(self) -> float:
        """One review on a connection of its own; how long it took, in seconds."""
        began = time.monotonic()
        reader, writer = await asyncio.open_connection(*self.address, ssl=self.context)
        try:
            head = f"Host: x\r\nContent-Type: application/json\r\nContent-Length: {len(REVIEW)}"
            writer.write(f"POST /validate HTTP/1.1\r\n{head}\r\nConnection: close\r\n\r\n".encode() + REVIEW)
            answer = await reader.read()
            assert b"200 OK" in answer
            assert b'"allowed":true' in answer
        finally:
            writer.transport.abort()
            with suppress(OSError):
                await writer.wait_closed()
        return time.monotonic() - began


@asynccontextmanager
async def webhooks() -> AsyncIterator[Webhooks]:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        str(HERE / "webhook_under_test.py"),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        env={"PYTHONPATH": str(SUPPORT), "PATH": "/usr/bin:/bin"},
        cwd=HERE.parents[3],
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        line = b""
        while not line.startswith(b"serving "):
            line = await process.stdout.readline()
            assert line
        _, port, authority, reviewer = line.split()
        yield Webhooks(process, int(reviewer), int(port), base64.b64decode(authority))
    finally:
        process.stdin.close()
        await process.wait()


KINDS: tuple[Begin, ...] = (
    silent,
    handshake_half_sent,
    handshake_half_done,
    idle_after_handshake,
    header_half_sent,
    body_half_sent,
)


# Without a limit even a thousand idle TLS connections take more than may be.
@pytest.mark.slow
@pytest.mark.sim
@pytest.mark.parametrize(
    ("idle", "half", "connections"),
    [
        ((silent, idle_after_handshake), (handshake_half_sent, header_half_sent), 100),
        *(
            pytest.param(*kinds, 10_000, marks=pytest.mark.long)
            for kinds in (
                ((silent,), (handshake_half_sent, handshake_half_done)),
                ((idle_after_handshake,), (header_half_sent, body_half_sent)),
            )
        ),
    ],
)
def test_ten_thousand_connections_cost_little_and_keep_no_review_out(
    idle: tuple[Begin, ...], half: tuple[Begin, ...], connections: int
) -> None:
    allow_many_files(connections + 1_000)

    async def scenario() -> None:
        async with webhooks() as server:
            for _ in range(5):
                await server.review()
            before = server.memory()
            most = before
            times: list[float] = []
            with Crowd(OTHERS).gathered() as crowd:
                async with asyncio.TaskGroup() as tasks:
                    coming = [
                        tasks.create_task(crowd.come(begin, server.address, number, threads=1))
                        for kinds in (idle, half)
                        for number in (connections // 2 // len(kinds),)
                        for begin in kinds
                    ]
                    while not all(task.done() for task in coming):
                        times.append(await server.review())
                        most = max(most, server.memory())
                        await asyncio.sleep(0.1)
                times += [await server.review() for _ in range(5)]
                most = max(most, server.memory())
                print(
                    f"{len(crowd.sockets)} connections, {crowd.refused} refused, {crowd.closed()} closed; "
                    f"{len(times)} reviews, slowest {max(times):.3f} s; {(most - before) >> 20} MiB more"
                )
            assert most - before < MOST_MORE
            # How long a review takes on a machine of its own is for `make attack`.
            assert times

    asyncio.run(asyncio.wait_for(scenario(), 240))
