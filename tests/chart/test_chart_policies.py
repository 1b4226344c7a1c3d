"""The admission policies: which are there, and that they say what the code says."""

from __future__ import annotations

import json
from typing import Any

import pytest
from chart_support import Chart, Object, named, of_kind
from nonempty import nonempty

from controller.admission.config import OBJECT_NAME
from controller.admission.paths import GATE_WEBHOOK, NOT_GATED
from controller.config import identity_of
from controller.observe.node_labels import KEYS, annotation_of
from dra_driver.api import codec, names
from dra_driver.api.meta import ObjectMeta
from dra_driver.api.names import CONTROLLER_LEASE
from dra_driver.api.server.admission import ValidatingPolicy, ValidatingPolicyBinding, Webhook
from dra_driver.kube.fence import LEADER_POLICY
from dra_driver.ownership import chosen
from dra_driver.resourceclaim import gating_of_webhook, guard_problem

LABELLED: dict[str, Any] = {"admissionPolicies": {"gateNamespaces": "labelled"}}
ACCOUNTS = {
    "dra-driver-controller-slices",
    "dra-driver-controller-certificates",
    "dra-driver-controller-claims",
    "dra-driver-controller-allocations",
    "dra-driver-controller-pods",
    "dra-driver-controller-pods-status",
    "dra-driver-controller-nodes",
    "dra-driver-plugin-claims",
    "dra-driver-events",
}


def policies(objects: list[Object]) -> set[str]:
    found = {o["metadata"]["name"] for o in of_kind(objects, "ValidatingAdmissionPolicy")}
    bindings = {o["spec"]["policyName"] for o in of_kind(objects, "ValidatingAdmissionPolicyBinding")}
    assert found == bindings
    return found


def variables(objects: list[Object], policy: str) -> dict[str, str]:
    spec = named(objects, "ValidatingAdmissionPolicy", policy)["spec"]
    return {v["name"]: v["expression"] for v in spec["variables"]}


def controller(objects: list[Object]) -> dict[str, Any]:
    spec: dict[str, Any] = named(objects, "Deployment", "dra-driver-controller")["spec"]
    return spec


def test_accounts_and_fence_are_policies_of_their_own(chart: Chart) -> None:
    everything = policies(chart.render())
    assert ACCOUNTS | {LEADER_POLICY} <= everything
    assert policies(chart.render({"admissionPolicies": {"accounts": False}})) == everything - ACCOUNTS
    fenced = {LEADER_POLICY, f"{LEADER_POLICY}-grants", "dra-driver-follow-leases"}
    assert policies(chart.render({"admissionPolicies": {"fence": False}})) == everything - fenced


