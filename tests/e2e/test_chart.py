"""The Helm chart on a real cluster: server-side dry run of every case, and the life of a release.

Both need helm (``make chart-test`` installs it) and ``CLUSTER=existing`` or ``local``. The dry run changes
nothing but a namespace that comes and goes. The installation replaces the driver that is installed, and runs
only with ``CHART_INSTALL=1``; it uses the image that the installed driver has, and simulated GPUs:

    CHART_INSTALL=1 make e2e CLUSTER=local BIN=DIR ARGS='-k chart'
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from chart_cases import cases
from chart_support import CHART, ROOT, Chart, Refused
from e2e_support import IMAGE
from manifest_files import documents
from nonempty import nonempty

from dra_driver.sim.assets import deploy_directory
from kubelet_plugin.claims.checkpoint_file import read_checkpoint

pytestmark = pytest.mark.e2e

NAMESPACE = "dra-driver"
AGENT = "dra-driver-kubelet-plugin"
SECONDS = 120.0
# Kinds of prometheus-operator, which the cluster need not have.
FOREIGN = {"ServiceMonitor", "PrometheusRule"}
POD = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "chart-pod", "namespace": "chart-e2e"},
    "spec": {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 1,
        "resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "one"}],
        "containers": [
            {
                "name": "main",
                "image": IMAGE,
                "command": ["sh", "-c", "env | grep ^DRA_ | sort; sleep 3600"],
                "resources": {"claims": [{"name": "gpu"}]},
            }
        ],
    },
}
TEMPLATE = {
    "apiVersion": "resource.k8s.io/v1",
    "kind": "ResourceClaimTemplate",
    "metadata": {"name": "one", "namespace": "chart-e2e"},
    "spec": {
        "spec": {
            "devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "gpu.dra-driver.dev"}}]}
        }
    },
}


@pytest.fixture(scope="module")
def chart() -> Chart:
    if os.environ.get("CLUSTER") not in ("existing", "local"):
        pytest.skip("needs a real cluster: CLUSTER=existing or local")
    built = ROOT / "build" / "helm" / "node_modules" / ".bin" / "helm"
    helm = os.environ.get("HELM") or (str(built) if built.exists() else shutil.which("helm"))
    if helm is None:
        if os.environ.get("CHART_INSTALL") == "1":
            pytest.fail(
                "CHART_INSTALL=1, and helm is not installed; make chart-test installs it", pytrace=False
            )
        pytest.skip("helm is not installed; make chart-test installs it")
    return Chart(helm)


def run(*command: str, stdin: str = "") -> str:
    done = subprocess.run(command, input=stdin, capture_output=True, text=True)
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stderr}{done.stdout}"
    return done.stdout


def kubectl(*arguments: str, stdin: str = "") -> str:
    return run("kubectl", *arguments, stdin=stdin)


def listed(*what: str) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = json.loads(kubectl("get", *what, "-o", "json"))["items"]
    return items


def eventually(what: str, holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SECONDS
    while not holds():
        assert time.monotonic() < deadline, f"waited in vain for {what}; {_told()}"
        time.sleep(0.3)


def _told() -> str:
    """What the driver's pods say."""
    pods = kubectl("-n", NAMESPACE, "get", "pods", "-o", "wide")
    words = ("--selector", "app.kubernetes.io/name=dra-driver", "--all-containers", "--prefix", "--tail=40")
    return f"pods:\n{pods}\n{kubectl('-n', NAMESPACE, 'logs', *words)}"


