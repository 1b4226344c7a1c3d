"""Which new pods get our scheduling gate, and whether what is installed gates them in every namespace.

The gate is set by a MutatingAdmissionPolicy, or by a webhook of ours where the API server serves no such
policies. Both have the same parts: a selector of namespaces, and conditions in CEL.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from dra_driver.api.meta import ObjectMeta
from dra_driver.api.names import ALLOCATION_GATE, GATE_POLICY, IMPLICIT_RESOURCE_PREFIX
from dra_driver.api.pod_affinity import LabelSelector
from dra_driver.api.server.admission import (
    MatchCondition,
    MutatingPolicy,
    MutatingPolicyBinding,
    Webhook,
)
from dra_driver.cel import CelCompileError, CelRuntimeError
from dra_driver.cel.policies import compile_policy

__all__ = [
    "NAMES_CLAIMS",
    "NAMES_CLAIMS_OR_RESOURCES",
    "Gating",
    "gating_of_policy",
    "gating_of_webhook",
    "selects",
]

NAMES_CLAIMS: Final = "has(object.spec.resourceClaims) && object.spec.resourceClaims.size() > 0"
"""Pods that get the gate, in CEL: those that name claims."""

NAMES_CLAIMS_OR_RESOURCES: Final = (
    f"{NAMES_CLAIMS} || "
    "(object.spec.containers + (has(object.spec.initContainers) ? object.spec.initContainers : []))"
    ".exists(c, has(c.resources) && has(c.resources.requests) && c.resources.requests.exists(name, "
    f"name.startsWith('{IMPLICIT_RESOURCE_PREFIX}') "
    "|| name.contains('/') && !name.contains('kubernetes.io/') && !name.startsWith('requests.')))"
)
"""Likewise where pools may be open: those that request a resource which a DeviceClass could serve, too."""

_ASKING: Final = {"resources": {"requests": {"example.com/gpu": "1"}}}
_IDLE: Final = {"name": "c", "image": "i", "resources": {}}
# Pods for which kube-scheduler could try our devices, as the API server shows them to a policy.
_PROBES: Final[Mapping[str, Mapping[str, Any]]] = {
    "pods that name claims": {"containers": [_IDLE], "resourceClaims": [{"name": "c"}]},
    "pods with extended resources": {"containers": [{**_IDLE, **_ASKING}]},
    "pods with extended resources of init containers": {
        "containers": [_IDLE],
        "initContainers": [{**_IDLE, **_ASKING}],
    },
}


@dataclass(frozen=True, slots=True)
class Gating:
    """What is installed to set the gate.

    Attributes:
        what: its name, for people.
        selectors: of namespaces; a namespace has the gate where all of them select it.
        objects: selectors of pods; pods that one of them does not select get no gate.
        conditions: in CEL, of pods.
    """

    what: str
    selectors: tuple[LabelSelector, ...]
    objects: tuple[LabelSelector, ...] = ()
    conditions: tuple[MatchCondition, ...] = ()

    def problem(self) -> str:
        """Return why pods of the namespaces that it selects may come without the gate; or empty."""
        if any(s.match_labels or s.match_expressions for s in self.objects):
            return f"{self.what} leaves out pods by their labels"
        for which, spec in _PROBES.items():
            for condition in self.conditions:
                try:
                    found = compile_policy(condition.expression, ["object"]).value({"object": {"spec": spec}})
                except (CelCompileError, CelRuntimeError):
                    return f"what the condition {condition.name} of {self.what} leaves out is not known"
                if found is not True:
                    return f"{self.what} leaves out {which}"
        return ""

    def ungated(self, namespaces: Iterable[ObjectMeta]) -> tuple[str, ...]:
        """Return the namespaces whose pods come without the gate, in order.

        Args:
            namespaces: all that there are.
        """
        return tuple(
            sorted(n.name for n in namespaces if not all(selects(s, n.labels or {}) for s in self.selectors))
        )


def gating_of_policy(policy: MutatingPolicy, binding: MutatingPolicyBinding) -> Gating | str:
    """Return what a policy and its binding gate, or why nothing."""
    what = f"the policy {GATE_POLICY}"
    if not any(ALLOCATION_GATE in m.text for m in policy.spec.mutations):
        return f"{what} does not set the gate"
    if binding.spec.policy_name != policy.metadata.name or binding.spec.param_ref is not None:
        return f"{what} is not bound"
    parts = [m for m in (policy.spec.match_constraints, binding.spec.match_resources) if m is not None]
    return Gating(
        what,
        tuple(m.namespace_selector for m in parts if m.namespace_selector is not None),
        tuple(m.object_selector for m in parts if m.object_selector is not None),
        policy.spec.match_conditions,
    )


def gating_of_webhook(webhook: Webhook, *, not_gated: str) -> Gating | str:
    """Return what our webhook gates, or why nothing.

    Args:
        webhook: as it is registered.
        not_gated: name of its condition that leaves out pods which have the gate already.
    """
    if not webhook.client_config.ca_bundle:
        return (
            f"the API server cannot call the webhook {webhook.name}: its configuration has no authority yet, "
            "which what brings the certificates writes (Helm, cert-manager, or dra-driver certificates)"
        )
    selectors = [s for s in (webhook.namespace_selector,) if s is not None]
    objects = [s for s in (webhook.object_selector,) if s is not None]
    conditions = tuple(c for c in webhook.match_conditions if c.name != not_gated)
    return Gating(f"the webhook {webhook.name}", tuple(selectors), tuple(objects), conditions)


def selects(selector: LabelSelector, labels: Mapping[str, str]) -> bool:
    """Return whether a selector selects what has these labels; an empty one selects everything."""
    if any(labels.get(key) != value for key, value in selector.match_labels.items()):
        return False
    return all(_holds(r.operator, r.key, r.values, labels) for r in selector.match_expressions)


def _holds(operator: str, key: str, values: tuple[str, ...], labels: Mapping[str, str]) -> bool:
    match operator:
        case "In":
            return key in labels and labels[key] in values
        case "NotIn":
            return key not in labels or labels[key] not in values
        case "Exists":
            return key in labels
        case "DoesNotExist":
            return key not in labels
        case _:
            return False
