"""Admission webhooks: the embedded API server asks them, over TLS, and does as they say."""

from __future__ import annotations

import base64
import contextlib
import datetime
import ipaddress
import itertools
import json
import ssl
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from apiserver_client import APPLY, CLAIMS, CONFIG_MAPS, JSON_PATCH, PODS, Client, config_map, pod, run
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

CONFIGURATIONS = "/apis/admissionregistration.k8s.io/v1"
Answer = Callable[[dict[str, Any]], dict[str, Any]]


def allow(_: dict[str, Any]) -> dict[str, Any]:
    return {"allowed": True}


def patch(*operations: dict[str, Any]) -> Answer:
    encoded = base64.b64encode(json.dumps(operations).encode()).decode()
    return lambda _: {"allowed": True, "patchType": "JSONPatch", "patch": encoded}


class Webhook:
    """A webhook in this process: what it answers can be changed, what it was asked is kept."""

    def __init__(self, url: str, bundle: str) -> None:
        self.url = url
        self.bundle = bundle
        self.answer: Answer = allow
        self.asked: list[dict[str, Any]] = []

    async def handle(self, request: web.Request) -> web.Response:
        review = await request.json()
        self.asked.append(review["request"])
        response = {"uid": review["request"]["uid"], **self.answer(review["request"])}
        return web.json_response({**{k: review[k] for k in ("apiVersion", "kind")}, "response": response})

    async def install(
        self, client: Client, kind: str = "Validating", rule: dict[str, Any] | None = None, **more: Any
    ) -> None:
        any_rule = {"operations": ["*"], "apiGroups": ["*"], "apiVersions": ["*"], "resources": ["*/*"]}
        hook = {
            "name": "hook.example.com",
            "clientConfig": {"url": self.url, "caBundle": self.bundle},
            "rules": [{**any_rule, **(rule or {})}],
            "admissionReviewVersions": ["v1"],
            "sideEffects": "None",
            **more,
        }
        await client.create(
            f"{CONFIGURATIONS}/{kind.lower()}webhookconfigurations",
            {"metadata": {"name": kind.lower()}, "webhooks": [hook]},
        )


def certificate(folder: Path) -> tuple[ssl.SSLContext, str]:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "hook")])
    now = datetime.datetime.now(datetime.UTC)
    names = [x509.IPAddress(ipaddress.ip_address("127.0.0.1")), x509.DNSName("hook.default.svc")]
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(hours=1))
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    pem = made.public_bytes(serialization.Encoding.PEM)
    secret = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    (folder / "both.pem").write_bytes(secret + pem)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(folder / "both.pem")
    return context, base64.b64encode(pem).decode()


@contextlib.asynccontextmanager
async def webhook(folder: Path) -> AsyncIterator[Webhook]:
    context, bundle = certificate(folder)
    hook = Webhook("", bundle)
    application = web.Application()
    application.router.add_post("/check", hook.handle)
    runner = web.AppRunner(application, shutdown_timeout=1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context).start()
    hook.url = f"https://127.0.0.1:{runner.addresses[0][1]}/check"
    try:
        yield hook
    finally:
        await runner.cleanup()


def test_a_refusal_reaches_the_user_and_nothing_is_stored(tmp_path: Path) -> None:
    async def scenario(client: Client) -> None:
        async with webhook(tmp_path) as hook:
            await hook.install(client, rule={"resources": ["configmaps"]})
            status = {"code": 422, "reason": "Invalid", "message": "no such profile"}
            hook.answer = lambda _: {"allowed": False, "status": status}
            code, answer = await client.call("POST", CONFIG_MAPS, config_map("a"))
            assert (code, answer["reason"]) == (422, "Invalid")
            said = 'admission webhook "hook.example.com" denied the request: no such profile'
            assert answer["message"] == said
            assert (await client.get(f"{CONFIG_MAPS}/a"))[0] == 404

            hook.answer = lambda _: {"allowed": False}
            code, answer = await client.call("POST", CONFIG_MAPS, config_map("a"))
            assert (code, answer.get("reason")) == (400, None)
            assert answer["message"].endswith("denied the request without explanation")

    run(scenario)


def test_the_question_tells_all_about_the_change(tmp_path: Path) -> None:
    async def scenario(client: Client) -> None:
        await client.create(CONFIG_MAPS, config_map("a", one="1"))
        async with webhook(tmp_path) as hook:
            await hook.install(client)
            hook.answer = lambda _: {"allowed": True, "warnings": ["mind the gap"]}
            code, _ = await client.patch(f"{CONFIG_MAPS}/a?dryRun=All", {"data": {"one": "2"}})
            assert code == 200
            assert client.warnings == ['299 - "mind the gap"']
            await client.delete(f"{CONFIG_MAPS}/a")
        update, delete = hook.asked
        assert (update["operation"], update["dryRun"], update["name"]) == ("UPDATE", True, "a")
        assert (update["object"]["data"], update["oldObject"]["data"]) == ({"one": "2"}, {"one": "1"})
        assert update["resource"] == {"group": "", "version": "v1", "resource": "configmaps"}
        assert (delete["operation"], delete["object"]) == ("DELETE", None)
        assert delete["oldObject"]["data"] == {"one": "1"}

    run(scenario)