def test_a_real_api_server_accepts_every_object_of_the_chart(chart: Chart) -> None:
    """By server-side dry run as a manager of its own, beside the driver that is installed."""
    kubernetes = json.loads(kubectl("version", "-o", "json"))["serverVersion"]["gitVersion"]
    kubectl("create", "namespace", "chart-dry-run")
    try:
        for name, values in nonempty(cases()):
            try:
                rendered = chart.render(values, "chart-dry-run", kubernetes)
            except Refused as e:
                # What the chart does not install on every version.
                if "leaves nothing that sets the scheduling gate on Kubernetes" in str(e):
                    continue
                raise
            # Ours only; node ports and cluster-wide objects that exist are taken over in the dry run.
            objects = [o for o in rendered if o["kind"] not in FOREIGN]
            for webhooks in (o for o in objects if o["kind"].endswith("WebhookConfiguration")):
                # A webhook has one place: what is installed may be called elsewhere.
                webhooks["metadata"]["name"] = "chart-dry-run"
            text = yaml.safe_dump_all(objects)
            arguments = ("--server-side", "--dry-run=server", "--force-conflicts", "--validate=strict")
            manager = "--field-manager=chart-dry-run"
            done = subprocess.run(
                ["kubectl", "apply", *arguments, manager, "-f", "-"],
                input=text,
                capture_output=True,
                text=True,
            )
            assert done.returncode == 0, f"{name}: {done.stderr}"
            assert len(done.stdout.splitlines()) == len(objects), name
    finally:
        kubectl("delete", "namespace", "chart-dry-run", "--wait=false")


# --- installation -------------------------------------------------------------------------------------------


def installed() -> list[dict[str, Any]]:
    """The driver's objects, of every kind that the manifests have, but for those that are to stay."""
    files = sorted(deploy_directory("manifests").rglob("*.yaml"))
    made = documents(*files, deploy_directory("optional") / "webhooks.yaml")
    kinds = {(o["kind"], o["metadata"].get("namespace", "")) for o in made if o["kind"] != "Namespace"}
    served = {line.split()[-1] for line in kubectl("api-resources", "--no-headers").splitlines()}
    found = []
    for kind, place in sorted(k for k in kinds if k[0] in served):
        scope = ("-n", place) if place else ()
        found += listed(kind, "-l", "app.kubernetes.io/name=dra-driver", *scope)
    keep = ("helm.sh/resource-policy", "keep")
    return [o for o in found if keep not in o["metadata"].get("annotations", {}).items()]


def without_server_fields(raw: dict[str, Any]) -> dict[str, Any]:
    metadata = {
        k: v for k, v in raw["metadata"].items() if k in ("name", "namespace", "labels", "annotations")
    }
    kept = {k: v for k, v in raw.items() if k not in ("status", "metadata")}
    if raw["kind"] == "Service":
        kept["spec"] = {k: v for k, v in raw["spec"].items() if k in ("selector", "ports")}
    return {**kept, "metadata": metadata}


@pytest.fixture
def empty_cluster(chart: Chart) -> Iterator[dict[str, Any]]:
    """The driver goes, and comes back at the end; gives the values by which the chart installs the same."""
    if os.environ.get("CHART_INSTALL") != "1":
        pytest.skip("replaces the installed driver; CHART_INSTALL=1 allows it")
    before = [without_server_fields(o) for o in installed()]
    # There may be other node agents, as of deploy/optional.
    (agent,) = [o for o in before if o["kind"] == "DaemonSet" and o["metadata"]["name"] == AGENT]
    container = agent["spec"]["template"]["spec"]["containers"][0]
    repository, _, tag = container["image"].rpartition(":")
    remove(before)
    kubectl("create", "namespace", "chart-e2e")
    kubectl("label", "namespace", "chart-e2e", "dra-driver.dev/allocator=controller")
    try:
        yield {
            "image": {"repository": repository, "tag": tag, "pullPolicy": "Never"},
            "kubeletPlugin": {"backends": ["simulated=mixed"]},
        }
    finally:
        kubectl("delete", "namespace", "chart-e2e", "--ignore-not-found", "--timeout=60s")
        subprocess.run(helm_command(chart, "uninstall", "dra-driver", "--wait"), capture_output=True)
        kubectl("apply", "--server-side", "-f", "-", stdin=yaml.safe_dump_all(before))
        for workload in ("deployment/dra-driver-controller", f"daemonset/{AGENT}"):
            kubectl("-n", NAMESPACE, "rollout", "status", workload, "--timeout=120s")


