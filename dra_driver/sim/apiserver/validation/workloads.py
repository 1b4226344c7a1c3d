"""Checks of core kinds, as far as users of DRA need them: pods and their claims, ConfigMaps, Leases."""

from __future__ import annotations

import re
from typing import Any

from dra_driver.api.quantity import Quantity
from dra_driver.sim.apiserver.objects import formats
from dra_driver.sim.apiserver.objects.status import Causes, Raw
from dra_driver.sim.apiserver.validation import devices, node_resources
from dra_driver.sim.apiserver.validation.meta import Surroundings, check_formats, check_label_name

__all__ = [
    "check_claims",
    "check_config_map",
    "check_lease",
    "check_pod",
    "check_pod_status",
    "check_secret",
    "check_workload",
]

_CONFIG_KEY = re.compile(r"[-._a-zA-Z0-9]+", re.ASCII)
_PULL_POLICIES = ("Always", "IfNotPresent", "Never")
_RESTART_POLICIES = ("Always", "Never", "OnFailure")
_TAINT_EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")


# --- ConfigMaps, Secrets, Leases ---


def _check_keys(data: Raw, path: str, causes: Causes) -> None:
    for key in data:
        if not _CONFIG_KEY.fullmatch(key) or key in (".", "..") or len(key) > 253:
            causes.invalid(
                f"{path}[{key}]", key, "a valid config key consists of alphanumerics, '-', '_' or '.'"
            )


def check_config_map(raw: Raw, old: Raw | None, causes: Causes, surroundings: Surroundings) -> None:
    """Check a ConfigMap."""
    if old is not None:
        _check_immutable(raw, old, ("data", "binaryData"), causes)
    data, binary = raw.get("data") or {}, raw.get("binaryData") or {}
    _check_keys(data, "data", causes)
    for key in data:
        if key in binary:
            causes.invalid(f"data[{key}]", key, "duplicate of key present in binaryData")
    _check_keys(binary, "binaryData", causes)
    size = sum(len(k.encode()) + len(v.encode()) for part in (data, binary) for k, v in part.items())
    if size > 1024 * 1024:
        causes.too_long("", 1024 * 1024)


def check_secret(raw: Raw, old: Raw | None, causes: Causes, surroundings: Surroundings) -> None:
    """Check a Secret."""
    if old is not None:
        if raw.get("type") != old.get("type"):
            causes.invalid("type", raw.get("type"), "field is immutable")
        _check_immutable(raw, old, ("data",), causes)
    _check_keys(raw.get("data") or {}, "data", causes)


def _check_immutable(raw: Raw, old: Raw, names: tuple[str, ...], causes: Causes) -> None:
    if not old.get("immutable"):
        return
    if not raw.get("immutable"):
        causes.forbidden("immutable", "field is immutable when `immutable` is set")
    for name in names:
        if (raw.get(name) or {}) != (old.get(name) or {}):
            causes.forbidden(name, "field is immutable when `immutable` is set")


def check_lease(raw: Raw, old: Raw | None, causes: Causes, surroundings: Surroundings) -> None:
    """Check a Lease."""
    spec: Raw = raw.get("spec") or {}
    if spec.get("leaseDurationSeconds", 1) <= 0:
        causes.invalid("spec.leaseDurationSeconds", spec["leaseDurationSeconds"], "must be greater than 0")
    if spec.get("leaseTransitions", 0) < 0:
        causes.invalid(
            "spec.leaseTransitions", spec["leaseTransitions"], "must be greater than or equal to 0"
        )


# --- pods ---


def check_pod(raw: Raw, old: Raw | None, causes: Causes, surroundings: Surroundings) -> None:
    """Check a Pod."""
    check_pod_spec(raw["spec"], "spec", causes, existing=old is not None)
    if old is not None:
        _check_pod_update(raw["spec"], old["spec"], causes)


