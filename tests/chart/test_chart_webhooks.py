"""The webhooks of the chart: what the API server sends, whom it trusts, and what no account may change."""

from __future__ import annotations

import asyncio
import base64
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from chart_support import CHART, Chart, Object, Refused, named, of_kind

from controller.admission.config import CAPACITY_CONFIGURATION, TIMEOUT_SECONDS
from controller.admission.paths import CAPACITY_PATH, GATE_PATH, GATE_WEBHOOK, NOT_GATED, VALIDATE_PATH
from controller.admission.pki import Material, signed, with_new_authority
from controller.admission.review import VERSIONS
from dra_driver.api.core import SECRETS
from dra_driver.api.meta import Resource
from dra_driver.api.names import (
    ALLOCATION_GATE,
    DEFAULT_DRIVER_NAME,
    GROUP_BY_ANNOTATION,
    GROUP_DOMAIN_ANNOTATION,
    GROUP_MIN_LABEL,
    GROUP_SIZE_LABEL,
    GROUP_SOME_RUN_ANNOTATION,
    RDMA_DRIVER_NAME,
)
from dra_driver.api.server.admission import VALIDATING_WEBHOOKS
from dra_driver.cel.policies import compile_policy
from dra_driver.kube import KubeApi
from dra_driver.resourceclaim import NAMES_CLAIMS, NAMES_CLAIMS_OR_RESOURCES
from dra_driver.sim.apiserver import ApiServer
from dra_driver.sim.apiserver.storage.store import Key

NAME = "dra-driver-admission"
VALIDATING, MUTATING = "ValidatingWebhookConfiguration", "MutatingWebhookConfiguration"
CERTIFICATES = ("helm", "cert-manager", "external")
CLAIM_KINDS = ("resourceclaims", "resourceclaimtemplates")
DAY = 86400.0


def values(certificates: str) -> dict[str, Any]:
    return {"webhooks": {"certificates": certificates}}


def older(chart: Chart, *settings: str) -> list[Object]:
    """What is rendered for a Kubernetes without policies that could set the gate."""
    place = ("--namespace", "dra-driver", "--kube-version", "1.35.0")
    more = [part for setting in settings for part in ("--set", setting)]
    text = chart.run("template", "dra-driver", str(CHART), *place, *more)
    return [d for d in yaml.safe_load_all(text) if d]


def bundles(configuration: Object) -> set[str]:
    return {w["clientConfig"].get("caBundle", "") for w in configuration["webhooks"]}


def rights_of_webhooks(objects: list[Object]) -> list[tuple[list[str], list[str], list[str]]]:
    return [
        (rule["resources"], rule["resourceNames"], rule["verbs"])
        for role in of_kind(objects, "ClusterRole")
        for rule in role["rules"]
        if "webhookconfigurations" in str(rule.get("resources"))
    ]


@pytest.mark.parametrize("certificates", CERTIFICATES)
def test_no_account_may_change_webhook_configurations(chart: Chart, certificates: str) -> None:
    """The controller reads the one that sets the gate: whether that leaves namespaces out."""
    read = (["mutatingwebhookconfigurations"], [NAME], ["get"])
    assert rights_of_webhooks(chart.render(values(certificates))) == [read]
    labelled = values(certificates) | {"admissionPolicies": {"gateNamespaces": "labelled"}}
    assert rights_of_webhooks(chart.render(labelled)) == []
    secret = "dra-driver-admission-certificate" if certificates == "cert-manager" else NAME
    roles = of_kind(chart.render(values(certificates)), "Role")
    (rule,) = [r for role in roles for r in role["rules"] if r["resources"] == ["secrets"]]
    assert rule["resourceNames"] == [secret]
    assert rule["verbs"] == (["get"] if certificates == "cert-manager" else ["get", "patch"])


def test_helm_makes_an_authority_that_signs_for_the_controller(chart: Chart) -> None:
    objects = chart.render()
    secret = named(objects, "Secret", NAME)
    configuration = named(objects, VALIDATING, NAME)
    assert bundles(configuration) == {secret["data"]["ca.crt"]}  # one rendering, one authority
    read = Material.from_secret(secret["data"])
    assert read is not None
    made = signed(read, {"dra-driver-admission.dra-driver.svc"}, time.time())
    assert made is not None
    assert made.issuer == read.authorities[0]
    until = float(secret["metadata"]["annotations"]["dra-driver.dev/authority-until"])
    assert until == pytest.approx(read.authority_ends, abs=60)