def remove(objects: Sequence[dict[str, Any]]) -> None:
    kubectl("delete", "--ignore-not-found", "--timeout=90s", "-f", "-", stdin=yaml.safe_dump_all(objects))
    eventually("the slices' end", lambda: not ours())


def ours() -> list[dict[str, Any]]:
    return [s for s in listed("resourceslices") if s["spec"]["driver"] == "gpu.dra-driver.dev"]


def helm_command(chart: Chart, *arguments: str) -> list[str]:
    return [chart.helm, *arguments, "--namespace", NAMESPACE]


def helm(chart: Chart, verb: str, values: dict[str, Any], folder: Path) -> None:
    file = folder / "values.yaml"
    file.write_text(yaml.safe_dump(values))
    run(
        *helm_command(chart, verb, "dra-driver", str(CHART)),
        "--values",
        str(file),
        "--wait",
        "--timeout",
        "2m",
    )


def pod() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(kubectl("-n", "chart-e2e", "get", "pod", "chart-pod", "-o", "json"))
    return found


def test_a_chart_release_lives_and_leaves_nothing(
    chart: Chart, empty_cluster: dict[str, Any], tmp_path: Path
) -> None:
    values = {**empty_cluster, "crds": {"keep": False}}
    helm(chart, "install", values, tmp_path)
    eventually("slices", lambda: bool(ours()))
    kubectl("apply", "-f", "-", stdin=yaml.safe_dump_all([TEMPLATE, POD]))
    eventually("the pod", lambda: pod()["status"].get("phase") == "Running")
    eventually("its device", lambda: "DRA_GPU__GPU__0" in kubectl("-n", "chart-e2e", "logs", "chart-pod"))
    before = pod()["status"]["containerStatuses"][0]

    # Everything that runs is replaced; the pod does not notice.
    agents = {p["metadata"]["uid"] for p in agent_pods()}
    more = {**values, "logLevel": "debug", "networkPolicy": {"enabled": True}, "controller": {"replicas": 1}}
    helm(chart, "upgrade", more, tmp_path)
    eventually(
        "the new node agent",
        lambda: len(agent_pods()) == 1 and agent_pods()[0]["metadata"]["uid"] not in agents,
    )
    after = pod()["status"]["containerStatuses"][0]
    assert (after["containerID"], after["restartCount"]) == (before["containerID"], before["restartCount"])
    assert ours()
    for one in agent_pods():
        assert "privileged" not in json.dumps(one["spec"]["containers"][0]["securityContext"])

    kubectl("-n", "chart-e2e", "delete", "pod", "chart-pod", "--timeout=60s")
    eventually("the claim's end", lambda: not listed("resourceclaims", "-n", "chart-e2e"))
    run(*helm_command(chart, "uninstall", "dra-driver", "--wait"))
    eventually("the slices' end", lambda: not ours())
    assert installed() == []
    assert "dra-driver.dev" not in kubectl("api-resources", "--cached=false")
    assert not listed("pods", "-n", NAMESPACE)
    state = Path("/var/lib/kubelet/plugins/gpu.dra-driver.dev")
    if state.exists():  # the local cluster's node is this machine
        # What docs/installation.md tells to remove; no claim is in it.
        left = {p.name for p in state.iterdir() if p.is_file()}
        checkpoint = {f"checkpoint.json{suffix}" for suffix in ("", ".previous", ".journal")}
        assert left <= {*checkpoint, "health.json", "simulated-gpus.json", "state.lock", "state.wanted"}
        assert len(read_checkpoint(state / "checkpoint.json")) == 0
        assert not list(Path("/var/run/cdi").glob("*dra-driver*"))
        assert not list(Path("/var/lib/kubelet/plugins_registry").glob("*dra-driver*"))


def agent_pods() -> list[dict[str, Any]]:
    label = "app.kubernetes.io/component=kubelet-plugin"
    return [
        p for p in listed("pods", "-n", NAMESPACE, "-l", label) if "deletionTimestamp" not in p["metadata"]
    ]