def check_pod_spec(spec: Raw, path: str, causes: Causes, *, existing: bool = False) -> None:
    """Check the spec of a pod or pod template."""
    claims = check_claims(spec.get("resourceClaims") or [], f"{path}.resourceClaims", causes)
    containers: list[Raw] = spec.get("containers") or []
    if not containers:
        causes.required(f"{path}.containers")
    volumes = _check_volumes(spec.get("volumes") or [], f"{path}.volumes", causes)
    names: set[str] = set()
    for kind in ("initContainers", "containers"):
        for i, container in enumerate(spec.get(kind) or []):
            here = f"{path}.{kind}[{i}]"
            _check_container(container, here, claims, volumes, causes)
            if container.get("name") in names:
                causes.duplicate(f"{here}.name", container["name"])
            names.add(container.get("name", ""))
    if spec.get("restartPolicy") not in _RESTART_POLICIES:
        causes.not_supported(f"{path}.restartPolicy", spec.get("restartPolicy"), _RESTART_POLICIES)
    if spec.get("nodeName"):
        check_formats(formats.dns_subdomain_errors, spec["nodeName"], f"{path}.nodeName", causes)
    gates = [g.get("name", "") for g in spec.get("schedulingGates") or []]
    for i, gate in enumerate(gates):
        check_label_name(gate, f"{path}.schedulingGates[{i}]", causes)
    devices.check_unique(gates, f"{path}.schedulingGates", causes)
    if spec.get("nodeName") and gates and not existing:
        causes.forbidden(f"{path}.nodeName", "cannot be set until all schedulingGates have been cleared")
    for key, value in (spec.get("nodeSelector") or {}).items():
        check_label_name(key, f"{path}.nodeSelector", causes)
        check_formats(formats.label_value_errors, value, f"{path}.nodeSelector", causes)
    _check_tolerations(spec.get("tolerations") or [], f"{path}.tolerations", causes)


def check_claims(items: list[Raw], path: str, causes: Causes) -> set[str]:
    """Check ``resourceClaims`` of a pod or group; return their names."""
    names: set[str] = set()
    for i, item in enumerate(items):
        here = f"{path}[{i}]"
        name = item.get("name", "")
        if name in names:
            causes.duplicate(f"{here}.name", name)
        elif not name:
            causes.required(f"{here}.name")
        else:
            check_formats(formats.dns_label_errors, name, f"{here}.name", causes)
        names.add(name)
        claim, template = item.get("resourceClaimName"), item.get("resourceClaimTemplateName")
        shown = {"Name": name, "ResourceClaimName": claim, "ResourceClaimTemplateName": template}
        if claim is not None and template is not None:
            causes.invalid(
                here,
                shown,
                "at most one of `resourceClaimName` or `resourceClaimTemplateName` may be specified",
            )
        elif claim is None and template is None:
            causes.invalid(
                here, shown, "must specify one of: `resourceClaimName`, `resourceClaimTemplateName`"
            )
        for key in ("resourceClaimName", "resourceClaimTemplateName"):
            if item.get(key) is not None:
                check_formats(formats.dns_subdomain_errors, item[key], f"{here}.{key}", causes)
    return names


def _check_volumes(items: list[Raw], path: str, causes: Causes) -> set[str]:
    names: set[str] = set()
    for i, item in enumerate(items):
        name = item.get("name", "")
        if not name:
            causes.required(f"{path}[{i}].name")
        elif name in names:
            causes.duplicate(f"{path}[{i}].name", name)
        else:
            check_formats(formats.dns_label_errors, name, f"{path}[{i}].name", causes)
        names.add(name)
        if len(item) > 2:
            causes.forbidden(f"{path}[{i}].{list(item)[2]}", "may not specify more than 1 volume type")
    return names


def _check_container(container: Raw, path: str, claims: set[str], volumes: set[str], causes: Causes) -> None:
    name = container.get("name", "")
    if name:
        check_formats(formats.dns_label_errors, name, f"{path}.name", causes)
    else:
        causes.required(f"{path}.name")
    image = container.get("image", "")
    if not image:
        causes.required(f"{path}.image")
    elif image != image.strip():
        causes.invalid(f"{path}.image", image, "must not have leading or trailing whitespace")
    if container.get("imagePullPolicy") not in _PULL_POLICIES:
        causes.not_supported(f"{path}.imagePullPolicy", container.get("imagePullPolicy"), _PULL_POLICIES)
    for i, mount in enumerate(container.get("volumeMounts") or []):
        if mount.get("name") not in volumes:
            causes.not_found(f"{path}.volumeMounts[{i}].name", mount.get("name"))
    for i, variable in enumerate(container.get("env") or []):
        if not variable.get("name"):
            causes.required(f"{path}.env[{i}].name")
    _check_resources(container.get("resources") or {}, f"{path}.resources", claims, causes)


