"""ValidatingAdmissionPolicies, evaluated with our own CEL.

Of policies and bindings these fields are respected: ``paramKind`` and ``paramRef`` (by name),
``matchConstraints`` (rules and selectors; every served version is equivalent), of bindings ``matchResources``
likewise, ``matchConditions``, ``variables``, ``validations``, ``failurePolicy``, and the action ``Deny``. As
on the real server, the parameter is looked up before the conditions are looked at. Variables are evaluated
whether they are used or not; those that fail, fail where they are used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from dra_driver.cel.errors import CelCompileError, CelRuntimeError
from dra_driver.cel.policies import PolicyExpression, compile_policy
from dra_driver.sim.apiserver.objects.kinds import Kind, Kinds
from dra_driver.sim.apiserver.objects.status import Cause, Raw, StatusError
from dra_driver.sim.apiserver.storage.store import Key, Store
from dra_driver.sim.apiserver.writing.reviews import Review
from dra_driver.sim.apiserver.writing.webhooks import matches, selected

__all__ = ["Policies"]

_GROUP = "admissionregistration.k8s.io"
_GIVEN = ("object", "oldObject", "request", "params", "namespaceObject")
_CODES = {"Unauthorized": 401, "Forbidden": 403, "RequestEntityTooLarge": 413, "Invalid": 422}

Parameters = Callable[[Kind, Key], Raw | None]
"""Looks up the parameter of a binding. A real server does that in a cache, which may be behind."""


@dataclass(frozen=True, slots=True)
class _Validation:
    expression: PolicyExpression
    text: str
    reason: str
    message: str
    message_expression: PolicyExpression | None


@dataclass(frozen=True, slots=True)
class _Policy:
    """A compiled policy."""

    name: str
    raw: Raw
    conditions: tuple[PolicyExpression, ...]
    variables: Mapping[str, PolicyExpression]
    validations: tuple[_Validation, ...]

    @property
    def spec(self) -> Raw:
        """The spec as it is stored."""
        spec: Raw = self.raw["spec"]
        return spec


class _Denied(Exception):
    """A validation objects; carries the reason and the text."""


class Policies:
    """The policies of a server.

    Attributes:
        parameters: looks up parameters; a test can put something in its place that lags.
    """

    def __init__(self, store: Store, kinds: Kinds) -> None:
        self._store = store
        self._kinds = kinds
        self._compiled: dict[str, tuple[Raw, _Policy | StatusError]] = {}
        self.parameters: Parameters = self._stored

    def check(self, review: Review) -> None:
        """Return if no policy refuses.

        Raises:
            StatusError: one of them does.
        """
        stored = self._store.collection(_GROUP, "validatingadmissionpolicies")
        if not stored.objects or review.kind.group == _GROUP:
            return
        bindings = self._store.collection(_GROUP, "validatingadmissionpolicybindings").list()
        for found in stored.list():
            bound = [b.raw for b in bindings if b.raw["spec"].get("policyName") == found.key.name]
            if not bound or not self._concerns(found.raw["spec"].get("matchConstraints"), review):
                continue
            for binding in bound:
                self._ask(self._policy(found.key.name, found.raw), binding, review)

    def _ask(self, policy: _Policy, binding: Raw, review: Review) -> None:
        spec = binding["spec"]
        resources = spec.get("matchResources")
        if resources and not self._concerns(resources, review, any_rule=not resources.get("resourceRules")):
            return
        if "Deny" not in (spec.get("validationActions") or ()):
            return
        try:
            for params in self._parameters_of(policy, spec.get("paramRef") or {}):
                _judge(policy, review, params, self._namespace(review))
        except _Denied as e:
            reason, text = e.args
        except CelRuntimeError as e:
            if policy.spec.get("failurePolicy") == "Ignore":
                return
            reason, text = "Invalid", str(e)
        else:
            return
        raise _refusal(policy.name, binding["metadata"]["name"], review, reason, text)

    # --- which policies are asked ---

    def _concerns(self, resources: Raw | None, review: Review, *, any_rule: bool = False) -> bool:
        given = resources or {}
        versions = self._kinds.versions(review.kind.group, review.kind.plural)
        rules = given.get("resourceRules") or []
        if not any_rule and not any(matches(rule, k, review) for rule in rules for k in versions):
            return False
        if any(
            matches(rule, k, review) for rule in given.get("excludeResourceRules") or [] for k in versions
        ):
            return False
        namespace = self._namespace(review)
        if namespace is not None and not selected(given.get("namespaceSelector"), namespace):
            return False
        selector = given.get("objectSelector")
        return any(o is not None and selected(selector, o) for o in (review.new, review.old))

    def _namespace(self, review: Review) -> Raw | None:
        if review.kind.kind == "Namespace" and not review.kind.group:
            return review.new or review.old
        found = self._store.collection("", "namespaces").get(Key("", review.namespace))
        return found.raw if found is not None and review.namespace else None

    def _parameters_of(self, policy: _Policy, reference: Raw) -> Iterator[Raw | None]:
        """Yield what ``params`` is; nothing where it is missing and that is allowed.

        Raises:
            _Denied: it is missing, or cannot be looked up.
        """
        wanted = policy.spec.get("paramKind")
        if wanted is None:
            yield None
            return
        kind = self._kinds.by_kind(wanted["apiVersion"], wanted["kind"])
        if kind is None:
            raise _Denied("Invalid", f"failed to find resource referenced by paramKind: '{wanted['kind']}'")
        namespace = reference.get("namespace", "") if kind.namespaced else ""
        found = self.parameters(kind, Key(namespace, reference.get("name", "")))
        if found is not None:
            yield found
        elif reference.get("parameterNotFoundAction") == "Deny":
            text = "no params found for policy binding with `Deny` parameterNotFoundAction"
            raise _Denied("Invalid", f"failed to configure binding: {text}")

    def _stored(self, kind: Kind, key: Key) -> Raw | None:
        found = self._store.collection(kind.group, kind.plural).get(key)
        return found.raw if found is not None else None

    def _policy(self, name: str, raw: Raw) -> _Policy:
        """Return a policy compiled; each version of it is compiled once.

        Raises:
            StatusError: it cannot be compiled; the real server would not have stored it.
        """
        known = self._compiled.get(name)
        if known is None or known[0] is not raw:
            compiled: _Policy | StatusError
            try:
                compiled = _compile(name, raw)
            except CelCompileError as e:
                compiled = StatusError.internal(f"ValidatingAdmissionPolicy {name!r} cannot be compiled: {e}")
            known = self._compiled[name] = (raw, compiled)
        if isinstance(known[1], StatusError):
            raise known[1]
        return known[1]


def _compile(name: str, raw: Raw) -> _Policy:
    spec = raw["spec"]
    names = (*_GIVEN, "variables")
    return _Policy(
        name,
        raw,
        tuple(compile_policy(c["expression"], _GIVEN) for c in spec.get("matchConditions") or ()),
        {v["name"]: compile_policy(v["expression"], names) for v in spec.get("variables") or ()},
        tuple(
            _Validation(
                compile_policy(v["expression"], names),
                v["expression"],
                v.get("reason") or "Invalid",
                v.get("message") or "",
                compile_policy(v["messageExpression"], names) if v.get("messageExpression") else None,
            )
            for v in spec.get("validations") or ()
        ),
    )


def _judge(policy: _Policy, review: Review, params: Raw | None, namespace: Raw | None) -> None:
    given: dict[str, Any] = {
        "object": review.new,
        "oldObject": review.old,
        "request": _request(review),
        "params": params,
        "namespaceObject": namespace,
    }
    if not all(condition.value(given) is True for condition in policy.conditions):
        return
    # An unset time is null on the wire of the real server, and may be missing in a stored object of this one.
    given |= {"object": _without_nulls(review.new), "oldObject": _without_nulls(review.old)}
    variables: dict[str, Any] = {}
    given["variables"] = variables
    for name, expression in policy.variables.items():
        try:
            variables[name] = expression.value(given)
        except CelRuntimeError:
            continue
    for validation in policy.validations:
        if validation.expression.value(given) is not True:
            raise _Denied(validation.reason, _message(validation, given))


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _without_nulls(v) for k, v in value.items() if v is not None}
    return [_without_nulls(v) for v in value] if isinstance(value, list) else value


def _message(validation: _Validation, given: Mapping[str, Any]) -> str:
    if validation.message_expression is not None:
        try:
            said = validation.message_expression.value(given)
        except CelRuntimeError:
            said = None
        if isinstance(said, str) and said.strip():
            return said
    return validation.message.strip() or f"failed expression: {validation.text.strip()}"


def _request(review: Review) -> Raw:
    kind = review.kind
    resource = {"group": kind.group, "version": kind.version, "resource": kind.plural}
    request: Raw = {
        "kind": {"group": kind.group, "version": kind.version, "kind": kind.kind},
        "resource": resource,
        "requestResource": resource,
        "name": review.name,
        "namespace": review.namespace,
        "operation": review.operation,
        "userInfo": review.user,
        "dryRun": review.dry_run,
    }
    if review.subresource:
        request["subResource"] = request["requestSubResource"] = review.subresource
    return request


def _refusal(policy: str, binding: str, review: Review, reason: str, text: str) -> StatusError:
    kind = review.kind
    said = f"ValidatingAdmissionPolicy '{policy}' with binding '{binding}' denied request: {text}"
    qualified = f"{kind.plural}.{kind.group}" if kind.group else kind.plural
    message = f'{qualified} "{review.name}" is forbidden: {said}'
    causes = [Cause("", said)]
    return StatusError(_CODES.get(reason, 422), reason, message, kind.plural, kind.group, review.name, causes)
