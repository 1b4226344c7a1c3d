"""Every combination of values that matters: what comes out is accepted, complete and no more than needed."""

from __future__ import annotations

import argparse
import asyncio
import importlib
import json
import subprocess
import sys
from typing import Any

import aiohttp
import pytest
from chart_cases import cases
from chart_support import CHART, ROOT, Chart, Object, Refused, agent, host_paths, named, of_kind, workloads
from nonempty import nonempty

from dra_driver.api import codec
from dra_driver.api.names import REQUEST_SHAPES
from dra_driver.api.own.parameters import DeviceType, KernelDriver, decode_parameters
from dra_driver.api.resource import Device, DeviceAttribute, ResourceClaimSpec
from dra_driver.api.storage import STORAGE_RESOURCES
from dra_driver.cel import DeviceView, compile_selector
from dra_driver.cli import common
from dra_driver.cli.main import COMMANDS
from dra_driver.fleet import parse_shapes
from dra_driver.sim.apiserver import ApiServer

CASES = dict(cases())
# Kinds of prometheus-operator, unknown to the embedded API server; test_chart_monitoring.py looks at them.
FOREIGN = {"ServiceMonitor", "PrometheusRule"}
NAMESPACES = ("dra-driver", "gpu-system")


@pytest.fixture(scope="module")
def rendered(chart: Chart) -> dict[tuple[str, str], list[Object]]:
    """Every case, and some in another namespace."""
    made = {(n, NAMESPACES[0]): chart.render(values) for n, values in CASES.items()}
    assert all(made.values())
    return made | {
        (n, NAMESPACES[1]): chart.render(CASES[n], NAMESPACES[1]) for n in ("defaults", "everything")
    }


def test_lint_is_content_with_every_case(chart: Chart) -> None:
    for name, values in nonempty(CASES.items()):
        out = chart.run("lint", "--strict", str(CHART), values=values)
        assert "[WARNING]" not in out, f"{name}: {out}"


def test_manifests_are_what_the_chart_makes(chart: Chart) -> None:
    command = [sys.executable, str(ROOT / "deploy/helm/make_manifests.py"), "--helm", chart.helm, "--check"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_the_api_server_accepts_every_object(rendered: dict[tuple[str, str], list[Object]]) -> None:
    """Created on the embedded API server by dry run, with strict field validation."""

    async def main() -> None:
        posted: set[str] = set()
        for namespace in NAMESPACES:
            server = ApiServer()
            await server.start()
            try:
                async with aiohttp.ClientSession(server.url) as http:
                    body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}}
                    await post(server, http, body, "")
                    for (name, ns), objects in rendered.items():
                        for raw in objects if ns == namespace else ():
                            if raw["kind"] not in FOREIGN:
                                await post(server, http, raw, name, dry_run=True)
                                posted.add(raw["kind"])
            finally:
                await server.stop()
        assert {
            "CustomResourceDefinition",
            "DeviceClass",
            "DaemonSet",
            "NetworkPolicy",
            "PodDisruptionBudget",
        } <= posted

    asyncio.run(main())


async def post(
    server: ApiServer, http: aiohttp.ClientSession, raw: Object, case: str, *, dry_run: bool = False
) -> None:
    kind = server.registry.kinds.by_kind(raw["apiVersion"], raw["kind"])
    assert kind is not None, (
        f"{case}: the embedded API server does not know {raw['apiVersion']} {raw['kind']}"
    )
    prefix = f"/apis/{kind.group}/{kind.version}" if kind.group else f"/api/{kind.version}"
    namespace = f"/namespaces/{raw['metadata']['namespace']}" if kind.namespaced else ""
    query = {"fieldValidation": "Strict"} | ({"dryRun": "All"} if dry_run else {})
    async with http.post(f"{prefix}{namespace}/{kind.plural}", json=raw, params=query) as answer:
        text = await answer.text()
        assert answer.status == 201, f"{case}: {raw['kind']} {raw['metadata']['name']}: {text}"