def test_what_is_made_elsewhere_is_not_in_the_rendering(chart: Chart) -> None:
    external = chart.render(values("external"))
    assert "data" not in named(external, "Secret", NAME)
    assert bundles(named(external, VALIDATING, NAME)) == {""}
    assert external == chart.render(values("external"))

    managed = chart.render(values("cert-manager"))
    assert not [s for s in of_kind(managed, "Secret") if s["metadata"]["name"].startswith(NAME)]
    configuration = named(managed, VALIDATING, NAME)
    assert bundles(configuration) == {""}
    note = configuration["metadata"]["annotations"]["cert-manager.io/inject-ca-from"]
    assert note == "dra-driver/dra-driver-admission"
    leaf = named(managed, "Certificate", NAME)["spec"]
    assert leaf["dnsNames"] == [f"{NAME}.dra-driver.svc", f"{NAME}.dra-driver.svc.cluster.local"]
    args = named(managed, "Deployment", "dra-driver-controller")["spec"]["template"]["spec"]["containers"][0]
    assert f"--admission-secret={leaf['secretName']}" in args["args"]
    assert {o["metadata"]["name"] for o in of_kind(managed, "Issuer")} == {
        NAME,
        "dra-driver-admission-self-signed",
    }
    issuer = {"name": "company", "kind": "ClusterIssuer"}
    theirs = chart.render({"webhooks": {"certificates": "cert-manager", "issuerRef": issuer}})
    assert not of_kind(theirs, "Issuer")
    assert named(theirs, "Certificate", NAME)["spec"]["issuerRef"] == issuer
    for url, names in (
        ("https://10.0.0.7:9443", {"ipAddresses": ["10.0.0.7"]}),
        ("https://c.example.com/x/", {"dnsNames": ["c.example.com"]}),
    ):
        found = chart.render({"webhooks": {"certificates": "cert-manager", "url": url}})
        spec = named(found, "Certificate", NAME)["spec"]
        assert {k: spec[k] for k in ("dnsNames", "ipAddresses") if k in spec} == names
        sent = named(found, VALIDATING, NAME)["webhooks"][0]["clientConfig"]
        assert sent == {"url": url.rstrip("/") + VALIDATE_PATH}


