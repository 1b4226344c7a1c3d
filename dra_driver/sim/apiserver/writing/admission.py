"""Stand-ins for the mutations of MutatingAdmissionPolicies, which this server does not evaluate.

A policy that our own components need has a function here that sets in new objects what the policy sets, and
no more. It acts as long as the policy and a binding of it are stored, as on a real cluster, for namespaces
that the policy selects and where its conditions hold: ``deploy/manifests/gate-policy`` has to be applied for
the gate. All others are stored and served, but never evaluated.
ValidatingAdmissionPolicies are evaluated: see ``policies``.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping

from dra_driver.api import codec
from dra_driver.api.names import ALLOCATION_GATE, GATE_POLICY
from dra_driver.api.server.admission import MutatingPolicy, MutatingPolicySpec
from dra_driver.cel import CelRuntimeError
from dra_driver.cel.policies import compile_policy
from dra_driver.resourceclaim import selects
from dra_driver.sim.apiserver.objects.kinds import Kind
from dra_driver.sim.apiserver.objects.status import Raw
from dra_driver.sim.apiserver.storage.store import Key, Store

__all__ = ["STAND_INS", "admit_create"]

# Called with the kind and a new object that the policy is about.
StandIn = Callable[[Kind, Raw], None]


def _add_gate(kind: Kind, raw: Raw) -> None:
    """Add our scheduling gate to pods."""
    if (kind.group, kind.kind) != ("", "Pod"):
        return
    gates = raw["spec"].setdefault("schedulingGates", [])
    if all(gate.get("name") != ALLOCATION_GATE for gate in gates):
        gates.append({"name": ALLOCATION_GATE})


STAND_INS: Mapping[str, StandIn] = {GATE_POLICY: _add_gate}
"""Name of the MutatingAdmissionPolicy to what it does."""

_GROUP = "admissionregistration.k8s.io"


def admit_create(store: Store, kind: Kind, namespace: str, raw: Raw) -> None:
    """Change a new object as the policies that are in force would."""
    if kind.kind != "Pod" or not store.collection(_GROUP, "mutatingadmissionpolicies").objects:
        return
    bound = {
        (binding.raw.get("spec") or {}).get("policyName")
        for binding in store.collection(_GROUP, "mutatingadmissionpolicybindings").objects.values()
    }
    found = store.collection("", "namespaces").get(Key("", namespace))
    labels = (found.raw["metadata"].get("labels") if found is not None else None) or {}
    for policy in store.collection(_GROUP, "mutatingadmissionpolicies").objects:
        act = STAND_INS.get(policy.name)
        if act is None or policy.name not in bound:
            continue
        stored = store.collection(_GROUP, "mutatingadmissionpolicies").objects[policy].raw
        if _is_about(codec.convert(MutatingPolicy, stored).spec, raw, labels):
            act(kind, raw)


def _is_about(spec: MutatingPolicySpec, raw: Raw, labels: Mapping[str, str]) -> bool:
    """Return whether a policy selects the namespace of an object, and its conditions hold."""
    constraints = spec.match_constraints
    selector = constraints.namespace_selector if constraints is not None else None
    if selector is not None and not selects(selector, labels):
        return False
    try:
        return all(
            _compiled(condition.expression).value({"object": raw}) is True
            for condition in spec.match_conditions
        )
    except CelRuntimeError:
        return False


_compiled = functools.lru_cache(maxsize=16)(functools.partial(compile_policy, names=("object",)))
