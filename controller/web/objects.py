"""What the page says about one device, node, claim or pod: facts, tables, and its history."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

import msgspec

from dra_driver.api.core import Node, Pod
from dra_driver.api.meta import DriverName, ObjectKey, PoolName
from dra_driver.api.resource import (
    DeviceAttribute,
    DeviceRequest,
    DeviceSelector,
    ExactDeviceRequest,
    ResourceClaim,
)
from dra_driver.fleet import (
    STATES,
    DeviceView,
    Fleet,
    History,
    HistoryEntry,
    PoolView,
    Subject,
    device_subject,
    node_trouble,
    set_aside_condition,
    waiting_condition,
)
from dra_driver.kube import Informer
from dra_driver.ownership import PoolID
from dra_driver.resourceclaim import pod_claims

__all__ = ["KINDS", "Link", "ObjectPage", "Objects", "Section"]

KINDS: Final = ("device", "node", "claim", "pod")
MOST_ROWS: Final = 256
MOST_ENTRIES: Final = 64
_LONGEST_CELL: Final = 1024
_MOST_LINKS: Final = 32
_ACTIVITIES: Final = {"busy": "something runs on it", "idle": "nothing runs on it"}
_BLOCKED: Final = "blocked: too little of its GPU is left, by what is allocated of it"


class Link(msgspec.Struct, frozen=True):
    """The name of another object that has a page.

    Attributes:
        kind: one of ``KINDS``.
        name: as in ``Subject``.
    """

    kind: str
    name: str


# A list of names may have more than the page shows: the last one says how many.
Cell = str | Link | tuple[str | Link, ...]
Row = tuple[Cell, ...]


class Section(msgspec.Struct, frozen=True):
    """A table.

    Attributes:
        rows: at most ``MOST_ROWS``; texts are cut at 1,024 characters.
        more: how many rows are left out.
    """

    title: str
    columns: tuple[str, ...]
    rows: tuple[Row, ...]
    more: int = 0


class ObjectPage(msgspec.Struct, frozen=True):
    """What is known about an object.

    Attributes:
        found: whether it is there; its history may be known where it is not any more.
        facts: names and values.
        sections: tables that have rows.
        history: what happened to it, oldest first.
        since: when the history begins, in seconds since the epoch.
        now: likewise, when this was answered.
    """

    kind: str
    name: str
    found: bool
    facts: tuple[tuple[str, Cell], ...]
    sections: tuple[Section, ...]
    history: tuple[HistoryEntry, ...]
    since: float
    now: float


@dataclass(frozen=True, slots=True)
class _Facts:
    facts: tuple[tuple[str, Cell], ...]
    sections: tuple[Section, ...]


class Objects:
    """Describes objects by what the controller has in memory.

    Args:
        fleet: of the page.
        claims: all claims.
        pods: all pods.
        nodes: all nodes.
        history: of them.
        since: when the history begins.
        now: returns seconds since the epoch.
        reason_of: why a claim is not allocated, as far as it is known; empty: nothing is.
    """

    def __init__(
        self,
        fleet: Fleet,
        claims: Informer[ResourceClaim],
        pods: Informer[Pod],
        nodes: Informer[Node],
        history: History,
        since: float,
        now: Callable[[], float],
        reason_of: Callable[[ResourceClaim, Iterable[Pod]], str],
    ) -> None:
        self._fleet = fleet
        self._claims = claims
        self._pods = pods
        self._nodes = nodes
        self._history = history
        self._since = since
        self._now = now
        self._reason_of = reason_of

    def describe(self, kind: str, name: str) -> ObjectPage | None:
        """Return what is known about an object; None where nothing is."""
        describers = {"device": self._device, "node": self._node, "claim": self._claim, "pod": self._pod}
        found, now = describers[kind](name), self._now()
        history = self._history_of(kind, name, now)
        if found is None and not history:
            return None
        facts = found or _Facts((), ())
        return ObjectPage(
            kind,
            name,
            found is not None,
            tuple((label, _cut(value)) for label, value in facts.facts if value),
            tuple(s for s in facts.sections if s.rows),
            history,
            self._since,
            now,
        )

    def _history_of(self, kind: str, name: str, now: float) -> tuple[HistoryEntry, ...]:
        own = self._history.of(Subject(kind, name), now)
        if kind != "node":
            return own
        # Its health is noted of the node itself, too.
        of_devices = (
            HistoryEntry(entry.at, entry.kind, f"{device.name}: {entry.text}")
            for view in self._views_of(name)
            for device in view.devices
            for entry in self._history.of(
                device_subject(PoolID(DriverName(view.driver), PoolName(view.pool)), device.name), now
            )
            if entry.kind in ("allocated", "freed")
        )
        return tuple(sorted((*own, *of_devices), key=lambda entry: entry.at)[-MOST_ENTRIES:])

    def _views_of(self, node: str) -> list[PoolView]:
        views = (self._fleet.pool(key) for key in self._fleet.pools())
        return [view for view in views if view is not None and view.node == node]

    def _device(self, name: str) -> _Facts | None:
        driver, _, rest = name.partition("/")
        pool_name, _, device = rest.partition("/")
        pool = PoolID(DriverName(driver), PoolName(pool_name))
        view = self._fleet.pool(pool)
        shown = next((d for d in view.devices if d.name == device), None) if view is not None else None
        if view is None or shown is None:
            return None
        published, found = self._fleet.device(pool, device)
        attributes = published.attributes if published is not None else {}
        capacity = published.capacity if published is not None else {}
        facts: tuple[tuple[str, Cell], ...] = (
            ("State", _BLOCKED if shown.state == "blocked" else shown.state),
            ("Health", shown.severity or "nothing is known to be wrong"),
            (
                "Activity",
                _ACTIVITIES.get(shown.activity, ""),
            ),
            ("Node", Link("node", view.node)),
            ("Model", shown.model),
            ("Type", shown.type),
            ("Memory", shown.memory),
            ("Driver", view.driver),
            ("Pool", view.pool),
        )
        health = found.health if found is not None else ()
        taints = published.taints if published is not None else ()
        return _Facts(
            facts,
            (
                _holders(shown),
                _section(
                    "Health",
                    ("Condition", "Severity", "What is wrong", "Since"),
                    ((h.reason, h.severity, h.message, h.since) for h in health),
                ),
                _section("Taints", ("Key", "Value", "Effect"), ((t.key, t.value, t.effect) for t in taints)),
                _section(
                    "Capacity", ("Name", "Amount"), ((n, str(c.value)) for n, c in sorted(capacity.items()))
                ),
                _section(
                    "Attributes", ("Name", "Value"), ((n, _value(a)) for n, a in sorted(attributes.items()))
                ),
            ),
        )

    def _node(self, name: str) -> _Facts | None:
        node = self._nodes.get(ObjectKey("", name))
        views = self._views_of(name)
        if node is None and not views:
            return None
        rows = [
            (
                Link("device", f"{v.driver}/{v.pool}/{d.name}"),
                d.model,
                d.state,
                tuple(Link("claim", h.claim) for h in d.holders),
                "; ".join(d.problems),
            )
            for v in views
            for d in v.devices
        ]
        labels = (node.metadata.labels or {}) if node is not None else {}
        conditions = node.status.conditions if node is not None else ()
        fields = ("type", "status", "reason", "message", "lastTransitionTime")
        facts: tuple[tuple[str, Cell], ...] = (
            ("State", (node_trouble(node) or "ready") if node is not None else "no such node in the cluster"),
            ("Created", (node.metadata.creation_timestamp or "") if node is not None else ""),
            ("Devices", _sums(views)),
        )
        return _Facts(
            facts,
            (
                _section("Notes", ("Driver", "Note"), ((v.driver, n) for v in views for n in v.notes)),
                _section("Devices", ("Device", "Model", "State", "Claims", "Problems"), rows),
                _section(
                    "Conditions",
                    ("Condition", "Status", "Reason", "Message", "Since"),
                    (tuple(str(c.get(f) or "") for f in fields) for c in conditions),
                ),
                _section("Labels", ("Label", "Value"), sorted(labels.items())),
            ),
        )

    def _claim(self, name: str) -> _Facts | None:
        key = _key(name)
        claim = self._claims.get(key)
        if claim is None:
            return None
        allocation = claim.status.allocation
        results = allocation.devices.results if allocation is not None else ()
        users = self._fleet.users(key)
        waits = self._fleet.waiting_claim(key, self._reason_of)
        facts: tuple[tuple[str, Cell], ...] = (
            ("State", "allocated" if allocation is not None else "waits"),
            ("Why it waits", waits.reason if waits is not None else ""),
            ("Devices", str(len(results)) if results else ""),
            ("Created", claim.metadata.creation_timestamp or ""),
            ("Allocated", (allocation.allocation_timestamp or "") if allocation is not None else ""),
            ("Being deleted since", claim.metadata.deletion_timestamp or ""),
        )
        devices = (
            (
                r.request,
                Link("device", device_subject(PoolID(r.driver, r.pool), r.device).name),
                _share(
                    {n: str(amount) for n, amount in r.consumed_capacity.items()}, admin=bool(r.admin_access)
                ),
            )
            for r in results
        )
        conditions = (
            (d.device, c.type, c.status, c.reason, c.message, c.last_transition_time)
            for d in claim.status.devices
            for c in d.conditions or ()
        )
        requests = (row for r in claim.spec.devices.requests or () for row in _requests(r))
        return _Facts(
            facts,
            (
                _section("Devices", ("Request", "Device", "Share"), devices),
                _section("Pods", ("Pod",), ((Link("pod", str(pod)),) for pod in users)),
                _section("Requests", ("Request", "Class", "Number", "Capacity", "Selectors"), requests),
                _section(
                    "Constraints",
                    ("Requests", "Attribute", "Devices have"),
                    (
                        (
                            ", ".join(c.requests) or "all",
                            c.match_attribute or c.distinct_attribute or "",
                            "the same value" if c.match_attribute else "different values",
                        )
                        for c in claim.spec.devices.constraints
                    ),
                ),
                _section(
                    "What drivers say",
                    ("Device", "Condition", "Status", "Reason", "Message", "Since"),
                    conditions,
                ),
            ),
        )

    def _pod(self, name: str) -> _Facts | None:
        pod = self._pods.get(_key(name))
        if pod is None:
            return None
        waits, aside = waiting_condition(pod) or {}, set_aside_condition(pod) or {}
        facts: tuple[tuple[str, Cell], ...] = (
            ("Phase", pod.status.phase),
            ("Waits for devices", _reason_and_message(waits)),
            ("Since", str(waits.get("lastTransitionTime") or "")),
            ("Set aside for it", str(aside.get("message") or "")),
            ("Node", Link("node", pod.spec.node_name) if pod.spec.node_name else ""),
            ("Nominated node", pod.status.nominated_node_name),
            ("Priority", str(pod.spec.priority)),
            ("Scheduler", pod.spec.scheduler_name),
            ("Pod group", pod.spec.pod_group),
            ("Scheduling gates", ", ".join(g.name for g in pod.spec.scheduling_gates)),
            ("Created", pod.metadata.creation_timestamp or ""),
            ("Being deleted since", pod.metadata.deletion_timestamp or ""),
        )
        fields = ("type", "status", "reason", "message", "lastTransitionTime")
        return _Facts(
            facts,
            (
                _section("Claims", ("Entry", "Claim", "State", "Devices"), self._claims_of(pod)),
                _section(
                    "Conditions",
                    ("Condition", "Status", "Reason", "Message", "Since"),
                    (tuple(str(c.get(f) or "") for f in fields) for c in pod.status.conditions),
                ),
            ),
        )

    def _claims_of(self, pod: Pod) -> Iterable[Row]:
        for used in pod_claims(pod):
            claim = self._claims.get(used.key) if used.key is not None else None
            allocation = claim.status.allocation if claim is not None else None
            results = allocation.devices.results if allocation is not None else ()
            state = "missing" if claim is None else "waits" if allocation is None else "allocated"
            named: Cell = Link("claim", str(used.key)) if used.key is not None else "is not made yet"
            devices = tuple(
                Link("device", device_subject(PoolID(r.driver, r.pool), r.device).name) for r in results
            )
            yield used.entry or "extended resources", named, state, devices


def _key(name: str) -> ObjectKey:
    namespace, _, rest = name.partition("/")
    return ObjectKey(namespace, rest)


def _reason_and_message(condition: Mapping[str, str | int | None]) -> str:
    return ": ".join(str(condition[f]) for f in ("reason", "message") if condition.get(f))


def _holders(device: DeviceView) -> Section:
    rows: list[Row] = [
        (
            Link("claim", h.claim),
            h.request,
            tuple(_pod_of(h.claim, pod) for pod in h.pods),
            _share(h.share, admin=h.admin),
        )
        for h in device.holders
    ]
    return _section("Who holds it", ("Claim", "Request", "Pods", "Share"), rows)


def _pod_of(claim: str, user: str) -> str | Link:
    """Return what a claim is reserved for: a pod, or a PodGroup, which has no page."""
    return user if ":" in user else Link("pod", f"{claim.partition('/')[0]}/{user}")


def _share(share: Mapping[str, str], *, admin: bool) -> str:
    """Return what is taken of a device, without the capacities of which nothing is."""
    taken = ", ".join(f"{name} {amount}" for name, amount in sorted(share.items()) if amount != "0")
    return taken or ("admin access" if admin else "whole")


def _sums(views: Iterable[PoolView]) -> str:
    states = sum((view.states() for view in views), Counter[str]())
    each = ", ".join(f"{states[state]} {state}" for state in reversed(STATES) if states[state])
    return f"{states.total()}: {each}" if states else ""


def _requests(request: DeviceRequest) -> Iterable[Row]:
    if request.exactly is not None:
        yield _request(request.name, request.exactly)
    for alternative in request.first_available:
        exactly = ExactDeviceRequest(
            device_class_name=alternative.device_class_name,
            selectors=alternative.selectors,
            allocation_mode=alternative.allocation_mode,
            count=alternative.count,
            capacity=alternative.capacity,
        )
        yield _request(f"{request.name}/{alternative.name}", exactly)


def _request(name: str, request: ExactDeviceRequest) -> Row:
    number = "all" if request.allocation_mode == "All" else str(request.count or 1)
    capacity = request.capacity.requests if request.capacity is not None else {}
    return (
        name,
        request.device_class_name,
        f"{number}, admin access" if request.admin_access else number,
        ", ".join(f"{n} {amount}" for n, amount in sorted(capacity.items())),
        _selectors(request.selectors),
    )


def _selectors(selectors: Iterable[DeviceSelector]) -> str:
    return " && ".join(s.cel.expression for s in selectors if s.cel is not None)


def _value(attribute: DeviceAttribute) -> str:
    values = (getattr(attribute, field) for field in attribute.__struct_fields__)
    value = next((v for v in values if v is not None), "")
    if isinstance(value, tuple):
        return ", ".join(map(str, value))
    return str(value).lower() if isinstance(value, bool) else str(value)


def _section(title: str, columns: tuple[str, ...], rows: Iterable[Row]) -> Section:
    found = list(rows)
    kept = tuple(tuple(map(_cut, row)) for row in found[:MOST_ROWS])
    return Section(title, columns, kept, max(0, len(found) - MOST_ROWS))


def _cut(cell: Cell) -> Cell:
    if isinstance(cell, str):
        return cell[:_LONGEST_CELL]
    if isinstance(cell, tuple) and len(cell) > _MOST_LINKS:
        return *cell[:_MOST_LINKS], f"and {len(cell) - _MOST_LINKS} more"
    return cell