def test_everything_is_in_the_namespace_of_the_release(rendered: dict[tuple[str, str], list[Object]]) -> None:
    cluster_wide = {
        "ClusterRole",
        "ClusterRoleBinding",
        "CustomResourceDefinition",
        "DeviceClass",
        "MutatingAdmissionPolicy",
        "MutatingAdmissionPolicyBinding",
        "ValidatingAdmissionPolicy",
        "ValidatingAdmissionPolicyBinding",
        "ValidatingWebhookConfiguration",
        "MutatingWebhookConfiguration",
    }
    for (name, namespace), objects in rendered.items():
        keys = [(o["kind"], o["metadata"].get("namespace"), o["metadata"]["name"]) for o in objects]
        assert len(set(keys)) == len(keys), name
        for raw in objects:
            expected = None if raw["kind"] in cluster_wide else namespace
            assert raw["metadata"].get("namespace") == expected, f"{name}: {raw['kind']}"
            for subject in raw.get("subjects", ()):
                assert subject["namespace"] == namespace, name
        if namespace != "dra-driver":
            said = [o for o in of_kind(objects, "ValidatingAdmissionPolicy") if "serviceaccount:" in str(o)]
            assert all(f"serviceaccount:{namespace}:" in str(o) for o in nonempty(said))
            assert all("serviceaccount:dra-driver:" not in str(o) for o in said)


def parse(command: list[str], args: list[str]) -> argparse.Namespace:
    """As the image would."""
    assert command[0] == "dra-driver"
    parser = argparse.ArgumentParser(exit_on_error=False)
    module = importlib.import_module(f"dra_driver.cli.{COMMANDS[command[1]][0]}")
    common.add_logging_arguments(parser)
    module.add_arguments(parser)
    return parser.parse_args(args)


def test_the_driver_understands_its_arguments(rendered: dict[tuple[str, str], list[Object]]) -> None:
    for (name, namespace), objects in rendered.items():
        for workload in workloads(objects):
            for container in workload["spec"]["template"]["spec"]["containers"]:
                args = parse(container["command"], container["args"])
                ports = {p["name"]: p["containerPort"] for p in container["ports"]}
                if container["command"][1] == "controller":
                    assert args.namespace == namespace, name
                    assert args.health_port == ports["health"], name
                    assert args.admission_port == ports.get("admission"), name
                else:
                    assert args.metrics_address == f":{ports['metrics']}", name
                for probe in ("livenessProbe", "readinessProbe"):
                    assert container[probe]["httpGet"]["port"] in ports, name


def test_volumes_and_mounts_belong_together(rendered: dict[tuple[str, str], list[Object]]) -> None:
    for (name, _), objects in rendered.items():
        for workload in workloads(objects):
            spec = workload["spec"]["template"]["spec"]
            volumes = [v["name"] for v in spec.get("volumes", ())]
            mounts = [m for c in spec["containers"] for m in c.get("volumeMounts", ())]
            assert len(set(volumes)) == len(volumes), name
            assert {m["name"] for m in mounts} == set(volumes), name
            assert len({m["mountPath"] for m in mounts}) == len(mounts), name


def test_services_and_policies_select_the_pods_they_are_for(
    rendered: dict[tuple[str, str], list[Object]],
) -> None:
    for (name, _), objects in rendered.items():
        pods = [w["spec"]["template"]["metadata"]["labels"].items() for w in workloads(objects)]
        for workload in workloads(objects):
            labels = workload["spec"]["template"]["metadata"]["labels"]
            assert workload["spec"]["selector"]["matchLabels"].items() <= labels.items()
        selectors = [o["spec"]["selector"] for o in of_kind(objects, "Service")]
        selectors += [o["spec"]["podSelector"]["matchLabels"] for o in of_kind(objects, "NetworkPolicy")]
        selectors += [o["spec"]["selector"]["matchLabels"] for o in of_kind(objects, "PodDisruptionBudget")]
        for selector in nonempty(selectors):
            assert sum(selector.items() <= p for p in pods) == 1, f"{name}: {selector}"


# --- privileges ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("backends", "nvidia", "privileged", "added"),
    [
        (["simulated=mixed"], {}, False, []),
        (["amdgpu"], {}, False, []),
        (["intel"], {}, False, []),
        (["nvml"], {}, False, []),
        ([], {}, False, []),
        (["nvml"], {"timeSlicing": True}, False, ["SYS_ADMIN"]),
        (["nvml"], {"mig": True}, True, None),
        ([], {"mps": True}, True, None),
        (["nvml", "amdgpu"], {"privileged": True}, True, None),
    ],
)
def test_privileges_follow_from_what_is_asked_for(
    chart: Chart, backends: list[str], nvidia: dict[str, bool], privileged: bool, added: list[str] | None
) -> None:
    objects = chart.render({"kubeletPlugin": {"backends": backends, "nvidia": nvidia}})
    spec, container = agent(objects)
    context = container["securityContext"]
    assert context.get("privileged", False) is privileged
    assert spec.get("hostPID", False) is nvidia.get("mps", False)
    assert "hostNetwork" not in spec
    if not privileged:
        assert context["allowPrivilegeEscalation"] is False
        assert context["capabilities"]["drop"] == ["ALL"]
        assert context["capabilities"].get("add", []) == added


