"""The example manifests: read, applied, observed, and held against what they promise.

Each example pod says in the annotation ``demo.dra-driver.dev/expect`` what it must get, as JSON. The demo and
the end-to-end suite check that against the API objects alone, so the same checks hold on a real cluster; what
the container sees is added where somebody can tell.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import yaml

from dra_driver import resourceclaim
from dra_driver.api.core import EVENTS, PODS, Event, Pod
from dra_driver.api.meta import ObjectKey
from dra_driver.api.quantity import Quantity
from dra_driver.api.resource import (
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    Device,
    DeviceAttribute,
    DeviceRequestAllocationResult,
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
    "settled",
    "twice_allocated",
    "verify",
]

EXPECT_ANNOTATION = "demo.dra-driver.dev/expect"
FIELD_MANAGER = "dra-driver-demo"


class Expectation(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True, kw_only=True):
    """What an example pod must get.

    Attributes:
        devices: number of devices over all its claims.
        min_memory: least ``memory`` of each device.
        same_attribute: attribute that is equal on all its devices, by its unqualified name.
        shares_claim_with: pod of the same namespace that uses the same claim.
        unschedulable: it must wait, with a reason for people.
    """

    devices: int = 0
    min_memory: str = ""
    same_attribute: str = ""
    shares_claim_with: str = ""
    unschedulable: bool = False


@dataclass(frozen=True, slots=True)
class Example:
    """One example pod."""

    key: ObjectKey
    expect: Expectation
    source: str


@dataclass(frozen=True, slots=True)
class AllocatedDevice:
    """One device that a pod's claim holds; ``device`` is None where no slice shows it (any more)."""

    claim: str
    result: DeviceRequestAllocationResult
    device: Device | None


@dataclass(slots=True)
class Outcome:
    """What became of an example pod.

    Attributes:
        reasons: why it waits, the most telling first.
        containers: what each container sees; None where nobody can tell.
    """

    example: Example
    pod: Pod | None
    devices: list[AllocatedDevice] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)
    containers: Mapping[str, ContainerView] | None = None

    @property
    def phase(self) -> str:
        """Of the pod; ``Gone`` where there is none."""
        return self.pod.status.phase if self.pod is not None else "Gone"

    @property
    def node(self) -> str:
        """Where it runs, or empty."""
        return self.pod.spec.node_name if self.pod is not None else ""

    @property
    def claims(self) -> tuple[str, ...]:
        """Names of its claims."""
        if self.pod is None:
            return ()
        return tuple(used.key.name for used in resourceclaim.pod_claims(self.pod) if used.key is not None)


# --- manifests ----------------------------------------------------------------------------------------------


def load_manifests(directory: Path) -> tuple[list[dict[str, Any]], list[Example]]:
    """Reads all ``*.yaml`` of a directory, in order of their names.

    Returns:
        the objects, and the example pods among them.

    Raises:
        ConfigurationError: no such directory, nothing in it, or a file that is wrong; says which and why.
    """
    files = sorted(directory.glob("*.yaml")) if directory.is_dir() else []
    if not files:
        raise ConfigurationError(f"--examples {directory}: a directory with *.yaml manifests is needed")
    objects: list[dict[str, Any]] = []
    examples: list[Example] = []
    for path in files:
        try:
            documents = [d for d in yaml.safe_load_all(path.read_text(encoding="utf-8")) if d is not None]
        except (OSError, UnicodeDecodeError, yaml.YAMLError) as e:
            raise ConfigurationError(f"{path}: cannot be read: {e}") from e
        for document in documents:
            objects.append(_checked(document, path))
            example = _example(document, path)
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


def _example(document: Mapping[str, Any], path: Path) -> Example | None:
    text = (document["metadata"].get("annotations") or {}).get(EXPECT_ANNOTATION)
    if document["kind"] != "Pod" or text is None:
        return None
    try:
        expect = msgspec.json.decode(text, type=Expectation)
        if expect.min_memory:
            Quantity.parse(expect.min_memory)
    except (msgspec.MsgspecError, DraError) as e:
        raise ConfigurationError(f"{path}: annotation {EXPECT_ANNOTATION}: {e}") from e
    metadata = document["metadata"]
    return Example(ObjectKey(metadata["namespace"], metadata["name"]), expect, path.name)


async def apply(api: KubeClient, objects: Iterable[Mapping[str, Any]]) -> None:
    """Server-side apply, in order."""
    for body in objects:
        kind = APPLIED_KINDS[body["apiVersion"], body["kind"]]
        await api.apply(kind, body, field_manager=FIELD_MANAGER, force=True)


async def delete_pods(api: KubeClient, examples: Iterable[Example]) -> None:
    """Deletes the example pods; those that are gone are fine."""
    for example in examples:
        try:
            await api.delete(PODS, example.key.name, example.key.namespace)
        except NotFound:
            continue


# --- what became of them ------------------------------------------------------------------------------------


async def observe(api: KubeClient, example: Example) -> Outcome:
    """Looks at the pod, its claims, their devices and the events about them."""
    try:
        pod: RunPod = await api.get(RUN_PODS, example.key.name, example.key.namespace)
    except NotFound:
        return Outcome(example, None)
    outcome = Outcome(example, pod)
    uids: set[str] = {pod.metadata.uid}
    for used in resourceclaim.pod_claims(pod):
        if used.key is None:
            continue
        try:
            claim = await api.get(RESOURCE_CLAIMS, used.key.name, used.key.namespace)
        except NotFound:
            continue
        uids.add(claim.metadata.uid)
        if claim.status.allocation is not None:
            for result in claim.status.allocation.devices.results:
                device = await _find_device(api, result)
                outcome.devices.append(AllocatedDevice(claim.metadata.name, result, device))
    if pod.status.phase == "Pending":
        outcome.reasons = await _reasons(api, pod, uids)
    return outcome


