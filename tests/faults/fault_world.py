"""One random fault schedule on the embedded API server.

Everything that talks to the server is real and talks HTTP to it: the controller, the node agents (with real
gRPC to stand-in kubelets), the stand-in scheduler and controllers. All of it lives in one process, so that
hundreds of schedules are affordable; a part that is killed is cancelled at whatever it awaits.

Invariants, looked at after every single write:

* no device in two claims (shares and admin access aside), no partition over another one or over the whole,
  no more memory given out than there is, no more shares than allowed.

When the faults are over and everything is quiet:

* every claim that can be satisfied is allocated, groups as a whole, and its pods run;
* no claim is allocated that only pods use which others hold back by a scheduling gate;
* slices are what ``build_slices`` makes of the inventory, and their counters are not over-drawn;
* nothing is written any more.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import functools
import io
import itertools
import logging
import os
import random
import shutil
import tempfile
import traceback
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import structlog
import yaml
from inline_answers import inline
from manifest_files import documents
from preemption_audit import PreemptionAudit

from controller.app import Controller
from controller.config import ControllerConfig, PreemptionMode, PreemptionSettings, Timings
from dra_driver import discovery
from dra_driver.api.core import NAMESPACES, NODES, PODS, Pod
from dra_driver.api.meta import DriverName, ObjectKey, PoolName, Resource, WireObject
from dra_driver.api.names import (
    GROUP_LABEL,
    GROUP_MIN_LABEL,
    GROUP_SIZE_LABEL,
    GROUP_SOME_RUN_ANNOTATION,
)
from dra_driver.api.own.inventory import DEVICE_INVENTORIES
from dra_driver.api.own.partitions import partition_devices
from dra_driver.api.own.policy import DEVICE_POLICIES
from dra_driver.api.policy import POD_DISRUPTION_BUDGETS
from dra_driver.api.resource import (
    DEVICE_CLASSES,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    ResourceClaim,
    device_taint_rules,
)
from dra_driver.errors import ApiUnavailable, DraError, NotFound
from dra_driver.kube import KubeApi
from dra_driver.ownership import PoolID, is_controller_taint, owner_of
from dra_driver.resourceclaim import foreign_gates, lacks_extended_claim, pod_claims
from dra_driver.resourceslice import PublishOptions, ServerFeatures, Usage, build_slices, plan_slices
from dra_driver.sim import assets
from dra_driver.sim.apiserver import ApiServer
from dra_driver.sim.apiserver.http.injection import Injector, at_moments
from dra_driver.sim.apiserver.writing.admission import STAND_INS
from dra_driver.sim.controlplane.controllers import ClaimController, GarbageCollector
from dra_driver.sim.controlplane.eviction import TaintEviction
from dra_driver.sim.controlplane.node_lifecycle import NodeLifecycle
from dra_driver.sim.controlplane.scheduler import Scheduler
from dra_driver.sim.faults import FaultPlan, Kill, random_plan
from dra_driver.sim.faults.plan import FullDisk
from dra_driver.sim.kubelet import KubeletSettings, NodeLayout, SimKubelet
from dra_driver.sim.profiles import write_profile
from dra_driver.structured import (
    Allocated,
    AllocatedState,
    GroupAllocated,
    GroupMember,
    Snapshot,
    allocate,
    allocate_group,
    with_rules,
)
from kubelet_plugin.app import Plugin
from kubelet_plugin.claims.planning import Timing
from kubelet_plugin.config import Configuration

DRIVER = DriverName("gpu.dra-driver.dev")
CLASS = "any"
NS = "default"
NODE_NAMES = ("n1", "n2")
# What the embedded API server keeps, which is that of Kubernetes 1.36.
_FEATURES = ServerFeatures(partition_types=False)
LEAST_ACTS = 50 if os.environ.get("PREEMPTION") else 20
SETTLE_SECONDS = 120.0
LONGEST_SETTLE_SECONDS = 450.0
# A part that is cancelled has ended by then, however busy the machine is: node agents let calls end for 45 s.
STOP_SECONDS = 180.0
# After which devices are set aside for a pod; 0: never.
STARVATION = float(os.environ.get("STARVATION_SECONDS") or 1.0)
# Whether pods of lower priority are removed for others: a run of its own (PREEMPTION=on).
PREEMPTION = PreemptionSettings(
    mode=PreemptionMode(os.environ.get("PREEMPTION") or PreemptionMode.DRY_RUN.value),
    seconds=30.0,
    per_minute=1000.0,
)
# The same behaviour with less waiting. A drain is longer than any latency of a request that is made here.
QUICK = Timings(avoid=0.2, longest_avoid=0.6, unused=0.3, drain=1.0, settle=0.02, preempt=0.2)
QUIET_SECONDS = 1.0
OBSERVER = "observer"
TAINT_RULES = device_taint_rules("v1beta2")

SETTINGS = KubeletSettings(
    registry_tick=0.1,
    get_info_timeout=5.0,
    call_timeout=12.0,
    registration_backoff=0.1,
    registration_cap=0.5,
    startup_wipe=0.05,
    wipe_delay=0.6,
    prepare_retry=0.5,
    unprepare_retry=0.2,
    unprepare_retry_later=0.5,
    create_retry=0.3,
    restart_backoff=0.3,
    health_retry=0.5,
    stop_delay=0.02,
    exit_detection=0.02,
    reconcile=0.3,
    heartbeat=3600.0,
)

PROFILE = {
    "description": "two A100 with 40 GB",
    "driverVersion": "570.148.08",
    "cudaDriverVersion": "12.8",
    "gpus": [
        {"product": "A100-40", "pciAddress": f"0000:{bus}:00.0", "pcieRoot": "pci0000:00", "numaNode": 0}
        for bus in ("07", "0f")
    ],
}

# Every form of a device, unlike the classes of the manifests.
ANY_CLASS: dict[str, Any] = {
    "apiVersion": "resource.k8s.io/v1",
    "kind": "DeviceClass",
    "metadata": {"name": CLASS},
    "spec": {"selectors": [{"cel": {"expression": f'device.driver == "{DRIVER}"'}}]},
}

POLICIES: tuple[dict[str, Any] | None, ...] = (
    None,
    {"partitions": {"profiles": ["*"]}},
    {"partitions": {"profiles": ["3g.20gb"]}},
    {"share": {"maxShares": 2}},
    {"share": {"maxShares": 4, "memory": {"min": "4Gi", "step": "2Gi"}}},
    {"hide": True},
    {"taints": [{"key": "example.com/t", "effect": "NoSchedule"}]},
    {"allocator": "scheduler"},
)
PRIORITIES = (0, 0, 0, -10, 1000)
# Of others: pods with one of them are held back.
GATES = ("kueue.x-k8s.io/admission", "kueue.x-k8s.io/topology")
SELECTORS = (
    f'device.attributes["{DRIVER}"].type == "gpu"',
    f'device.attributes["{DRIVER}"].type == "mig"',
    "true",
)


_log: contextvars.ContextVar[deque[str] | None] = contextvars.ContextVar("log", default=None)


def _collect(_: Any, method: str, event: Any) -> Any:
    """Keeps the log of each schedule apart: they run side by side."""
    log = _log.get()
    if log is not None:
        when = f"{asyncio.get_running_loop().time():.3f}"
        fields = " ".join(f"{k}={v}" for k, v in event.items() if k not in ("event", "exc_info"))
        text = f"{when} [{method}] {event.get('event')} {fields}"
        if event.get("exc_info"):
            text += "\n" + traceback.format_exc()
        log.append(text)
    raise structlog.DropEvent


def quiet_logs() -> None:
    """Logs go to the schedule that they are of, and to nobody else."""
    structlog.configure(processors=[_collect], wrapper_class=structlog.make_filtering_bound_logger(0))
    logging.getLogger("aiohttp").setLevel(logging.CRITICAL)
    logging.getLogger("asyncio").setLevel(logging.CRITICAL)


class Violation(AssertionError):
    """An invariant does not hold."""


@dataclass
class Result:
    """What became of one schedule."""

    seed: int
    plan: str
    violations: list[str] = field(default_factory=list)
    faults: int = 0
    kills: int = 0
    writes: int = 0
    claims: int = 0
    victims: int = 0
    granted: int = 0
    taken: int = 0
    own: int = 0
    refused: int = 0
    longest: float = 0.0
    forms: set[str] = field(default_factory=set)
    log: deque[str] = field(default_factory=lambda: deque(maxlen=4000))
    state: list[str] = field(default_factory=list)


class Part:
    """Something that runs until it is killed, and can be started again."""

    def __init__(self, name: str, work: Callable[[], Awaitable[None]], failed: Callable[[str], None]) -> None:
        self.name = name
        self._work = work
        self._failed = failed
        self._task: asyncio.Task[None] | None = None
        self._ending: asyncio.Task[None] | None = None

    def start(self) -> None:
        if self._task is None:
            # Killed twice, it may be started while it still ends.
            work = self._guarded(self._ending)
            self._task = asyncio.get_running_loop().create_task(work, name=self.name)

    async def stop(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            self._ending = task
            task.cancel()
            while not (await asyncio.wait({task}, timeout=STOP_SECONDS))[0]:
                stack = io.StringIO()
                task.print_stack(file=stack)
                self._failed(f"{self.name} does not stop: {stack.getvalue()}")
                task.cancel()

    async def _guarded(self, before: asyncio.Task[None] | None) -> None:
        if before is not None and not before.done():
            await asyncio.wait({before})
        try:
            await self._work()
        except Exception as e:
            self._failed(f"{self.name} ended: {type(e).__name__}: {e}")


class Scenario:
    """A cluster, and what happens to it.

    Attributes:
        seconds: for which faults last.
        kills: how much more often than others the controller is restarted.
        pause: seconds between two restarts, at least and at most.
        policies: what a DevicePolicy says, each as likely; None: it is deleted.
        open_pools: whether the controller's pools are open in the end.
    """

    seconds = 3.0
    kills = 6
    pause = (0.2, 0.9)
    policies = POLICIES
    open_pools = False

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.seed = seed
        self.faults: FaultPlan = self._plan()
        self.result = Result(seed, str(self.faults))
        self.parts: dict[str, Part] = {}
        self.server = ApiServer()
        self.root = Path()
        self.kubelets: dict[str, SimKubelet] = {}
        self.names = itertools.count(1)
        self._stack = contextlib.AsyncExitStack()
        self._clients: list[KubeApi] = []
        self.acts = 0

    def _plan(self) -> FaultPlan:
        made = random_plan(self.seed, seconds=self.seconds, faults=7, nodes=NODE_NAMES, processes=True)
        # A full disk is a matter of processes; the crash test has it.
        return FaultPlan(tuple(f for f in made.faults if not isinstance(f, FullDisk)), made.seed)

    def violation(self, text: str) -> None:
        if len(self.result.violations) < 20:
            self.result.violations.append(text)

    # --- start and end --------------------------------------------------------------------------------------

    async def __aenter__(self) -> Scenario:
        self.root = Path(tempfile.mkdtemp(prefix="f-"))
        self._stack.callback(shutil.rmtree, self.root, ignore_errors=True)
        self.server.registry.collected = GarbageCollector.KINDS
        manifests = [*_manifests(), *self.more_manifests()]
        await self.server.install({(m["kind"], m["metadata"]["name"]): m for m in manifests}.values())
        await self.server.start()
        self._stack.push_async_callback(self.server.stop)
        self.server.write_kubeconfig(self.root / "kubeconfig")
        self._stack.push_async_callback(self._close_clients)
        self._stack.push_async_callback(self._stop_parts)
        self.api = await self._client(OBSERVER)
        self._watch_writes()
        if self.chance.random() < 0.5:
            labels = {"dra-driver.dev/allocator": "controller"}
            await self.api.merge_patch(NAMESPACES, NS, {"metadata": {"labels": labels}})
        for name, make in (
            ("claim-controller", ClaimController),
            ("garbage-collector", GarbageCollector),
            ("taint-eviction", TaintEviction),
            ("node-controller", lambda api: NodeLifecycle(api, grace=1e6)),
            ("scheduler", self.scheduler),
        ):
            self.add(name, functools.partial(self._run_client, name, make))
        for name in NODE_NAMES:
            await self._add_node(name)
        await self.more_parts()
        self.add("controller", self._run_controller)
        return self

    def more_manifests(self) -> list[dict[str, Any]]:
        """Return what is installed besides the manifests."""
        return [ANY_CLASS]

    def scheduler(self, api: KubeApi) -> Scheduler:
        """Return a new stand-in for kube-scheduler."""
        return Scheduler(api)

    async def more_parts(self) -> None:
        """Add what else runs."""

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    async def _client(self, agent: str) -> KubeApi:
        client = await KubeApi.connect(self.root / "kubeconfig", user_agent=agent)
        self._clients.append(client)
        return client

    async def _close_clients(self) -> None:
        for client in self._clients:
            await client.close()

    def add(self, name: str, work: Callable[[], Awaitable[None]]) -> None:
        part = self.parts[name] = Part(name, work, self.violation)
        part.start()

    async def _stop_parts(self) -> None:
        for part in self.parts.values():
            await part.stop()

    async def _run_client(self, name: str, make: Any) -> None:
        async with await KubeApi.connect(self.root / "kubeconfig", user_agent=name) as api:
            await make(api).run()

    def config(self) -> ControllerConfig:
        """Return how the controller is set."""
        return ControllerConfig(
            drivers=(DRIVER,),
            leader_elect=False,
            group_seconds=1.0,
            starvation_seconds=STARVATION,
            timings=QUICK,
            preemption=PREEMPTION,
        )

    def kubeconfig_of_controller(self) -> Path:
        """Return the file with which the controller connects."""
        return self.root / "kubeconfig"

    async def _run_controller(self) -> None:
        async with await KubeApi.connect(self.kubeconfig_of_controller(), user_agent="controller") as api:
            await Controller(api, self.config(), answers_of=inline).run()

    async def _add_node(self, name: str) -> None:
        layout = NodeLayout(self.root / name)
        layout.create()
        source = self.root / "profile.yaml"
        source.write_text(yaml.safe_dump(PROFILE), encoding="utf-8")
        write_profile(str(source), layout.hardware)
        self.add(f"kubelet {name}", lambda: self._run_kubelet(name, layout))
        self.add(f"plugin {name}", lambda: self._run_plugin(name, layout))

    async def _run_kubelet(self, name: str, layout: NodeLayout) -> None:
        old = self.kubelets.get(name)
        async with await KubeApi.connect(self.root / "kubeconfig", user_agent=f"kubelet-{name}") as api:
            kubelet = SimKubelet(api, name, layout, SETTINGS, runtime=old.runtime if old else None)
            self.kubelets[name] = kubelet
            await kubelet.run()

    async def _run_plugin(self, name: str, layout: NodeLayout) -> None:
        configuration = Configuration(
            node_name=name,
            driver_name=DRIVER,
            plugins_dir=layout.plugins,
            registry_dir=layout.registry,
            pod_resources_socket=layout.pod_resources,
            cdi_dir=layout.cdi,
            state_dir=layout.state,
            dev_root=layout.dev,
            backends=(f"simulated={layout.hardware}",),
            rescan_seconds=3600.0,
        )
        async with await KubeApi.connect(self.root / "kubeconfig", user_agent=f"plugin-{name}") as api:
            backends = discovery.open_backends(
                configuration.backends,
                sysfs_root=configuration.sysfs_root,
                procfs_root=configuration.procfs_root,
                dev_root=configuration.dev_root,
                node_name=name,
            )
            timing = Timing(budget=10.0, patience=0.6)
            plugin = Plugin(configuration, client=api, backends=backends, timing=timing, settle_seconds=0.1)
            await plugin.run(asyncio.Event())

    # --- what happens ---------------------------------------------------------------------------------------

    async def begin(self) -> None:
        """Most schedules strike a cluster that works; the others one that comes up."""
        if self.chance.random() < 0.3:
            return
        while list(self._slices()):
            await asyncio.sleep(0.05)

    async def disturb(self) -> None:
        """Faults, and people who go on working."""
        injector = self.server.set_faults(self.faults.for_server(), exempt=(OBSERVER,))
        assert isinstance(injector, Injector)
        loop = asyncio.get_running_loop()
        start = loop.time()
        async with asyncio.TaskGroup() as group:
            for fault in self.faults.for_cluster():
                if isinstance(fault, Kill):
                    act = self._killer(fault)
                    group.create_task(at_moments(fault.timing, lambda: loop.time() - start, act))
            group.create_task(self._random_kills(start))
            group.create_task(self._people(start))
        left = start + self.seconds - loop.time()
        await asyncio.sleep(max(left, 0.0))
        await self._until_server_is_back()
        self.result.faults += sum(injector.struck) + self.result.kills
        self.server.set_faults(None)
        for part in self.parts.values():
            part.start()

    async def _until_server_is_back(self) -> None:
        """An outage that is cut short would never end."""
        async with asyncio.timeout(SETTLE_SECONDS):
            while True:
                try:
                    await self.api.list(NODES)
                except ApiUnavailable:
                    await asyncio.sleep(0.05)
                else:
                    return

    def _killer(self, fault: Kill) -> Callable[[], Awaitable[None]]:
        part = self.parts[str(fault.target)]

        async def act() -> None:
            await self._kill(part, fault.timing.duration or 0.0)

        return act

    async def _kill(self, part: Part, seconds: float) -> None:
        self.result.kills += 1
        await part.stop()
        await asyncio.sleep(seconds)
        part.start()

    async def _random_kills(self, start: float) -> None:
        """Every part is restarted now and then, at any moment, the controller more often than others."""
        loop = asyncio.get_running_loop()
        names = [*self.parts, *["controller"] * self.kills]
        while loop.time() - start < self.seconds:
            await asyncio.sleep(self.chance.uniform(*self.pause))
            await self._kill(self.parts[self.chance.choice(names)], self.chance.uniform(0.0, 0.2))

    async def _people(self, start: float) -> None:
        loop = asyncio.get_running_loop()
        # On a slow machine the faults are over before people have done much; then they go on without.
        while loop.time() - start < self.seconds or self.acts < LEAST_ACTS:
            await asyncio.sleep(self.chance.uniform(0.0, 0.15))
            self.acts += 1
            try:
                await self.somebody()
            except (ApiUnavailable, DraError):
                pass  # the API server may be away; people try something else

    async def somebody(self) -> None:
        """Do one thing of those that people do."""
        roll = self.chance.random()
        if PREEMPTION.mode is PreemptionMode.ON and self.chance.random() < 0.5:
            await self.new_pod()  # devices have to be scarce
        elif roll < 0.45:
            await self.new_pod()
        elif roll < 0.52:
            await self._new_group()
        elif roll < 0.68:
            pods = self.server.store.list(PODS, NS)
            if pods:
                await self.api.delete(PODS, self.chance.choice(pods).metadata.name, NS)
        elif roll < 0.86:
            await self._policy()
        elif roll < 0.89:
            await self._taint_rule()
        elif roll < 0.92:
            await self._lift_gate()
        elif roll < 0.93 and PREEMPTION.mode is PreemptionMode.ON:
            await self._budget()
        elif roll < 0.95:
            node = self.chance.choice(NODE_NAMES)
            labels = {"zone": self.chance.choice(("a", "b"))}
            await self.api.merge_patch(NODES, node, {"metadata": {"labels": labels}})
        else:
            await self._loose_claim()

    async def _budget(self) -> None:
        """Have a budget allow a number of disruptions of all pods; nothing here counts them again."""
        with contextlib.suppress(NotFound):
            await self.api.delete(POD_DISRUPTION_BUDGETS, "budget", NS)
        meta = {"name": "budget", "namespace": NS}
        body = {"metadata": meta, "spec": {"selector": {}, "minAvailable": 1}}
        await self.api.create(POD_DISRUPTION_BUDGETS, body)
        allowed = {"disruptionsAllowed": self.chance.choice((0, 1, 2))}
        counts = {"currentHealthy": 1, "desiredHealthy": 1, "expectedPods": 1}
        await self.api.merge_patch(
            POD_DISRUPTION_BUDGETS, "budget", {"status": allowed | counts}, NS, subresource="status"
        )

    def _claim_spec(self) -> dict[str, Any]:
        chance = self.chance
        exactly: dict[str, Any] = {
            "deviceClassName": CLASS,
            "count": chance.choice((1, 1, 1, 2)),
            "selectors": [{"cel": {"expression": chance.choice(SELECTORS)}}],
        }
        if chance.random() < 0.3:
            exactly["capacity"] = {"requests": {"memory": chance.choice(("4Gi", "10Gi", "20Gi"))}}
        return {"devices": {"requests": [{"name": "r", "exactly": exactly}]}}

    async def new_pod(
        self, labels: dict[str, str] | None = None, spec: Any = None, some_run: str = ""
    ) -> None:
        name = f"p{next(self.names)}"
        meta = {"name": name, "namespace": NS}
        entries: list[dict[str, Any]] = []
        for i in range(self.chance.choice((1, 1, 1, 2))):
            body = spec or self._claim_spec()
            if self.chance.random() < 0.5:
                template = {"metadata": {**meta, "name": f"{name}-{i}"}, "spec": {"spec": body}}
                await self.api.create(_TEMPLATES, template)
                entries.append({"name": f"r{i}", "resourceClaimTemplateName": f"{name}-{i}"})
                continue
            known = [c.metadata.name for c in self.server.store.list(RESOURCE_CLAIMS, NS)]
            own = [n for n in known if n.startswith("c")]
            if own and labels is None and self.chance.random() < 0.15:
                claim = self.chance.choice(own)  # shared with another pod
            else:
                claim = f"c{name}-{i}"
                await self.api.create(RESOURCE_CLAIMS, {"metadata": {**meta, "name": claim}, "spec": body})
            if any(e.get("resourceClaimName") == claim for e in entries):
                continue
            entries.append({"name": f"r{i}", "resourceClaimName": claim})
        command = self.chance.choice(("sleep 3600", "sleep 3600", "sleep 0.2"))
        container: dict[str, Any] = {
            "name": "main",
            "image": "busybox",
            "command": ["sh", "-c", command],
            "resources": {"claims": [{"name": e["name"]} for e in entries]},
        }
        if self.chance.random() < 0.2:
            container["resources"]["requests"] = {"cpu": "40"}
        gates = [{"name": gate} for gate in GATES if self.chance.random() < 0.12]
        # The stand-in kube-scheduler does not preempt, so nobody may count on it for CPU.
        for_devices = PREEMPTION.mode is PreemptionMode.ON and "requests" not in container["resources"]
        pod = {
            "metadata": {
                **meta,
                **({"labels": labels} if labels else {}),
                **({"annotations": {GROUP_SOME_RUN_ANNOTATION: some_run}} if some_run else {}),
            },
            "spec": {
                "priority": self.chance.choice(PRIORITIES),
                "preemptionPolicy": "PreemptLowerPriority" if for_devices else "Never",
                **({"schedulingGates": gates} if gates else {}),
                "restartPolicy": "Never",
                "terminationGracePeriodSeconds": 1,
                "resourceClaims": entries,
                "containers": [container],
            },
        }
        await self.api.create(PODS, pod)

    async def _lift_gate(self) -> None:
        """A queue lets a pod go, perhaps one gate after the other; our gate stays."""
        held = [p for p in self.server.store.list(PODS, NS) if foreign_gates(p)]
        if held:
            pod = self.chance.choice(held)
            gone = self.chance.choice(foreign_gates(pod))
            left = [{"name": g.name} for g in pod.spec.scheduling_gates if g.name != gone]
            version = {"resourceVersion": pod.metadata.resource_version}
            patch = {"metadata": version, "spec": {"schedulingGates": left or None}}
            await self.api.merge_patch(PODS, pod.metadata.name, patch, NS)

    async def _new_group(self) -> None:
        size = self.chance.choice((2, 3))
        labels = {GROUP_LABEL: f"g{next(self.names)}", GROUP_SIZE_LABEL: str(size)}
        if self.chance.random() < 0.4:
            labels[GROUP_MIN_LABEL] = str(self.chance.randint(1, size))
        some_run = self.chance.choice(("", "wait", "release"))
        exactly = {
            "deviceClassName": CLASS,
            "selectors": [{"cel": {"expression": self.chance.choice(SELECTORS)}}],
        }
        spec = {"devices": {"requests": [{"name": "r", "exactly": exactly}]}}
        for _ in range(size - (self.chance.random() < 0.15)):
            await self.new_pod(labels, spec, some_run)
            await asyncio.sleep(self.chance.uniform(0.0, 0.1))

    async def _loose_claim(self) -> None:
        """Nobody uses it; it must not be allocated."""
        name = f"loose{next(self.names)}"
        await self.api.create(
            RESOURCE_CLAIMS, {"metadata": {"name": name, "namespace": NS}, "spec": self._claim_spec()}
        )

    async def _policy(self) -> None:
        node = self.chance.choice(NODE_NAMES)
        spec = self.chance.choice(self.policies)
        with contextlib.suppress(NotFound):
            await self.api.delete(DEVICE_POLICIES, node)
        if spec is not None:
            terms = [{"matchExpressions": [{"key": _HOSTNAME, "operator": "In", "values": [node]}]}]
            body = {
                "metadata": {"name": node},
                "spec": {**spec, "nodeSelector": {"nodeSelectorTerms": terms}},
            }
            await self.api.create(DEVICE_POLICIES, _with_kind(DEVICE_POLICIES, body))

    async def _taint_rule(self) -> None:
        """An admin takes a device, or a node's devices, out of service; or back."""
        name = self.chance.choice(NODE_NAMES)
        with contextlib.suppress(NotFound):
            await self.api.delete(TAINT_RULES, name)
        if self.chance.random() < 0.5:
            taint = {"key": "example.com/check", "effect": self.chance.choice(("None", "NoSchedule"))}
            selector = {"pool": name, "device": self.chance.choice((None, "gpu-0000-07-00-0"))}
            spec = {"taint": taint, "deviceSelector": {k: v for k, v in selector.items() if v}}
            await self.api.create(TAINT_RULES, {"metadata": {"name": name}, "spec": spec})

    # --- at every write -------------------------------------------------------------------------------------

    def _watch_writes(self) -> None:
        store = self.server.store
        claims = store.collection(RESOURCE_CLAIMS.group, RESOURCE_CLAIMS.plural)
        seen = claims.end()
        counted = store.notify
        pods = store.collection(PODS.group, PODS.plural)
        pods_seen = pods.end()
        audit = PreemptionAudit(PREEMPTION.seconds)

        def notify() -> None:
            nonlocal seen, pods_seen
            counted()
            self.result.writes += 1
            if PREEMPTION.mode is PreemptionMode.ON and pods.end() != pods_seen:
                pods_seen = pods.end()
                for text in audit.look(store.list(PODS)):
                    self.violation(f"write {store.version}: {text}")
                self.result.victims = audit.victims
            if claims.end() != seen:
                seen = claims.end()
                for text in self.collisions():
                    self.violation(f"write {store.version}: {text}")
            for text in self.looked():
                self.violation(f"write {store.version}: {text}")

        store.notify = notify  # type: ignore[method-assign]

    def looked(self) -> Iterator[str]:
        """Yield what else a write shows to be wrong."""
        yield from ()

    def collisions(self) -> Iterator[str]:
        """By the geometry of the hardware, and not by what slices say."""
        store = self.server.store
        held: dict[tuple[str, str], list[Any]] = {}
        for claim in store.list(RESOURCE_CLAIMS):
            for r in claim.status.allocation.devices.results if claim.status.allocation else ():
                if not r.admin_access:
                    held.setdefault((r.pool, r.device), []).append(r)
                    self.result.forms.add(
                        "share" if r.share_id else "partition" if "-mig-" in r.device else "whole"
                    )
        for device, results in held.items():
            if len(results) > 1 and not all(r.share_id for r in results):
                yield f"{device} is in {len(results)} claims"
        for inventory in store.list(DEVICE_INVENTORIES):
            node = inventory.spec.node_name
            for gpu in inventory.spec.devices:
                yield from self._collisions_on(node, gpu, held)

    def _collisions_on(self, node: str, gpu: Any, held: Any) -> Iterator[str]:
        whole = held.get((node, gpu.name), [])
        given = sum(r.consumed_capacity["memory"].value() for r in whole if r.share_id)
        if given > gpu.capacity["memory"].value.value():
            yield f"{node}/{gpu.name}: {given} bytes of memory given out"
        taken: dict[int, str] = {}
        for p in partition_devices(gpu):
            if (node, p.name) not in held:
                continue
            if whole:
                yield f"{node}/{gpu.name} is given out, and its partition {p.name}"
            for i in range(p.placement.start, p.placement.start + p.placement.size):
                if i in taken:
                    yield f"{node}: {p.name} lies over {taken[i]}"
                taken[i] = p.name

    # --- in the end -----------------------------------------------------------------------------------------

    async def settle(self) -> None:
        """Waits until all is well and quiet, then until nothing more can come."""
        loop = asyncio.get_running_loop()
        left, end = SETTLE_SECONDS, loop.time() + LONGEST_SETTLE_SECONDS
        problems: list[str] = ["nothing was looked at"]
        while left > 0 and loop.time() < end:
            version, begin = self.server.store.version, loop.time()
            await asyncio.sleep(QUIET_SECONDS)
            # Where others have the machine, everything takes longer.
            held_up = loop.time() - begin > QUIET_SECONDS * 1.3
            left -= QUIET_SECONDS / 5 if held_up else QUIET_SECONDS
            problems = [] if version == self.server.store.version else [f"still writing: {self.latest()}"]
            problems = [*self.unsettled(), *problems]
            if not problems:
                break
        if problems:
            self.result.state = list(self.describe())
        for problem in problems:
            self.violation(f"after {SETTLE_SECONDS:g} s: {problem}")
        self.result.claims = len(self.server.store.list(RESOURCE_CLAIMS))

    def describe(self) -> Iterator[str]:
        """The state, for people who look for what went wrong."""
        store = self.server.store
        for pod in store.list(PODS):
            gates = [g.name for g in pod.spec.scheduling_gates]
            uses = [str(u.key) for u in pod_claims(pod)]
            cpu = [str(c.resources.requests.get("cpu", "")) for c in pod.spec.containers]
            yield (
                f"pod {pod.metadata.name} {pod.metadata.labels or ''} on {pod.spec.node_name or '-'} "
                f"{pod.status.phase} gates={gates} claims={uses} cpu={cpu} "
                f"deleted={pod.metadata.deletion_timestamp}"
            )
            conditions = store.raw("", "pods", pod.metadata.name, NS)["status"].get("conditions") or []
            yield from (f"    {c['type']}={c['status']} {c.get('message', '')}" for c in conditions)
        for claim in store.list(RESOURCE_CLAIMS):
            results = claim.status.allocation.devices.results if claim.status.allocation else ()
            devices = [f"{r.pool}/{r.device}" for r in results]
            yield f"claim {claim.metadata.name} {devices} for {[r.name for r in claim.status.reserved_for]}"
        for inventory in store.list(DEVICE_INVENTORIES):
            yield f"inventory {inventory.metadata.name} {inventory.status}"
        for slice_ in store.list(RESOURCE_SLICES):
            yield f"slice {slice_.metadata.name} {[d.name for d in slice_.spec.devices]}"
        for rule in store.list(TAINT_RULES):
            yield f"rule {rule.metadata.name} {rule.spec}"
        for policy in store.list(DEVICE_POLICIES):
            yield f"policy {policy.metadata.name} {policy.spec}"

    def latest(self) -> str:
        """What was written last, for messages."""
        newest = max(
            (e for c in self.server.store.collections() for e in itertools.islice(reversed(c.events), 1)),
            key=lambda e: e.version,
            default=None,
        )
        if newest is None:
            return "nothing"
        text = newest.new.raw
        return f"{newest.type} {text.get('kind')} {newest.new.key} {text.get('reason', '')}"

    def unsettled(self) -> Iterator[str]:
        """What is not as it should be."""
        yield from self._slices()
        yield from self._allocations()
        yield from self._pods()

    def _slices(self) -> Iterator[str]:
        store = self.server.store
        slices = store.list(RESOURCE_SLICES)
        claims = store.list(RESOURCE_CLAIMS)
        inventories = store.list(DEVICE_INVENTORIES)
        if {i.spec.node_name for i in inventories} != set(NODE_NAMES):
            yield "inventories are missing"
        for inventory in inventories:
            node = inventory.spec.node_name
            mine = [s for s in slices if s.spec.node_name == node and s.spec.driver == DRIVER]
            state = AllocatedState.from_claims(claims).pool(PoolID(DRIVER, PoolName(node)))
            newest = max((s.spec.pool.generation for s in mine), default=0)
            published = {d.name: d for s in mine for d in s.spec.devices if s.spec.pool.generation == newest}
            usage = (
                Usage(frozenset(state.devices), frozenset(state.shares), published)
                if state.devices or state.shares
                else Usage()
            )
            matching = [p for p in store.list(DEVICE_POLICIES) if p.metadata.name == node]
            options = PublishOptions(open=self.open_pools)
            desired = build_slices(inventory, matching, usage, options=options, features=_FEATURES)
            owner = store.get(NODES, node)
            if owner is None or not plan_slices(mine, desired, owner_of(owner)).empty:
                yield f"slices of {node} are not those of its inventory"
            wanted = "open" if desired.open else desired.allocator.value
            if inventory.status.publication.allocator != wanted:
                yield f"{node} is noted as {inventory.status.publication.allocator}"

    def snapshot(self, only: Collection[str] = NODE_NAMES) -> Snapshot:
        """The cluster as stored, with the slices of these nodes."""
        store = self.server.store
        rules = store.list(TAINT_RULES)
        return Snapshot.build(
            slices=[with_rules(s, rules) for s in store.list(RESOURCE_SLICES) if s.spec.node_name in only],
            classes=store.list(DEVICE_CLASSES),
            nodes=store.list(NODES),
            allocated=AllocatedState.from_claims(store.list(RESOURCE_CLAIMS)),
        )

    def claims_of(self, pod: Pod) -> list[ResourceClaim] | None:
        """Return the claims of a pod; None if some are not there.

        The one for extended resources, which kube-scheduler deletes when a binding fails, need not be there
        before the pod is bound.
        """
        found = [
            self.claim_of(used.key) if used.key is not None else None
            for used in pod_claims(pod)
            if used.entry or pod.spec.node_name or not lacks_extended_claim(pod, self.claim_of)
        ]
        return None if None in found else [c for c in found if c is not None]

    def claim_of(self, key: ObjectKey) -> ResourceClaim | None:
        """Return a claim of that name."""
        return self.server.store.get(RESOURCE_CLAIMS, key.name, NS)

    def _allocations(self) -> Iterator[str]:
        snapshot = self.snapshot()
        waiting: dict[str, list[Pod]] = {}
        used: set[str] = set()
        self._users: dict[str, set[str]] = {}
        for pod in self.server.store.list(PODS, NS):
            if pod.status.phase in ("Succeeded", "Failed") or foreign_gates(pod):
                continue
            claims = self.claims_of(pod)
            if claims is None:
                yield f"claims of pod {pod.metadata.name} are missing"
                continue
            for claim in claims:
                used.add(claim.metadata.name)
                self._users.setdefault(claim.metadata.name, set()).add(pod.metadata.name)
            group = (pod.metadata.labels or {}).get(GROUP_LABEL, "")
            if group:
                waiting.setdefault(group, []).append(pod)
            elif any(c.status.allocation is None for c in claims):
                nodes = self._room_behind(pod, claims)
                outcome = allocate(snapshot, claims, nodes=nodes, ignore_taint=is_controller_taint)
                if isinstance(outcome, Allocated):
                    yield f"pod {pod.metadata.name} fits on {outcome.node} and waits"
        for group, members in waiting.items():
            yield from self._group(group, members)
        for claim in self.server.store.list(RESOURCE_CLAIMS):
            if claim.status.allocation is not None and claim.metadata.name not in used:
                yield f"claim {claim.metadata.name} is allocated, and no pod that may run uses it"

    def _group(self, group: str, members: list[Pod]) -> Iterator[str]:
        labels = members[0].metadata.labels or {}
        size = int(labels[GROUP_SIZE_LABEL])
        least = int(labels.get(GROUP_MIN_LABEL, size))
        claims = [self.claims_of(p) or [] for p in members]
        mine = {p.metadata.name for p in members}
        # A claim that somebody outside the group uses as well may be allocated for that one.
        own = [c for cs in claims for c in cs if self._users[c.metadata.name] <= mine]
        states = {c.status.allocation is not None for c in own}
        started = any(p.spec.node_name for p in members)
        if states <= {True} or (started and len(members) < size):
            return
        whole = [all(c.status.allocation is not None for c in cs) for cs in claims]
        if sum(whole) >= least and least < size:
            yield from self._joining(group, members, claims, whole)
            return
        if True in states and not started:
            yield f"group {group} is allocated in part"
        # With CPUs to share out it is another puzzle, which the single pods pose already.
        puzzle = any(c.resources.requests for p in members for c in p.spec.containers)
        behind = any(self._room_behind(p, c) != self._room(p) for p, c in zip(members, claims, strict=True))
        if len(members) >= least and not started and not (puzzle or behind):
            asked = [GroupMember(tuple(c)) for c in claims]
            outcome = allocate_group(
                self.snapshot(self._ours()), asked, least=least, ignore_taint=is_controller_taint
            )
            if isinstance(outcome, GroupAllocated):
                yield f"group {group} fits and waits"

    def _ours(self) -> set[str]:
        """Return the nodes whose devices the controller allocates: groups are served on no others."""
        return {
            i.spec.node_name
            for i in self.server.store.list(DEVICE_INVENTORIES)
            if i.status.publication.allocator in ("controller", "open")
        }

    def _room_behind(self, pod: Pod, claims: list[ResourceClaim]) -> list[str]:
        """Nodes with CPU for the pod, and for those before it that kube-scheduler tries with its claims.

        Where such a pod fits nowhere, kube-scheduler deallocates the claim that is allocated for this one.
        """
        mine = {c.metadata.name for c in claims if c.status.allocation is None}
        nodes = self._room(pod)
        for other in self.server.store.list(PODS, NS):
            theirs = {c.metadata.name for c in self.claims_of(other) or () if c.status.allocation is None}
            if other.spec.node_name or other.spec.scheduling_gates or mine.isdisjoint(theirs):
                continue
            # A later one that fits nowhere, or not beside this one, is tried during the binding of this one,
            # and its deallocation of the claim may come before the reservation, again and again:
            # kube-scheduler decides that.
            if _queued(other) < _queued(pod) or _is_reported(other):
                room = self._room_with_claims(other) if theirs <= mine else ()
                both = self._room(pod, other)
                nodes = [n for n in nodes if n in room and n in both]
        return nodes

    def _room_with_claims(self, pod: Pod) -> list[str]:
        """Nodes with CPU for the pod on which all its allocated claims are."""
        allocations = [c.status.allocation for c in self.claims_of(pod) or () if c.status.allocation]
        pools = {str(r.pool) for a in allocations for r in a.devices.results}
        return [n for n in self._room(pod) if pools <= {n}]

    def _joining(
        self, group: str, members: list[Pod], claims: list[list[ResourceClaim]], whole: list[bool]
    ) -> Iterator[str]:
        """Members of an elastic group that has started wait for devices, and only for devices."""
        snapshot = self.snapshot(self._ours())
        for pod, own, served in zip(members, claims, whole, strict=True):
            if served or self._users_beside(pod, own):
                continue
            if any(c.status.allocation is not None for c in own) and not pod.spec.node_name:
                yield f"pod {pod.metadata.name} of group {group} is allocated in part"
            room = self._room(pod)
            outcome = allocate(snapshot, own, nodes=room, ignore_taint=is_controller_taint)
            if isinstance(outcome, Allocated):
                yield f"pod {pod.metadata.name} of group {group} fits and waits"

    def _users_beside(self, pod: Pod, claims: list[ResourceClaim]) -> bool:
        """Return whether others use a claim of a pod."""
        return any(self._users[c.metadata.name] != {pod.metadata.name} for c in claims)

    def _room(self, *pods: Pod) -> list[str]:
        """Nodes with CPU for the pods together."""

        def cpus(p: Pod) -> int:
            return sum(
                q.value() for c in p.spec.containers for k, q in c.resources.requests.items() if k == "cpu"
            )

        taken = dict.fromkeys(NODE_NAMES, 0)
        for other in self.server.store.list(PODS, NS):
            if other.spec.node_name and other.status.phase not in ("Succeeded", "Failed"):
                taken[other.spec.node_name] += cpus(other)
        return [n for n in NODE_NAMES if taken[n] + sum(map(cpus, pods)) <= 64]

    def _pods(self) -> Iterator[str]:
        for pod in self.server.store.list(PODS, NS):
            claims = self.claims_of(pod) or []
            allocated = bool(claims) and all(c.status.allocation is not None for c in claims)
            if foreign_gates(pod):
                if pod.spec.node_name:
                    yield f"pod {pod.metadata.name} is held by a gate and runs"
            elif allocated and pod.status.phase == "Pending" and not self._blocked(pod):
                yield f"pod {pod.metadata.name} has its devices and does not run"
            if pod.metadata.deletion_timestamp:
                yield f"pod {pod.metadata.name} does not go away"

    def _blocked(self, pod: Pod) -> bool:
        """A shared claim, allocated for another pod, is on a node without room or other claims for this one.

        Or the node agent refuses the claim, as documented: two devices with an MPS daemon each.
        """
        claims = self.claims_of(pod) or []
        for claim in claims:
            results = claim.status.allocation.devices.results if claim.status.allocation else ()
            if sum(1 for r in results if r.share_id) > 1:
                return True
        shared = any(len(c.status.reserved_for) > 0 for c in claims)
        return (shared and not self._room_with_claims(pod)) or bool(
            (pod.metadata.labels or {}).get(GROUP_LABEL)
        )


