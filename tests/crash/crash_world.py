"""The kubelet's side of the crash test: agents as processes, claims, what must hold after every restart."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import itertools
import json
import os
import random
import shutil
import signal
import socket
import sys
import tempfile
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import grpc.aio
import yaml
from crash_gpus import PROFILE, Gpus, address
from faults import Plan, metadata_folder

from dra_driver.sim.apiserver import ApiServer
from dra_driver.sim.apiserver.storage.store import Key
from dra_driver.sim.assets import deploy_directory
from dra_driver.sim.profiles import device_nodes, write_profile
from dra_driver.wire import dra_v1_pb2, dra_v1_pb2_grpc

DRIVER = "gpu.dra-driver.dev"
NODE = "node-a"
NAMESPACE = "default"
START_SECONDS = 20.0
# What is always counted, most of all where it is nothing.
ZERO = (
    "leaked CDI files",
    "leaked instances",
    "leaked settings",
    "leaked daemons",
    "leaked drivers",
    "leaked metadata files",
    "lost claims",
    "doubled claims",
    "half-prepared claims",
    "documents of other devices",
)


class Violation(AssertionError):
    """What a crash must never leave."""


@dataclass
class Figures:
    """What the run has to say."""

    runs: int = 0
    starts: int = 0
    kills: int = 0
    errors: int = 0
    calls: int = 0
    power_failures: int = 0
    undone: int = 0
    violations: Counter[str] = field(default_factory=Counter)
    killed_at: Counter[str] = field(default_factory=Counter)
    texts: list[str] = field(default_factory=list)


class ForkServer:
    """Starts agents; see ``agent_under_test``."""

    def __init__(self) -> None:
        self._process: asyncio.subprocess.Process | None = None
        self._reader: asyncio.Task[None] | None = None
        self._ids = itertools.count()
        self._pids: dict[int, asyncio.Future[int]] = {}
        self._ends: dict[int, asyncio.Future[int]] = {}
        self._ready = asyncio.Event()

    async def __aenter__(self) -> ForkServer:
        script = Path(__file__).with_name("agent_under_test.py")
        self._process = await asyncio.create_subprocess_exec(
            sys.executable, str(script), stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
        )
        self._reader = asyncio.get_running_loop().create_task(self._read())
        async with asyncio.timeout(60):
            await self._ready.wait()
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        assert self._reader is not None
        self._process.stdin.close()
        await self._process.wait()
        await self._reader

    async def start(self, request: dict[str, Any]) -> tuple[int, asyncio.Future[int]]:
        """Process ID, and the future exit status of a new agent."""
        assert self._process is not None
        assert self._process.stdin is not None
        loop = asyncio.get_running_loop()
        pid: asyncio.Future[int]
        ended: asyncio.Future[int]
        number = next(self._ids)
        pid, ended = loop.create_future(), loop.create_future()
        self._pids[number], self._ends[number] = pid, ended
        self._process.stdin.write(json.dumps({"id": number, **request}).encode() + b"\n")
        return await pid, ended

    async def _read(self) -> None:
        assert self._process is not None
        assert self._process.stdout is not None
        async for line in self._process.stdout:
            answer = json.loads(line)
            if "ready" in answer:
                self._ready.set()
            elif "pid" in answer:
                _tell(self._pids.pop(answer["id"]), answer["pid"])
            else:
                _tell(self._ends.pop(answer["id"]), answer["status"])


@dataclass
class Claim:
    """A claim, and what the kubelet believes of it.

    Attributes:
        acknowledged: the state that the last answered call made: ``prepared`` or ``unprepared``.
        under_way: a call was sent whose answer never came, or was an error.
        answer: device and CDI names of the last successful prepare.
    """

    name: str
    devices: tuple[str, ...]
    uid: str = field(default_factory=lambda: str(uuid.uuid4()))
    acknowledged: str = "unprepared"
    under_way: bool = False
    answer: tuple[tuple[str, tuple[str, ...]], ...] = ()

    @property
    def file(self) -> str:
        """Name of its CDI file."""
        return f"k8s.{DRIVER}-claim_{self.uid}.json"


class Agent:
    """One process of the node agent and a connection to it."""

    def __init__(self, pid: int, ended: asyncio.Future[int], channel: grpc.aio.Channel) -> None:
        self.pid = pid
        self.ended = ended
        self.channel = channel
        self.stub = dra_v1_pb2_grpc.DRAPluginStub(channel)

    def kill(self) -> None:
        """SIGKILL, if it still runs."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)


