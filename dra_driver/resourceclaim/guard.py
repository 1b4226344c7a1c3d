"""Whether the admission policy is installed that keeps devices for the controller, and whether it works.

What is installed is compared with what ``dra_driver.ownership.grants`` says, part by part: a policy that
differs in anything may admit what must be refused. That an API server evaluates it is tried: a write that
nobody may make, of a claim that is there for that alone, which stores nothing.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Any, Final

from dra_driver.api.meta import PoolName
from dra_driver.api.names import GRANTS, TRIAL_CLAIM
from dra_driver.api.pod_affinity import LabelSelector
from dra_driver.api.server.admission import (
    MatchResources,
    ParamKind,
    ParamRef,
    ValidatingPolicy,
    ValidatingPolicyBinding,
)
from dra_driver.ownership import VARIABLES, admitted

__all__ = ["TRIAL_POOL", "evaluated", "guard_problem", "trial_status", "turn_of_refusal"]

_DRIVERS: Final = re.compile(r"r\.driver in \[([^]]*)\]")
_TURN: Final = re.compile(rf"ValidatingAdmissionPolicy '{GRANTS}' .*\(turn (\d{{1,18}})\)", re.DOTALL)


def evaluated(namespace: str) -> str:
    """Return the condition under which the policy looks at a write (CEL).

    Of the controller's own writes only at the trial: so it needs no account, and no right, besides its own.

    Args:
        namespace: of the driver.
    """
    return (
        f"!(request.userInfo.username == 'system:serviceaccount:{namespace}:dra-driver-controller')"
        " || has(request.dryRun) && request.dryRun"
        f" && object.metadata.namespace == '{namespace}' && object.metadata.name == '{TRIAL_CLAIM}'"
    )


TRIAL_POOL: Final = PoolName("trial.dra-driver.dev")
"""The trial allocates the device ``trial`` of this pool, which does not exist: nodes are not called so."""


def trial_status(driver: str) -> dict[str, Any]:
    """Return the status of the claim that the trial writes."""
    result = {"request": "trial", "driver": driver, "pool": TRIAL_POOL, "device": "trial"}
    return {"allocation": {"devices": {"results": [result]}}}


def turn_of_refusal(message: str) -> int | None:
    """Return the turn of the object by which the policy has refused a write; None: it was not the policy."""
    found = _TURN.search(message)
    return int(found[1]) if found is not None else None


def guard_problem(
    policy: ValidatingPolicy, binding: ValidatingPolicyBinding, drivers: Collection[str], namespace: str
) -> str:
    """Return why a policy and its binding do not keep devices as they should; empty if they do.

    Args:
        policy: as it is installed.
        binding: likewise.
        drivers: whose devices are kept.
        namespace: of the driver.
    """
    what, spec, bound = f"the policy {GRANTS}", policy.spec, binding.spec
    if policy.metadata.deletion_timestamp or binding.metadata.deletion_timestamp:
        return f"{what} is being deleted"
    if spec.match_constraints is None or not _matches_every_allocation(spec.match_constraints):
        return f"{what} does not look at every allocation"
    if [_plain(c.expression) for c in spec.match_conditions] != [evaluated(namespace)]:
        return f"{what} leaves out other writes than those of the controller"
    variables = [(v.name, _plain(v.expression)) for v in spec.variables]
    expected = [(name, _plain(text)) for name, text in VARIABLES.items()]
    if variables != expected or not any(_refuses(_plain(v.expression), drivers) for v in spec.validations):
        return f"{what} refuses something else than this version needs, or not for all of its drivers"
    if spec.failure_policy != "Fail" or spec.param_kind != ParamKind(api_version="v1", kind="ConfigMap"):
        return f"{what} may admit what it cannot evaluate"
    # What is done where the object is missing does not matter here: that is noticed by itself.
    narrower = bound.match_resources or MatchResources()
    if (
        bound.policy_name != GRANTS
        or bound.param_ref != ParamRef(name=GRANTS, namespace=namespace)
        or "Deny" not in bound.validation_actions
        or narrower.resource_rules
        or not _is_everything(narrower)
    ):
        return f"{what} is bound in another way"
    return ""


def _refuses(condition: str, drivers: Collection[str]) -> bool:
    named = _DRIVERS.search(condition)
    if named is None:
        return False
    known = sorted(re.findall(r"'([^']*)'", named[1]))
    condition = condition.replace(named[1], ", ".join(f"'{driver}'" for driver in known), 1)
    return set(drivers) <= set(known) and condition == _plain(admitted(known))


def _matches_every_allocation(match: MatchResources) -> bool:
    return _is_everything(match) and any(
        {"resource.k8s.io", "*"} & set(rule.api_groups)
        and "*" in rule.api_versions
        and {"UPDATE", "*"} & set(rule.operations)
        and {"resourceclaims/status", "*/*"} & set(rule.resources)
        and not rule.resource_names
        and rule.scope in ("", "*", "Namespaced")
        for rule in match.resource_rules
    )


def _is_everything(match: MatchResources) -> bool:
    selectors = match.namespace_selector, match.object_selector
    return all(s in (None, LabelSelector()) for s in selectors) and not match.exclude_resource_rules


def _plain(text: str) -> str:
    """Return an expression with its white space as the source has it: YAML folds lines."""
    return " ".join(text.split())