async def play(world: Scenario) -> Result:
    """One schedule, from an empty cluster to the last look."""
    _log.set(world.result.log)
    async with world:
        try:
            async with asyncio.timeout(SETTLE_SECONDS):
                await world.begin()
        except TimeoutError:
            world.violation(f"the cluster did not come up: {list(world.unsettled())}")
        await world.disturb()
        await world.settle()
    return world.result


def _is_reported(pod: Pod) -> bool:
    """Whether kube-scheduler has reported that it cannot place a pod."""
    conditions = (c for c in pod.status.conditions if c.get("type") == "PodScheduled")
    return any(c.get("status") == "False" and c.get("reason") == "Unschedulable" for c in conditions)


def _queued(pod: Pod) -> tuple[Any, ...]:
    """Where kube-scheduler's queue has a pod: by priority, then by age."""
    return -pod.spec.priority, pod.metadata.creation_timestamp or "", pod.key


_TEMPLATES = Resource(
    "resource.k8s.io", "v1", "resourceclaimtemplates", "ResourceClaimTemplate", WireObject, namespaced=True
)
_HOSTNAME = "kubernetes.io/hostname"


def _with_kind(resource: Any, body: dict[str, Any]) -> dict[str, Any]:
    return {"apiVersion": resource.api_version, "kind": resource.kind, **body}


def _manifests() -> list[dict[str, Any]]:
    """As an administrator would install them, but for policies on accounts and tolerations."""
    folder = assets.deploy_directory("manifests")
    paths = [
        *sorted((folder / "crds").glob("*.yaml")),
        folder / "20-deviceclasses.yaml",
        folder / "gate-policy" / "gating.yaml",
        assets.deploy_directory("optional") / "labelled-namespaces.yaml",
    ]
    return [
        d
        for d in documents(*paths)
        if "AdmissionPolicy" not in d["kind"] or d["metadata"]["name"] in STAND_INS
    ]


__all__ = ["Result", "Scenario", "play", "quiet_logs"]