@pytest.mark.parametrize("mps", [False, True])
def test_mounts_of_the_agent_reach_the_host_only_for_mps(chart: Chart, mps: bool) -> None:
    nvidia = {"mps": mps, "mig": True, "mpsSharedMemory": "2Gi"}
    _, container = agent(chart.render({"kubeletPlugin": {"backends": ["nvml"], "nvidia": nvidia}}))
    found = {m["name"]: m["mountPropagation"] for m in container["volumeMounts"] if "mountPropagation" in m}
    assert found.pop("state", None) == ("Bidirectional" if mps else None)
    assert set(found.values()) <= {"HostToContainer"}
    assert ("--mps-shared-memory=2Gi" in container["args"]) is mps


@pytest.mark.parametrize("time_slicing", [False, True])
def test_passthrough_writes_the_hosts_sysfs_and_sees_its_processes(chart: Chart, time_slicing: bool) -> None:
    plain = {"backends": ["nvml"], "nvidia": {"timeSlicing": time_slicing}}
    wanted = {"enabled": True, "classNamespaces": ["vms", "ci"], "claimNamespaces": ["infra"]}
    before, container_before = agent(chart.render({"kubeletPlugin": plain}))
    spec, container = agent(chart.render({"kubeletPlugin": {**plain, "passthrough": wanted}}))
    context = container["securityContext"]
    assert "privileged" not in context
    assert context["allowPrivilegeEscalation"] is False
    added = (["SYS_ADMIN"] if time_slicing else []) + ["SYS_PTRACE"]
    assert context["capabilities"] == {"drop": ["ALL"], "add": added}
    assert context["appArmorProfile"] == {"type": "Unconfined"}
    assert spec["hostPID"] is True
    assert {*host_paths(spec).values()} - {*host_paths(before).values()} == {"/sys"}
    (mount,) = [m for m in container["volumeMounts"] if m["name"] == "host-sys"]
    assert not mount.get("readOnly")
    args = parse(container["command"], container["args"])
    assert args.passthrough is True
    assert str(args.sysfs_root) == mount["mountPath"]
    assert args.passthrough_class_namespace == ["vms", "ci"]
    assert args.passthrough_claim_namespace == ["infra"]
    without = parse(container_before["command"], container_before["args"])
    assert (without.passthrough, str(without.sysfs_root)) == (False, "/sys")
    assert "appArmorProfile" not in container_before["securityContext"]


@pytest.mark.parametrize("driver", ["gpu.dra-driver.dev", "gpu.nvidia.com"])
def test_a_class_gives_whole_gpus_that_can_be_handed_over(chart: Chart, driver: str) -> None:
    values: dict[str, Any] = {"driverName": driver, "kubeletPlugin": {"passthrough": {"enabled": True}}}
    spec = named(chart.render(values), "DeviceClass", f"vfio.{driver}")["spec"]
    (config,) = spec["config"]
    assert config["opaque"]["driver"] == driver
    parameters = decode_parameters(json.dumps(config["opaque"]["parameters"]).encode(), driver)
    assert (parameters.driver, parameters.types) == (KernelDriver.VFIO_PCI, frozenset({DeviceType.GPU}))
    selector = compile_selector(spec["selectors"][0]["cel"]["expression"])

    def matches(kind: str, **more: DeviceAttribute) -> bool:
        attributes = {"type": DeviceAttribute(string_value=kind), **more}
        return selector.matches(DeviceView(driver, Device(name="d", attributes=attributes)))

    yes = DeviceAttribute(bool_value=True)
    assert matches("gpu", passthrough=yes)
    # An attribute that is absent makes no error, which would keep the pod from every node.
    assert not matches("gpu")
    assert not matches("vf", passthrough=yes)
    names = [o["metadata"]["name"] for o in of_kind(chart.render({"driverName": driver}), "DeviceClass")]
    assert f"vfio.{driver}" not in names