class Scenario:
    """One node: directories, an API server, claims, and agents that come and go."""

    def __init__(self, forks: ForkServer, figures: Figures, name: str) -> None:
        self._forks = forks
        self.figures = figures
        self.name = name
        self.root = Path(tempfile.mkdtemp(prefix="dra-crash-"))
        self.cdi = self.root / "cdi"
        self.state = self.root / "state"
        self.log = self.root / "steps"
        self.stderr = self.root / "stderr"
        self.claims: dict[str, Claim] = {}
        self.kills = 0
        self._gpus = Gpus(self.root, NODE)
        self._profile = self.root / "profile.yaml"
        write_profile(PROFILE, self._profile)
        self._server = ApiServer()

    async def __aenter__(self) -> Scenario:
        await self._server.install(definitions())
        await self._server.install([{"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE}}])
        await self._server.start()
        self._server.write_kubeconfig(self.root / "kubeconfig")
        self._boot()
        self.figures.runs += 1
        return self

    async def __aexit__(self, kind: object, *_: object) -> None:
        await self._server.stop()
        shutil.rmtree(self.root, ignore_errors=True)

    # --- claims ---------------------------------------------------------------------------------------------

    def add(
        self, name: str, *devices: str, share: bool = False, parameters: dict[str, Any] | None = None
    ) -> Claim:
        """An allocated claim; ``share``: of a part of each device; ``parameters``: opaque, of our group."""
        claim = Claim(name, devices)
        results: list[dict[str, Any]] = [
            {"request": "gpu", "driver": DRIVER, "pool": NODE, "device": d} for d in devices
        ]
        for result in results if share else ():
            result |= {"shareID": str(uuid.uuid4()), "consumedCapacity": {"memory": "8Gi"}}
        allocation: dict[str, Any] = {"devices": {"results": results}}
        if parameters is not None:
            opaque = {"driver": DRIVER, "parameters": {"apiVersion": "dra-driver.dev/v1alpha1", **parameters}}
            allocation["devices"]["config"] = [{"source": "FromClaim", "opaque": opaque}]
        raw = {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaim",
            "metadata": {"name": name, "namespace": NAMESPACE, "uid": claim.uid},
            "spec": {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "gpu"}}]}},
            "status": {"allocation": allocation},
        }
        self._server.store.collection("resource.k8s.io", "resourceclaims").put(Key(NAMESPACE, name), raw)
        self.claims[name] = claim
        return claim

    # --- power ----------------------------------------------------------------------------------------------

    def power_failure(self, chance: random.Random) -> None:
        """Undoes what was not synced when the agent died, as a power failure may, and boots anew.

        A checkpoint whose rename was not made durable may be the version before; of the CDI files, which are
        never synced, anything may be left. No container has survived, so the kubelet prepares again.
        """
        # The step that is logged last did not happen any more.
        ours = [step for step in self.steps()[:-1] if step.startswith("state")]
        renames = [i for i, s in enumerate(ours) if s == "state rename" and ours[i - 1] == "state fsync"]
        unsynced = bool(renames) and "state fsync" not in ours[renames[-1] :]
        previous = self.state / "checkpoint.json.previous"
        if unsynced and previous.exists() and chance.random() < 0.7:
            data = previous.read_bytes()
            checkpoint = self.state / "checkpoint.json"
            checkpoint.unlink()  # it may be another name of the same file
            checkpoint.write_bytes(data)
            self.figures.undone += 1
        for path in self.cdi.iterdir() if self.cdi.exists() else ():
            match chance.randrange(4):
                case 0:
                    path.unlink()
                case 1:
                    path.write_bytes(b"")
                case 2:
                    path.write_bytes(bytes(path.stat().st_size))
                case _:
                    pass  # it is as it was written
        for claim in self.claims.values():
            if claim.acknowledged == "unprepared" and not claim.under_way and chance.random() < 0.5:
                (self.cdi / claim.file).write_bytes(b"")  # it was removed, and is back
        self._boot()

    def swap(self) -> None:
        """Every GPU gets the device node of another one, as when its driver is loaded anew."""
        document = yaml.safe_load(self._profile.read_text())
        nodes = [gpu["deviceNodes"] for gpu in document["gpus"]]
        for gpu, others in zip(document["gpus"], (*nodes[1:], nodes[0]), strict=True):
            gpu["deviceNodes"] = others
        fresh = self._profile.with_suffix(".new")
        fresh.write_text(yaml.safe_dump(document))
        fresh.rename(self._profile)

    def _boot(self) -> None:
        self._gpus.boot()
        self.swap()
        path = self.root / "proc/sys/kernel/random/boot_id"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{uuid.uuid4()}\n")

    # --- processes ------------------------------------------------------------------------------------------

    async def start(self, plan: Plan | None = None, instance: str = "") -> Agent | None:
        """A new agent, ready for calls; None where it was killed (by its plan) before that."""
        self.log.unlink(missing_ok=True)
        registrar = self._registrar(instance)
        request = {
            "plan": asdict(plan or Plan()),
            "root": str(self.root),
            "log": str(self.log),
            "stderr": str(self.stderr),
            "arguments": [
                "kubelet-plugin",
                "--log-level=warning",
                "--log-format=json",
                f"--kubeconfig={self.root}/kubeconfig",
                f"--node-name={NODE}",
                f"--plugins-dir={self.root}/plugins",
                f"--registry-dir={self.root}/registry",
                f"--cdi-dir={self.cdi}",
                f"--state-dir={self.state}",
                f"--procfs-root={self.root}/proc",
                f"--sysfs-root={self.root}/sys",
                f"--dev-root={self.root}/dev",
                f"--host-root={self.root}",
                "--passthrough",
                "--passthrough-claim-namespace=*",
                f"--backend=simulated={self._profile}",
                *([f"--instance-id={instance}"] if instance else []),
            ],
        }
        # A socket that a killed agent left would look like the new one.
        registrar.unlink(missing_ok=True)
        pid, ended = await self._forks.start(request)
        self.figures.starts += 1
        async with asyncio.timeout(START_SECONDS):
            while not listens(registrar):
                if ended.done():
                    if plan is not None and plan.error and ended.result() > 0:
                        self.figures.errors += 1  # a disk that refuses everything: it says so and ends
                        return None
                    self.count_end(ended.result(), planned=plan is not None)
                    return None
                await asyncio.sleep(0.004)
        channel = grpc.aio.insecure_channel(f"unix:{self._socket(instance)}")
        return Agent(pid, ended, channel)

    def _registrar(self, instance: str) -> Path:
        return self.root / "registry" / f"{DRIVER}{'-' if instance else ''}{instance}-reg.sock"

    def _socket(self, instance: str) -> Path:
        return self.root / "plugins" / DRIVER / f"dra{'-' if instance else ''}{instance}.sock"

    async def ended(self, agent: Agent) -> None:
        """Waits for the end of an agent that was killed, and counts it."""
        async with asyncio.timeout(START_SECONDS):
            self.count_end(await agent.ended, planned=True)
        await agent.channel.close(None)

    async def stop(self, agent: Agent) -> None:
        """SIGTERM; the end must be orderly."""
        os.kill(agent.pid, signal.SIGTERM)
        async with asyncio.timeout(60):
            status = await agent.ended
        await agent.channel.close(None)
        if status:
            self.violate("disorderly end", f"exit status {status} after SIGTERM: {self.errors()}")

    def count_end(self, status: int, *, planned: bool) -> None:
        """Counts a kill; any other end is a violation."""
        if status == -signal.SIGKILL and planned:
            self.figures.kills += 1
            self.kills += 1
            steps = self.steps()
            self.figures.killed_at[steps[-1] if steps else "between"] += 1
        else:
            self.violate("unexpected end", f"exit status {status}: {self.errors()}")

    def steps(self) -> list[str]:
        """The steps of the process that was started last."""
        return self.log.read_text().splitlines() if self.log.exists() else []

    def errors(self) -> str:
        """The end of what the agents wrote to stderr."""
        return self.stderr.read_text()[-2000:] if self.stderr.exists() else ""

    # --- calls ----------------------------------------------------------------------------------------------

    async def prepare(self, agent: Agent, claim: Claim) -> bool:
        """False where no success came back: the agent is gone or says an error."""
        self.figures.calls += 1
        claim.under_way = True
        request = dra_v1_pb2.NodePrepareResourcesRequest(claims=[_reference(claim)])
        answers = await self._answers(agent.stub.NodePrepareResources(request, timeout=45))
        if answers is None:
            return False
        if list(answers) != [claim.uid]:
            self.violate("wrong answer", f"{claim.name}: answers for {list(answers)}")
        answer = answers[claim.uid]
        if answer.error:
            self.figures.errors += 1
            return False
        devices = tuple((d.device_name, tuple(d.cdi_device_ids)) for d in answer.devices)
        if tuple(name for name, _ in devices) != claim.devices:
            self.violate("lost claims", f"{claim.name}: got {devices}")
        if claim.acknowledged == "prepared" and devices != claim.answer:
            self.violate("lost claims", f"{claim.name}: {devices} after {claim.answer}")
        claim.acknowledged, claim.under_way, claim.answer = "prepared", False, devices
        if not (self.cdi / claim.file).exists():
            self.violate("half-prepared claims", f"{claim.name}: prepared without its CDI file")
        return True

    async def unprepare(self, agent: Agent, claim: Claim) -> bool:
        """See ``prepare``."""
        self.figures.calls += 1
        claim.under_way = True
        request = dra_v1_pb2.NodeUnprepareResourcesRequest(claims=[_reference(claim)])
        answers = await self._answers(agent.stub.NodeUnprepareResources(request, timeout=45))
        if answers is None:
            return False
        if list(answers) != [claim.uid]:
            self.violate("wrong answer", f"{claim.name}: answers for {list(answers)}")
        if answers[claim.uid].error:
            self.figures.errors += 1
            return False
        claim.acknowledged, claim.under_way = "unprepared", False
        return True

    async def _answers(self, call: Any) -> Any:
        """By claim UID; None where the agent is gone."""
        try:
            return (await call).claims
        except grpc.aio.AioRpcError as e:
            if e.code() not in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED):
                self.violate("wrong answer", f"{e.code()}: {e.details()}")
        except asyncio.CancelledError:
            # Its channel was closed, because the agent is dead.
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
        except grpc.aio.UsageError:
            pass  # likewise, before the call began
        return None

    # --- what must hold -------------------------------------------------------------------------------------

    def check(self, *, idle: bool = False) -> None:
        """What must hold after a restart and before the kubelet repeats anything.

        Args:
            idle: nothing is prepared any more, so nothing may be there at all.
        """
        records, files = self.records(), self.files()
        # Of these only the identity of their devices is remembered.
        ended = {uid for uid, record in records.items() if record.get("ended")}
        records = {uid: record for uid, record in records.items() if uid not in ended}
        known = {c.uid: c for c in self.claims.values()}
        for uid, record in records.items():
            if record["state"] != "PrepareCompleted":
                self.violate("half-prepared claims", f"{uid}: {record['state']}")
            if self.claim_file(uid) not in files:
                self.violate("half-prepared claims", f"{uid}: no CDI file")
            if uid not in known:
                self.violate("lost claims", f"{uid}: a record of no claim")
        wanted = {self.claim_file(uid) for uid in records}
        if files - wanted:
            self.violate("leaked CDI files", f"{sorted(files - wanted)}")
        self._check_metadata(records)
        self._check_nodes(records)
        held = Counter((d["device"], d.get("shareId")) for r in records.values() for d in r["devices"])
        if any(n > 1 for n in held.values()):
            self.violate("doubled claims", f"{held}")
        for claim in known.values():
            if claim.under_way:
                continue
            if (claim.acknowledged == "prepared") != (claim.uid in records):
                self.violate("lost claims", f"{claim.name}: {claim.acknowledged}, records {sorted(records)}")
        for kind, text in self._gpus.differences(records):
            self.violate(kind, text)
        leftovers = [p.name for p in self.state.glob(".checkpoint*.tmp")]
        if leftovers:
            self.violate("leaked temporary files", f"{leftovers}")
        unfinished = [c.name for c in known.values() if c.under_way or c.acknowledged == "prepared"]
        unfinished += sorted(ended)
        if idle and unfinished:
            self.violate("unfinished claims", f"{unfinished}: the kubelet has not ended its work")

    def _check_nodes(self, records: dict[str, Any]) -> None:
        """Every document names the nodes that its devices have now, and no others."""
        now = device_nodes(self._profile)
        for uid, record in records.items():
            spec = json.loads((self.cdi / self.claim_file(uid)).read_bytes())
            shared = spec.get("containerEdits", {}).get("deviceNodes", ())
            given = {d["name"]: d["containerEdits"].get("deviceNodes", ()) for d in spec["devices"]}
            for device in record["devices"]:
                if "binding" in device:
                    continue
                gpu = device.get("partition", {}).get("gpu", device["device"])
                nodes = {n["path"] for n in (*shared, *given[device["cdiDeviceIds"][0].partition("=")[2]])}
                if nodes != now[address(gpu)]:
                    self.violate(
                        "documents of other devices", f"{device['device']}: {nodes}, not {now[address(gpu)]}"
                    )

    def _check_metadata(self, records: dict[str, Any]) -> None:
        """Files of KEP-5304: of every request of every prepared claim, and of nobody else."""
        folder = metadata_folder(self.root)
        there = {p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file()}
        wanted = {
            f"{uid}/{request}/metadata.json"
            for uid, record in records.items()
            for device in record["devices"]
            for request in device["requests"]
        }
        # Of a write that was interrupted; it goes with the claim.
        there = {t for t in there if not (t.endswith(".tmp") and t.partition("/")[0] in records)}
        folders = {p.name for p in folder.iterdir()} if folder.is_dir() else set()
        if there - wanted or folders - records.keys():
            self.violate("leaked metadata files", f"{sorted(there - wanted)} {sorted(folders)}")
        if wanted - there:
            self.violate("half-prepared claims", f"no metadata {sorted(wanted - there)}")

    def check_sockets(self, dead: Iterable[str]) -> None:
        """What these killed instances left is gone: another one has started since."""
        for name in dead:
            for path in (self._registrar(name), self._socket(name)):
                if path.exists():
                    self.violate("stale sockets", path.name)

    def records(self) -> dict[str, Any]:
        """The checkpoint's records, read without the product's code."""
        try:
            document = json.loads((self.state / "checkpoint.json").read_bytes())
        except FileNotFoundError:
            return {}
        claims: dict[str, Any] = document["payload"]["claims"]
        return claims

    def files(self) -> set[str]:
        """Everything in the CDI directory."""
        return {p.name for p in self.cdi.iterdir()} if self.cdi.exists() else set()

    @staticmethod
    def claim_file(uid: str) -> str:
        """Name of the CDI file of a claim."""
        return f"k8s.{DRIVER}-claim_{uid}.json"

    def violate(self, kind: str, text: str) -> None:
        """Counts, and ends the run."""
        self.figures.violations[kind] += 1
        self.figures.texts.append(f"{self.name}: {kind}: {text}")
        raise Violation(f"{kind}: {text}")