def test_what_lets_the_api_server_follow_parameters_stays_and_refuses_nothing(chart: Chart) -> None:
    """Once the last policy with a kind of parameter has gone, it sees the parameters as they were then."""
    for values in ({}, LABELLED):
        objects = chart.render(values)
        every = of_kind(objects, "ValidatingAdmissionPolicy")
        kept = [o for o in every if o["metadata"]["name"].startswith("dra-driver-follow-")]
        kinds = [json.dumps(o["spec"]["paramKind"]) for o in kept]
        assert set(kinds) == {json.dumps(o["spec"]["paramKind"]) for o in every if "paramKind" in o["spec"]}
        assert len(kinds) == len(set(kinds)) == (1 if values is LABELLED else 2)
        for policy in kept:
            binding = named(objects, "ValidatingAdmissionPolicyBinding", policy["metadata"]["name"])
            for o in (policy, binding):
                assert o["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}
            assert policy["spec"]["matchConditions"] == [{"name": "never", "expression": "false"}]
            assert binding["spec"]["paramRef"]["parameterNotFoundAction"] == "Allow"


def test_without_a_controller_the_agents_policies_are_left(chart: Chart) -> None:
    values = {"publish": "node", "allocator": "scheduler", "controller": {"enabled": False}}
    assert policies(chart.render(values)) & (ACCOUNTS | {LEADER_POLICY}) == {
        "dra-driver-plugin-claims",
        "dra-driver-events",
    }


def test_every_policy_fails_closed(chart: Chart) -> None:
    objects = chart.render()
    assert {o["spec"]["failurePolicy"] for o in of_kind(objects, "ValidatingAdmissionPolicy")} == {"Fail"}
    for binding in of_kind(objects, "ValidatingAdmissionPolicyBinding"):
        assert binding["spec"]["validationActions"] == ["Deny"]


def test_one_controller_without_a_lease_has_no_fence_and_no_overlap(chart: Chart) -> None:
    objects = chart.render({"controller": {"replicas": 1, "leaderElect": False}})
    assert LEADER_POLICY not in policies(objects)
    spec = controller(objects)
    assert spec["strategy"] == {"type": "Recreate"}
    assert "--no-leader-elect" in spec["template"]["spec"]["containers"][0]["args"]
    assert "strategy" not in controller(chart.render())


@pytest.mark.parametrize("namespace", ["dra-driver", "gpu-system"])
def test_the_fence_is_about_the_lease_of_the_controller(chart: Chart, namespace: str) -> None:
    objects = chart.render({}, namespace)
    binding = named(objects, "ValidatingAdmissionPolicyBinding", LEADER_POLICY)
    parameter = binding["spec"]["paramRef"]
    assert (parameter["name"], parameter["namespace"]) == (CONTROLLER_LEASE, namespace)
    # The API server looks for the Lease before it looks at who writes (test_account_policies_real.py).
    assert parameter["parameterNotFoundAction"] == "Allow"


def test_the_holder_of_the_lease_begins_with_the_name_of_the_pod(chart: Chart) -> None:
    (container,) = controller(chart.render())["template"]["spec"]["containers"]
    assert "--pod-name=$(POD_NAME)" in container["args"]
    name = {"name": "POD_NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}
    assert name in container["env"]
    assert identity_of("dra-driver-controller-abc").startswith("dra-driver-controller-abc_")
    assert identity_of("a") != identity_of("a")


def test_credentials_without_a_pod_are_refused_unless_the_administrator_says_otherwise(chart: Chart) -> None:
    def rules(values: dict[str, Any]) -> list[str]:
        spec = named(chart.render(values), "ValidatingAdmissionPolicy", LEADER_POLICY)["spec"]
        return [v["expression"] for v in spec["validations"]]

    strict, loose = rules({}), rules({"admissionPolicies": {"fenceWithoutPod": "allow"}})
    assert strict == ["variables.pod != ''", *loose]


def test_labels_of_nodes_are_those_that_the_controller_writes(chart: Chart) -> None:
    def listed(which: str, variable: str) -> set[str]:
        values = {"controller": {"nodeLabels": which}}
        return set(eval(variables(chart.render(values), "dra-driver-controller-nodes")[variable]))

    own = {k for k in KEYS if k.startswith("dra-driver.dev/")}
    for which, written in (("none", set()), ("own", own), ("nvidia", set(KEYS))):
        assert listed(which, "written") == written
        assert listed(which, "removed") == KEYS
    notes = variables(chart.render(), "dra-driver-controller-nodes")["notes"]
    assert notes == "['gpu.dra-driver.dev', 'rdma.dra-driver.dev'].map(d, d + '/node-labels')"
    assert annotation_of("gpu.dra-driver.dev") == "gpu.dra-driver.dev/node-labels"


def test_the_controller_may_remove_labels_that_are_no_longer_wanted(chart: Chart) -> None:
    role = named(chart.render({"controller": {"nodeLabels": "none"}}), "ClusterRole", "dra-driver-controller")
    rights = {v for r in role["rules"] if "nodes" in r["resources"] for v in r["verbs"]}
    assert "patch" in rights


def test_names_are_those_of_the_code(chart: Chart) -> None:
    objects = chart.render()
    assert f"'{names.ALLOCATION_GATE}'" in str(
        named(objects, "ValidatingAdmissionPolicy", "dra-driver-controller-pods")
    )
    assert f"'{names.CLAIM_FINALIZER}'" in str(
        named(objects, "ValidatingAdmissionPolicy", "dra-driver-controller-claims")
    )


def test_drivers_are_those_of_the_values(chart: Chart) -> None:
    values = {"driverName": "gpu.nvidia.com", "rdma": {"driverName": "nic.example.com"}}
    for raw in nonempty(of_kind(chart.render(values), "ValidatingAdmissionPolicy")):
        assert "gpu.dra-driver.dev" not in str(raw)
        assert "rdma.dra-driver.dev" not in str(raw)


# --- open pools ---------------------------------------------------------------------------------------------


def test_nothing_of_open_pools_is_installed_unless_every_namespace_has_the_gate(chart: Chart) -> None:
    made = LABELLED | {"webhooks": {"certificates": "external"}}
    opened = {"webhooks": {"certificates": "external"}}
    of_open = {names.GRANTS, f"{LEADER_POLICY}-grants", "dra-driver-follow-configmaps"}
    plain = chart.render(made)
    assert policies(chart.render(opened)) == policies(plain) | of_open
    assert names.GRANTS not in str(plain)
    assert names.TRIAL_CLAIM not in str(plain)
    assert "--open-pools" not in str(controller(plain))
    assert "--grant-scan-budget" not in str(controller(plain))
    flags = str(controller(chart.render({"controller": {"grantScanBudget": 2.5}})))
    assert "--open-pools" in flags
    assert "--grant-scan-budget=2.5" in flags


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"driverName": "gpu.nvidia.com", "rdma": {"enabled": True, "driverName": "a.example.com"}},
    ],
)
def test_devices_are_kept_for_the_controller_as_the_code_says(chart: Chart, values: dict[str, Any]) -> None:
    objects = chart.render(values, namespace="gpus")
    policy, binding = (
        named(objects, kind, names.GRANTS)
        for kind in ("ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding")
    )
    drivers = [values.get("driverName", names.DEFAULT_DRIVER_NAME), *values.get("rdma", {}).values()]
    problem = guard_problem(
        codec.convert(ValidatingPolicy, policy),
        codec.convert(ValidatingPolicyBinding, binding),
        [driver for driver in drivers if isinstance(driver, str)],
        "gpus",
    )
    assert problem == ""
    assert binding["spec"]["paramRef"]["parameterNotFoundAction"] == "Allow"
    for name in (names.GRANTS, names.GRANT_STATUS):
        kept = named(objects, "ConfigMap", name)
        assert kept["metadata"]["namespace"] == "gpus"
        # What the controller has written must survive an update of the release.
        assert kept.keys() == {"apiVersion", "kind", "metadata"}
    (validation,) = policy["spec"]["validations"]
    assert "kubectl dra explain" in validation["messageExpression"]
    text = "".join(validation["messageExpression"].split())
    assert all("".join(part.split()) in text for part in chosen(()).split("[])"))