def test_host_paths_follow_from_the_backends(chart: Chart) -> None:
    own = {"/var/lib/kubelet/plugins/gpu.dra-driver.dev", "/var/lib/kubelet/plugins_registry", "/var/run/cdi"}
    read = {"/var/lib/kubelet/pod-resources", "/sys/fs/cgroup"}
    expected = {
        ("simulated=mixed",): own | read,
        ("amdgpu",): own | read | {"/dev"},
        ("intel",): own | read | {"/dev"},
        ("nvml",): own | read | {"/dev", "/usr", "/etc/cdi", "/run/nvidia"},
    }
    for backends, paths in expected.items():
        spec, container = agent(chart.render({"kubeletPlugin": {"backends": list(backends)}}))
        assert set(host_paths(spec).values()) == paths
        written = {m["mountPath"] for m in container["volumeMounts"] if not m.get("readOnly")}
        assert written == own
    spec, container = agent(chart.render({"rdma": {"enabled": True}}), "dra-driver-rdma-plugin")
    assert set(host_paths(spec).values()) == {
        "/var/lib/kubelet/plugins/rdma.dra-driver.dev",
        "/var/lib/kubelet/plugins_registry",
        "/var/lib/kubelet/pod-resources",
        "/sys/fs/cgroup",
        "/var/run/cdi",
        "/dev",
        "/sys/bus",
        "/sys/class",
        "/sys/devices",
    }
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}


def test_whether_pods_have_processes_is_seen_without_any_privilege(chart: Chart) -> None:
    extra = {"name": "npu", "driverName": "npu.example.com", "backends": ["generic=/x"]}
    values = {"rdma": {"enabled": True}, "extraDrivers": [extra]}
    objects = chart.render(values)
    for name in ("dra-driver-kubelet-plugin", "dra-driver-rdma-plugin", "dra-driver-npu-plugin"):
        spec, container = agent(objects, name)
        assert host_paths(spec)["host-cgroups"] == "/sys/fs/cgroup"
        assert "--cgroup-root=/host/cgroup" in container["args"]
        # Its own pod is what shows the agent that it sees the host's pods.
        assert "--instance-id=$(POD_UID)" in container["args"]
        (mount,) = [m for m in container["volumeMounts"] if m["name"] == "host-cgroups"]
        assert (mount["readOnly"], mount["recursiveReadOnly"]) == (True, "IfPossible")
        assert "hostPID" not in spec
        assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    for one in of_kind(chart.render({**values, "kubeletPlugin": {"hostCgroups": False}}), "DaemonSet"):
        assert "cgroup" not in str(one)


def test_the_hosts_processes_are_seen_where_that_is_asked_for(chart: Chart) -> None:
    spec, container = agent(chart.render({"kubeletPlugin": {"hostProc": True}}))
    assert host_paths(spec)["host-proc"] == "/proc"
    assert "--procfs-root=/host/proc" in container["args"]
    (mount,) = [m for m in container["volumeMounts"] if m["name"] == "host-proc"]
    assert mount["readOnly"] is True
    # Cgroups of processes can be read without rights.
    assert "hostPID" not in spec
    assert "privileged" not in container["securityContext"]


def test_the_controller_runs_without_any_privilege(rendered: dict[tuple[str, str], list[Object]]) -> None:
    for deployment in nonempty(d for objects in rendered.values() for d in of_kind(objects, "Deployment")):
        spec = deployment["spec"]["template"]["spec"]
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert not any("hostPath" in v for v in spec.get("volumes", ()))
        for container in spec["containers"]:
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }


def test_rights_are_few(rendered: dict[tuple[str, str], list[Object]]) -> None:
    for (name, _), objects in rendered.items():
        for role in (*of_kind(objects, "ClusterRole"), *of_kind(objects, "Role")):
            for rule in role["rules"]:
                if "nonResourceURLs" in rule:
                    assert rule["verbs"] == ["get"], name
                    assert not any("*" in url for url in rule["nonResourceURLs"]), name
                    continue
                assert "*" not in (*rule["apiGroups"], *rule["resources"], *rule["verbs"]), name
                sensitive = {"pods/exec", "serviceaccounts/token", "clusterroles", "nodes/proxy"}
                assert not sensitive & set(rule["resources"]), name
                if "secrets" in rule["resources"]:
                    assert role["kind"] == "Role", name
        plugin = named(objects, "ClusterRole", "dra-driver-kubelet-plugin")
        writes = {
            (resource, verb)
            for rule in plugin["rules"]
            for resource in rule["resources"]
            for verb in rule["verbs"]
            if verb not in ("get", "list", "watch")
        }
        assert not {w for w in writes if w[0] in ("resourceslices", "nodes", "pods", "resourceclaims")}, name
        (driver,) = [r for r in plugin["rules"] if r["resources"] == ["resourceclaims/driver"]]
        assert driver["verbs"] == ["associated-node:patch"]
        assert driver["resourceNames"] == [CASES[name].get("driverName", "gpu.dra-driver.dev")]


