"""Which objects the API server sends to us, and by which authority it knows us.

The manifests bring two configurations without webhooks; the leader fills them by server-side apply, so that
drivers, address and authority always fit this controller. Nothing but these two objects is ever written.

A webhook that fails open may still cost its timeout. So ``matchConditions`` see to it that an object which
does not name one of our drivers and makes no group of pods never leaves it. One webhook fails closed:
requests for capacity are refused where the API server drops them. Only a mutating webhook sees them; what
validates gets what will be stored.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
from collections.abc import Awaitable, Callable, Collection
from typing import Any, Final

import structlog

from controller.admission.config import OBJECT_NAME, TIMEOUT_SECONDS, AdmissionConfig
from controller.admission.keeper import CertificateKeeper
from controller.admission.pki import Material
from controller.admission.review import VERSIONS
from dra_driver.api.meta import Resource
from dra_driver.api.names import (
    ALLOCATION_GATE,
    ALLOCATOR_LABEL,
    GROUP_BY_ANNOTATION,
    GROUP_DOMAIN_ANNOTATION,
    GROUP_MIN_LABEL,
    GROUP_SIZE_LABEL,
    GROUP_SOME_RUN_ANNOTATION,
)
from dra_driver.api.server.admission import (
    ADMISSION_GROUP,
    MUTATING_WEBHOOKS,
    VALIDATING_WEBHOOKS,
    WebhookConfiguration,
)
from dra_driver.errors import ApiError, DraError, NotFound
from dra_driver.kube import Backoff
from dra_driver.ports import KubeClient
from dra_driver.resourceclaim import NAMES_CLAIMS, NAMES_CLAIMS_OR_RESOURCES

__all__ = ["CAPACITY_PATH", "GATE_PATH", "GATE_WEBHOOK", "NOT_GATED", "VALIDATE_PATH", "Registration"]

log = structlog.get_logger(__name__)

VALIDATE_PATH: Final = "/validate"
GATE_PATH: Final = "/gate"
CAPACITY_PATH: Final = "/capacity"
GATE_WEBHOOK: Final = "gate.admission.dra-driver.dev"
NOT_GATED: Final = "not-gated"
"""Name of the condition of the gate's webhook that leaves out pods which have the gate."""
FIELD_MANAGER: Final = "dra-driver-admission"
# Changes of our webhooks by others are reverted within this time.
POLL_SECONDS = 60.0

_KINDS: Final = (
    # Claims and templates: their specs are immutable, so an update has nothing to check.
    ("resourceclaims", "spec.devices", ("CREATE",)),
    ("resourceclaimtemplates", "spec.spec.devices", ("CREATE",)),
    ("deviceclasses", "spec", ("CREATE", "UPDATE")),
)
# Where the labels and annotations of groups stand.
_METADATA: Final = {"resourceclaims": "object.metadata", "resourceclaimtemplates": "object.spec.metadata"}
_NEW_PODS: Final = {
    "apiGroups": [""],
    "apiVersions": ["v1"],
    "operations": ["CREATE"],
    "resources": ["pods"],
    "scope": "Namespaced",
}
_OF_GROUPS: Final = (
    ("labels", (GROUP_SIZE_LABEL, GROUP_MIN_LABEL)),
    ("annotations", (GROUP_BY_ANNOTATION, GROUP_DOMAIN_ANNOTATION, GROUP_SOME_RUN_ANNOTATION)),
)


