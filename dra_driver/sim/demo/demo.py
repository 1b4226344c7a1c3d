"""The demo: starts the embedded cluster, applies the examples, shows and checks what they get, cleans up."""

from __future__ import annotations

import asyncio
import dataclasses
import shutil
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

from dra_driver.api.core import PODS
from dra_driver.api.meta import ObjectKey
from dra_driver.api.names import PCI_BUS_ID, RDMA_DRIVER_NAME
from dra_driver.api.resource import RESOURCE_CLAIMS
from dra_driver.errors import ConfigurationError, DraError, NotFound
from dra_driver.sim import container_runtime, profiles
from dra_driver.sim.cluster import ClusterConfig, ClusterFailed, EmbeddedCluster
from dra_driver.sim.demo import checks as example_checks
from dra_driver.sim.demo import examples
from dra_driver.sim.demo import report as demo_report
from dra_driver.sim.demo.backends import FurtherBackend, with_backends
from dra_driver.sim.demo.examples import Outcome
from dra_driver.sim.faults import FaultPlan

__all__ = ["Demo", "DemoOptions"]

SETTLE_SECONDS = 120.0
# Longer than a controller takes that starts, until it allocates from open pools.
QUIET_SECONDS = 20.0
CLEAN_SECONDS = 120.0


@dataclass(frozen=True, slots=True)
class DemoOptions:
    """The options of a run.

    Attributes:
        cluster: the cluster to start.
        examples: directory of manifests.
        keep: whether the cluster runs on until a signal.
        faults: fault plan that is put in force once all devices are published.
        web: port of the page, which the controller serves on loopback; 0: it is not served.
        runtime: runs each example's container; if None, none is run.
        backends: further backends of the node agents, each with a pod that asks for one of its devices.
        verbose: whether a table shows what each container sees.
    """

    cluster: ClusterConfig
    examples: Path
    keep: bool = False
    faults: FaultPlan | None = None
    web: int = 0
    runtime: container_runtime.ContainerRuntime | None = None
    backends: Sequence[FurtherBackend] = ()
    verbose: bool = False