def test_people_who_view_a_namespace_see_its_claims_and_change_nothing(
    rendered: dict[tuple[str, str], list[Object]],
) -> None:
    for (name, _), objects in rendered.items():
        role = named(objects, "ClusterRole", "dra-driver-view")
        rights = {(r, v) for rule in role["rules"] for r in rule["resources"] for v in rule["verbs"]}
        assert {verb for _, verb in rights} == {"get", "list", "watch"}, name
        assert not {"secrets", "pods", "nodes", "configmaps"} & {resource for resource, _ in rights}, name
        wanted = "true" if CASES[name].get("aggregateToView", True) else None
        labels = role["metadata"]["labels"]
        assert labels.get("rbac.authorization.k8s.io/aggregate-to-view") == wanted, name


def test_pods_are_evicted_and_deleted_only_where_a_value_says_so(
    rendered: dict[tuple[str, str], list[Object]],
) -> None:
    for (name, _), objects in rendered.items():
        values = CASES[name].get("controller", {})
        mode, violates = values.get("preemption", "dry-run"), values.get("preemptionViolatesBudgets", False)
        for role in (*of_kind(objects, "ClusterRole"), *of_kind(objects, "Role")):
            rights = {
                (resource, verb)
                for rule in role["rules"]
                for resource in rule.get("resources", ())
                for verb in rule["verbs"]
            }
            who = role["kind"], role["metadata"]["name"]
            mine, added = (
                ("ClusterRole", f"dra-driver-controller{end}") == who for end in ("", "-preemption")
            )
            assert mode == "on" or not added, name
            assert (("pods/eviction", "create") in rights) == added, name
            assert (("pods", "delete") in rights) == (added and violates), name
            budgets = {verb for resource, verb in rights if resource == "poddisruptionbudgets"}
            assert budgets == ({"list", "watch"} if mine and mode != "off" else set()), name


def test_storage_objects_are_listed_and_watched_only(rendered: dict[tuple[str, str], list[Object]]) -> None:
    names = {r.plural for r in STORAGE_RESOURCES}
    for (name, _), objects in rendered.items():
        found = {
            (role["kind"], role["metadata"]["name"], resource, tuple(rule["verbs"]))
            for role in (*of_kind(objects, "ClusterRole"), *of_kind(objects, "Role"))
            for rule in role["rules"]
            for resource in rule.get("resources", ())
            if resource.partition("/")[0] in names or "storage.k8s.io" in rule["apiGroups"]
        }
        may = {("ClusterRole", "dra-driver-controller", plural, ("list", "watch")) for plural in names}
        assert found == (may if of_kind(objects, "Deployment") else set()), name


def test_pod_groups_are_listed_and_watched_only(rendered: dict[tuple[str, str], list[Object]]) -> None:
    for (name, _), objects in rendered.items():
        found = [
            (role["kind"], role["metadata"]["name"], rule["resources"], rule["verbs"])
            for role in (*of_kind(objects, "ClusterRole"), *of_kind(objects, "Role"))
            for rule in role["rules"]
            if "scheduling.k8s.io" in rule.get("apiGroups", ())
        ]
        may = [("ClusterRole", "dra-driver-controller", ["podgroups"], ["list", "watch"])]
        assert found == (may if of_kind(objects, "Deployment") else []), name


# --- the network --------------------------------------------------------------------------------------------


def policies(objects: list[Object]) -> dict[str, Object]:
    return {o["metadata"]["name"]: o["spec"] for o in of_kind(objects, "NetworkPolicy")}


def may_reach(spec: Object) -> dict[int, object]:
    """Port → who may reach it; None: everybody."""
    assert set(spec["policyTypes"]) == {"Ingress", "Egress"}
    return {p["port"]: rule.get("from") for rule in spec["ingress"] for p in rule["ports"]}


MONITORING = [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}]