def _check_resources(resources: Raw, path: str, claims: set[str], causes: Causes) -> None:
    limits, requests = resources.get("limits") or {}, resources.get("requests") or {}
    for name, value in requests.items():
        if name in limits and Quantity.parse(value) > Quantity.parse(limits[name]):
            causes.invalid(
                f"{path}.requests", value, f"must be less than or equal to {name} limit of {limits[name]}"
            )
    seen = set()
    for i, claim in enumerate(resources.get("claims") or []):
        here = f"{path}.claims[{i}]"
        name, request = claim.get("name", ""), claim.get("request", "")
        key = f"{name}/{request}" if request else name
        if not name:
            causes.required(here)
        elif key in seen:
            causes.duplicate(here, key)
        if name and name not in claims:
            rule = "must be one of the names in pod.spec.resourceClaims"
            causes.not_found(here, name, rule if claims else f"{rule} which is empty")
        seen.add(key)


def _check_tolerations(items: list[Raw], path: str, causes: Causes) -> None:
    for i, item in enumerate(items):
        here = f"{path}[{i}]"
        key, operator, value = item.get("key", ""), item.get("operator", ""), item.get("value", "")
        if key:
            check_label_name(key, f"{here}.key", causes)
        elif operator != "Exists":
            causes.invalid(f"{here}.operator", operator, "operator must be Exists when `key` is empty")
        if operator not in ("", "Equal", "Exists"):
            causes.not_supported(f"{here}.operator", operator, ("Equal", "Exists"))
        elif operator == "Exists" and value:
            causes.invalid(f"{here}.operator", item, "value must be empty when `operator` is 'Exists'")
        effect = item.get("effect", "")
        if effect and effect not in _TAINT_EFFECTS:
            causes.not_supported(f"{here}.effect", effect, _TAINT_EFFECTS)
        if "tolerationSeconds" in item and effect != "NoExecute":
            causes.invalid(
                f"{here}.effect", effect, "effect must be 'NoExecute' when `tolerationSeconds` is set"
            )


# What an update may change, besides images, deadline, new tolerations and, while gated, node selection.
_MUTABLE = ("activeDeadlineSeconds",)


def _check_pod_update(new: Raw, old: Raw, causes: Causes) -> None:
    for kind in ("containers", "initContainers"):
        if len(new.get(kind) or []) != len(old.get(kind) or []):
            causes.forbidden(f"spec.{kind}", "pod updates may not add or remove containers")
            return
        for i, container in enumerate(new.get(kind) or []):
            if not container.get("image"):
                causes.required(f"spec.{kind}[{i}].image")
    gates_before = {g.get("name") for g in old.get("schedulingGates") or []}
    for i, gate in enumerate(new.get("schedulingGates") or []):
        if gate.get("name") not in gates_before:
            causes.forbidden(
                f"spec.schedulingGates[{i}].name", f"only deletion is allowed, but found {gate.get('name')!r}"
            )
    before = list(old.get("tolerations") or [])
    if any(t not in (new.get("tolerations") or []) for t in before):
        causes.forbidden(
            "spec.tolerations", "existing toleration can not be modified except its tolerationSeconds"
        )
    if _fixed(new, old) != _fixed(old, old):
        causes.forbidden(
            "spec",
            "pod updates may not change fields other than images, activeDeadlineSeconds, tolerations (only "
            "additions) and terminationGracePeriodSeconds (to 1 if it was negative)",
        )


