"""The kubelet's side of the crash test: one node, its claims, what must hold after every restart."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import functools
import hashlib
import json
import os
import random
import re
import shutil
import signal
import tempfile
import uuid
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import grpc.aio
from crash_figures import Figures, Violation
from crash_invariants import differences
from crash_processes import Agent, ForkServer, listens
from faults import Plan
from kubelet_calls import records
from machines import Machine
from machines.simulated import SimulatedMachine
from manifest_files import documents

from dra_driver.api.own.inventory import DEVICE_INVENTORIES, inventory_name
from dra_driver.preparation import Checkpoint, ClaimState
from dra_driver.sim.apiserver import ApiServer
from dra_driver.sim.apiserver.storage.store import Key
from dra_driver.sim.assets import deploy_directory
from dra_driver.wire import dra_v1_pb2

NODE = "node-a"
NAMESPACE = "default"
START_SECONDS = 90.0
# The DaemonSet's terminationGracePeriodSeconds.
GRACE_SECONDS = 50.0
EVENTUALLY_SECONDS = 120
SETTLED_SECONDS = 15.0
# In the answer to a call that has not ended.
GOES_ON = "it continues, and the next call returns its result"
# Of runs that failed.
KEPT = Path(__file__).parents[2] / "build/crash-test"


@dataclass
class Claim:
    """A claim, and what the kubelet believes of it.

    Attributes:
        acknowledged: the state that the last answered call made: ``prepared`` or ``unprepared``.
        under_way: a call was sent whose answer never came, or was an error.
        answer: device and CDI names of the last successful prepare.
        goes_on: the last call may not have ended: no answer came, or one that says so.
    """

    name: str
    devices: tuple[str, ...]
    uid: str = field(default_factory=lambda: str(uuid.uuid4()))
    acknowledged: str = "unprepared"
    under_way: bool = False
    answer: tuple[tuple[str, tuple[str, ...]], ...] = ()
    goes_on: bool = False


class CrashedNode:
    """One node: directories, hardware, an API server, claims, and agents that come and go.

    Attributes:
        call_seconds: within which every call has to be answered.
        withdraws: agents may take documents away for a moment, when devices are found to have changed.

    Args:
        machine: makes the hardware in a folder, for a node's name.
        flags: for every agent.
    """

    def __init__(
        self,
        forks: ForkServer,
        figures: Figures,
        name: str,
        machine: Callable[[Path, str], Machine] = SimulatedMachine,
        flags: tuple[str, ...] = (),
    ) -> None:
        self._forks = forks
        self._flags = flags
        self.figures = figures
        self.name = name
        # Never in memory: an MPS daemon gets a /dev/shm of its own, in which its program would not be.
        self.root = Path(tempfile.mkdtemp(prefix="dra-crash-", dir="/tmp"))
        self.cdi = self.root / "cdi"
        self.state = self.root / "state"
        self.log = self.root / "steps"
        self.stderr = self.root / "stderr"
        self.faults = self.root / "faults"
        self.faults.mkdir()
        self.claims: dict[str, Claim] = {}
        self.kills = 0
        self.call_seconds = 45.0
        self.withdraws = False
        self.machine = machine(self.root, NODE)
        self.driver = self.machine.driver
        self.server = ApiServer()

    async def __aenter__(self) -> CrashedNode:
        await self.server.install(definitions())
        await self.server.install([{"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE}}])
        await self.server.start()
        self.server.write_kubeconfig(self.root / "kubeconfig")
        self.boot(random.Random(self.name))
        self.figures.runs += 1
        return self

    async def __aexit__(self, kind: object, *_: object) -> None:
        await self.server.stop()
        self.machine.close()
        shutil.rmtree(self.root, ignore_errors=True)

    # --- claims ---------------------------------------------------------------------------------------------

    def add(
        self, name: str, *devices: str, share: bool = False, parameters: dict[str, Any] | None = None
    ) -> Claim:
        """An allocated claim.

        Args:
            share: of a part of each device.
            parameters: opaque ones, of our group unless they say which.
        """
        claim = Claim(name, devices)
        results: list[dict[str, Any]] = [
            {"request": "gpu", "driver": self.driver, "pool": NODE, "device": d} for d in devices
        ]
        for result in results if share else ():
            result |= {"shareID": str(uuid.uuid4()), "consumedCapacity": {"memory": "8Gi"}}
        allocation: dict[str, Any] = {"devices": {"results": results}}
        if parameters is not None:
            version = {"apiVersion": "dra-driver.dev/v1alpha1"}
            opaque = {"driver": self.driver, "parameters": {**version, **parameters}}
            allocation["devices"]["config"] = [{"source": "FromClaim", "opaque": opaque}]
        raw = {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaim",
            "metadata": {
                "name": name,
                "namespace": NAMESPACE,
                "uid": claim.uid,
                "creationTimestamp": "2026-01-01T00:00:00Z",
            },
            "spec": {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "gpu"}}]}},
            "status": {"allocation": allocation},
        }
        self.server.store.collection("resource.k8s.io", "resourceclaims").put(Key(NAMESPACE, name), raw)
        self.claims[name] = claim
        return claim

    # --- power ----------------------------------------------------------------------------------------------

    def power_failure(self, chance: random.Random) -> None:
        """Undoes what was not synced when the agent died, as a power failure may, and boots anew.

        Of the checkpoint, what was not synced is undone; of the CDI files, which are never synced, anything
        may be left. No container has survived, so the kubelet prepares again.
        """
        self._undo_unsynced(chance)
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
                self.file(claim).write_bytes(b"")  # it was removed, and is back
        self.boot(chance)

    def _undo_unsynced(self, chance: random.Random) -> None:
        """Undo renames of the checkpoint's files that were not made durable, and half of the last write.

        A document may be the one before, or the one before that; a journal may not have begun, or not have
        been folded.
        """
        # The step that is logged last did not happen any more.
        ours = [step for step in self.steps()[:-1] if step.startswith("state")]
        renames = [i for i, step in enumerate(ours) if step == "state rename"]
        # What is synced after it was written is a file, and otherwise the folder.
        folder_synced = [
            i for i, step in enumerate(ours) if step == "state fsync" and ours[i - 1] != "state write"
        ]
        checkpoint, previous, journal = (
            self.state / f"checkpoint.json{suffix}" for suffix in ("", ".previous", ".journal")
        )
        # Otherwise it was the new checkpoint that was written, of which nothing is in force yet.
        appended = ours and ours[-1] == "state write" and "state create" not in ours[-3:-1]
        if appended and not checkpoint.exists() and journal.exists():
            # It was being added to. What was there is synced, of the new line anything may be.
            *lines, last = journal.read_bytes().splitlines(keepends=True)
            if lines:
                journal.write_bytes(b"".join(lines) + last[: chance.randrange(len(last))])
                self.figures.undone += 1
        if not renames or any(i > renames[-1] for i in folder_synced):
            return
        if not previous.exists() or chance.random() > 0.7:
            return
        if not checkpoint.exists():
            previous.rename(checkpoint)  # the journal that was begun is one of no document in force
        elif journal_is_of(previous, journal):
            checkpoint.unlink()  # the journal was being folded
        else:
            data = previous.read_bytes()
            written = [i for i in renames if ours[i - 1] == "state fsync"]
            both = len(written) > 1 and not any(written[-2] < i < written[-1] for i in folder_synced)
            if both and chance.random() < 0.5:
                data = without_beginnings(data)
            checkpoint.unlink()  # it may be another name of the same file
            checkpoint.write_bytes(data)
        self.figures.undone += 1

    def reboot(self, chance: random.Random) -> list[str]:
        """Boot anew after every process has ended; return the claims whose pods start again, by name.

        ``/run`` is empty, or holds what it held, in part: where the CDI directory is on a disk. Pods that do
        not start again have their claims unprepared without any prepare.
        """
        match chance.randrange(3):
            case 0:
                shutil.rmtree(self.cdi, ignore_errors=True)
            case 1:
                for path in self.cdi.iterdir() if self.cdi.exists() else ():
                    if chance.random() < 0.5:
                        path.unlink()
            case _:
                pass
        for socket in (*(self.root / "registry").glob("*"), *(self.root / "plugins").rglob("*.sock")):
            if chance.random() < 0.5:
                socket.unlink()
        self.boot(chance)
        return [name for name in self.prepared() if chance.random() < 0.7]

    def prepared(self) -> list[str]:
        """Return the names of the claims that the kubelet thinks are prepared; nothing of theirs runs now."""
        running = [c for c in self.claims.values() if c.acknowledged == "prepared"]
        for claim in running:
            # There may be no record of it, or one that holds nothing.
            claim.under_way = True
        return [c.name for c in running]

    def swap(self) -> None:
        """Give every device the node of another one, as when its driver is loaded anew."""
        self.machine.swap()

    def boot(self, chance: random.Random) -> None:
        """Come up with another boot ID; the machine has other numbers and another driver."""
        self.machine.boot(chance)
        path = self.root / "proc/sys/kernel/random/boot_id"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{uuid.uuid4()}\n")

    # --- processes ------------------------------------------------------------------------------------------

    async def start(
        self, plan: Plan | None = None, instance: str = "", *, refusable: bool = False, beside: bool = False
    ) -> Agent | None:
        """A new agent, ready for calls; None where it was killed (by its plan) before that.

        Args:
            plan: what happens to it.
            instance: part of its sockets' names.
            refusable: it may end with an error, because the node is in no state to start on.
            beside: others have come and gone since the last boot, or are there: their steps count as well.
        """
        if not beside:
            self.log.unlink(missing_ok=True)
        registrar = self.registrar(instance)
        request = {
            "plan": asdict(plan or Plan()),
            "root": str(self.root),
            "log": str(self.log),
            "stderr": str(self.stderr),
            "faults": str(self.faults),
            "environment": dict(self.machine.environment()),
            "driver": self.driver,
            "arguments": [
                "kubelet-plugin",
                "--log-level=info",
                "--log-format=json",
                f"--kubeconfig={self.root}/kubeconfig",
                f"--node-name={NODE}",
                f"--plugins-dir={self.root}/plugins",
                f"--registry-dir={self.root}/registry",
                f"--cdi-dir={self.cdi}",
                f"--state-dir={self.state}",
                f"--procfs-root={self.root}/proc",
                f"--cgroup-root={self.root}/cgroup",
                f"--host-root={self.root}",
                *self.machine.arguments(),
                *self._flags,
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
                    if (refusable or (plan is not None and plan.error)) and ended.result() > 0:
                        self.figures.errors += 1  # a disk that refuses everything: it says so and ends
                        return None
                    self.count_end(ended.result(), planned=plan is not None)
                    return None
                await asyncio.sleep(0.004)
        channel = grpc.aio.insecure_channel(f"unix:{self._socket(instance)}")
        return Agent(pid, ended, channel)

    def registrar(self, instance: str = "") -> Path:
        """Return the socket by which the kubelet finds an agent."""
        return self.root / "registry" / f"{self.driver}{'-' if instance else ''}{instance}-reg.sock"

    def _socket(self, instance: str) -> Path:
        return self.root / "plugins" / self.driver / f"dra{'-' if instance else ''}{instance}.sock"

    async def ended(self, agent: Agent) -> None:
        """Waits for the end of an agent that was killed, and counts it."""
        async with asyncio.timeout(START_SECONDS):
            self.count_end(await agent.ended, planned=True)
        await agent.channel.close(None)

    async def stop(self, agent: Agent, *, killed: bool = False) -> bool:
        """SIGTERM; the end must be orderly. Return whether it was.

        Args:
            killed: or its plan may kill it before.
        """
        with contextlib.suppress(ProcessLookupError):
            os.kill(agent.pid, signal.SIGTERM)
        try:
            async with asyncio.timeout(GRACE_SECONDS):
                status = await asyncio.shield(agent.ended)
        except TimeoutError:
            agent.kill()
            await agent.ended
            self.violate("no end", f"it runs on {GRACE_SECONDS:g} s after SIGTERM: {self.errors()}")
        await agent.channel.close(None)
        if killed and status == -signal.SIGKILL:
            self.count_end(status, planned=True)
        elif status:
            self.violate("disorderly end", f"exit status {status} after SIGTERM: {self.errors()}")
        return not status

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
        """The end of what the agents wrote to stderr, but for what they write when all goes well."""
        lines = self.stderr.read_text().splitlines() if self.stderr.exists() else []
        return "\n".join([line for line in lines if '"level": "info"' not in line][-5:])

    # --- calls ----------------------------------------------------------------------------------------------

    async def prepare(self, agent: Agent, claim: Claim, seconds: float | None = None) -> bool:
        """False where no success came back: the agent is gone or says an error.

        Args:
            seconds: after which the kubelet gives up; None: an answer has to come in time.
        """
        self.figures.calls += 1
        claim.under_way = True
        request = dra_v1_pb2.NodePrepareResourcesRequest(claims=[_reference(claim)])
        answers = await self._answers(agent.stub.NodePrepareResources, request, claim, seconds)
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
        if not self.withdraws and not self.file(claim).exists():
            self.violate("half-prepared claims", f"{claim.name}: prepared without its CDI file")
        return True

    async def unprepare(self, agent: Agent, claim: Claim, seconds: float | None = None) -> bool:
        """See ``prepare``."""
        self.figures.calls += 1
        claim.under_way = True
        request = dra_v1_pb2.NodeUnprepareResourcesRequest(claims=[_reference(claim)])
        answers = await self._answers(agent.stub.NodeUnprepareResources, request, claim, seconds)
        if answers is None:
            return False
        if list(answers) != [claim.uid]:
            self.violate("wrong answer", f"{claim.name}: answers for {list(answers)}")
        if answers[claim.uid].error:
            self.figures.errors += 1
            return False
        claim.acknowledged, claim.under_way = "unprepared", False
        return True

    async def _answers(self, method: Any, request: Any, claim: Claim, seconds: float | None) -> Any:
        """By claim UID; None where the agent is gone, or the kubelet has given up."""
        claim.goes_on = True
        try:
            answers = (await method(request, timeout=seconds or self.call_seconds)).claims
            claim.goes_on = any(GOES_ON in answer.error for answer in answers.values())
            return answers
        except grpc.aio.AioRpcError as e:
            gives_up = seconds is not None and e.code() is grpc.StatusCode.DEADLINE_EXCEEDED
            if not gives_up and e.code() not in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED):
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
        """Look at what must hold after a restart and before the kubelet repeats anything.

        Args:
            idle: nothing is prepared any more, so nothing may be there at all.
        """
        for kind, text in differences(self, idle=idle):
            self.violate(kind, text)

    async def settled(self, agent: Agent, seconds: float = SETTLED_SECONDS) -> None:
        """Do what ``check`` does when what the agent does by itself after its start has ended, or it has.

        Args:
            seconds: after which a difference is a violation.
        """
        end = asyncio.get_running_loop().time() + seconds
        while any(differences(self, idle=False)) and not agent.ended.done():
            if asyncio.get_running_loop().time() > end:
                self.check()
            await asyncio.sleep(0.05)

    def check_sockets(self, dead: Iterable[str]) -> None:
        """What these killed instances left is gone: another one has started since."""
        for name in dead:
            for path in (self.registrar(name), self._socket(name)):
                if path.exists():
                    self.violate("stale sockets", path.name)

    async def eventually(self, otherwise: str, condition: Callable[[], object]) -> None:
        """Wait until a condition holds; else it is a violation, in words."""
        for _ in range(EVENTUALLY_SECONDS * 20):
            if condition():
                return
            await asyncio.sleep(0.05)
        self.violate("no progress", f"{otherwise}: {self.errors()}")

    def inventory(self) -> dict[str, Any]:
        """The DeviceInventory as it is stored, a copy; empty where there is none."""
        name = inventory_name(NODE, self.driver)
        found = self.server.store.raw(DEVICE_INVENTORIES.group, DEVICE_INVENTORIES.plural, name)
        return copy.deepcopy(found) if found is not None else {}

    def records(self) -> dict[str, Any]:
        """The checkpoint's records, read without the product's code."""
        try:
            return records(self.state / "checkpoint.json")
        except FileNotFoundError:
            return {}

    def files(self) -> set[str]:
        """Everything in the CDI directory."""
        return {p.name for p in self.cdi.iterdir()} if self.cdi.exists() else set()

    def claim_file(self, uid: str) -> str:
        """Name of the CDI file of a claim."""
        return f"k8s.{self.driver}-claim_{uid}.json"

    def file(self, claim: Claim) -> Path:
        """Return the CDI file of a claim."""
        return self.cdi / self.claim_file(claim.uid)

    def _keep(self) -> None:
        """Copy what explains a violation: the agents' log, the checkpoint, the documents."""
        kept = KEPT / re.sub(r"[^A-Za-z0-9.-]+", "-", self.name)
        kept.mkdir(parents=True, exist_ok=True)
        for path in (self.stderr, *self.state.glob("checkpoint*"), *self.cdi.glob("*")):
            if path.is_file():
                shutil.copy(path, kept / path.name)

    def violate(self, kind: str, text: str) -> None:
        """Counts, and ends the run."""
        self.figures.violations[kind] += 1
        self.figures.texts.append(f"{self.name}: {kind}: {text}")
        self._keep()
        raise Violation(f"{kind}: {text}")