@dataclass(slots=True)
class Demo:
    """One run.

    Attributes:
        out: file for progress and the table, in plain lines without terminal control.
        publish: is given the results as plain data in the end; if None, ``out`` gets them as a table.
        kept: with ``keep``, the result of the checks once they are done; a signal ends the run then.
    """

    options: DemoOptions
    out: TextIO = field(default_factory=lambda: sys.stdout)
    publish: Callable[[dict[str, Any]], None] | None = None
    kept: int | None = None
    _results: dict[str, Any] = field(default_factory=dict)
    _started: float = field(default_factory=time.monotonic)

    def _print(self, text: str = "") -> None:
        print(text, file=self.out, flush=True)

    def _width(self) -> int:
        """Return the columns of the terminal, but no fewer than fit the table."""
        columns = shutil.get_terminal_size().columns if self.out.isatty() else 0
        return max(demo_report.WIDTH, columns)

    def _step(self, text: str) -> None:
        self._print(f"[{time.monotonic() - self._started:5.1f}s] {text}")

    async def run(self) -> int:
        """Run the whole demo.

        Returns:
            0 if every example pod got what it expects and nothing was left behind, else 1.

        Raises:
            ConfigurationError: the examples cannot be used.
        """
        objects, pods = examples.load_manifests(self.options.examples)
        if not pods:
            raise ConfigurationError(
                f"--examples {self.options.examples}: nothing to check: no pod has the annotation "
                f"{examples.EXPECT_ANNOTATION}"
            )
        objects = [dict(o) for o in with_backends(objects, self.options.backends)]
        pods = [*pods, *(p for b in self.options.backends for p in b.pods)]
        setup = tuple(dict(o) for o in examples.setup_objects(objects))
        try:
            config = dataclasses.replace(self.options.cluster, manifests=setup)
            async with EmbeddedCluster(config) as cluster:
                await self._come_up(cluster)
                if self.options.faults is not None:
                    cluster.inject(self.options.faults)
                pods = await self._apply(cluster, objects, pods)
                outcomes = await self._watch(cluster, pods)
                good = self._report(cluster, outcomes)
                if self.options.runtime is not None:
                    good = await self._run_for_real(cluster, outcomes) and good
                if self.options.keep:
                    return await self._keep(cluster, good)
                good = await self._clean_up(cluster, pods) and good
        except ClusterFailed as e:
            self._step("the embedded cluster failed")
            print(e, file=sys.stderr)
            return 1
        self._publish(good)
        self._step("everything is stopped")
        self._print("The demo succeeded." if good else "The demo FAILED: see above.")
        if good and self.publish is None:
            self._print(
                "Next: dra-driver demo --keep leaves the cluster to you; -v shows what containers see."
            )
        return 0 if good else 1

    # --- phases ---------------------------------------------------------------------------------------------

    async def _come_up(self, cluster: EmbeddedCluster) -> None:
        names = ", ".join(f"{n.name} ({n.config.devices})" for n in cluster.nodes.values())
        self._step(f"API server {cluster.api.host}; {len(cluster.nodes)} nodes: {names}")
        for backend in self.options.backends:
            self._step(backend.text)
        async for node, slices in cluster.published():
            self._step(f"{node.name}: {demo_report.inventory(slices)}")

    async def _apply(
        self, cluster: EmbeddedCluster, objects: Sequence[Mapping[str, Any]], pods: Sequence[examples.Example]
    ) -> list[examples.Example]:
        """Apply everything but pods that have no place in this cluster; return the examples that have one."""
        placeless = await examples.placeless(cluster.api, pods)
        left_out = {("Pod", key) for key in placeless}
        wanted = [o for o in objects if (o["kind"], _key(o)) not in left_out]
        await examples.apply(cluster.api, wanted)
        count = len(pods) - len(placeless)
        self._step(f"applied {len(wanted)} objects from {self.options.examples}, {count} pods")
        for key, reason in placeless.items():
            self._step(f"{key}: left out: {reason}")
        return [p for p in pods if p.key not in placeless]

    async def _watch(self, cluster: EmbeddedCluster, pods: Sequence[examples.Example]) -> list[Outcome]:
        """Follow the example pods until each can be judged."""
        settled: set[ObjectKey] = set()
        quiet_since = time.monotonic()

        async def all_settled() -> bool:
            nonlocal quiet_since
            for outcome in await self._observe(cluster, pods):
                if outcome.example.key not in settled and examples.settled(outcome):
                    quiet_since = time.monotonic()
                    settled.add(outcome.example.key)
                    self._step(demo_report.progress(outcome))
            # A pod that should run, and for which nothing happens any more, is a result, too.
            return len(settled) == len(pods) or time.monotonic() - quiet_since > QUIET_SECONDS

        try:
            await cluster.wait_for("example pods", all_settled, SETTLE_SECONDS)
        except ClusterFailed as e:
            cluster.check()  # a failed part explains more than the pods that wait for it
            print(e, file=sys.stderr)
        # Once more: pods that wait may have a better reason now, and pods that ran must still run.
        return await self._observe(cluster, pods)

    async def _observe(self, cluster: EmbeddedCluster, pods: Sequence[examples.Example]) -> list[Outcome]:
        outcomes = await examples.observe(cluster.api, pods)
        for outcome in outcomes:
            if outcome.pod is not None and outcome.node in cluster.nodes:
                node = cluster.nodes[outcome.node]
                sandbox = node.kubelet.runtime.sandboxes.get(outcome.pod.metadata.uid)
                outcome.containers = {n: c.view for n, c in sandbox.containers.items()} if sandbox else {}
                outcome.gpu_settings = node.gpu_settings()
        return outcomes

    def _report(self, cluster: EmbeddedCluster, outcomes: Sequence[Outcome]) -> bool:
        if self.publish is None:
            self._print()
            if self.options.verbose:
                self._print(demo_report.table(outcomes, self._width()))
                self._print()
        findings = [f"{o.example.key}: {f}" for o in outcomes for f in example_checks.verify(o, outcomes)]
        findings += example_checks.twice_allocated(outcomes)
        # Which nodes a further backend's devices have, nobody else knows.
        further = {name for b in self.options.backends for name in b.devices}
        known = [o for o in outcomes if not any(d.result.device in further for d in o.devices)]
        findings += [f"{o.example.key}: {f}" for o in known for f in _device_node_findings(cluster, o)]
        self._results = {"pods": [demo_report.data(o) for o in outcomes], "findings": findings}
        for outcome in outcomes:
            if outcome.phase == "Pending":
                self._print(f"{outcome.example.key} waits:")
                for reason in outcome.reasons:
                    self._print(f"    {reason}")
        for finding in findings:
            self._print(f"NOT AS PROMISED  {finding}")
        return not findings

    def _publish(self, good: bool) -> None:
        if self.publish is not None:
            self.publish({"succeeded": good, **self._results})

    async def _run_for_real(self, cluster: EmbeddedCluster, outcomes: Sequence[Outcome]) -> bool:
        runtime = self.options.runtime
        assert runtime is not None
        good = True
        for outcome in outcomes:
            for name, view in (outcome.containers or {}).items():
                self._step(f"{outcome.example.key}, container {name}, run by {runtime.name}:")
                try:
                    text = await asyncio.to_thread(runtime.run, view, cluster.root)
                except DraError as e:
                    self._print(f"    FAILED: {e}")
                    good = False
                    continue
                for line in sorted(text.splitlines()):
                    if not line.startswith(container_runtime.NOT_OURS):
                        self._print(f"    {line}")
                missing = [k for k, v in view.env.items() if f"{k}={v}" not in text.splitlines()]
                missing += [d.path for d in view.devices if d.path not in text]
                if missing:
                    self._print(f"    NOT SEEN: {', '.join(missing)}")
                    good = False
        return good

    async def _keep(self, cluster: EmbeddedCluster, good: bool) -> int:
        self._publish(good)
        self._print(f"The cluster stays until Ctrl-C or SIGTERM. Its files are in {cluster.root}. Try:")
        self._print(f"    export KUBECONFIG={cluster.kubeconfig}{_path_of_commands()}")
        self._print("    dra-driver status; dra-driver explain pod/unsatisfiable -n dra-examples")
        self._print("    kubectl get nodes,resourceslices,deviceclasses")
        self._print("    kubectl get pods,resourceclaims -A -o wide")
        self._print("    kubectl -n dra-examples logs gpu-32gi")
        self._print("    kubectl -n dra-examples describe pod unsatisfiable")
        self._print("    kubectl get deviceinventories -o yaml")
        if self.options.web:
            self._print(f"The page: http://127.0.0.1:{self.options.web}/")
        self.kept = 0 if good else 1
        reported = 0
        while True:
            # Whoever ends a part wants to see what the others make of it.
            for failure in cluster.failures[reported:]:
                self._step(f"the cluster stays without a part of it: {failure}")
                reported += 1
            await asyncio.sleep(0.5)

    # --- the end --------------------------------------------------------------------------------------------

    async def _clean_up(self, cluster: EmbeddedCluster, pods: Sequence[examples.Example]) -> bool:
        await examples.delete_pods(cluster.api, pods)
        self._step("deleted the pods")
        left: list[str] = []

        async def nothing_left() -> bool:
            left[:] = await self._leftovers(cluster, pods)
            return not left

        try:
            await cluster.wait_for("everything to be cleaned up", nothing_left, CLEAN_SECONDS)
        except ClusterFailed as e:
            if not left:
                raise
            print(e, file=sys.stderr)
            for item in left:
                self._print(f"LEFT BEHIND  {item}")
            return False
        self._step("nothing is left: no pod, no CDI file, no checkpoint entry, no allocation")
        return True

    async def _leftovers(self, cluster: EmbeddedCluster, pods: Sequence[examples.Example]) -> list[str]:
        found: list[str] = []
        for example in pods:
            try:
                await cluster.api.get(PODS, example.key.name, example.key.namespace)
                found.append(f"pod {example.key}")
            except NotFound:
                pass
        for namespace in sorted({p.key.namespace for p in pods}):
            for claim in (await cluster.api.list(RESOURCE_CLAIMS, namespace)).items:
                if claim.status.allocation is not None:
                    found.append(f"allocation of claim {claim.key}")
                elif claim.metadata.owner_references:
                    found.append(f"generated claim {claim.key}")
        for node in cluster.nodes.values():
            found += node.leftovers()
        return found