def _fixed(spec: Raw, old: Raw) -> Raw:
    """Return the spec without the fields that an update may change."""
    gated = bool(old.get("schedulingGates"))
    skipped = (*_MUTABLE, "schedulingGates", "tolerations", "priority")
    out: dict[str, Any] = {
        k: v for k, v in spec.items() if k not in skipped and v is not None and v not in ("", [], {})
    }
    for kind in ("containers", "initContainers"):
        if kind in out:
            out[kind] = [{k: v for k, v in c.items() if k != "image"} for c in out[kind]]
    if gated:
        # Node selection may only become narrower, so additions are accepted.
        wanted: Raw = old.get("nodeSelector") or {}
        given: Raw = spec.get("nodeSelector") or {}
        out["nodeSelector"] = {k: given.get(k) for k in wanted}
        out.pop("affinity", None)
    if old.get("terminationGracePeriodSeconds", 0) < 0:
        out.pop("terminationGracePeriodSeconds", None)
    return out


def check_pod_status(raw: Raw, old: Raw | None, causes: Causes, surroundings: Surroundings) -> None:
    """Check the status of a Pod, as far as it is about claims."""
    names = {c.get("name") for c in raw["spec"].get("resourceClaims") or []}
    statuses: list[Raw] = (raw.get("status") or {}).get("resourceClaimStatuses") or []
    path = "status.resourceClaimStatuses"
    for i, status in enumerate(statuses):
        if status.get("name") not in names:
            causes.invalid(
                f"{path}[{i}].name",
                status.get("name"),
                "must match the name of an entry in `spec.resourceClaims`",
            )
        if status.get("resourceClaimName"):
            check_formats(
                formats.dns_subdomain_errors,
                status["resourceClaimName"],
                f"{path}[{i}].resourceClaimName",
                causes,
            )
    seen = set()
    for i, status in enumerate(statuses):
        if status.get("name") in seen:
            causes.duplicate(f"{path}[{i}].name", status.get("name"))
        seen.add(status.get("name"))
    node_resources.check_claim_statuses(raw.get("status") or {}, "status", causes)
    extended: Raw | None = (raw.get("status") or {}).get("extendedResourceClaimStatus")
    if extended is not None:
        _check_extended_claim(raw["spec"], extended, "status.extendedResourceClaimStatus", causes)


def _check_extended_claim(spec: Raw, status: Raw, path: str, causes: Causes) -> None:
    every: list[Raw] = [*(spec.get("initContainers") or []), *(spec.get("containers") or [])]
    requests: dict[str, Raw] = {c["name"]: (c.get("resources") or {}).get("requests") or {} for c in every}
    mappings: list[Raw] = status.get("requestMappings") or []
    if not mappings:
        causes.required(f"{path}.requestMappings", "at least one request mapping is required")
    seen: list[Raw] = []
    for i, mapping in enumerate(mappings):
        where = f"{path}.requestMappings[{i}]"
        name, resource = mapping.get("containerName"), mapping.get("resourceName")
        if name not in requests:
            causes.invalid(
                f"{where}.containerName", name, "must match the name of a container or init container"
            )
        elif resource not in requests[name]:
            causes.invalid(
                f"{where}.resourceName", resource, "must be a resource that the container requests"
            )
        request = mapping.get("requestName") or ""
        check_formats(formats.dns_label_errors, request, f"{path}.requestName", causes)
        if mapping in seen:
            for key in ("containerName", "resourceName", "requestName"):
                causes.duplicate(f"{where}.{key}", mapping.get(key))
        seen.append(mapping)
    claim = status.get("resourceClaimName")
    if not claim:
        causes.required(f"{path}.resourceClaimName")
    else:
        check_formats(formats.dns_subdomain_errors, claim, f"{path}.resourceClaimName", causes)


# --- workloads ---


def check_workload(raw: Raw, old: Raw | None, causes: Causes, surroundings: Surroundings) -> None:
    """Check a DaemonSet, Deployment …: its selector must select its template."""
    spec: Raw = raw.get("spec") or {}
    template: Raw = spec.get("template") or {}
    labels: Raw = (template.get("metadata") or {}).get("labels") or {}
    selector: Raw = spec.get("selector") or {}
    if not selector:
        causes.required("spec.selector")
    elif any(labels.get(k) != v for k, v in (selector.get("matchLabels") or {}).items()):
        causes.invalid("spec.template.metadata.labels", labels, "`selector` does not match template `labels`")
    if old is not None and selector != (old.get("spec") or {}).get("selector"):
        causes.invalid("spec.selector", selector, "field is immutable")
    check_pod_spec(template.get("spec") or {}, "spec.template.spec", causes)