def test_every_port_of_every_pod_has_a_network_policy(rendered: dict[tuple[str, str], list[Object]]) -> None:
    for (name, _), objects in rendered.items():
        if not CASES[name].get("networkPolicy", {}).get("enabled", True):
            assert not policies(objects), name
            continue
        for workload in workloads(objects):
            spec = policies(objects)[workload["metadata"]["name"]]
            assert spec["podSelector"]["matchLabels"] == workload["spec"]["selector"]["matchLabels"]
            for container in workload["spec"]["template"]["spec"]["containers"]:
                served = {p["containerPort"] for p in container["ports"]}
                open_to_all = {port for port, peers in may_reach(spec).items() if peers is None}
                webhooks = {p["containerPort"] for p in container["ports"] if p["name"] == "admission"}
                assert open_to_all <= webhooks, name
                assert may_reach(spec).keys() <= served | {8090}, name


def test_monitoring_alone_reads_metrics_and_the_values_say_who_else(chart: Chart) -> None:
    found = policies(chart.render({"rdma": {"enabled": True}}))
    assert may_reach(found["dra-driver-kubelet-plugin"]) == {9400: MONITORING}
    assert may_reach(found["dra-driver-rdma-plugin"]) == {9401: MONITORING}
    assert may_reach(found["dra-driver-controller"]) == {8080: MONITORING, 9443: None}
    block = [{"ipBlock": {"cidr": "10.1.0.0/24"}}]
    closed = policies(chart.render({"networkPolicy": {"metricsFrom": [], "webhooksFrom": block}}))
    assert may_reach(closed["dra-driver-kubelet-plugin"]) == {}
    assert may_reach(closed["dra-driver-controller"]) == {9443: block}


def test_the_page_leaves_loopback_only_for_named_readers_with_tokens(chart: Chart) -> None:
    peers: list[Object] = [{"namespaceSelector": {}}]
    values: Object = {
        "controller": {"web": True},
        "httpAuthorization": "rbac",
        "networkPolicy": {"pageFrom": peers},
    }
    objects = chart.render(values)
    assert may_reach(policies(objects)["dra-driver-controller"])[8090] == peers
    for missing in ("controller", "httpAuthorization"):
        with pytest.raises(Refused, match="pageFrom"):
            chart.render({k: v for k, v in values.items() if k != missing})
    with pytest.raises(Refused, match="pageFrom"):
        chart.render(values | {"networkPolicy": {"enabled": False, "pageFrom": peers}})
    plain = str(named(chart.render({"controller": {"web": True}}), "Deployment", "dra-driver-controller"))
    assert "--web-port=8090" in plain
    assert "--web-host" not in plain


def test_reviews_may_be_asked_for_only_where_pages_are_protected(chart: Chart) -> None:
    assert "auth-delegator" not in str(chart.render())
    assert "nonResourceURLs" not in str(chart.render())
    objects = chart.render({"httpAuthorization": "rbac", "monitoring": {"serviceMonitor": True}})
    delegates = {
        s["name"]
        for b in of_kind(objects, "ClusterRoleBinding")
        if b["roleRef"]["name"] == "system:auth-delegator"
        for s in b["subjects"]
    }
    assert delegates == {"dra-driver-controller", "dra-driver-kubelet-plugin"}
    for workload in workloads(objects):
        (container,) = workload["spec"]["template"]["spec"]["containers"]
        assert "--http-authorization=rbac" in container["args"]
    for monitor in of_kind(objects, "ServiceMonitor"):
        assert all("bearerTokenFile" in e for e in monitor["spec"]["endpoints"])


# --- single choices -----------------------------------------------------------------------------------------


def test_two_controllers_share_a_budget_and_one_has_none(chart: Chart) -> None:
    objects = chart.render()
    assert named(objects, "Deployment", "dra-driver-controller")["spec"]["replicas"] == 2
    assert named(objects, "PodDisruptionBudget", "dra-driver-controller")["spec"]["minAvailable"] == 1
    alone = chart.render({"controller": {"replicas": 1}})
    assert not of_kind(alone, "PodDisruptionBudget")