@functools.cache
def definitions() -> list[dict[str, Any]]:
    """Our CRDs."""
    return documents(*sorted((deploy_directory("manifests") / "crds").glob("*.yaml")))


def journal_is_of(document: Path, journal: Path) -> bool:
    """Return whether the first line of a journal follows a document of the checkpoint."""
    if not journal.exists():
        return False
    digest, _, entry = journal.read_bytes().partition(b"\n")[0].partition(b" ")
    last: str = json.loads(document.read_bytes())["checksum"]
    return digest.decode() == hashlib.sha256(last.encode() + b" " + entry).hexdigest()


def without_beginnings(data: bytes) -> bytes:
    """Return the checkpoint as it was before claims were begun that change nothing but files."""
    checkpoint = Checkpoint.decode(data)
    for record in checkpoint:
        begun = record.touches_hardware or record.effects
        if record.standing is ClaimState.STARTED and not begun:
            checkpoint = checkpoint.without(record.uid)
    return checkpoint.encode()


def _reference(claim: Claim) -> dra_v1_pb2.Claim:
    return dra_v1_pb2.Claim(namespace=NAMESPACE, name=claim.name, uid=claim.uid)


@contextlib.asynccontextmanager
async def worlds(
    forks: ForkServer,
    figures: Figures,
    name: str,
    machine: Callable[[Path, str], Machine] = SimulatedMachine,
    flags: tuple[str, ...] = (),
) -> AsyncIterator[CrashedNode]:
    """A world for one run; a violation ends the run, not the test."""
    try:
        async with CrashedNode(forks, figures, name, machine, flags) as world:
            yield world
    except Violation:
        pass
