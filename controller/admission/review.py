"""One AdmissionReview in, one out. Does no I/O.

What comes in is text of whoever reaches the port: its size is bounded by the server, its
depth by the decoder, and the number of entries and of findings here.

ResourceClaims, ResourceClaimTemplates and DeviceClasses are served as v1, v1beta2 and v1beta1. The versions
differ in their requests (v1beta1 has the fields of ``exactly`` in the request itself); where opaque
parameters stand is the same in all of them. Labels and annotations that make a group of pods are checked on
pods, claims and templates.
"""

from __future__ import annotations

import base64
import itertools
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

import msgspec

from dra_driver.api import codec, names
from dra_driver.api.own.checking import Kinds, check_parameters
from dra_driver.api.own.parameters import KernelDriver, Parameters
from dra_driver.api.quantity import Quantity
from dra_driver.api.server.admission import (
    AdmissionCause,
    AdmissionDetails,
    AdmissionRequest,
    AdmissionResponse,
    AdmissionReview,
    AdmissionStatus,
    GroupVersionKind,
)
from dra_driver.errors import DecodeError, InvalidParameters
from dra_driver.resourceclaim import (
    CAPACITY_IS_DROPPED,
    ObjectRequests,
    capacity_selector,
    is_extended_resource,
    unit_advice,
)
from dra_driver.structured import group_findings

__all__ = ["Judgement", "gate", "judge", "read_review", "refuse_capacity", "write_review"]

API_VERSION: Final = "admission.k8s.io/v1"
VERSIONS: Final = frozenset({"v1", "v1beta2", "v1beta1"})
# resource.k8s.io stores at most 32 entries; whoever sends more is no API server.
MAX_ENTRIES: Final = 64
MAX_FINDINGS: Final = 64
MAX_FINDING_CHARACTERS: Final = 512
_NAME_CHARACTERS: Final = 63

_NOT_KNOWN_YET: Final = (
    "the controller does not know yet whether this API server keeps requests for capacity; try again"
)
_DRA: Final = "resource.k8s.io"
# The node decides: which namespaces may is set there. Longer warnings are cut off by the API server.
_BY_CLASS: Final = (
    "passthrough needs a DeviceClass that requests it; a request in the claim itself works only if the "
    "nodes allow it for the namespace"
)


_NO_KINDS: Final[Kinds] = MappingProxyType({})


class _Opaque(msgspec.Struct):
    driver: str = ""
    parameters: msgspec.Raw = msgspec.Raw(b"null")


class _Entry(msgspec.Struct):
    opaque: _Opaque | None = None


class _Devices(msgspec.Struct):
    config: list[_Entry] | None = None


class _ClaimSpec(msgspec.Struct):
    devices: _Devices | None = None


class _Claim(msgspec.Struct):
    spec: _ClaimSpec | None = None


class _TemplateSpec(msgspec.Struct):
    spec: _ClaimSpec | None = None


class _Template(msgspec.Struct):
    spec: _TemplateSpec | None = None


class _Class(msgspec.Struct):
    spec: _Devices | None = None


class _Gate(msgspec.Struct):
    name: str = ""


class _Resources(msgspec.Struct):
    requests: Mapping[str, msgspec.Raw] | None = None


class _Container(msgspec.Struct):
    resources: _Resources | None = None


class _PodSpec(msgspec.Struct, rename="camel"):
    containers: list[_Container] | None = None
    init_containers: list[_Container] | None = None
    resource_claims: list[msgspec.Raw] | None = None
    node_name: str = ""
    scheduling_gates: list[_Gate] | None = None


class _Pod(msgspec.Struct):
    spec: _PodSpec | None = None


class _Metadata(msgspec.Struct):
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None


class _Inner(msgspec.Struct):
    metadata: _Metadata | None = None


class _Outer(msgspec.Struct):
    """An object's own metadata, and those that a template gives to what is made of it."""

    metadata: _Metadata | None = None
    spec: _Inner | None = None


class _Envelope(msgspec.Struct, rename="camel"):
    api_version: str
    kind: str
    request: AdmissionRequest


_envelopes = msgspec.json.Decoder(_Envelope)
_claims = msgspec.json.Decoder(_Claim | None)
_templates = msgspec.json.Decoder(_Template | None)
_classes = msgspec.json.Decoder(_Class | None)
_requests = msgspec.json.Decoder(ObjectRequests)
_pods = msgspec.json.Decoder(_Pod | None)
_outers = msgspec.json.Decoder(_Outer | None)


@dataclass(frozen=True, slots=True)
class Judgement:
    """The answer, and how it is counted: allowed, refused, gated or unreadable."""

    response: AdmissionResponse
    outcome: str


def read_review(body: bytes) -> AdmissionRequest:
    """Return the request of an AdmissionReview.

    Raises:
        DecodeError: it is none, or none that we understand.
    """
    try:
        review = codec.from_json(_envelopes, body)
    except (msgspec.DecodeError, UnicodeDecodeError) as e:
        raise DecodeError(f"not an AdmissionReview: {e}") from e
    if (review.api_version, review.kind) != (API_VERSION, "AdmissionReview"):
        raise DecodeError(
            f"apiVersion {review.api_version[:80]!r}, kind {review.kind[:80]!r}: expected {API_VERSION} "
            "AdmissionReview"
        )
    return review.request


