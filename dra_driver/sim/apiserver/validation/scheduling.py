"""Checks of PodGroups, CompositePodGroups and Workloads. Source: KEP-4671, KEP-6012."""

from __future__ import annotations

import copy
from typing import Any

from dra_driver.sim.apiserver.objects import formats
from dra_driver.sim.apiserver.objects.status import Causes, Raw
from dra_driver.sim.apiserver.validation import devices
from dra_driver.sim.apiserver.validation.meta import Surroundings, check_formats, check_label_name
from dra_driver.sim.apiserver.validation.workloads import check_claims

__all__ = ["check_composite", "check_pod_group", "check_workload_object"]

_HIGHEST_PRIORITY = 1_000_000_000
_PREEMPTION = ("Never", "PreemptLowerPriority")
_TEMPLATES = ("podGroupTemplates", "compositePodGroupTemplates")
_MOST_TEMPLATES = 8
_MOST_LEVELS = 4


def check_pod_group(raw: Raw, old: Raw | None, causes: Causes, surroundings: Surroundings) -> None:
    """Check a PodGroup; from 1.37 on ``gang.minCount`` may change, and nothing else."""
    spec: Raw = raw.get("spec") or {}
    before: Raw | None = (old or {}).get("spec")
    if spec == before:
        return
    if before is not None:
        if surroundings.served.release == "1.36" or _without_least(spec) != _without_least(before):
            causes.invalid("spec", "", "field is immutable")
        else:
            _check_policy(spec, "minCount", "spec", causes)
        return
    _check_policy(spec, "minCount", "spec", causes)
    _check_group(spec, "spec", causes)
    if spec.get("parentCompositePodGroupName") is not None:
        path = "spec.parentCompositePodGroupName"
        check_formats(formats.dns_subdomain_errors, spec["parentCompositePodGroupName"], path, causes)
        if spec.get("workloadRef") is None:
            text = "workloadRef is required when parentCompositePodGroupName is set"
            causes.required("spec.workloadRef", text)
    _check_reference(spec.get("workloadRef"), causes)


def check_composite(raw: Raw, old: Raw | None, causes: Causes, surroundings: Surroundings) -> None:
    """Check a CompositePodGroup, which never changes."""
    spec: Raw = raw.get("spec") or {}
    if old is not None:
        if spec != old.get("spec"):
            causes.invalid("spec", "", "field is immutable")
        return
    _check_policy(spec, "minGroupCount", "spec", causes)
    _check_group(spec, "spec", causes)
    if spec.get("workloadRef") is None:
        causes.required("spec.workloadRef")
    _check_reference(spec.get("workloadRef"), causes)


def check_workload_object(raw: Raw, old: Raw | None, causes: Causes, surroundings: Surroundings) -> None:
    """Check a Workload: templates of one kind, of which ``gang.minCount`` may change."""
    spec: Raw = raw.get("spec") or {}
    before: Raw | None = (old or {}).get("spec")
    if before is not None and _without_least(spec) != _without_least(before):
        causes.invalid("spec", "", "field is immutable")
        return
    given = [name for name in _TEMPLATES if spec.get(name)]
    if len(given) != 1:
        causes.invalid("spec", "", f"must specify exactly one of: {', '.join(f'`{n}`' for n in _TEMPLATES)}")
    reference: Raw | None = spec.get("controllerRef")
    for name in ("kind", "name") if reference is not None else ():
        if not (reference or {}).get(name):
            causes.required(f"spec.controllerRef.{name}")
    _check_templates(spec, "spec", causes, 1)


def _check_templates(holder: Raw, path: str, causes: Causes, level: int) -> None:
    if level > _MOST_LEVELS:
        causes.invalid(path, "", f"must not have more than {_MOST_LEVELS} levels")
        return
    for kind, least in zip(_TEMPLATES, ("minCount", "minGroupCount"), strict=True):
        templates: list[Raw] = holder.get(kind) or []

        def check(template: Raw, here: str, *, kind: str = kind, least: str = least) -> None:
            if template.get("name"):
                check_formats(formats.dns_label_errors, template["name"], f"{here}.name", causes)
            else:
                causes.required(f"{here}.name")
            _check_policy(template, least, here, causes)
            _check_group(template, here, causes)
            if kind == _TEMPLATES[1]:
                if not any(template.get(name) for name in _TEMPLATES):
                    causes.required(here, "at least one template must be set")
                _check_templates(template, here, causes, level + 1)

        devices.check_each(templates, _MOST_TEMPLATES, f"{path}.{kind}", causes, check)
        devices.check_unique((t.get("name") for t in templates), f"{path}.{kind}", causes)


def _check_policy(holder: Raw, least: str, path: str, causes: Causes) -> None:
    """Check ``schedulingPolicy``, in which a gang has a least number of pods or groups."""
    policy: Raw = holder.get("schedulingPolicy") or {}
    path += ".schedulingPolicy"
    if ("gang" in policy) == ("basic" in policy):
        causes.invalid(path, "", "must specify exactly one of: `basic`, `gang`")
    number = (policy.get("gang") or {}).get(least, 1)
    if number < 1:
        causes.invalid(f"{path}.gang.{least}", number, "must be greater than or equal to 1")


def _check_group(spec: Raw, path: str, causes: Causes) -> None:
    """Check what groups and their templates have in common."""
    topology: list[Raw] = (spec.get("schedulingConstraints") or {}).get("topology") or []
    here = f"{path}.schedulingConstraints.topology"
    if len(topology) > 1:
        causes.too_many(here, len(topology), 1)
    for i, constraint in enumerate(topology):
        check_label_name(constraint.get("key", ""), f"{here}[{i}].key", causes)
    claims: list[Raw] = spec.get("resourceClaims") or []
    if len(claims) > 4:
        causes.too_many(f"{path}.resourceClaims", len(claims), 4)
    check_claims(claims, f"{path}.resourceClaims", causes)
    mode = spec.get("disruptionMode")
    if isinstance(mode, dict) and ("single" in mode) == ("all" in mode):
        causes.invalid(f"{path}.disruptionMode", "", "must specify exactly one of: `single`, `all`")
    if (spec.get("priority") or 0) > _HIGHEST_PRIORITY:
        text = f"must be less than or equal to {_HIGHEST_PRIORITY}"
        causes.invalid(f"{path}.priority", spec["priority"], text)
    if spec.get("preemptionPolicy") not in (None, *_PREEMPTION):
        causes.not_supported(f"{path}.preemptionPolicy", spec["preemptionPolicy"], _PREEMPTION)


def _check_reference(reference: Raw | None, causes: Causes) -> None:
    if reference is None:
        return
    rules = {"workloadName": formats.dns_subdomain_errors, "templateName": formats.dns_label_errors}
    for name, errors in rules.items():
        if reference.get(name):
            check_formats(errors, reference[name], f"spec.workloadRef.{name}", causes)
        else:
            causes.required(f"spec.workloadRef.{name}")


def _without_least(value: Any) -> Any:
    """Return a spec in which ``gang.minCount`` is the same everywhere."""
    value = copy.deepcopy(value)
    _set_least(value)
    return value


def _set_least(value: Any) -> None:
    if isinstance(value, list):
        for item in value:
            _set_least(item)
    elif isinstance(value, dict):
        gang = value.get("gang")
        if isinstance(gang, dict) and "minCount" in gang:
            gang["minCount"] = 1
        for item in value.values():
            _set_least(item)
