"""Stand-ins for MutatingAdmissionPolicies, which this server does not evaluate: what they set in new objects.

A policy that our own components need has a function here that does what the policy does, and no more. It acts
as long as the policy and a binding of it are stored, as on a real cluster: ``deploy/manifests/gating.yaml``
has to be applied for the gate. All others are stored and served, but never evaluated.
ValidatingAdmissionPolicies are evaluated: see ``policies``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from dra_driver.api.names import ALLOCATION_GATE, ALLOCATOR_LABEL
from dra_driver.sim.apiserver.objects.kinds import Kind
from dra_driver.sim.apiserver.objects.status import Raw
from dra_driver.sim.apiserver.storage.store import Key, Store

__all__ = ["STAND_INS", "admit_create"]

GATE_POLICY = "dra-driver-allocation-gate"

# Called with the kind, the new object and the labels of its namespace.
StandIn = Callable[[Kind, Raw, Mapping[str, str]], None]


def _add_gate(kind: Kind, raw: Raw, labels: Mapping[str, str]) -> None:
    """Add our scheduling gate to pods with claims, in namespaces where our controller allocates."""
    if (kind.group, kind.kind) != ("", "Pod") or labels.get(ALLOCATOR_LABEL) != "controller":
        return
    spec = raw.get("spec") or {}
    if not spec.get("resourceClaims") or spec.get("nodeName"):
        return
    gates = spec.setdefault("schedulingGates", [])
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
        if act is not None and policy.name in bound:
            act(kind, raw, labels)
