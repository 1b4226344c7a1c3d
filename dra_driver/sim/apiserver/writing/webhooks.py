"""Calls of admission webhooks: which ones are called for a change, and what their answers cause.

Of ValidatingWebhookConfigurations and MutatingWebhookConfigurations these fields are respected: rules, scope,
namespaceSelector, objectSelector, matchPolicy, failurePolicy, sideEffects, timeoutSeconds, caBundle, and
``url`` or ``service``. ``matchConditions`` count as true, and ``reinvocationPolicy`` is ignored: mutating
webhooks are called once, in the order of their configurations' names.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import ssl
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import aiohttp
import msgspec

from dra_driver.sim.apiserver.objects import versions
from dra_driver.sim.apiserver.objects.kinds import Kind, Kinds
from dra_driver.sim.apiserver.objects.status import Cause, Raw, StatusError
from dra_driver.sim.apiserver.storage.store import Key, Store
from dra_driver.sim.apiserver.writing import patches
from dra_driver.sim.apiserver.writing.reviews import Review, Reviews, Unanswered

__all__ = ["Services", "Webhooks", "matches", "selected"]

Services = Mapping[str, str]
"""``NAMESPACE/NAME`` of a Service to the ``HOST:PORT`` where it really listens."""

_GROUP = "admissionregistration.k8s.io"
_LONGEST_ANSWER = 3 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class _Hook:
    """One entry of ``webhooks``, and the version in which it gets the objects."""

    raw: Raw
    kind: Kind

    @property
    def name(self) -> str:
        return str(self.raw.get("name", ""))


class _CallFailed(Exception):
    """A webhook cannot be called, or its answer cannot be decoded."""


class Webhooks:
    """The webhooks of a server.

    Args:
        store: configurations and namespaces.
        kinds: the kinds that are served.
        services: Service → address of the webhook behind it; there are no pods behind Services here.
    """

    def __init__(self, store: Store, kinds: Kinds, services: Services) -> None:
        self._store = store
        self._kinds = kinds
        self._services = services
        self._session: aiohttp.ClientSession | None = None

    def wanted(self, kind: Kind) -> bool:
        """Return whether there is any webhook configuration that could apply to objects of this kind."""
        if kind.group == _GROUP:  # otherwise a bad configuration could never be removed
            return False
        collections = (self._store.collection(_GROUP, plural) for plural in _PLURALS.values())
        return any(c.objects for c in collections)

    async def close(self) -> None:
        """Close the connections."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def ask(self, question: Unanswered, requested: Kind, reviews: Reviews) -> None:
        """Call all webhooks that apply to a review, and add their answer.

        Args:
            question: the review that has no answer yet.
            requested: the kind in the version of the request.
            reviews: the answers to the request.
        """
        hooks = list(self._hooks(question.review, requested, mutating=question.mutating))
        answer: Raw | StatusError | None = None
        try:
            if question.mutating:
                answer = await self._mutate(question.review, requested, hooks, reviews)
            else:
                await self._validate(question.review, requested, hooks, reviews)
        except StatusError as e:
            answer = e
        reviews.answer(question, answer)

    async def _mutate(
        self, review: Review, requested: Kind, hooks: Sequence[_Hook], reviews: Reviews
    ) -> Raw | None:
        current: Raw | None = None
        for hook in hooks:
            response = await self._call(hook, review, requested, current, reviews)
            if response is None or not response.get("patch") or review.new is None:
                continue
            shown = versions.from_storage(hook.kind.api_version, hook.kind.kind, current or review.new)
            try:
                if response.get("patchType") != "JSONPatch":
                    raise ValueError(f"patchType {response.get('patchType')!r} is not JSONPatch")
                patch = msgspec.json.decode(base64.b64decode(response["patch"], validate=True))
                changed = patches.json_patch(shown, patch)
            except (ValueError, TypeError, StatusError) as e:
                raise _internal(f'webhook "{hook.name}": the patch does not apply: {e}') from None
            current = versions.to_storage(hook.kind.api_version, hook.kind.kind, changed)
            current["apiVersion"] = review.kind.api_version
        return current

    async def _validate(
        self, review: Review, requested: Kind, hooks: Sequence[_Hook], reviews: Reviews
    ) -> None:
        async def one(hook: _Hook) -> StatusError | None:
            try:
                await self._call(hook, review, requested, None, reviews)
            except StatusError as e:
                return e
            return None

        async with asyncio.TaskGroup() as group:
            calls = [group.create_task(one(hook)) for hook in hooks]
        for call in calls:
            refused = call.result()
            if refused is not None:
                raise refused

    # --- which webhooks are called ---

    def _hooks(self, review: Review, requested: Kind, *, mutating: bool) -> Iterator[_Hook]:
        for stored in self._store.collection(_GROUP, _PLURALS[mutating]).list():
            for raw in stored.raw.get("webhooks") or []:
                kind = self._wanted_version(raw, review, requested)
                if kind is not None and self._selects(raw, review):
                    yield _Hook(raw, kind)

    def _wanted_version(self, hook: Raw, review: Review, requested: Kind) -> Kind | None:
        """Return the version in which the webhook gets the object; None if its rules do not match."""
        served = [requested]
        if hook.get("matchPolicy", "Equivalent") == "Equivalent":
            served += [k for k in self._kinds.versions(requested.group, requested.plural) if k != requested]
        rules: Sequence[Raw] = hook.get("rules") or []
        return next((k for k in served if any(matches(rule, k, review) for rule in rules)), None)

    def _selects(self, hook: Raw, review: Review) -> bool:
        is_namespace = review.kind.kind == "Namespace" and not review.kind.group
        name = review.name if is_namespace else review.namespace
        if name:
            found = self._store.collection("", "namespaces").get(Key("", name))
            of_namespace = found.raw if found is not None else review.new
            if not selected(hook.get("namespaceSelector"), of_namespace):
                return False
        selector = hook.get("objectSelector")
        return any(o is not None and selected(selector, o) for o in (review.new, review.old))

    # --- one call ---

    async def _call(
        self, hook: _Hook, review: Review, requested: Kind, current: Raw | None, reviews: Reviews
    ) -> Raw | None:
        """Return the response; None if the webhook failed and its failurePolicy is to ignore that.

        Raises:
            StatusError: the webhook refuses, or it failed.
        """
        if review.dry_run and hook.raw.get("sideEffects") not in ("None", "NoneOnDryRun"):
            raise StatusError.bad_request(f'admission webhook "{hook.name}" does not support dry run')
        body = _admission_review(hook, review, requested, current)
        try:
            response = await self._post(hook, body)
        except _CallFailed as e:
            if hook.raw.get("failurePolicy") == "Ignore":
                return None
            raise _internal(f'failed calling webhook "{hook.name}": {e}') from None
        reviews.warnings += [w for w in response.get("warnings") or [] if w not in reviews.warnings]
        if response.get("allowed") is not True:
            raise _denied(hook.name, response.get("status") or {})
        return response

    async def _post(self, hook: _Hook, body: Raw) -> Raw:
        seconds = hook.raw.get("timeoutSeconds", 10)
        if self._session is None:
            self._session = aiohttp.ClientSession()
        try:
            url, server_name, context = self._target(hook.raw.get("clientConfig") or {})
            async with (
                asyncio.timeout(seconds),
                self._session.post(
                    url,
                    params={"timeout": f"{seconds}s"},
                    data=msgspec.json.encode(body),
                    headers={"Content-Type": "application/json", "Accept": "application/json"},
                    ssl=context,
                    server_hostname=server_name,
                    allow_redirects=False,
                ) as answer,
            ):
                data = await answer.content.read(_LONGEST_ANSWER)
                if answer.status != 200:
                    raise _CallFailed(f"failed to call webhook: it answers with {answer.status}")
        except TimeoutError:
            raise _CallFailed("failed to call webhook: context deadline exceeded") from None
        except (aiohttp.ClientError, OSError, ValueError) as e:
            raise _CallFailed(f"failed to call webhook: {str(e) or type(e).__name__}") from None
        return _response(data, body["request"]["uid"])

    def _target(self, config: Raw) -> tuple[str, str | None, ssl.SSLContext]:
        """Return URL, name in the certificate (None: that of the URL) and TLS context of a webhook."""
        bundle = config.get("caBundle")
        try:
            authority = base64.b64decode(bundle).decode() if bundle else None
        except (binascii.Error, UnicodeDecodeError):
            raise _CallFailed("failed to call webhook: the caBundle is no PEM") from None
        context = ssl.create_default_context(cadata=authority)
        if config.get("url"):
            return config["url"], None, context
        service = config.get("service") or {}
        key = f"{service.get('namespace')}/{service.get('name')}"
        address = self._services.get(key)
        if address is None:
            raise _CallFailed(f"failed to call webhook: no endpoints known for service {key}")
        path = str(service.get("path") or "/")
        name = f"{service.get('name')}.{service.get('namespace')}.svc"
        return f"https://{address}/{path.lstrip('/')}", name, context