def test_of_open_pools_the_controller_has_only_these_rights_and_only_as_the_leader(chart: Chart) -> None:
    objects = chart.render()
    rights = [
        (resource, tuple(rule.get("resourceNames", ())), verb)
        for role in (*of_kind(objects, "ClusterRole"), *of_kind(objects, "Role"))
        for rule in role["rules"]
        for resource in rule.get("resources", ())
        for verb in rule["verbs"]
        if resource == "configmaps" or "admissionregistration.k8s.io" in rule["apiGroups"]
    ]
    gate, grants, written = (names.GATE_POLICY,), (names.GRANTS,), (names.GRANTS, names.GRANT_STATUS)
    assert sorted(rights) == sorted(
        [
            ("mutatingadmissionpolicies", gate, "get"),
            ("mutatingadmissionpolicybindings", gate, "get"),
            ("mutatingwebhookconfigurations", (OBJECT_NAME,), "get"),
            ("validatingadmissionpolicies", grants, "get"),
            ("validatingadmissionpolicybindings", grants, "get"),
            ("configmaps", written, "get"),
            ("configmaps", written, "patch"),
        ]
    )
    fence = named(objects, "ValidatingAdmissionPolicy", f"{LEADER_POLICY}-grants")["spec"]
    (fenced,) = fence["matchConstraints"]["resourceRules"]
    assert (fenced["resources"], fenced["resourceNames"]) == (["configmaps"], list(written))
    of_all = named(objects, "ValidatingAdmissionPolicy", LEADER_POLICY)["spec"]
    assert fence["validations"] == of_all["validations"]


OTHERS = {"key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": ["kube-system", "gpus"]}


@pytest.mark.parametrize(
    ("given", "selector"),
    [
        ("labelled", {"matchLabels": {names.ALLOCATOR_LABEL: "controller"}}),
        ("all", {"matchExpressions": [OTHERS]}),
    ],
)
@pytest.mark.parametrize("webhooks", [True, False])
def test_pods_of_these_namespaces_get_the_gate(
    chart: Chart, given: str, selector: dict[str, Any], webhooks: bool
) -> None:
    """Once: in every namespace by the webhook, which fails open, where there are webhooks."""
    values = {"admissionPolicies": {"gateNamespaces": given}, "webhooks": {"enabled": webhooks}}
    objects = chart.render(values, namespace="gpus")
    policies = of_kind(objects, "MutatingAdmissionPolicy")
    found = [p["spec"]["matchConstraints"]["namespaceSelector"] for p in policies]
    for configuration in of_kind(objects, "MutatingWebhookConfiguration"):
        found += [w["namespaceSelector"] for w in configuration["webhooks"] if w["name"] == GATE_WEBHOOK]
    assert found == [selector]
    assert bool(policies) == (given == "labelled" or not webhooks)


def test_the_webhook_gates_every_namespace_that_open_pools_need(chart: Chart) -> None:
    """The controller reads what is installed, and looks for namespaces that it leaves out."""
    (raw,) = named(chart.render(), "MutatingWebhookConfiguration", OBJECT_NAME)["webhooks"]
    gating = gating_of_webhook(codec.convert(Webhook, raw), not_gated=NOT_GATED)
    assert not isinstance(gating, str)
    assert gating.problem() == ""
    spaces = [
        codec.convert(ObjectMeta, {"name": name, "labels": {"kubernetes.io/metadata.name": name}})
        for name in ("default", "team", names.KUBE_SYSTEM, names.SYSTEM_NAMESPACE)
    ]
    assert set(gating.ungated(spaces)) == {names.KUBE_SYSTEM, names.SYSTEM_NAMESPACE}