async def _find_device(api: KubeClient, result: DeviceRequestAllocationResult) -> Device | None:
    slices = await api.list(RESOURCE_SLICES, field_selector=f"spec.driver={result.driver}")
    for item in slices.items:
        if item.spec.pool.name == result.pool:
            for device in item.spec.devices:
                if device.name == result.device:
                    return device
    return None


async def _reasons(api: KubeClient, pod: Pod, uids: set[str]) -> list[str]:
    """Warnings about the pod and its claims, newest first; then what the scheduler says."""
    events = await api.list(EVENTS, pod.metadata.namespace)
    warnings: list[Event] = [e for e in events.items if e.involved_object.uid in uids and e.type == "Warning"]
    warnings.sort(key=lambda e: e.last_timestamp or "", reverse=True)
    found = [e.message for e in warnings if e.reason != "FailedScheduling"]
    found += [
        str(c["message"]) for c in pod.status.conditions if c.get("status") == "False" and c.get("message")
    ]
    return list(dict.fromkeys(found))


def settled(outcome: Outcome) -> bool:
    """Whether there is something to judge."""
    if outcome.example.expect.unschedulable:
        return bool(outcome.reasons) or outcome.phase not in ("Pending", "Gone")
    return outcome.phase in ("Running", "Succeeded", "Failed")


def verify(outcome: Outcome, all_outcomes: Sequence[Outcome]) -> list[str]:
    """What is not as promised; empty where all is well."""
    expect = outcome.example.expect
    if expect.unschedulable:
        return list(_verify_waiting(outcome))
    findings: list[str] = []
    if outcome.phase not in ("Running", "Succeeded"):
        findings.append(f"is {outcome.phase}" + "".join(f": {r}" for r in outcome.reasons[:1]))
    if len(outcome.devices) != expect.devices:
        findings.append(f"has {len(outcome.devices)} devices instead of {expect.devices}")
    for item in outcome.devices:
        findings += _verify_device(outcome, item)
    if expect.same_attribute:
        values = {_attribute(d.device, expect.same_attribute) for d in outcome.devices}
        if len(values) != 1 or None in values:
            shown = ", ".join(sorted(str(v) for v in values))
            findings.append(f"has devices with different {expect.same_attribute}: {shown}")
    if expect.shares_claim_with:
        findings += _verify_sharing(outcome, all_outcomes)
    return findings


def _verify_waiting(outcome: Outcome) -> Iterable[str]:
    if outcome.phase != "Pending":
        yield f"is {outcome.phase}, although it cannot be satisfied"
    if outcome.devices:
        yield "has devices, although it cannot be satisfied"
    if not outcome.reasons:
        yield "waits without a reason that people could read"


def _verify_device(outcome: Outcome, item: AllocatedDevice) -> Iterable[str]:
    name = item.result.device
    if item.device is None:
        yield f"device {name} is in no ResourceSlice of pool {item.result.pool}"
        return
    expect = outcome.example.expect
    memory = item.device.capacity.get("memory")
    if expect.min_memory and (memory is None or memory.value < Quantity.parse(expect.min_memory)):
        found = memory.value if memory is not None else "unknown"
        yield f"device {name} has {found} memory, less than {expect.min_memory}"
    for container, view in (outcome.containers or {}).items():
        if name not in {v for k, v in view.env.items() if k.startswith("DRA_") and k.endswith("_DEVICE")}:
            yield f"container {container} sees no DRA_*_DEVICE={name}"
        uuid = _attribute(item.device, "uuid")
        if uuid is not None and uuid not in view.env.values():
            yield f"container {container} does not see the UUID {uuid} of {name}"


def _verify_sharing(outcome: Outcome, all_outcomes: Sequence[Outcome]) -> Iterable[str]:
    wanted = outcome.example.expect.shares_claim_with
    for other in all_outcomes:
        if other.example.key == ObjectKey(outcome.example.key.namespace, wanted):
            if set(other.claims) != set(outcome.claims):
                yield f"uses {', '.join(outcome.claims)}, but {wanted} uses {', '.join(other.claims)}"
            if other.node != outcome.node:
                yield f"runs on {outcome.node}, but {wanted} on {other.node}"
            return
    yield f"should share its claim with {wanted}, which is no example"


def twice_allocated(outcomes: Iterable[Outcome]) -> list[str]:
    """Devices that more than one claim holds as a whole."""
    holders: dict[tuple[str, str, str], set[str]] = {}
    for outcome in outcomes:
        for item in outcome.devices:
            if item.result.share_id is None and not item.result.admin_access:
                device = (item.result.driver, item.result.pool, item.result.device)
                holders.setdefault(device, set()).add(item.claim)
    return [
        f"{'/'.join(device)} is allocated to {' and '.join(sorted(claims))}"
        for device, claims in holders.items()
        if len(claims) > 1
    ]


def _attribute(device: Device | None, name: str) -> str | int | bool | None:
    found: DeviceAttribute | None = device.attributes.get(name) if device is not None else None
    if found is None:
        return None
    for value in (found.string_value, found.int_value, found.bool_value, found.version_value):
        if value is not None:
            return value
    return None
