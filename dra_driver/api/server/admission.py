"""``admission.k8s.io/v1 AdmissionReview``, webhook configurations and mutating policies."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from dra_driver.api.meta import Resource, Wire, WireObject
from dra_driver.api.pod_affinity import LabelSelector

__all__ = [
    "ADMISSION_GROUP",
    "MUTATING_POLICIES",
    "MUTATING_POLICY_BINDINGS",
    "MUTATING_WEBHOOKS",
    "VALIDATING_POLICIES",
    "VALIDATING_POLICY_BINDINGS",
    "VALIDATING_WEBHOOKS",
    "AdmissionCause",
    "AdmissionDetails",
    "AdmissionRequest",
    "AdmissionResponse",
    "AdmissionReview",
    "AdmissionStatus",
    "GroupVersionKind",
    "MatchCondition",
    "MatchResources",
    "MutatingPolicy",
    "MutatingPolicyBinding",
    "Mutation",
    "ValidatingPolicy",
    "ValidatingPolicyBinding",
    "Webhook",
    "WebhookClientConfig",
    "WebhookConfiguration",
]

ADMISSION_GROUP = "admissionregistration.k8s.io"


class GroupVersionKind(Wire, frozen=True, kw_only=True):
    """``request.kind``: the form in which the object was sent."""

    group: str = ""
    version: str = ""
    kind: str = ""


class AdmissionRequest(Wire, frozen=True, kw_only=True):
    """``request``. The objects stay text until it is known which part of them matters."""

    uid: str
    kind: GroupVersionKind = GroupVersionKind()
    operation: str = ""
    name: str = ""
    namespace: str = ""
    object: msgspec.Raw = msgspec.Raw(b"null")
    old_object: msgspec.Raw = msgspec.Raw(b"null")


class AdmissionCause(Wire, frozen=True, kw_only=True):
    """``status.details.causes[]``: one finding."""

    field: str = ""
    message: str = ""
    reason: str = ""


class AdmissionDetails(Wire, frozen=True, kw_only=True):
    """``status.details``."""

    causes: tuple[AdmissionCause, ...] = ()


class AdmissionStatus(Wire, frozen=True, kw_only=True):
    """``response.status``: what the user sees of a refusal."""

    code: int = 0
    reason: str = ""
    message: str = ""
    details: AdmissionDetails = AdmissionDetails()


class AdmissionResponse(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """``response``; ``uid`` and ``allowed`` are always there."""

    uid: str
    allowed: bool
    status: AdmissionStatus | None = None
    patch_type: str = ""
    patch: str = ""
    warnings: tuple[str, ...] = ()


class AdmissionReview(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """``AdmissionReview``, as request and as response."""

    api_version: str
    kind: str
    request: AdmissionRequest | None = None
    response: AdmissionResponse | None = None


class MatchCondition(Wire, frozen=True, kw_only=True):
    """``matchConditions[]``: what must be true of an object, in CEL."""

    name: str = ""
    expression: str = ""


class WebhookClientConfig(Wire, frozen=True, kw_only=True):
    """``webhooks[].clientConfig``, as far as we read it. ``ca_bundle`` is base64 of PEM."""

    ca_bundle: str = ""


class Webhook(Wire, frozen=True, kw_only=True):
    """``webhooks[]``, as far as we read it."""

    name: str
    client_config: WebhookClientConfig = WebhookClientConfig()
    namespace_selector: LabelSelector | None = None
    object_selector: LabelSelector | None = None
    match_conditions: tuple[MatchCondition, ...] = ()


class WebhookConfiguration(WireObject, frozen=True, kw_only=True):
    """A validating or mutating configuration, of which the same is read."""

    webhooks: tuple[Webhook, ...] | None = None

    def bundles(self) -> Mapping[str, str]:
        """Return the CA bundle of each webhook by its name, as stored."""
        return {w.name: w.client_config.ca_bundle for w in self.webhooks or ()}


class NamedRule(Wire, frozen=True, kw_only=True):
    """``resourceRules[]``: writes that a policy looks at."""

    api_groups: tuple[str, ...] = ()
    api_versions: tuple[str, ...] = ()
    operations: tuple[str, ...] = ()
    resources: tuple[str, ...] = ()
    resource_names: tuple[str, ...] = ()
    scope: str = ""


class MatchResources(Wire, frozen=True, kw_only=True):
    """``matchConstraints`` of a policy and ``matchResources`` of a binding, as far as we read them."""

    namespace_selector: LabelSelector | None = None
    object_selector: LabelSelector | None = None
    resource_rules: tuple[NamedRule, ...] = ()
    exclude_resource_rules: tuple[NamedRule, ...] = ()


class _Expression(Wire, frozen=True, kw_only=True):
    expression: str = ""


class Mutation(Wire, frozen=True, kw_only=True):
    """``mutations[]`` of a MutatingAdmissionPolicy."""

    apply_configuration: _Expression | None = None
    json_patch: _Expression | None = None

    @property
    def text(self) -> str:
        """What it does, in CEL."""
        found = self.apply_configuration or self.json_patch
        return found.expression if found is not None else ""


class MutatingPolicySpec(Wire, frozen=True, kw_only=True):
    """``spec`` of a MutatingAdmissionPolicy, as far as we read it."""

    match_constraints: MatchResources | None = None
    match_conditions: tuple[MatchCondition, ...] = ()
    mutations: tuple[Mutation, ...] = ()


class MutatingPolicy(WireObject, frozen=True, kw_only=True):
    """A MutatingAdmissionPolicy."""

    spec: MutatingPolicySpec = MutatingPolicySpec()


class _ParamRef(Wire, frozen=True, kw_only=True):
    """``paramRef``: only whether there is one is looked at."""


class MutatingBindingSpec(Wire, frozen=True, kw_only=True):
    """``spec`` of a MutatingAdmissionPolicyBinding, as far as we read it."""

    policy_name: str = ""
    match_resources: MatchResources | None = None
    param_ref: _ParamRef | None = None


class MutatingPolicyBinding(WireObject, frozen=True, kw_only=True):
    """A MutatingAdmissionPolicyBinding."""

    spec: MutatingBindingSpec = MutatingBindingSpec()


class ParamKind(Wire, frozen=True, kw_only=True):
    """``paramKind`` of a ValidatingAdmissionPolicy."""

    api_version: str = ""
    kind: str = ""


class Variable(Wire, frozen=True, kw_only=True):
    """``variables[]``, in CEL."""

    name: str = ""
    expression: str = ""


class Validation(Wire, frozen=True, kw_only=True):
    """``validations[]``: what must be true, in CEL."""

    expression: str = ""


class ValidatingPolicySpec(Wire, frozen=True, kw_only=True):
    """``spec`` of a ValidatingAdmissionPolicy, as far as it decides what is refused."""

    failure_policy: str = ""
    param_kind: ParamKind | None = None
    match_constraints: MatchResources | None = None
    match_conditions: tuple[MatchCondition, ...] = ()
    variables: tuple[Variable, ...] = ()
    validations: tuple[Validation, ...] = ()


class ValidatingPolicy(WireObject, frozen=True, kw_only=True):
    """A ValidatingAdmissionPolicy."""

    spec: ValidatingPolicySpec = ValidatingPolicySpec()


class ParamRef(Wire, frozen=True, kw_only=True):
    """``paramRef`` of a ValidatingAdmissionPolicyBinding; without a name it selects by labels."""

    name: str = ""
    namespace: str = ""


class ValidatingBindingSpec(Wire, frozen=True, kw_only=True):
    """``spec`` of a ValidatingAdmissionPolicyBinding."""

    policy_name: str = ""
    param_ref: ParamRef | None = None
    match_resources: MatchResources | None = None
    validation_actions: tuple[str, ...] = ()


class ValidatingPolicyBinding(WireObject, frozen=True, kw_only=True):
    """A ValidatingAdmissionPolicyBinding."""

    spec: ValidatingBindingSpec = ValidatingBindingSpec()


VALIDATING_POLICIES = Resource(
    ADMISSION_GROUP,
    "v1",
    "validatingadmissionpolicies",
    "ValidatingAdmissionPolicy",
    ValidatingPolicy,
    namespaced=False,
)
VALIDATING_POLICY_BINDINGS = Resource(
    ADMISSION_GROUP,
    "v1",
    "validatingadmissionpolicybindings",
    "ValidatingAdmissionPolicyBinding",
    ValidatingPolicyBinding,
    namespaced=False,
)
MUTATING_POLICIES = Resource(
    ADMISSION_GROUP,
    "v1",
    "mutatingadmissionpolicies",
    "MutatingAdmissionPolicy",
    MutatingPolicy,
    namespaced=False,
)
MUTATING_POLICY_BINDINGS = Resource(
    ADMISSION_GROUP,
    "v1",
    "mutatingadmissionpolicybindings",
    "MutatingAdmissionPolicyBinding",
    MutatingPolicyBinding,
    namespaced=False,
)
VALIDATING_WEBHOOKS = Resource(
    ADMISSION_GROUP,
    "v1",
    "validatingwebhookconfigurations",
    "ValidatingWebhookConfiguration",
    WebhookConfiguration,
    namespaced=False,
)
MUTATING_WEBHOOKS = Resource(
    ADMISSION_GROUP,
    "v1",
    "mutatingwebhookconfigurations",
    "MutatingWebhookConfiguration",
    WebhookConfiguration,
    namespaced=False,
)