def write_review(response: AdmissionResponse) -> bytes:
    """Return the answer as JSON."""
    return msgspec.json.encode(
        AdmissionReview(api_version=API_VERSION, kind="AdmissionReview", response=response)
    )


def judge(
    request: AdmissionRequest,
    drivers: Collection[str],
    *,
    kinds: Kinds = _NO_KINDS,
    others: Collection[str] = (),
) -> Judgement:
    """Judge whether opaque parameters for our drivers, and what makes a group, are right in an object.

    Everything else is allowed: other kinds, other drivers' parameters, and what an update does not change.

    Args:
        request: of the API server.
        drivers: ours.
        kinds: what installed backends of third parties understand.
        others: those of ``drivers`` whose backends may not be installed here: kinds of groups that are not
            ours are left to the node where they are not known.
    """
    is_pod = (request.kind.group, request.kind.kind) == ("", "Pod")
    found = [] if is_pod else _entries(request.kind, request.object)
    if found is None:
        text = f"{request.kind.kind or 'object'} was not checked: its form is unknown"
        return Judgement(
            AdmissionResponse(uid=request.uid, allowed=True, warnings=(text[:200],)), "unreadable"
        )
    before: set[tuple[str, bytes]] = set()
    if request.operation == "UPDATE":
        # An update of labels or finalizers is not warned about findings that the object had before.
        before = {
            (o.driver, bytes(o.parameters)) for _, o in _entries(request.kind, request.old_object) or ()
        }
    causes = _group(request)
    warnings: list[str] = []
    for path, opaque in found:
        if opaque.driver not in drivers or (opaque.driver, bytes(opaque.parameters)) in before:
            continue
        field = f"{path}.opaque.parameters"
        try:
            parameters = check_parameters(
                opaque.parameters, opaque.driver, kinds, may_lack_kinds=opaque.driver in others
            )
        except InvalidParameters as e:
            causes += _causes(field, e)
            continue
        if parameters is None:
            warnings.append(f"{field}: not checked here: this controller does not know the kind")
        elif isinstance(parameters, Parameters) and _needs_class(parameters, request.kind):
            warnings.append(f"{field}: {_BY_CLASS}")
    if not causes:
        # One is enough, and warnings of an object have a limit together.
        allowed = AdmissionResponse(uid=request.uid, allowed=True, warnings=tuple(warnings[:1]))
        return Judgement(allowed, "allowed")
    return Judgement(_refusal(request, causes), "refused")


def _needs_class(parameters: Parameters, kind: GroupVersionKind) -> bool:
    return parameters.driver is not KernelDriver.DEFAULT and kind.kind != "DeviceClass"


def _group(request: AdmissionRequest) -> list[AdmissionCause]:
    """Return what makes no sense of the labels and annotations that make a group."""
    path = {"Pod": "metadata", "ResourceClaim": "metadata", "ResourceClaimTemplate": "spec.metadata"}.get(
        request.kind.kind
    )
    if path is None or request.operation != "CREATE":
        return []
    try:
        outer = codec.from_json(_outers, request.object)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return []
    found: _Outer | _Inner | None = outer
    if path == "spec.metadata":
        found = outer.spec if outer is not None else None
    metadata = found.metadata if found is not None else None
    if metadata is None:
        return []
    findings = group_findings(metadata.labels or {}, metadata.annotations or {})
    return [
        AdmissionCause(
            field=f"{path}.{f.field}", message=f.message[:MAX_FINDING_CHARACTERS], reason="FieldValueInvalid"
        )
        for f in findings
    ]


def refuse_capacity(request: AdmissionRequest, driver: str, *, kept: bool | None) -> Judgement:
    """Refuse a claim or template whose requests for capacity the API server is about to drop.

    Otherwise it is allowed, with a warning about an amount of memory whose unit seems to be missing.

    Args:
        request: of the API server, which sends only those that have such requests.
        driver: whose capacities are meant where their names do not say.
        kept: whether the API server keeps them; None: that is not known, and they are refused for now.
    """
    if kept:
        warnings = itertools.islice(_unit_warnings(request), 1)
        return Judgement(
            AdmissionResponse(uid=request.uid, allowed=True, warnings=tuple(warnings)), "allowed"
        )
    if kept is None:
        later = AdmissionStatus(code=503, reason="ServiceUnavailable", message=_NOT_KNOWN_YET)
        return Judgement(AdmissionResponse(uid=request.uid, allowed=False, status=later), "refused")
    causes: list[AdmissionCause] = []
    for path, asked in itertools.islice(_capacities(request), MAX_FINDINGS + 1):
        selector = capacity_selector(asked, driver)
        text = f"{CAPACITY_IS_DROPPED}; use a CEL selector instead"
        if selector and len(text) + len(selector) + 2 <= MAX_FINDING_CHARACTERS:  # a part of it would mislead
            text = f"{text}: {selector}"
        causes.append(
            AdmissionCause(field=path, message=text[:MAX_FINDING_CHARACTERS], reason="FieldValueNotSupported")
        )
    if not causes:
        field = "spec.devices.requests"
        causes = [AdmissionCause(field=field, message=CAPACITY_IS_DROPPED, reason="FieldValueNotSupported")]
    return Judgement(_refusal(request, causes), "refused")


