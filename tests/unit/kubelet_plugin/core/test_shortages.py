"""No more files, memory or space: the agent waits for them, and does not end."""

from __future__ import annotations

import asyncio
import errno
import itertools
import os
import resource
import signal
from pathlib import Path
from typing import Any

import grpc.aio
import pytest
import structlog
import virtual_time
from forked import ForkedChild, fork
from kubelet_calls import VERSIONS, records, reference
from manifest_files import documents
from node_agent import DRIVER, NODE, claim
from paths import PROJECT

from dra_driver.sim.apiserver import ApiServer
from dra_driver.sim.apiserver.storage.store import Key
from kubelet_plugin.core.endurance import endure, is_shortage

PATIENCE = 60.0


def shortage(number: int = errno.EMFILE) -> OSError:
    return OSError(number, os.strerror(number))


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        *(
            (shortage(n), True)
            for n in (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOSPC, errno.ENOBUFS)
        ),
        (MemoryError(), True),
        (shortage(errno.EACCES), False),
        (ValueError(), False),
        (ExceptionGroup("", [shortage(), ExceptionGroup("", [shortage(errno.ENOMEM)])]), True),
        (ExceptionGroup("", [shortage(), ValueError()]), False),
    ],
)
def test_what_is_a_shortage(error: BaseException, expected: bool) -> None:
    assert is_shortage(error) is expected


def test_a_task_is_tried_again_at_growing_pauses_and_logged_once() -> None:
    began: list[float] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()

        async def work() -> None:
            began.append(loop.time())
            if len(began) <= 8:
                raise shortage()
            if len(began) == 9:
                await asyncio.sleep(3600)
                raise shortage()

        with structlog.testing.capture_logs() as logs:
            await endure("some work", work)
        errors = [entry for entry in logs if entry["log_level"] == "error"]
        assert [entry["task"] for entry in errors] == ["some work"] * 2  # once for each shortage

    virtual_time.run(main())
    assert len(began) == 10
    pauses = [b - a for a, b in itertools.pairwise(began)][:8]
    assert pauses[-1] > 10
    assert max(pauses) <= 30
    assert pauses[0] <= 0.5


def test_another_error_ends_the_task() -> None:
    async def work() -> None:
        raise shortage(errno.EACCES)

    with pytest.raises(PermissionError):
        asyncio.run(endure("some work", work))


class Agent:
    """A real agent with the devices of a profile, and a connection to it that stays."""

    def __init__(self, root: Path, server: ApiServer) -> None:
        self.root = root
        self.server = server
        self.process: ForkedChild

    def add(self, name: str, index: int) -> dict[str, Any]:
        devices = sorted({d["name"] for d in self._inventory()})
        body = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", **claim(name, devices[index])}
        self.server.store.collection("resource.k8s.io", "resourceclaims").put(Key("ns", name), body)
        return body

    def _inventory(self) -> list[dict[str, Any]]:
        found = self.server.store.collection("dra-driver.dev", "deviceinventories").list()
        return [device for each in found for device in each.raw["spec"]["devices"]]

    async def start(self) -> None:
        root = self.root
        command = [
            *(
                "kubelet-plugin",
                "--log-level=warning",
                f"--kubeconfig={root}/kubeconfig",
                f"--node-name={NODE}",
            ),
            *(f"--plugins-dir={root}/plugins", f"--registry-dir={root}/registry", f"--cdi-dir={root}/cdi"),
            *("--backend=simulated=dgx-h100", "--rescan-interval=1"),
        ]
        with (root / "stderr").open("ab") as errors:
            self.process = await fork(command, {}, errors.fileno())
        async with asyncio.timeout(PATIENCE):
            while not list((root / "registry").glob("*.sock")) or not self._inventory():
                await asyncio.sleep(0.02)

    def channel(self) -> grpc.aio.Channel:
        (path,) = (self.root / "plugins" / DRIVER).glob("dra*.sock")
        # Or it would share the connection of another channel.
        return grpc.aio.insecure_channel(f"unix:{path}", options=[("grpc.use_local_subchannel_pool", 1)])

    async def call(self, channel: grpc.aio.Channel, verb: str, body: dict[str, Any]) -> str:
        pb, rpc = VERSIONS["v1"]
        stub = rpc.DRAPluginStub(channel)
        request = getattr(pb, f"Node{verb}ResourcesRequest")(claims=[reference(pb, body)])
        answer = await getattr(stub, f"Node{verb}Resources")(request, timeout=45, wait_for_ready=True)
        return str(answer.claims[body["metadata"]["uid"]].error)


@pytest.mark.long
@pytest.mark.slow
def test_an_agent_without_files_answers_again_when_there_are_some(tmp_path: Path) -> None:
    async def life(agent: Agent) -> None:
        await agent.start()
        one, two, three = (agent.add(name, i) for i, name in enumerate(("one", "two", "three")))
        state = tmp_path / "plugins" / DRIVER
        async with agent.channel() as channel:
            assert await agent.call(channel, "Prepare", one) == ""
            pid = agent.process.pid
            _, hard = limit = resource.prlimit(pid, resource.RLIMIT_NOFILE)
            resource.prlimit(pid, resource.RLIMIT_NOFILE, (3, hard))
            assert "Too many open files" in await agent.call(channel, "Prepare", two)
            async with agent.channel() as refused:
                waiting = asyncio.create_task(agent.call(refused, "Prepare", three))
                # Every task that begins again within seconds does: discovery, hotplug, the inventory.
                for release in (True, False):
                    (state / "release").touch() if release else (state / "release").unlink()
                    await asyncio.sleep(1.5)
                    assert "Too many open files" in await agent.call(channel, "Unprepare", one)
                assert agent.process.returncode is None, (tmp_path / "stderr").read_text()
                resource.prlimit(pid, resource.RLIMIT_NOFILE, limit)
                # The kubelet repeats what was refused.
                for error in (
                    await waiting,
                    await agent.call(channel, "Unprepare", one),
                    await agent.call(channel, "Prepare", two),
                ):
                    assert error == ""
        left = {f"k8s.{DRIVER}-claim_{body['metadata']['uid']}.json" for body in (two, three)}
        assert {p.name for p in (tmp_path / "cdi").iterdir()} == left
        found = records(state / "checkpoint.json")
        assert {r["name"]: r["state"] for r in found.values()} == dict.fromkeys(
            ("two", "three"), "PrepareCompleted"
        )
        agent.process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(PATIENCE):
            assert await agent.process.wait() == 0

    async def main() -> None:
        server = ApiServer()
        await server.install(documents(*(PROJECT / "deploy/manifests/crds").glob("*.yaml")))
        await server.install([{"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE}}])
        await server.start()
        server.write_kubeconfig(tmp_path / "kubeconfig")
        agent = Agent(tmp_path, server)
        try:
            await life(agent)
        finally:
            if agent.process.returncode is None:
                agent.process.send_signal(signal.SIGKILL)
                await agent.process.wait()
            await server.stop()

    asyncio.run(main())
