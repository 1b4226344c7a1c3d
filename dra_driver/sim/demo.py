"""The demo: starts the embedded cluster, applies the examples, shows and checks what they get, cleans up."""

from __future__ import annotations

import asyncio
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TextIO

from dra_driver.api.core import PODS
from dra_driver.api.names import PCI_BUS_ID
from dra_driver.api.resource import RESOURCE_CLAIMS, ResourceSlice
from dra_driver.errors import ConfigurationError, DraError, NotFound
from dra_driver.sim import container_runtime, examples, profiles
from dra_driver.sim.cdi_reader import ContainerView
from dra_driver.sim.cluster import ClusterConfig, ClusterFailed, EmbeddedCluster
from dra_driver.sim.examples import Outcome
from dra_driver.sim.faults import FaultPlan

__all__ = ["Demo", "DemoOptions"]

SETTLE_SECONDS = 60.0
QUIET_SECONDS = 10.0
CLEAN_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class DemoOptions:
    """What to show.

    Attributes:
        cluster: what to start.
        examples: directory of manifests.
        keep: leave it running until a signal.
        faults: what is to go wrong from the moment on when all devices are published.
        runtime: run each example's container for real; None: do not.
    """

    cluster: ClusterConfig
    examples: Path
    keep: bool = False
    faults: FaultPlan | None = None
    runtime: container_runtime.ContainerRuntime | None = None


@dataclass(slots=True)
class Demo:
    """One run.

    Attributes:
        out: where progress and the table go; plain lines, no terminal tricks.
        kept: with ``keep``, the result of the checks, once they are done; a signal ends the run then.
    """

    options: DemoOptions
    out: TextIO = field(default_factory=lambda: sys.stdout)
    kept: int | None = None
    _started: float = field(default_factory=time.monotonic)

    def _say(self, text: str = "") -> None:
        print(text, file=self.out, flush=True)

    def _step(self, text: str) -> None:
        self._say(f"[{time.monotonic() - self._started:5.1f}s] {text}")

    async def run(self) -> int:
        """Runs it all.

        Returns:
            0 if every example pod got what it asked for and nothing was left behind, else 1.

        Raises:
            ConfigurationError: the examples cannot be used.
        """
        objects, pods = examples.load_manifests(self.options.examples)
        if not pods:
            raise ConfigurationError(
                f"--examples {self.options.examples}: nothing to check: no pod has the annotation "
                f"{examples.EXPECT_ANNOTATION}"
            )
        try:
            async with EmbeddedCluster(self.options.cluster) as cluster:
                await self._come_up(cluster)
                if self.options.faults is not None:
                    cluster.inject(self.options.faults)
                await examples.apply(cluster.api, objects)
                self._step(f"applied {len(objects)} objects from {self.options.examples}, {len(pods)} pods")
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
        self._step("everything is stopped")
        self._say("The demo succeeded." if good else "The demo FAILED: see above.")
        return 0 if good else 1

    # --- phases ---------------------------------------------------------------------------------------------

    async def _come_up(self, cluster: EmbeddedCluster) -> None:
        names = ", ".join(f"{n.name} ({n.profile})" for n in cluster.nodes.values())
        self._step(f"API server {cluster.api.host}; {len(cluster.nodes)} simulated nodes: {names}")
        async for node, slices in cluster.published():
            self._step(f"{node.name}: {_inventory(slices)}, pool generation {slices[0].spec.pool.generation}")

    async def _watch(self, cluster: EmbeddedCluster, pods: Sequence[examples.Example]) -> list[Outcome]:
        """Follows the example pods until there is something to say about each."""
        outcomes: dict[examples.Example, Outcome] = {}
        quiet_since = time.monotonic()

        async def all_settled() -> bool:
            nonlocal quiet_since
            for example in pods:
                outcome = await self._observe(cluster, example)
                if example not in outcomes and examples.settled(outcome):
                    quiet_since = time.monotonic()
                    outcomes[example] = outcome
                    self._step(_progress(outcome))
            # A pod that should run, but for which nothing happens any more, is a result too.
            return len(outcomes) == len(pods) or time.monotonic() - quiet_since > QUIET_SECONDS

        try:
            await cluster.wait_for("example pods", all_settled, SETTLE_SECONDS)
        except ClusterFailed as e:
            cluster.check()  # a dead part explains more than the pods that wait for it
            print(e, file=sys.stderr)
        # Once more: what waits may have found better words, and what runs must still run.
        return [await self._observe(cluster, example) for example in pods]

    async def _observe(self, cluster: EmbeddedCluster, example: examples.Example) -> Outcome:
        outcome = await examples.observe(cluster.api, example)
        if outcome.pod is not None and outcome.node in cluster.nodes:
            sandboxes = cluster.nodes[outcome.node].kubelet.runtime.sandboxes
            sandbox = sandboxes.get(outcome.pod.metadata.uid)
            outcome.containers = {n: c.view for n, c in sandbox.containers.items()} if sandbox else {}
        return outcome

    def _report(self, cluster: EmbeddedCluster, outcomes: Sequence[Outcome]) -> bool:
        self._say()
        self._say(_table(outcomes))
        self._say()
        findings = [f"{o.example.key}: {f}" for o in outcomes for f in examples.verify(o, outcomes)]
        findings += examples.twice_allocated(outcomes)
        findings += [f"{o.example.key}: {f}" for o in outcomes for f in _device_node_findings(cluster, o)]
        for outcome in outcomes:
            if outcome.phase == "Pending":
                self._say(f"{outcome.example.key} waits:")
                for reason in outcome.reasons:
                    self._say(f"    {reason}")
        for finding in findings:
            self._say(f"NOT AS PROMISED  {finding}")
        return not findings

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
                    self._say(f"    FAILED: {e}")
                    good = False
                    continue
                for line in sorted(text.splitlines()):
                    if not line.startswith(container_runtime.NOT_OURS):
                        self._say(f"    {line}")
                missing = [k for k, v in view.env.items() if f"{k}={v}" not in text.splitlines()]
                missing += [d.path for d in view.devices if d.path not in text]
                if missing:
                    self._say(f"    NOT SEEN: {', '.join(missing)}")
                    good = False
        return good

    async def _keep(self, cluster: EmbeddedCluster, good: bool) -> int:
        self._say(f"The cluster stays until Ctrl-C or SIGTERM. Its files are in {cluster.root}. Try:")
        self._say(f"    export KUBECONFIG={cluster.kubeconfig}")
        self._say("    kubectl get nodes,resourceslices,deviceclasses")
        self._say("    kubectl get pods,resourceclaims -A -o wide")
        self._say("    kubectl -n dra-examples logs gpu-32gi")
        self._say("    kubectl -n dra-examples describe pod unsatisfiable")
        self._say("    kubectl get deviceinventories -o yaml")
        self.kept = 0 if good else 1
        while True:
            cluster.check()
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
                self._say(f"LEFT BEHIND  {item}")
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
    """Whether each container has exactly the device nodes of the pod's devices."""
    if outcome.node not in cluster.nodes:
        return []
    there = profiles.device_nodes(cluster.nodes[outcome.node].layout.hardware)
    wanted: set[str] = set()
    for item in outcome.devices:
        address = item.device.attributes.get(PCI_BUS_ID) if item.device is not None else None
        wanted |= there.get(str(getattr(address, "string_value", "")), frozenset())
    findings: list[str] = []
    for name, view in (outcome.containers or {}).items():
        seen = {d.path for d in view.devices}
        if seen != wanted:
            nodes = ", ".join(sorted(seen)) or "no device node"
            findings.append(f"container {name} sees {nodes} instead of {', '.join(sorted(wanted))}")
    return findings