_PLURALS = {True: "mutatingwebhookconfigurations", False: "validatingwebhookconfigurations"}


def matches(rule: Raw, kind: Kind, review: Review) -> bool:
    """Return whether a rule is about a review, if its objects are of this kind."""

    def among(words: Sequence[str] | None, *wanted: str) -> bool:
        return any(w in (words or ()) for w in ("*", *wanted))

    sub = review.subresource
    resource = f"{kind.plural}/{sub}" if sub else kind.plural
    wanted = {resource, "*/*", f"*/{sub}" if sub else "*", f"{kind.plural}/*"}
    scope = "Namespaced" if kind.namespaced else "Cluster"
    return (
        among(rule.get("operations"), review.operation)
        and among(rule.get("apiGroups"), kind.group)
        and among(rule.get("apiVersions"), kind.version)
        and bool(wanted & set(rule.get("resources") or ()))
        and rule.get("scope", "*") in ("*", scope)
    )


def selected(selector: Raw | None, raw: Raw | None) -> bool:
    """Return whether a selector of labels selects an object."""
    labels: Raw = ((raw or {}).get("metadata") or {}).get("labels") or {}
    given = selector or {}
    if any(labels.get(k) != v for k, v in (given.get("matchLabels") or {}).items()):
        return False
    return all(_holds(e, labels) for e in given.get("matchExpressions") or [])


