"""What is wrong with a fleet, what that means, and what to do about it. ``status`` and the page show these.

The controller, the agents of nodes, nodes, devices, and pods that wait for long: parts that are gone are not
in any other list, because nothing reports of them.
"""

from __future__ import annotations

import datetime
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Final

import msgspec

from dra_driver.api.core import Node
from dra_driver.api.names import SETUP_REASONS
from dra_driver.api.own.inventory import DeviceHealth, DeviceInventory, InventoryDevice
from dra_driver.api.resource import DeviceAttribute, ResourceSlice
from dra_driver.fleet.remedies import remedy
from dra_driver.fleet.views import Holder
from dra_driver.fleet.waiting import WaitingClaim
from dra_driver.ownership import (
    AGENT_CONDITION,
    AgentState,
    agent_state,
    is_ready,
    newest_generation,
    refusal_of,
    shown_agent_state,
)
from dra_driver.resourceslice import HEALTH_TAINT

__all__ = [
    "LONG_WAIT_SECONDS",
    "ControllerSeen",
    "Problem",
    "controller_problem",
    "controller_sentence",
    "duration",
    "pool_problems",
    "seconds_since",
    "wait_problem",
]

LONG_WAIT_SECONDS: Final = 900.0
"""After which it is a problem that a pod waits for devices."""

_SICK: Final = ("degraded", "failed")


class Problem(msgspec.Struct, frozen=True, rename="camel"):
    """One thing that is wrong.

    Attributes:
        kind: CamelCase, stable: ``ControllerSilent``, ``ControllerEnded``, ``ControllerMissing``,
            ``AgentGone``, ``NotRegistered``, ``NodeNotReady``, ``DeviceUnhealthy`` or ``LongWait``.
        subject: ``controller``, ``node/NAME``, ``device/NODE/NAME`` or ``pod/NAMESPACE/NAME``.
        message: what is wrong, and what that means; for people.
        action: what to do; for people.
        since: RFC 3339; empty if that is not known.
        claims: ``namespace/name`` of those that hold what is concerned.
    """

    kind: str
    subject: str
    message: str
    action: str
    since: str = ""
    claims: tuple[str, ...] = ()

    @property
    def node(self) -> str:
        """The node that it is about; empty if it is about none."""
        kind, _, rest = self.subject.partition("/")
        return rest.partition("/")[0] if kind in ("node", "device") else ""


# --- the controller -----------------------------------------------------------------------------------------


class ControllerSeen(msgspec.Struct, frozen=True):
    """What the Lease of the controller says, after it was looked at twice where it seems to have run out.

    Attributes:
        lease: ``namespace/name``.
        found: whether there is a Lease.
        holder: its holder; empty after an orderly end.
        renewed: when it was renewed last, RFC 3339.
        answers: whether the holder renews it.
    """

    lease: str
    found: bool = False
    holder: str = ""
    renewed: str = ""
    answers: bool = False


_CONTROLLER: Final = "nothing is allocated, published or deallocated until one works; running pods go on"


def controller_problem(seen: ControllerSeen) -> Problem | None:
    """Return what is wrong with the controller."""
    if seen.answers:
        return None
    namespace = seen.lease.partition("/")[0]
    action = f"see its pods and their logs: kubectl -n {namespace} get pods"
    if not seen.found:
        message = f"has never run in namespace {namespace}: there is no Lease {seen.lease}"
        action += "; if it runs in another namespace, give --system-namespace"
        return Problem("ControllerMissing", "controller", f"{message}; {_CONTROLLER}", action)
    if not seen.holder:
        message = f"does not run: the last one has released the Lease {seen.lease}"
        return Problem("ControllerEnded", "controller", f"{message}; {_CONTROLLER}", action, seen.renewed)
    message = f"does not answer: it does not renew its Lease {seen.lease}"
    return Problem("ControllerSilent", "controller", f"{message}; {_CONTROLLER}", action, seen.renewed)


def controller_sentence(seen: ControllerSeen, now: float) -> str:
    """Return for how long the controller has not answered; empty if it answers."""
    if seen.answers:
        return ""
    if not seen.found:
        return "the controller has never run"
    ago = seconds_since(seen.renewed, now)
    return (
        f"the controller has not answered for {duration(ago)}" if ago is not None else "no controller answers"
    )


# --- nodes and devices --------------------------------------------------------------------------------------


def pool_problems(
    inventory: DeviceInventory,
    node: Node | None,
    slices: Collection[ResourceSlice],
    holders: Mapping[str, Sequence[Holder]],
    *,
    answers: bool = True,
) -> Iterator[Problem]:
    """Yield what is wrong with the agent, the node and the devices of an inventory.

    Args:
        inventory: of the node.
        node: whose it is; None if it is not known.
        slices: of the pool.
        holders: device → its holders.
        answers: whether the controller works: what it shows of the agent has lasted for a while.
    """
    if refusal_of(inventory, node):
        return  # a node says nothing of another one
    gone = _gone(inventory, node, slices, holders, answers=answers)
    if gone is not None:
        yield gone
    name = inventory.spec.node_name
    parts = _parts(inventory, slices)
    tainted = {
        d.name
        for s in newest_generation(slices)
        for d in s.spec.devices
        if any(t.key == HEALTH_TAINT for t in d.taints)
    }
    for device in inventory.spec.devices:
        found = [h for h in device.health if h.severity in _SICK and h.reason not in SETUP_REASONS]
        if found:
            worst = max(found, key=lambda h: (_SICK.index(h.severity), h.reason))
            claims = _claims(holders, (device.name, *parts.get(device.name, ())))
            yield _sick(name, device, worst, claims)
    wholes = [d.name for d in inventory.spec.devices if d.health]
    explained = {*wholes, *(part for whole in wholes for part in parts.get(whole, ()))}
    for device_name in sorted(tainted - explained):
        yield Problem(
            "DeviceUnhealthy",
            f"device/{name}/{device_name}",
            "its ResourceSlice says that it is unhealthy",
            "see the taints of the device",
            claims=_claims(holders, (device_name,)),
        )