@pytest.mark.parametrize(
    ("about", "asked"),
    [
        ({"rule": {"resources": ["pods"]}}, False),
        ({"rule": {"resources": ["configmaps/status"]}}, False),
        ({"rule": {"operations": ["UPDATE"]}}, False),
        ({"rule": {"apiGroups": ["apps"]}}, False),
        ({"rule": {"scope": "Cluster"}}, False),
        ({"rule": {"scope": "Namespaced", "resources": ["configmaps", "pods"]}}, True),
        ({"namespaceSelector": {"matchLabels": {"watched": "yes"}}}, False),
        (
            {
                "namespaceSelector": {
                    "matchExpressions": [
                        {"key": "kubernetes.io/metadata.name", "operator": "In", "values": ["default"]}
                    ]
                }
            },
            True,
        ),
        ({"objectSelector": {"matchExpressions": [{"key": "x", "operator": "Exists"}]}}, False),
        ({"objectSelector": {"matchExpressions": [{"key": "x", "operator": "DoesNotExist"}]}}, True),
    ],
)
def test_only_those_are_asked_that_want_to_be(tmp_path: Path, about: dict[str, Any], asked: bool) -> None:
    async def scenario(client: Client) -> None:
        async with webhook(tmp_path) as hook:
            await hook.install(client, **about)
            await client.create(CONFIG_MAPS, config_map("a"))
            assert bool(hook.asked) is asked

    run(scenario)


def test_what_a_webhook_changes_is_checked_defaulted_and_stored(tmp_path: Path) -> None:
    async def scenario(client: Client) -> None:
        async with webhook(tmp_path) as hook:
            await hook.install(client, "Mutating", {"resources": ["pods"]})
            gate = {"op": "add", "path": "/spec/schedulingGates", "value": [{"name": "example.com/gate"}]}
            hook.answer = patch(gate)
            made = await client.create(PODS, pod("p"))
            assert made["spec"]["schedulingGates"] == [{"name": "example.com/gate"}]
            assert made["status"]["conditions"][0]["reason"] == "SchedulingGated"
            code, applied = await client.call("PATCH", f"{PODS}/q?fieldManager=t", pod("q"), APPLY)
            assert (code, applied["spec"]["schedulingGates"]) == (201, [{"name": "example.com/gate"}])

            hook.answer = patch({"op": "add", "path": "/spec/restartPolicy", "value": "Sometimes"})
            code, answer = await client.call("POST", PODS, pod("r"))
            assert (code, answer["details"]["causes"][0]["field"]) == (422, "spec.restartPolicy")

            hook.answer = patch({"op": "remove", "path": "/spec/nothing"})
            assert (await client.call("POST", PODS, pod("r")))[0] == 500

    run(scenario)


def test_validating_webhooks_see_what_the_mutating_ones_made(tmp_path: Path) -> None:
    async def scenario(client: Client) -> None:
        async with webhook(tmp_path) as hook:
            labels = {"op": "add", "path": "/metadata/labels", "value": {"seen": "yes"}}
            await hook.install(client, "Mutating", {"resources": ["configmaps"]})
            await hook.install(client, "Validating", {"resources": ["configmaps"]})
            hook.answer = lambda asked: (
                patch(labels)(asked) if "labels" not in asked["object"]["metadata"] else allow(asked)
            )
            made = await client.create(CONFIG_MAPS, {"metadata": {"generateName": "a-"}})
            assert made["metadata"]["labels"] == {"seen": "yes"}
            first, second = hook.asked
            assert first["object"]["metadata"]["uid"] == second["object"]["metadata"]["uid"]
            assert second["object"]["metadata"]["name"] == made["metadata"]["name"]
            assert second["object"]["metadata"]["labels"] == {"seen": "yes"}

    run(scenario)