def test_callers_must_show_a_certificate_where_the_values_say_so(chart: Chart) -> None:
    pem = with_new_authority(None, 1_800_000_000.0).bundle.decode()
    set_ = {"webhooks": {"clientCA": pem, "clientNames": ["kube-apiserver"]}}
    objects = chart.render(set_)
    assert named(objects, "ConfigMap", "dra-driver-admission-clients")["data"]["ca.crt"] == pem
    spec = named(objects, "Deployment", "dra-driver-controller")["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    (mount,) = container["volumeMounts"]
    assert spec["volumes"] == [{"name": mount["name"], "configMap": {"name": "dra-driver-admission-clients"}}]
    assert f"--admission-client-ca={mount['mountPath']}/ca.crt" in container["args"]
    assert "--admission-client-name=kube-apiserver" in container["args"]
    assert "admission-client" not in str(chart.render())
    with pytest.raises(Refused):
        chart.render({"webhooks": {"clientCA": "no certificate"}})


# --- which objects are sent -------------------------------------------------------------------------------


def condition(objects: list[Object], name: str, kind: str = VALIDATING) -> str:
    (webhook,) = [w for w in named(objects, kind, NAME)["webhooks"] if w["name"] == name]
    found = {c["name"]: c["expression"] for c in webhook["matchConditions"]}
    return str(next(iter(found.values())))


def test_everything_but_lost_capacity_fails_open_and_soon(chart: Chart) -> None:
    configurations = [o for o in older(chart) if o["kind"] in (VALIDATING, MUTATING)]
    assert len(configurations) == 3
    for configuration in configurations:
        closed = configuration["metadata"]["name"] == CAPACITY_CONFIGURATION
        for webhook in configuration["webhooks"]:
            assert webhook["failurePolicy"] == ("Fail" if closed else "Ignore")
            assert webhook["timeoutSeconds"] == TIMEOUT_SECONDS
            assert webhook["sideEffects"] == "None"
            for rule in webhook["rules"]:
                # The condition of the closed one is for v1, which the API server makes of other versions.
                assert webhook["matchPolicy"] == "Equivalent"
                if rule["apiGroups"] == ["resource.k8s.io"] and not closed:
                    assert set(rule["apiVersions"]) == VERSIONS


def claim(template: bool, spec: Object, **metadata: Any) -> Object:
    if template:
        return {"metadata": metadata.pop("outer", {}), "spec": {"metadata": metadata, "spec": spec}}
    metadata |= metadata.pop("outer", {})
    return {"metadata": metadata, "spec": spec}


@pytest.mark.parametrize("template", [False, True])
def test_only_objects_that_concern_us_are_sent(chart: Chart, template: bool) -> None:
    name = "resourceclaimtemplates" if template else "resourceclaims"
    expression = condition(chart.render(), f"{name}.admission.dra-driver.dev")
    policy = compile_policy(expression, ["object"])

    def sent(spec: Object, **metadata: Any) -> bool:
        return policy.value({"object": claim(template, spec, **metadata)}) is True

    def config(driver: str) -> Object:
        return {"devices": {"config": [{"opaque": {"driver": driver, "parameters": {}}}]}}

    for ours in (DEFAULT_DRIVER_NAME, RDMA_DRIVER_NAME):
        assert sent(config(ours))
    assert not sent(config("gpu.example.com"))
    assert not sent({})
    assert not sent({"devices": {"requests": [{"name": "r"}]}})
    for label in (GROUP_SIZE_LABEL, GROUP_MIN_LABEL):
        assert sent({}, labels={label: "2"})
    for annotation in (GROUP_BY_ANNOTATION, GROUP_DOMAIN_ANNOTATION, GROUP_SOME_RUN_ANNOTATION):
        assert sent({}, annotations={annotation: "x"})
    assert not sent({}, labels={"app": "x"}, annotations={"a": "b"})


def test_classes_and_pods_are_sent_where_they_concern_us(chart: Chart) -> None:
    objects = chart.render()
    classes = compile_policy(condition(objects, "deviceclasses.admission.dra-driver.dev"), ["object"])
    ours = {"spec": {"config": [{"opaque": {"driver": DEFAULT_DRIVER_NAME}}]}}
    assert classes.value({"object": ours}) is True
    assert classes.value({"object": {"spec": {}}}) is not True
    pods = compile_policy(condition(objects, "pods.admission.dra-driver.dev"), ["object"])
    assert pods.value({"object": {"metadata": {"labels": {GROUP_SIZE_LABEL: "2"}}}}) is True
    assert pods.value({"object": {"metadata": {"labels": {}}}}) is not True


def test_a_webhook_sets_the_gate_in_every_namespace_and_before_policies_in_labelled_ones(
    chart: Chart,
) -> None:
    label = "admissionPolicies.gateNamespaces=labelled"
    assert not of_kind(chart.render({"admissionPolicies": {"gateNamespaces": "labelled"}}), MUTATING)
    for objects, expression in (
        (chart.render(), NAMES_CLAIMS_OR_RESOURCES),
        (older(chart), NAMES_CLAIMS_OR_RESOURCES),
        (older(chart, label), NAMES_CLAIMS),
    ):
        (webhook,) = named(objects, MUTATING, NAME)["webhooks"]
        assert webhook["name"] == GATE_WEBHOOK
        assert webhook["clientConfig"]["service"]["path"] == GATE_PATH
        conditions = {c["name"]: c["expression"] for c in webhook["matchConditions"]}
        assert "".join(conditions["uses-claims"].split()) == "".join(expression.split())
        assert ALLOCATION_GATE in conditions[NOT_GATED]
    without = of_kind(older(chart, label, "admissionPolicies.gate=false"), MUTATING)
    assert NAME not in {o["metadata"]["name"] for o in without}


@pytest.mark.parametrize(
    ("spec", "sent"),
    [
        ({"containers": [{"name": "c"}]}, False),
        ({"containers": [{"name": "c", "resources": {"requests": {"cpu": "1"}}}]}, False),
        ({"containers": [{"name": "c", "resources": {"requests": {"example.com/gpu": "1"}}}]}, True),
        ({"containers": [{"name": "c"}], "resourceClaims": [{"name": "r"}]}, True),
        ({"containers": [{"name": "c"}], "resourceClaims": [{"name": "r"}], "nodeName": "n"}, False),
    ],
)
def test_only_pods_that_could_have_devices_are_sent_to_the_gate(
    chart: Chart, spec: dict[str, Any], sent: bool
) -> None:
    """Others cost nothing, not even while no controller answers."""
    (webhook,) = named(chart.render(), MUTATING, NAME)["webhooks"]
    found = [
        compile_policy(c["expression"], ["object"]).value({"object": {"spec": spec}}) is True
        for c in webhook["matchConditions"]
    ]
    assert all(found) is sent


def refusing(objects: list[Object]) -> list[Object]:
    """The webhooks that refuse requests for capacity."""
    found = [o for o in of_kind(objects, MUTATING) if o["metadata"]["name"] == CAPACITY_CONFIGURATION]
    return [webhook for configuration in found for webhook in configuration["webhooks"]]


def test_capacity_is_refused_where_the_api_server_drops_it_by_default_or_as_the_value_says(
    chart: Chart,
) -> None:
    assert not refusing(chart.render())
    names = {f"{kind}.capacity.admission.dra-driver.dev" for kind in CLAIM_KINDS}
    closed = refusing(older(chart))
    assert {w["name"] for w in closed} == names
    assert {w["clientConfig"]["service"]["path"] for w in closed} == {CAPACITY_PATH}
    assert not refusing(older(chart, "webhooks.refuseDroppedCapacity=false"))
    without = ("webhooks.enabled=false", "admissionPolicies.gateNamespaces=labelled")
    assert not refusing(older(chart, *without))
    always = {"refuseDroppedCapacity": True}
    assert {w["name"] for w in refusing(chart.render({"webhooks": always}))} == names
    with pytest.raises(Refused):
        chart.render({"webhooks": {"refuseDroppedCapacity": "yes"}})


@pytest.mark.parametrize("certificates", CERTIFICATES)
def test_what_fails_closed_has_an_authority_or_gets_one(chart: Chart, certificates: str) -> None:
    """From Helm at once; from cert-manager or the administrator before it can be reached."""
    objects = older(chart, f"webhooks.certificates={certificates}")
    configuration = named(objects, MUTATING, CAPACITY_CONFIGURATION)
    secret = [
        s["data"]["ca.crt"]
        for s in of_kind(objects, "Secret")
        if s["metadata"]["name"] == NAME and "data" in s
    ]
    assert bundles(configuration) == (set(secret) if certificates == "helm" else {""})
    assert all(bundles(configuration)) == (certificates == "helm")
    notes = configuration["metadata"].get("annotations", {})
    assert ("cert-manager.io/inject-ca-from" in notes) == (certificates == "cert-manager")


@pytest.mark.parametrize(
    ("requests", "sent"),
    [
        (None, False),
        ([], False),
        ([{"name": "r", "exactly": {"deviceClassName": "c"}}], False),
        ([{"name": "r", "exactly": {"deviceClassName": "c", "capacity": {"requests": {"m": "1"}}}}], True),
        ([{"name": "r", "firstAvailable": [{"name": "a"}, {"name": "b", "capacity": {}}]}], True),
        ([{"name": "r"}, {"name": "s", "firstAvailable": [{"name": "a"}]}], False),
    ],
)
def test_only_what_asks_for_capacity_is_sent(chart: Chart, requests: object, sent: bool) -> None:
    """Else a controller that is down would keep others from making claims."""
    devices = {"devices": {"requests": requests}}
    found = {w["name"].partition(".")[0]: w for w in refusing(older(chart))}
    for kind, spec in zip(CLAIM_KINDS, (devices, {"spec": devices}), strict=True):
        (only,) = found[kind]["matchConditions"]
        policy = compile_policy(only["expression"], ["object"])
        assert policy.value({"object": {"spec": spec}}) is sent
        nothing: list[Object] = [{}]
        for empty in (*nothing, {"spec": {}}, {"spec": {"devices": {}}}, {"spec": {"spec": {"devices": {}}}}):
            assert policy.value({"object": empty}) is False


# --- the life of a release ----------------------------------------------------------------------------------


class Release:
    """A release in a cluster of its own."""

    def __init__(self, chart: Chart, kubeconfig: Path, server: ApiServer) -> None:
        self._helm = chart.helm
        self._kubeconfig = kubeconfig
        self.server = server

    def upgrade(self, *arguments: str) -> None:
        command = [self._helm, "upgrade", "--install", "dra-driver", str(CHART), "--namespace", "dra-driver"]
        command += ["--kubeconfig", str(self._kubeconfig), "--disable-openapi-validation", *arguments]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr + done.stdout

    def raw(self, group: str, plural: str, namespace: str = "") -> Object:
        found = self.server.store.collection(group, plural).get(Key(namespace, NAME))
        assert found is not None
        return found.raw

    def secret(self) -> Object:
        return self.raw("", "secrets", "dra-driver")

    def bundle(self) -> str:
        configuration = self.raw("admissionregistration.k8s.io", "validatingwebhookconfigurations")
        (found,) = bundles(configuration)
        return found

    def patch(self, resource: Resource[Any], body: Object, namespace: str = "") -> None:
        """Write what the controller, or somebody else, has written meanwhile."""

        async def main() -> None:
            async with await KubeApi.connect(self._kubeconfig) as client:
                await client.merge_patch(resource, NAME, body, namespace)

        asyncio.run(main())


@pytest.fixture
def release(chart: Chart, tmp_path: Path) -> Iterator[Release]:
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    server = ApiServer()

    def wait(work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, loop).result(60)

    wait(server.start())
    kubeconfig = tmp_path / "kubeconfig"
    server.write_kubeconfig(kubeconfig)
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "dra-driver"}}
    wait(server.install([namespace]))
    try:
        yield Release(chart, kubeconfig, server)
    finally:
        wait(server.stop())
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def test_upgrades_keep_the_authority_and_bring_another_in_its_last_year(release: Release) -> None:
    release.upgrade()
    first = release.secret()["data"]
    assert release.bundle() == first["ca.crt"]
    # The controller has made a serving certificate meanwhile.
    read = Material.from_secret(first)
    assert read is not None
    made = signed(read, {"x"}, time.time())
    assert made is not None
    release.patch(SECRETS, {"data": made.leaf_to_secret()}, "dra-driver")
    release.upgrade("--set", "logLevel=debug")
    assert release.secret()["data"] == made.to_secret() | {"ca.key": first["ca.key"]}
    assert release.bundle() == first["ca.crt"]

    soon = {"dra-driver.dev/authority-until": str(int(time.time() + 364 * DAY))}
    release.patch(SECRETS, {"metadata": {"annotations": soon}}, "dra-driver")
    release.upgrade()
    both = Material.from_secret(release.secret()["data"])
    assert both is not None
    assert both.authorities[1:] == made.authorities
    assert both.leaf == made.leaf  # until the new one is known everywhere
    assert release.bundle() == release.secret()["data"]["ca.crt"]
    later = signed(both, {"x"}, time.time() + 1000)
    assert later is not None
    assert later.issuer == both.authorities[0]


def test_the_authority_of_the_version_before_stays_trusted_beside_a_new_one(release: Release) -> None:
    """Its controller filled both objects, which the release had brought empty."""
    release.upgrade("--set", "webhooks.certificates=external")
    old = signed(with_new_authority(None, time.time() - 3400 * DAY), {"x"}, time.time())
    assert old is not None
    release.patch(SECRETS, {"data": old.to_secret()}, "dra-driver")
    webhooks = release.raw("admissionregistration.k8s.io", "validatingwebhookconfigurations")["webhooks"]
    filled = [
        w | {"clientConfig": w["clientConfig"] | {"caBundle": old.to_secret()["ca.crt"]}} for w in webhooks
    ]
    release.patch(VALIDATING_WEBHOOKS, {"webhooks": filled})
    assert release.bundle() == old.to_secret()["ca.crt"]
    release.upgrade("--set", "webhooks.certificates=helm")
    both = Material.from_secret(release.secret()["data"])
    assert both is not None
    assert both.authorities[1:] == old.authorities
    assert both.leaf == old.leaf
    trusted = base64.b64decode(release.bundle())
    assert trusted == both.bundle
