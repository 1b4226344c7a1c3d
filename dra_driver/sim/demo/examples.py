"""The example manifests: reading, applying and observing them.

Each example pod has its expectation as JSON in the annotation ``demo.dra-driver.dev/expect``. The demo and
the end-to-end suite compare it (``checks``) with the API objects, so that the same checks work on a real
cluster.
What a container sees, and what is set on a GPU, is checked if it can be observed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import msgspec
import yaml

from dra_driver import resourceclaim
from dra_driver.api.core import EVENTS, NODES, PODS, Event, Pod
from dra_driver.api.meta import ObjectKey
from dra_driver.api.quantity import Quantity
from dra_driver.api.resource import (
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    Device,
    DeviceRequestAllocationResult,
    ResourceClaim,
)
from dra_driver.errors import ConfigurationError, DraError, NotFound
from dra_driver.ports import KubeClient
from dra_driver.sim.cdi_reader import ContainerView
from dra_driver.sim.objects import APPLIED_KINDS, RUN_PODS, RunPod

__all__ = [
    "EXPECT_ANNOTATION",
    "AllocatedDevice",
    "Example",
    "Expectation",
    "Outcome",
    "apply",
    "delete_pods",
    "load_manifests",
    "observe",
    "placeless",
    "settled",
    "setup_objects",
]

EXPECT_ANNOTATION = "demo.dra-driver.dev/expect"
FIELD_MANAGER = "dra-driver-demo"
# libyaml's is ten times as fast, where this build of PyYAML has it.
_Loader: Final = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class Expectation(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True, kw_only=True):
    """What an example pod must get. Attributes of devices have their unqualified names.

    Attributes:
        devices: number of devices over all its claims.
        min_devices: least number, if it depends on the node.
        requests: the requests (``request/subrequest``) that they serve, each once.
        min_memory: least ``memory`` of each device.
        consumed_memory: memory that is allocated to each share of a device.
        attributes: values that each device has.
        without_attributes: attributes that no device has.
        same_attributes: attributes that are equal on all its devices.
        tainted: key of a taint on each device.
        admin_access: whether its access is admin access.
        env: variables of each container; ``*`` in a value stands for anything.
        gpu_settings: settings of each of its GPUs, by the names of the simulated backend.
        shares_claim_with: pod of the same namespace that uses the same claim.
        same_device_as: pod of the same namespace that has a share of the same device.
        unschedulable: it must wait, with a reason for people.
        needs_node_label: ``key=value`` of a node label without which the example cannot run.
    """

    devices: int = 0
    min_devices: int = 0
    requests: tuple[str, ...] = ()
    min_memory: str = ""
    consumed_memory: str = ""
    attributes: Mapping[str, str | int | bool] = msgspec.field(default_factory=dict)
    without_attributes: tuple[str, ...] = ()
    same_attributes: tuple[str, ...] = ()
    tainted: str = ""
    admin_access: bool = False
    env: Mapping[str, str] = msgspec.field(default_factory=dict)
    gpu_settings: Mapping[str, str] = msgspec.field(default_factory=dict)
    shares_claim_with: str = ""
    same_device_as: str = ""
    unschedulable: bool = False
    needs_node_label: str = ""


@dataclass(frozen=True, slots=True)
class Example:
    """One example pod; ``source`` is the example's folder, or its file if that is in none."""

    key: ObjectKey
    expect: Expectation
    source: str


@dataclass(frozen=True, slots=True)
class AllocatedDevice:
    """One device that is allocated to a pod's claim; ``device`` is None if no slice has it any more."""

    claim: str
    result: DeviceRequestAllocationResult
    device: Device | None


@dataclass(slots=True)
class Outcome:
    """The observed state of an example pod.

    Attributes:
        reasons: why it waits, the most specific reason first.
        containers: what each container sees; None if that cannot be observed.
        gpu_settings: UUID → settings of the node's GPUs; None if they cannot be observed.
    """

    example: Example
    pod: Pod | None
    devices: list[AllocatedDevice] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)
    containers: Mapping[str, ContainerView] | None = None
    gpu_settings: Mapping[str, Mapping[str, Any]] | None = None

    @property
    def phase(self) -> str:
        """Phase of the pod; ``Gone`` if it is deleted."""
        return self.pod.status.phase if self.pod is not None else "Gone"

    @property
    def node(self) -> str:
        """Node on which it runs; empty if it is not bound."""
        return self.pod.spec.node_name if self.pod is not None else ""

    @property
    def claims(self) -> tuple[str, ...]:
        """Names of its claims."""
        if self.pod is None:
            return ()
        return tuple(used.key.name for used in resourceclaim.pod_claims(self.pod) if used.key is not None)


# --- manifests ----------------------------------------------------------------------------------------------


def load_manifests(directory: Path) -> tuple[list[dict[str, Any]], list[Example]]:
    """Read all ``*.yaml`` of a directory and of those below it, in order of their paths.

    Returns:
        the objects, and the example pods among them.

    Raises:
        ConfigurationError: there is no such directory, it has no manifests, or a file has mistakes.
    """
    files = sorted(directory.rglob("*.yaml")) if directory.is_dir() else []
    if not files:
        raise ConfigurationError(f"--examples {directory}: a directory with *.yaml manifests is needed")
    objects: list[dict[str, Any]] = []
    examples: list[Example] = []
    for path in files:
        try:
            text = path.read_text(encoding="utf-8")
            # _Loader is a SafeLoader.
            documents = [d for d in yaml.load_all(text, Loader=_Loader) if d is not None]
        except (OSError, UnicodeDecodeError, yaml.YAMLError) as e:
            raise ConfigurationError(f"{path}: cannot be read: {e}") from e
        for document in documents:
            objects.append(_checked(document, path))
            source = path.relative_to(directory).parts[0]
            example = _example(document, path, source)
            if example is not None:
                examples.append(example)
    return objects, examples