def _gone(
    inventory: DeviceInventory,
    node: Node | None,
    slices: Collection[ResourceSlice],
    holders: Mapping[str, Sequence[Holder]],
    *,
    answers: bool,
) -> Problem | None:
    state = agent_state(inventory, node, {s.metadata.name for s in slices})
    shown = shown_agent_state(inventory)
    if state is None or state is AgentState.REGISTERED or node is None:
        return None
    name, claims = node.metadata.name, _claims(holders, holders)
    number = len(inventory.spec.devices)
    what = f"{number} device{'s' * (number != 1)}"
    held = f"{len(claims)} claim{'s' * (len(claims) != 1)} still there"
    if state is AgentState.NODE_NOT_READY:
        text = f"is not ready: {what}, {held}"
        return Problem(
            state.value, f"node/{name}", text, f"kubectl describe node {name}", _not_ready_since(node), claims
        )
    if answers and shown is AgentState.REGISTERED:
        return None  # not for long yet
    condition = next((c for c in inventory.status.conditions if c.type == AGENT_CONDITION), None)
    since = condition.last_transition_time if condition is not None and condition.status == "False" else ""
    why = (
        "its agent is gone"
        if state is AgentState.GONE
        else "its agent has ended, or the kubelet does not know it"
    )
    withdrawn = f"{what} withdrawn" if not slices else what
    action = f"see the agent's pod on node {name} and its log"
    return Problem(state.value, f"node/{name}", f"{why}: {withdrawn}, {held}", action, since, claims)


def _not_ready_since(node: Node) -> str:
    ready = next((c for c in node.status.conditions if c.get("type") == "Ready"), {})
    return "" if is_ready(node) else ready.get("lastTransitionTime") or ""


def _sick(node: str, device: InventoryDevice, health: DeviceHealth, claims: tuple[str, ...]) -> Problem:
    kind = _text(device.attributes.get("type"))
    what = kind.upper() if kind in ("gpu", "nic") else "GPU" if not kind else "device"
    action = remedy(health.reason, what)
    if claims and action.startswith(("reset", "replace", "restart", "update")):
        action = f"end the pods that use it, then {action}"
    message = f"{health.reason}: {health.message}" if health.message else health.reason
    return Problem("DeviceUnhealthy", f"device/{node}/{device.name}", message, action, health.since, claims)


def _parts(inventory: DeviceInventory, slices: Iterable[ResourceSlice]) -> dict[str, list[str]]:
    """Return device of the inventory → its published parts."""
    wholes = {uuid: d.name for d in inventory.spec.devices if (uuid := _text(d.attributes.get("uuid")))}
    parts: dict[str, list[str]] = {}
    for slice_ in slices:
        for device in slice_.spec.devices:
            whole = wholes.get(_text(device.attributes.get("parentUUID")))
            if whole is not None:
                parts.setdefault(whole, []).append(device.name)
    return parts


def _claims(holders: Mapping[str, Sequence[Holder]], devices: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted({h.claim for name in devices for h in holders.get(name, ())}))


def _text(attribute: DeviceAttribute | None) -> str:
    return (attribute.string_value or "") if attribute is not None else ""


# --- pods ---------------------------------------------------------------------------------------------------


def wait_problem(claim: WaitingClaim) -> Problem:
    """Return the problem of a claim whose pods have waited for too long."""
    namespace, _, name = claim.claim.partition("/")
    pod = f"pod/{namespace}/{claim.pods[0]}" if claim.pods else f"claim/{namespace}/{name}"
    action = f"dra-driver explain -n {namespace} pod/{claim.pods[0]}" if claim.pods else ""
    return Problem("LongWait", pod, f"waits for devices: {claim.reason}", action, claim.since, (claim.claim,))


# --- time ---------------------------------------------------------------------------------------------------


def seconds_since(moment: str, now: float) -> float | None:
    """Return the seconds since a moment (RFC 3339); None where it is none, or lies ahead of this clock."""
    try:
        ago = now - datetime.datetime.fromisoformat(moment).timestamp()
    except ValueError:
        return None
    return ago if ago >= 0 else None


def duration(seconds: float) -> str:
    """Return a time for people, in its largest unit: ``40 s``, ``12 min``, ``5 h``, ``3 d``."""
    for unit, size in (("d", 86_400), ("h", 3600), ("min", 120)):
        if seconds >= size:
            return f"{int(seconds // (60 if unit == 'min' else size))} {unit}"
    return f"{int(seconds)} s"