def test_one_request_has_one_time_however_long_the_webhooks_take(tmp_path: Path) -> None:
    """Otherwise the object differs from the one that was reviewed, and every webhook is asked again."""
    seconds = itertools.count(1_800_000_000)

    async def scenario(client: Client) -> None:
        async with webhook(tmp_path) as hook:
            await hook.install(client, "Mutating", {"resources": ["configmaps", "pods"]})
            await hook.install(client, "Validating", {"resources": ["configmaps", "pods"]})
            made = await client.create(CONFIG_MAPS, config_map("a"))
            assert len(hook.asked) == 2
            assert (
                hook.asked[0]["object"]["metadata"]["creationTimestamp"]
                == (made["metadata"]["creationTimestamp"])
            )
            code, _ = await client.call("PATCH", f"{PODS}/p?fieldManager=t", pod("p"), APPLY)
            assert (code, len(hook.asked)) == (201, 4)
            patch = {"spec": {"activeDeadlineSeconds": 5}}
            code, _ = await client.patch(f"{PODS}/p", patch)
            assert (code, len(hook.asked)) == (200, 6)

    run(scenario, clock=lambda: float(next(seconds)))


def test_a_webhook_that_cannot_be_reached_stops_writes_unless_told_otherwise(tmp_path: Path) -> None:
    async def scenario(client: Client) -> None:
        async with webhook(tmp_path) as hook:
            await hook.install(client)
        code, answer = await client.call("POST", CONFIG_MAPS, config_map("a"))
        assert (code, answer["reason"]) == (500, "InternalError")
        assert 'failed calling webhook "hook.example.com"' in answer["message"]
        # Nobody is asked about the configurations themselves, so it can be mended.
        path = f"{CONFIGURATIONS}/validatingwebhookconfigurations/validating"
        ignore = [{"op": "add", "path": "/webhooks/0/failurePolicy", "value": "Ignore"}]
        assert (await client.patch(path, ignore, JSON_PATCH))[0] == 200
        await client.create(CONFIG_MAPS, config_map("a"))

    run(scenario)


def test_a_certificate_that_nobody_vouches_for_is_refused(tmp_path: Path) -> None:
    async def scenario(client: Client) -> None:
        async with webhook(tmp_path) as hook:
            _, hook.bundle = certificate(tmp_path)
            await hook.install(client)
            code, answer = await client.call("POST", CONFIG_MAPS, config_map("a"))
            assert code == 500
            assert "certificate" in answer["message"].lower()
            assert not hook.asked

    run(scenario)


def test_webhooks_with_side_effects_stop_dry_runs(tmp_path: Path) -> None:
    async def scenario(client: Client) -> None:
        async with webhook(tmp_path) as hook:
            await hook.install(client, sideEffects="Some")
            code, answer = await client.call("POST", f"{CONFIG_MAPS}?dryRun=All", config_map("a"))
            assert (code, answer["reason"]) == (400, "BadRequest")
            assert answer["message"] == 'admission webhook "hook.example.com" does not support dry run'

    run(scenario)


def test_a_service_is_found_through_the_map(tmp_path: Path) -> None:
    async def scenario(client: Client) -> None:
        async with webhook(tmp_path) as hook:
            services["default/hook"] = hook.url.removeprefix("https://").removesuffix("/check")
            service = {"namespace": "default", "name": "hook", "path": "/check"}
            await hook.install(client, clientConfig={"service": service, "caBundle": hook.bundle})
            await client.create(CONFIG_MAPS, config_map("a"))
            assert hook.asked
            services.clear()
            code, answer = await client.call("POST", CONFIG_MAPS, config_map("b"))
            assert code == 500
            assert "no endpoints known for service default/hook" in answer["message"]

    services: dict[str, str] = {}
    run(scenario, services=services)


def test_objects_come_in_the_version_that_the_webhook_knows(tmp_path: Path) -> None:
    async def scenario(client: Client) -> None:
        async with webhook(tmp_path) as hook:
            rule = {"apiGroups": ["resource.k8s.io"], "apiVersions": ["v1beta1"]}
            await hook.install(client, rule=rule)
            request = {"name": "gpu", "exactly": {"deviceClassName": "c"}}
            claim = {"metadata": {"name": "c"}, "spec": {"devices": {"requests": [request]}}}
            await client.create(CLAIMS, claim)
            (asked,) = hook.asked
            assert asked["object"]["apiVersion"] == "resource.k8s.io/v1beta1"
            assert asked["object"]["spec"]["devices"]["requests"][0]["deviceClassName"] == "c"
            assert (asked["kind"]["version"], asked["requestKind"]["version"]) == ("v1beta1", "v1")

    run(scenario)


def test_with_exact_matching_only_the_version_of_the_request_counts(tmp_path: Path) -> None:
    async def scenario(client: Client) -> None:
        async with webhook(tmp_path) as hook:
            rule = {"apiGroups": ["resource.k8s.io"], "apiVersions": ["v1beta1"]}
            await hook.install(client, rule=rule, matchPolicy="Exact")
            await client.create(CLAIMS, {"metadata": {"name": "c"}, "spec": {"devices": {}}})
            assert not hook.asked

    run(scenario)