@functools.cache
def definitions() -> list[dict[str, Any]]:
    """Our CRDs."""
    files = sorted((deploy_directory("manifests") / "crds").glob("*.yaml"))
    return [d for file in files for d in yaml.safe_load_all(file.read_text()) if d]


def _tell(future: asyncio.Future[int], value: int) -> None:
    if not future.cancelled():
        future.set_result(value)


def listens(path: Path) -> bool:
    """Whether somebody accepts connections there."""
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(str(path))
        except OSError:
            return False
        return True


def _reference(claim: Claim) -> dra_v1_pb2.Claim:
    return dra_v1_pb2.Claim(namespace=NAMESPACE, name=claim.name, uid=claim.uid)


@contextlib.asynccontextmanager
async def worlds(forks: ForkServer, figures: Figures, name: str) -> AsyncIterator[Scenario]:
    """A world for one run; a violation ends the run, not the test."""
    try:
        async with Scenario(forks, figures, name) as world:
            yield world
    except Violation:
        pass


def summary(figures: Figures, seconds: float) -> Iterable[str]:
    """What is printed at the end."""
    yield f"runs {figures.runs}, starts {figures.starts}, calls {figures.calls}, kills {figures.kills}"
    yield f"injected errors answered {figures.errors}, duration {seconds:.1f} s"
    yield f"power failures {figures.power_failures}, {figures.undone} of them undid a write of the checkpoint"
    yield "killed at: " + ", ".join(f"{k} {n}" for k, n in figures.killed_at.most_common())
    for kind in ZERO:
        yield f"{kind}: {figures.violations.pop(kind, 0)}"
    for kind, n in figures.violations.items():
        yield f"{kind}: {n}"
    yield from figures.texts[:20]