def _holds(expression: Raw, labels: Raw) -> bool:
    key, values = expression.get("key"), expression.get("values") or []
    match expression.get("operator"):
        case "In":
            return key in labels and labels[key] in values
        case "NotIn":
            return key not in labels or labels[key] not in values
        case "Exists":
            return key in labels
        case _:
            return key not in labels


def _admission_review(hook: _Hook, review: Review, requested: Kind, current: Raw | None) -> Raw:
    def shown(raw: Raw | None) -> Raw | None:
        return versions.from_storage(hook.kind.api_version, hook.kind.kind, raw) if raw is not None else None

    def resource(kind: Kind) -> Raw:
        return {"group": kind.group, "version": kind.version, "resource": kind.plural}

    def named(kind: Kind) -> Raw:
        return {"group": kind.group, "version": kind.version, "kind": kind.kind}

    options = {"CREATE": "CreateOptions", "UPDATE": "UpdateOptions", "DELETE": "DeleteOptions"}
    request: Raw = {
        "uid": str(uuid.uuid4()),
        "kind": named(hook.kind),
        "resource": resource(hook.kind),
        "requestKind": named(requested),
        "requestResource": resource(requested),
        "name": review.name,
        "operation": review.operation,
        "userInfo": review.user,
        "object": shown(current if current is not None else review.new),
        "oldObject": shown(review.old),
        "dryRun": review.dry_run,
        "options": {"apiVersion": "meta.k8s.io/v1", "kind": options[review.operation]},
    }
    if review.namespace:
        request["namespace"] = review.namespace
    if review.subresource:
        request["subResource"] = request["requestSubResource"] = review.subresource
    return {"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1", "request": request}


def _response(data: bytes, uid: str) -> Raw:
    try:
        answer: Any = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as e:
        raise _CallFailed(f"received invalid webhook response: {e}") from None
    response = answer.get("response") if isinstance(answer, dict) else None
    if not isinstance(response, dict):
        raise _CallFailed("received invalid webhook response: it has no response")
    if (answer.get("apiVersion"), answer.get("kind")) != ("admission.k8s.io/v1", "AdmissionReview"):
        raise _CallFailed("received invalid webhook response: expected admission.k8s.io/v1, AdmissionReview")
    if response.get("uid") != uid:
        raise _CallFailed(f'received invalid webhook response: expected response.uid="{uid}"')
    return response


def _denied(name: str, status: Raw) -> StatusError:
    code = status.get("code") or 0
    said = status.get("message") or status.get("reason")
    denied = f'admission webhook "{name}" denied the request'
    details: Raw = status.get("details") or {}
    causes = [
        Cause(c.get("reason", ""), c.get("message", ""), c.get("field", ""))
        for c in details.get("causes") or []
    ]
    return StatusError(
        code if isinstance(code, int) and code >= 400 else 400,
        status.get("reason", ""),
        f"{denied}: {said}" if said else f"{denied} without explanation",
        details.get("kind", ""),
        details.get("group", ""),
        details.get("name", ""),
        causes,
    )


def _internal(text: str) -> StatusError:
    return StatusError(500, "InternalError", f"Internal error occurred: {text}", causes=[Cause("", text)])