def _checked(document: Any, path: Path) -> dict[str, Any]:
    metadata = document.get("metadata") if isinstance(document, dict) else None
    if not isinstance(metadata, dict) or not metadata.get("name"):
        raise ConfigurationError(f"{path}: every document needs apiVersion, kind and metadata.name")
    kind = (str(document.get("apiVersion")), str(document.get("kind")))
    if kind not in APPLIED_KINDS:
        allowed = ", ".join(sorted(k for _, k in APPLIED_KINDS))
        raise ConfigurationError(f"{path}: {' '.join(kind)} cannot be applied here; allowed kinds: {allowed}")
    if APPLIED_KINDS[kind].namespaced:
        metadata.setdefault("namespace", "default")
    checked: dict[str, Any] = document
    return checked


def _example(document: Mapping[str, Any], path: Path, source: str) -> Example | None:
    text = (document["metadata"].get("annotations") or {}).get(EXPECT_ANNOTATION)
    if document["kind"] != "Pod" or text is None:
        return None
    try:
        expect = msgspec.json.decode(text, type=Expectation)
        for amount in (expect.min_memory, expect.consumed_memory):
            if amount:
                Quantity.parse(amount)
    except (msgspec.MsgspecError, DraError) as e:
        raise ConfigurationError(f"{path}: annotation {EXPECT_ANNOTATION}: {e}") from e
    metadata = document["metadata"]
    return Example(ObjectKey(metadata["namespace"], metadata["name"]), expect, source)


def setup_objects(objects: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the objects that an administrator applies first: all that are in no namespace."""
    return [o for o in objects if not APPLIED_KINDS[o["apiVersion"], o["kind"]].namespaced]


async def placeless(api: KubeClient, examples: Iterable[Example]) -> dict[ObjectKey, str]:
    """Return the examples that cannot run in this cluster, and why."""
    labels = [n.metadata.labels or {} for n in (await api.list(NODES)).items]
    found: dict[ObjectKey, str] = {}
    for example in examples:
        key, _, value = example.expect.needs_node_label.partition("=")
        if key and not any(of_node.get(key) == value for of_node in labels):
            found[example.key] = f"no node has the label {key}={value}"
    return found


async def apply(api: KubeClient, objects: Iterable[Mapping[str, Any]]) -> None:
    """Apply the objects in order, by server-side apply."""
    for body in objects:
        kind = APPLIED_KINDS[body["apiVersion"], body["kind"]]
        await api.apply(kind, body, field_manager=FIELD_MANAGER, force=True)


async def delete_pods(api: KubeClient, examples: Iterable[Example]) -> None:
    """Delete the example pods, as far as they are there."""
    for example in examples:
        try:
            await api.delete(PODS, example.key.name, example.key.namespace)
        except NotFound:
            continue


# --- observing pods -----------------------------------------------------------------------------------------


async def observe(api: KubeClient, examples: Sequence[Example]) -> list[Outcome]:
    """Observe the pods, their claims, the claims' devices, and the Events about them."""
    pods: dict[ObjectKey, RunPod] = {}
    claims: dict[ObjectKey, ResourceClaim] = {}
    events: list[Event] = []
    for namespace in sorted({e.key.namespace for e in examples}):
        pods |= {p.key: p for p in (await api.list(RUN_PODS, namespace)).items}
        claims |= {c.key: c for c in (await api.list(RESOURCE_CLAIMS, namespace)).items}
        events += (await api.list(EVENTS, namespace)).items
    devices: dict[tuple[str, str, str], Device] = {}
    for item in (await api.list(RESOURCE_SLICES)).items:
        spec = item.spec
        devices |= {(spec.driver, spec.pool.name, device.name): device for device in spec.devices}
    return [_outcome(e, pods.get(e.key), claims, devices, events) for e in examples]


def _outcome(
    example: Example,
    pod: RunPod | None,
    claims: Mapping[ObjectKey, ResourceClaim],
    devices: Mapping[tuple[str, str, str], Device],
    events: Sequence[Event],
) -> Outcome:
    outcome = Outcome(example, pod)
    if pod is None:
        return outcome
    uids: set[str] = {pod.metadata.uid}
    for used in resourceclaim.pod_claims(pod):
        claim = claims.get(used.key) if used.key is not None else None
        if claim is None:
            continue
        uids.add(claim.metadata.uid)
        if claim.status.allocation is not None:
            for result in claim.status.allocation.devices.results:
                device = devices.get((result.driver, result.pool, result.device))
                outcome.devices.append(AllocatedDevice(claim.metadata.name, result, device))
    if pod.status.phase == "Pending":
        outcome.reasons = _reasons(pod, uids, events)
    return outcome


def _reasons(pod: Pod, uids: set[str], events: Sequence[Event]) -> list[str]:
    """Return the warnings about the pod and its claims, newest first, then the scheduler's condition."""
    warnings = [e for e in events if e.involved_object.uid in uids and e.type == "Warning"]
    warnings.sort(key=lambda e: e.last_timestamp or "", reverse=True)
    found = [e.message for e in warnings if e.reason != "FailedScheduling"]
    found += [
        str(c["message"]) for c in pod.status.conditions if c.get("status") == "False" and c.get("message")
    ]
    return list(dict.fromkeys(found))


def settled(outcome: Outcome) -> bool:
    """Return whether the pod can be judged."""
    if outcome.example.expect.unschedulable:
        return bool(outcome.reasons) or outcome.phase not in ("Pending", "Gone")
    return outcome.phase in ("Running", "Succeeded", "Failed")