def _device_node_findings(cluster: EmbeddedCluster, outcome: Outcome) -> list[str]:
    """Return a finding for each container whose device nodes are not those of the pod's devices."""
    if outcome.node not in cluster.nodes:
        return []
    there = profiles.device_nodes(cluster.nodes[outcome.node].layout.hardware)
    wanted: set[str] = set()
    for item in outcome.devices:
        address = item.device.attributes.get(PCI_BUS_ID) if item.device is not None else None
        wanted |= there.get(str(getattr(address, "string_value", "")), frozenset())
    findings: list[str] = []
    for name, view in (outcome.containers or {}).items():
        nics = [d.path for d in view.devices if d.path.startswith("/dev/infiniband/")]
        if bool(nics) != any(d.result.driver == RDMA_DRIVER_NAME for d in outcome.devices):
            findings.append(f"container {name} sees {', '.join(nics) or 'no device node'} of NICs")
        seen = {d.path for d in view.devices}.difference(nics)
        if seen != wanted:
            nodes = ", ".join(sorted(seen)) or "no device node"
            findings.append(f"container {name} sees {nodes} instead of {', '.join(sorted(wanted))}")
    return findings


def _path_of_commands() -> str:
    """Return what ``export`` takes so that the shell finds the commands; empty where it does already."""
    return "" if shutil.which("dra-driver") else f" PATH={Path(sys.executable).parent}:$PATH"


def _key(body: Mapping[str, Any]) -> ObjectKey:
    return ObjectKey(body["metadata"].get("namespace", ""), body["metadata"]["name"])