@pytest.mark.parametrize(
    "served", [{"allocator": "scheduler", "admissionPolicies": {"gateNamespaces": "labelled"}}, {}]
)
def test_classes_follow_the_driver_name_and_have_extended_resources_on_request(
    chart: Chart, served: dict[str, Any]
) -> None:
    plain = {c["metadata"]["name"]: c["spec"] for c in of_kind(chart.render(), "DeviceClass")}
    assert set(plain) == {
        f"{p}gpu.dra-driver.dev" for p in ("", "mig.", "partition.", "vf.", "nvidia.", "amd.", "intel.")
    }
    assert not any("extendedResourceName" in spec for spec in plain.values())
    values = {
        "driverName": "gpu.example.com",
        **served,
        "deviceClasses": {"nvidia": {"extendedResourceName": "nvidia.com/gpu"}, "amd": {"create": False}},
    }
    classes = {c["metadata"]["name"]: c["spec"] for c in of_kind(chart.render(values), "DeviceClass")}
    assert "amd.gpu.example.com" not in classes
    assert classes["nvidia.gpu.example.com"]["extendedResourceName"] == "nvidia.com/gpu"
    text = str(classes)
    assert "gpu.dra-driver.dev" not in text


def test_an_update_starts_the_new_agent_before_the_old_one_ends(chart: Chart) -> None:
    daemon_set = named(chart.render(), "DaemonSet", "dra-driver-kubelet-plugin")
    assert daemon_set["spec"]["updateStrategy"]["rollingUpdate"] == {"maxSurge": 1, "maxUnavailable": 0}
    assert agent(chart.render())[0]["tolerations"] == [{"operator": "Exists"}]


def test_the_controller_serves_every_driver_that_is_installed(chart: Chart) -> None:
    (container,) = named(chart.render({"rdma": {"enabled": True}}), "Deployment", "dra-driver-controller")[
        "spec"
    ]["template"]["spec"]["containers"]
    args = parse(container["command"], container["args"])
    assert args.driver_name == ["gpu.dra-driver.dev", "rdma.dra-driver.dev"]


def test_request_shapes_reach_the_controller_as_words_and_as_specs(chart: Chart) -> None:
    spec = {"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": "x.io", "count": 3}}]}}
    values = {"controller": {"shapes": {"7g": "mig profile 7g.80gb", "three": spec}}}
    (container,) = named(chart.render(values), "Deployment", "dra-driver-controller")["spec"]["template"][
        "spec"
    ]["containers"]
    args = parse(container["command"], container["args"])
    words, three = parse_shapes(args.shape, "gpu.dra-driver.dev")
    assert (words.name, words.text, three.name) == ("7g", "mig profile 7g.80gb", "three")
    assert three.spec == codec.convert(ResourceClaimSpec, spec)
    told = named(chart.render(values), "ConfigMap", REQUEST_SHAPES)["data"]
    assert parse_shapes([f"{name}={text}" for name, text in told.items()], "gpu.dra-driver.dev") == (
        words,
        three,
    )
    assert not [m for m in of_kind(chart.render(), "ConfigMap") if m["metadata"]["name"] == REQUEST_SHAPES]


def test_nodes_are_chosen_by_their_hardware(chart: Chart) -> None:
    def keys(values: dict[str, Any], name: str = "dra-driver-kubelet-plugin") -> str:
        return str(agent(chart.render(values), name)[0].get("affinity"))

    assert keys({}) == "None"
    amd = keys({"kubeletPlugin": {"nodes": "nfd", "backends": ["amdgpu"]}})
    assert "pci-0300_1002.present" in amd
    assert "10de" not in amd
    assert "pci-0302_10de.present" in keys({"kubeletPlugin": {"nodes": "nfd"}})
    assert "pci-0207_15b3" in keys({"rdma": {"enabled": True, "nodes": "nfd"}}, "dra-driver-rdma-plugin")


def test_crds_are_kept_unless_told_otherwise(chart: Chart) -> None:
    policy = "helm.sh/resource-policy"
    for crd in of_kind(chart.render(), "CustomResourceDefinition"):
        assert crd["metadata"]["annotations"] == {policy: "keep"}
    for crd in of_kind(chart.render({"crds": {"keep": False}}), "CustomResourceDefinition"):
        assert "annotations" not in crd["metadata"]
    assert len(of_kind(chart.render(), "CustomResourceDefinition")) == 2


def test_without_webhooks_nothing_is_left_of_them(chart: Chart) -> None:
    on, off = (chart.render({"webhooks": {"enabled": e}}) for e in (True, False))
    assert {o["kind"] for o in on if o["metadata"]["name"] == "dra-driver-admission"} == {
        "Secret",
        "Service",
        "ValidatingWebhookConfiguration",
        "MutatingWebhookConfiguration",
    }
    assert "admission-port" not in str(off)
    assert "dra-driver-admission" not in str(off)