def _inventory(slices: Sequence[ResourceSlice]) -> str:
    devices = [d for s in slices for d in s.spec.devices]
    models = Counter(str(_string(d.attributes.get("model"))) for d in devices)
    kinds = ", ".join(f"{n} × {model}" for model, n in sorted(models.items()))
    return f"{len(devices)} devices published ({kinds})"


def _string(attribute: object) -> str:
    return str(getattr(attribute, "string_value", None) or "unknown model")


def _progress(outcome: Outcome) -> str:
    if outcome.phase == "Pending":
        return f"{outcome.example.key}: Pending, cannot be satisfied"
    devices = ", ".join(f"{d.result.device} ({_model(d)})" for d in outcome.devices)
    return f"{outcome.example.key}: {outcome.phase} on {outcome.node} with {devices or 'no device'}"


def _model(item: examples.AllocatedDevice) -> str:
    return _string(item.device.attributes.get("model")) if item.device is not None else "gone"


def _memory(item: examples.AllocatedDevice) -> str:
    capacity = item.device.capacity.get("memory") if item.device is not None else None
    return str(capacity.value) if capacity is not None else "?"


def _table(outcomes: Sequence[Outcome]) -> str:
    header = ("POD", "CLAIM", "NODE", "DEVICE", "WHAT THE CONTAINER SEES")
    rows: list[tuple[str, str, str, str, str]] = []
    for outcome in outcomes:
        sees = _sees(outcome.containers)
        devices = [(d.claim, f"{d.result.device}  {_model(d)}  {_memory(d)}") for d in outcome.devices]
        if not devices:
            devices = [(", ".join(outcome.claims) or "-", "-")]
        for i in range(max(len(devices), len(sees))):
            claim, device = devices[i] if i < len(devices) else ("", "")
            rows.append(
                (
                    outcome.example.key.name if i == 0 else "",
                    claim if i == 0 or claim != devices[0][0] else "",
                    (outcome.node or f"({outcome.phase})") if i == 0 else "",
                    device,
                    sees[i] if i < len(sees) else "",
                )
            )
    widths = [max(len(row[i]) for row in (header, *rows)) for i in range(len(header))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in (header, *rows)
    )


def _sees(containers: Mapping[str, ContainerView] | None) -> list[str]:
    if not containers:
        return ["-"]
    lines: list[str] = []
    for view in containers.values():
        if view.devices:
            lines.append(" ".join(sorted(d.path for d in view.devices)))
        lines += [f"{k}={v}" for k, v in sorted(view.env.items()) if k.startswith("DRA_")]
    return lines or ["-"]
