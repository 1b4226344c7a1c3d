"""Deletion: graceful periods, finalizers, and what goes with namespaces and definitions."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from dra_driver.sim.apiserver.objects.kinds import Kind
from dra_driver.sim.apiserver.objects.status import Raw, StatusError, success
from dra_driver.sim.apiserver.storage.store import Key, Stored
from dra_driver.sim.apiserver.writing import strategy
from dra_driver.sim.apiserver.writing.reviews import ADMINISTRATOR, Reviews
from dra_driver.sim.apiserver.writing.server_state import ServerState

__all__ = ["DeleteOptions", "call_later", "check_preconditions", "delete", "finish", "resume"]

NAMESPACE_DELAY = 0.5
"""Seconds before a deleted namespace is emptied: ``kubectl delete -f`` may name its content as well."""


def call_later(delay: float, work: Callable[[], None]) -> None:
    """Run ``work`` on the running loop after ``delay`` seconds; at once if no loop runs."""
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        work()
    else:
        loop.call_later(delay, work)


@dataclass(slots=True)
class DeleteOptions:
    """``DeleteOptions``.

    Attributes:
        grace: grace period in seconds; if None, it is the object's own.
        uid: UID that the object must have; empty for any.
        version: resource version that the object must have; empty for any.
        dry_run: whether nothing is to be deleted.
        propagation: ``Foreground``, ``Orphan`` or ``Background``; empty counts as the last.
        reviews: the answers of webhooks; None if none is installed.
        user: ``userInfo`` of the request, for admission.
    """

    grace: int | None = None
    uid: str = ""
    version: str = ""
    dry_run: bool = False
    propagation: str = ""
    reviews: Reviews | None = None
    user: Raw = field(default_factory=lambda: ADMINISTRATOR)


def delete(registry: ServerState, kind: Kind, namespace: str, name: str, options: DeleteOptions) -> Raw:
    """Mark the object as deleted, or remove it if nothing holds it; return the server's answer.

    Raises:
        StatusError: 404, 409 (preconditions).
    """
    existing = registry.get(kind, namespace, name)
    check_preconditions(kind, existing.raw["metadata"], options)
    metadata = dict(existing.raw["metadata"])
    raw = {**existing.raw, "metadata": metadata}
    if kind.kind == "Namespace" and not kind.group:
        return _terminate_namespace(registry, kind, existing, raw, options)
    _propagate(registry, kind, metadata, options.propagation)
    period = strategy.grace_period(kind, raw, options.grace)
    if "deletionTimestamp" in metadata:
        period = _shorten(metadata, period or 0)
    elif period is not None or metadata.get("finalizers"):
        metadata["deletionTimestamp"] = registry.at(period or 0)
        metadata["deletionGracePeriodSeconds"] = period or 0
        if metadata.get("generation"):
            metadata["generation"] += 1
    if metadata.get("finalizers") or period:
        if not options.dry_run and raw != existing.raw:
            registry.collection(kind).put(existing.key, raw)
        return raw
    if not options.dry_run:
        raw = finish(registry, kind, existing.key, raw)
    if kind.answers_object:
        return raw
    return success(kind=kind.plural, group=kind.group, name=metadata["name"], uid=metadata["uid"])


def check_preconditions(kind: Kind, metadata: Raw, options: DeleteOptions) -> None:
    """Raise a conflict unless the object is the one that is meant."""
    for label, wanted, found in (
        ("UID", options.uid, metadata["uid"]),
        ("ResourceVersion", options.version, metadata["resourceVersion"]),
    ):
        if wanted and wanted != found:
            why = f"Precondition failed: {label} in precondition: {wanted}, {label} in object meta: {found}"
            raise StatusError.conflict(kind.plural, kind.group, metadata["name"], why)


# Finalizers of the garbage collector, which it takes off after its work.
_PROPAGATION = {"Foreground": "foregroundDeletion", "Orphan": "orphan"}


def _propagate(registry: ServerState, kind: Kind, metadata: Raw, policy: str) -> None:
    """Add the finalizer of the policy, on kinds of which a garbage collector takes it off again."""
    if not policy or (kind.group, kind.plural) not in registry.collected:
        return
    kept = [f for f in metadata.get("finalizers") or [] if f not in _PROPAGATION.values()]
    finalizers = [*kept, _PROPAGATION[policy]] if policy in _PROPAGATION else kept
    if finalizers:
        metadata["finalizers"] = finalizers
    else:
        metadata.pop("finalizers", None)


def _shorten(metadata: Raw, period: int) -> int:
    """Shorten the wait of a second deletion, which cannot make it longer; return what is left of it."""
    current = int(metadata.get("deletionGracePeriodSeconds", 0))
    if period >= current:
        return current
    moment = datetime.fromisoformat(metadata["deletionTimestamp"]) - timedelta(seconds=current - period)
    metadata["deletionTimestamp"] = moment.strftime("%Y-%m-%dT%H:%M:%SZ")
    metadata["deletionGracePeriodSeconds"] = period
    return period


def finish(registry: ServerState, kind: Kind, key: Key, last: Raw | None = None) -> Raw:
    """Remove an object that nothing holds any more, and what goes with it."""
    removed = registry.collection(kind).remove(key, last)
    if kind.kind == "CustomResourceDefinition":
        _withdraw(registry, removed.raw)
    if kind.namespaced:
        _finish_namespace(registry, key.namespace)
    return removed.raw


def _withdraw(registry: ServerState, raw: Raw) -> None:
    group, plural = raw["spec"]["group"], raw["spec"]["names"]["plural"]
    collection = registry.store.collection(group, plural)
    for stored in collection.list():
        collection.remove(stored.key)
    registry.kinds.remove(group, plural)


# --- namespaces: the part of the namespace controller that `kubectl delete namespace` waits for ---


def _terminate_namespace(
    registry: ServerState, kind: Kind, existing: Stored, raw: Raw, options: DeleteOptions
) -> Raw:
    metadata = raw["metadata"]
    if "deletionTimestamp" not in metadata:
        metadata["deletionTimestamp"] = registry.now()
        raw["status"] = {**(raw.get("status") or {}), "phase": "Terminating"}
        if options.dry_run:
            return raw
        registry.collection(kind).put(existing.key, raw)
        registry.later(NAMESPACE_DELAY, lambda: _empty_namespace(registry, existing.key.name))
    return raw


def resume(registry: ServerState) -> None:
    """Resume the deletion of namespaces that an earlier server has not finished."""
    for stored in registry.store.collection("", "namespaces").list():
        if "deletionTimestamp" in stored.raw["metadata"]:
            registry.later(NAMESPACE_DELAY, functools.partial(_empty_namespace, registry, stored.key.name))


def _empty_namespace(registry: ServerState, name: str) -> None:
    for kind in registry.kinds:
        collection = registry.collection(kind)
        for stored in list(collection.list(name)):
            if collection.get(stored.key) is not None:
                delete(registry, kind, name, stored.key.name, DeleteOptions())
    _finish_namespace(registry, name)


def _finish_namespace(registry: ServerState, name: str) -> None:
    namespaces = registry.store.collection("", "namespaces")
    found = namespaces.get(Key("", name))
    if found is None or "deletionTimestamp" not in found.raw["metadata"]:
        return
    if not found.raw["metadata"].get("finalizers") and not any(
        name in c.by_namespace for c in registry.store.collections()
    ):
        namespaces.remove(found.key)