def test_agents_that_publish_may_write_slices_and_only_then(chart: Chart) -> None:
    values = {"publish": "node", "allocator": "scheduler", "controller": {"enabled": False}}
    objects = chart.render(values)
    args = parse(*(agent(objects)[1][k] for k in ("command", "args")))
    assert args.publish == "node"
    assert named(objects, "ClusterRoleBinding", "dra-driver-publish-node")
    policy = str(named(objects, "ValidatingAdmissionPolicy", "dra-driver-own-slices"))
    assert "by-a-plugin" in policy
    assert "variables.spec.pool.name == variables.node" in policy
    assert not of_kind(objects, "Deployment")
    # Nobody would take the gate off, fill the webhooks or need the rights.
    assert not of_kind(objects, "MutatingAdmissionPolicy")
    assert "dra-driver-controller" not in str(objects)
    # Without a controller there is no taint to protect: users of other drivers are left alone.
    assert "dra-driver-no-toleration" not in str(objects)
    assert "publish-node" not in str(chart.render())


def test_classes_of_other_drivers_can_be_let_off_the_policy_on_tolerations(chart: Chart) -> None:
    def classes(values: dict[str, Any]) -> str:
        policy = named(chart.render(values), "ValidatingAdmissionPolicy", "dra-driver-no-toleration")
        return str({v["name"]: v["expression"] for v in policy["spec"]["variables"]}["tolerantClasses"])

    assert classes({}) == "[]"
    assert classes({"admissionPolicies": {"tolerantClasses": ["a.b", "c"]}}) == "['a.b', 'c']"


# In every namespace the webhook sets the gate, whatever the version.
LABELLED = ("--set", "admissionPolicies.gateNamespaces=labelled")


def test_policies_that_kubernetes_does_not_have_are_left_out(chart: Chart) -> None:
    def mutating(version: str) -> int:
        command = [chart.helm, "template", "x", str(CHART), "--kube-version", version, *LABELLED]
        text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        return text.count("kind: MutatingAdmissionPolicy\n")

    assert [mutating(v) for v in ("1.34.0", "1.35.4", "1.36.0", "1.36.2+k3s1", "1.37.0")] == [0, 0, 1, 1, 1]


@pytest.mark.parametrize(
    ("version", "served", "policies"),
    [
        ("1.36.0", (), 0),  # as a server whose administrator has turned the API off
        ("1.36.0", ("admissionregistration.k8s.io/v1/MutatingAdmissionPolicy",), 1),
        ("1.35.6", ("admissionregistration.k8s.io/v1beta1/MutatingAdmissionPolicy",), 0),
        ("1.35.6", ("admissionregistration.k8s.io/v1/MutatingAdmissionPolicy",), 1),
    ],
)
def test_what_a_server_serves_counts_more_than_its_version(
    chart: Chart, version: str, served: tuple[str, ...], policies: int
) -> None:
    command = [chart.helm, "template", "x", str(CHART), "--kube-version", version, *LABELLED]
    for kind in ("v1/Pod", *served):  # Helm lists kinds where it has asked a server
        command += ["--api-versions", kind]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert text.count("kind: MutatingAdmissionPolicy\n") == policies


def test_only_the_policy_of_the_gate_and_what_stands_in_for_it_depend_on_the_version(chart: Chart) -> None:
    """So that the manifests of one version, without it, are right for all."""

    def rendered(version: str, *which: str) -> list[str]:
        command = [chart.helm, "template", "x", str(CHART), "--kube-version", version, *which]
        # Helm would make another authority at each rendering.
        command += ["--set", "webhooks.certificates=external"]
        text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        kinds = ("kind: MutatingAdmissionPolicy", "kind: MutatingWebhookConfiguration")
        return [d for d in text.split("\n---\n") if not any(kind in d for kind in kinds)]

    for which in ((), LABELLED):
        expected = rendered("1.36.0", *which)
        for version in ("1.34.0", "1.35.6", "1.37.0"):
            assert [d for d in rendered(version, *which) if d.strip()] == [d for d in expected if d.strip()]


def test_a_kubernetes_that_is_too_old_is_refused(chart: Chart) -> None:
    command = [chart.helm, "template", "x", str(CHART), "--kube-version", "1.33.9"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode != 0
    assert ">=1.34.0" in done.stderr