class Registration:
    """Keeps the two configurations as they should be."""

    def __init__(
        self,
        client: KubeClient,
        config: AdmissionConfig,
        namespace: str,
        drivers: Collection[str],
        *,
        drops_capacity: Callable[[], Awaitable[bool]],
        lends: bool = False,
    ) -> None:
        """Connect the parts.

        Args:
            client: for the configurations.
            config: how we are reached.
            namespace: of the Service.
            drivers: ours.
            drops_capacity: asks the API server whether it drops requests for capacity.
            lends: whether devices are lent: pods with extended resources get the gate, too.
        """
        self._client = client
        self._config = config
        self._namespace = namespace
        self._drivers = sorted(drivers)
        self._drops_capacity = drops_capacity
        self._refuses_capacity = False
        self._gated = NAMES_CLAIMS_OR_RESOURCES if lends else NAMES_CLAIMS

    async def run(self, keeper: CertificateKeeper) -> None:
        """Work until cancelled. What fails is logged and tried again."""
        backoff = Backoff(base=1.0, cap=POLL_SECONDS)
        while True:
            delay = POLL_SECONDS
            keeper.changed.clear()
            try:
                if keeper.material is not None:
                    await self.apply(keeper.material)
                backoff.reset()
            except DraError as e:
                delay = backoff.next()
                log.error("cannot register the webhooks", configuration=OBJECT_NAME, error=str(e))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(delay):
                    await keeper.changed.wait()

    async def apply(self, material: Material) -> None:
        """Fill both configurations; the gate only where no policy can set it, and so for capacity.

        Raises:
            ApiError, ApiUnavailable: of the API server.
        """
        validating = [self._validating(material, *kind) for kind in _KINDS]
        validating.append(self._groups(material))
        await self._apply(VALIDATING_WEBHOOKS, validating)
        served = await self._client.served(ADMISSION_GROUP, "v1")
        mutating = [] if "mutatingadmissionpolicies" in served else [self._gate(material)]
        try:
            self._refuses_capacity = await self._drops_capacity()
        except ApiError as e:
            log.warning("it is not known whether requests for capacity are dropped", error=str(e))
        if self._refuses_capacity:
            mutating += [self._capacity(material, *kind[:2]) for kind in _KINDS[:2]]
        await self._apply(MUTATING_WEBHOOKS, mutating)

    async def trusted(self, material: Material) -> bool:
        """Return whether every webhook that is registered has all authorities.

        Raises:
            ApiError, ApiUnavailable: of the API server.
        """
        stored: list[str] = []
        for resource in (VALIDATING_WEBHOOKS, MUTATING_WEBHOOKS):
            try:
                found: WebhookConfiguration = await self._client.get(resource, OBJECT_NAME)
            except NotFound:
                continue
            stored += found.bundles().values()
        wanted = _bundle(material)
        return bool(stored) and all(bundle == wanted for bundle in stored)

    async def _apply(self, resource: Resource[WebhookConfiguration], webhooks: list[dict[str, Any]]) -> None:
        body = {
            "apiVersion": resource.api_version,
            "kind": resource.kind,
            "metadata": {"name": OBJECT_NAME},
            "webhooks": webhooks,
        }
        await self._client.apply(resource, body, field_manager=FIELD_MANAGER, force=True)

    def _validating(
        self, material: Material, plural: str, devices: str, operations: tuple[str, ...]
    ) -> dict[str, Any]:
        return {
            **self._common(f"{plural}.admission.dra-driver.dev", VALIDATE_PATH, material),
            "rules": [
                {
                    "apiGroups": ["resource.k8s.io"],
                    "apiVersions": sorted(VERSIONS),
                    "operations": list(operations),
                    "resources": [plural],
                    "scope": "*",
                }
            ],
            "matchConditions": [{"name": "concerns-us", "expression": self._concerns_us(plural, devices)}],
        }

    def _concerns_us(self, plural: str, devices: str) -> str:
        names_us = self._names_us(devices)
        if plural == "deviceclasses":
            return names_us
        return f"{names_us} || {_makes_a_group(_METADATA[plural])}"

    def _names_us(self, devices: str) -> str:
        """Return the CEL expression that is true where an opaque configuration is for one of our drivers."""
        steps = f"object.{devices}.config".split(".")
        there = " && ".join(f"has({'.'.join(steps[:i])})" for i in range(2, len(steps) + 1))
        config = ".".join(steps)
        drivers = ", ".join(f"'{d}'" for d in self._drivers)  # DNS names: nothing in them needs quoting
        return f"{there} && {config}.exists(c, has(c.opaque) && c.opaque.driver in [{drivers}])"

    def _groups(self, material: Material) -> dict[str, Any]:
        """Return the webhook for pods of groups."""
        return {
            **self._common("pods.admission.dra-driver.dev", VALIDATE_PATH, material),
            "rules": [_NEW_PODS],
            "matchConditions": [
                {"name": "makes-a-group", "expression": _makes_a_group("object.metadata")},
            ],
        }

    def _gate(self, material: Material) -> dict[str, Any]:
        return {
            **self._common(GATE_WEBHOOK, GATE_PATH, material),
            "rules": [_NEW_PODS],
            "namespaceSelector": {"matchLabels": {ALLOCATOR_LABEL: "controller"}},
            "reinvocationPolicy": "Never",
            "matchConditions": [
                {"name": "uses-claims", "expression": self._gated},
                {
                    "name": "not-bound",
                    "expression": "!has(object.spec.nodeName) || object.spec.nodeName == ''",
                },
                {
                    "name": NOT_GATED,
                    "expression": (
                        "!has(object.spec.schedulingGates) || "
                        f"!object.spec.schedulingGates.exists(g, g.name == '{ALLOCATION_GATE}')"
                    ),
                },
            ],
        }

    def _capacity(self, material: Material, plural: str, devices: str) -> dict[str, Any]:
        """Return the webhook that refuses requests for capacity, whatever driver they are for.

        A controller that is down refuses them as well: stored, they would ask for something else.
        """
        return {
            **self._common(f"{plural}.capacity.admission.dra-driver.dev", CAPACITY_PATH, material),
            "failurePolicy": "Fail",
            "rules": [
                {
                    "apiGroups": ["resource.k8s.io"],
                    # Of other versions the API server makes this one.
                    "apiVersions": ["v1"],
                    "operations": ["CREATE"],
                    "resources": [plural],
                    "scope": "Namespaced",
                }
            ],
            "reinvocationPolicy": "Never",
            "matchConditions": [{"name": "asks-for-capacity", "expression": _asks_for_capacity(devices)}],
        }

    def _common(self, name: str, path: str, material: Material) -> dict[str, Any]:
        client: dict[str, Any] = {"caBundle": _bundle(material)}
        if self._config.url:
            client["url"] = self._config.url.rstrip("/") + path
        else:
            client["service"] = {
                "name": self._config.service,
                "namespace": self._namespace,
                "path": path,
                "port": self._config.service_port,
            }
        return {
            "name": name,
            "clientConfig": client,
            "admissionReviewVersions": ["v1"],
            "failurePolicy": "Ignore",
            "matchPolicy": "Equivalent",
            "sideEffects": "None",
            "timeoutSeconds": TIMEOUT_SECONDS,
        }


def _bundle(material: Material) -> str:
    return base64.b64encode(material.bundle).decode("ascii")


def _makes_a_group(metadata: str) -> str:
    """Return the CEL expression that is true where labels or annotations say something about a group."""
    found: list[str] = []
    for kind, keys in _OF_GROUPS:
        there = " || ".join(f"'{key}' in {metadata}.{kind}" for key in keys)
        found.append(f"has({metadata}.{kind}) && ({there})")
    return f"has({metadata}) && ({' || '.join(found)})"


def _asks_for_capacity(devices: str) -> str:
    """Return the CEL expression that is true where a request asks for capacity."""
    requests = f"object.{devices}.requests"
    # Where there are none, the API server writes null.
    there = f"has(object.{devices}) && has({requests}) && {requests} != null"
    if devices.startswith("spec.spec."):
        there = f"has(object.spec.spec) && {there}"
    asks = (
        "has(r.exactly) && has(r.exactly.capacity) "
        "|| has(r.firstAvailable) && r.firstAvailable.exists(a, has(a.capacity))"
    )
    return f"has(object.spec) && {there} && {requests}.exists(r, {asks})"