def _capacities(request: AdmissionRequest) -> Iterator[tuple[str, Mapping[str, msgspec.Raw]]]:
    """Yield what a claim or template asks for, by path; nothing of one that cannot be read."""
    try:
        shown = codec.from_json(_requests, request.object)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return
    yield from shown.capacities()


def _unit_warnings(request: AdmissionRequest) -> Iterator[str]:
    for path, asked in itertools.islice(_capacities(request), MAX_ENTRIES):
        for name, raw in itertools.islice(asked.items(), MAX_ENTRIES):
            try:
                advice = unit_advice(name, codec.decode(Quantity, raw))
            except DecodeError:
                continue
            if advice:
                yield f"{path}.requests[{name[:_NAME_CHARACTERS]}]: {advice}"


def _causes(field: str, error: InvalidParameters) -> Iterable[AdmissionCause]:
    for finding in error.findings:
        yield AdmissionCause(
            field=field, message=finding[:MAX_FINDING_CHARACTERS], reason="FieldValueInvalid"
        )


def _refusal(request: AdmissionRequest, causes: list[AdmissionCause]) -> AdmissionResponse:
    shown = causes[:MAX_FINDINGS]
    text = "; ".join(f"{c.field}: {c.message}" for c in shown)
    if len(causes) > len(shown):
        text += f"; and {len(causes) - len(shown)} more"
    details = AdmissionDetails(causes=tuple(shown))
    status = AdmissionStatus(code=422, reason="Invalid", message=text, details=details)
    return AdmissionResponse(uid=request.uid, allowed=False, status=status)


def _entries(kind: GroupVersionKind, raw: msgspec.Raw) -> list[tuple[str, _Opaque]] | None:
    """Return opaque parameters with the paths of their entries; None for an object that we cannot read."""
    if kind.group != _DRA or kind.version not in VERSIONS:
        return None
    entries: list[_Entry] | None = None
    try:
        match kind.kind:
            case "ResourceClaim":
                path, claim = "spec.devices.config", codec.from_json(_claims, raw)
                entries = _config(claim.spec if claim is not None else None)
            case "ResourceClaimTemplate":
                path, template = "spec.spec.devices.config", codec.from_json(_templates, raw)
                inner = template.spec if template is not None else None
                entries = _config(inner.spec if inner is not None else None)
            case "DeviceClass":
                path, class_ = "spec.config", codec.from_json(_classes, raw)
                entries = class_.spec.config if class_ is not None and class_.spec is not None else None
            case _:
                return None
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    if entries is None:
        return []
    if len(entries) > MAX_ENTRIES:
        return None
    return [(f"{path}[{i}]", e.opaque) for i, e in enumerate(entries) if e.opaque is not None]


def _config(spec: _ClaimSpec | None) -> list[_Entry] | None:
    return spec.devices.config if spec is not None and spec.devices is not None else None


def gate(request: AdmissionRequest, *, resources: bool = False) -> Judgement:
    """Add our scheduling gate to new pods with claims that are not bound to a node.

    Args:
        request: of the API server.
        resources: whether pods get the gate for extended resources, too.
    """
    allowed = Judgement(AdmissionResponse(uid=request.uid, allowed=True), "allowed")
    if (request.kind.group, request.kind.kind) != ("", "Pod") or request.operation != "CREATE":
        return allowed
    try:
        pod = codec.from_json(_pods, request.object)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return Judgement(allowed.response, "unreadable")
    spec = pod.spec if pod is not None else None
    # A pod with a node never meets kube-scheduler, and the API server refuses gates on it.
    if spec is None or spec.node_name or not (spec.resource_claims or (resources and _wants_resources(spec))):
        return allowed
    gates = spec.scheduling_gates or []
    if any(g.name == names.ALLOCATION_GATE for g in gates):
        return allowed
    value = {"name": names.ALLOCATION_GATE}
    operation: dict[str, object] = (
        {"op": "add", "path": "/spec/schedulingGates/-", "value": value}
        if gates
        else {"op": "add", "path": "/spec/schedulingGates", "value": [value]}
    )
    patch = base64.b64encode(msgspec.json.encode([operation])).decode("ascii")
    response = AdmissionResponse(uid=request.uid, allowed=True, patch_type="JSONPatch", patch=patch)
    return Judgement(response, "gated")


def _wants_resources(spec: _PodSpec) -> bool:
    """Return what ``NAMES_CLAIMS_OR_RESOURCES`` says of resources."""
    containers = (*(spec.containers or ()), *(spec.init_containers or ()))
    requests = (c.resources.requests or {} for c in containers if c.resources is not None)
    return any(is_extended_resource(name) for names_ in requests for name in names_)
