"""Makes what follows from the chart and its values: deploy/manifests, deploy/optional.

``deploy/manifests`` is the chart's default rendering, so that nobody needs Helm to install the driver, least
of all the embedded cluster. Written by hand are only the Namespace, which Helm makes itself, and the CRDs in
``deploy/manifests/crds``, which the chart carries a copy of.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import yaml

from dra_driver.discovery.built_in import ARGUMENTS
from dra_driver.discovery.simulated.profile import built_in_profiles
from dra_driver.fleet.request_shapes import FORM, WORDS

HERE = Path(__file__).resolve().parent
CHART = HERE / "dra-driver"
ROOT = HERE.parents[1]
NAMESPACE = "dra-driver"
# Any version that the chart admits; Helm asks no cluster for its own here.
KUBE_VERSION = "1.36.0"

PREEMPTION = ("controller.preemption=on", "controller.preemptionViolatesBudgets=true")

# Where the webhooks are not installed, which need a command of the administrator, a policy sets the gate.
GATE_POLICY = ("webhooks.enabled=false",)

# Nothing here may be secret, nor another at each rendering.
EXTERNAL = ("webhooks.certificates=external",)

CAPACITY = "webhooks.refuseDroppedCapacity"

# File → template, values. Of what is added to an installation only the objects that it has not got, or has
# otherwise, are in the file: so several can be added, in any order.
MANIFESTS: Mapping[str, tuple[str, Sequence[str]]] = {
    "manifests/10-rbac.yaml": ("rbac.yaml", ()),
    "manifests/20-deviceclasses.yaml": ("deviceclasses.yaml", ()),
    "manifests/30-controller.yaml": ("controller.yaml", ()),
    "manifests/40-kubelet-plugin.yaml": ("kubelet-plugin.yaml", ()),
    "manifests/50-admission.yaml": ("webhooks.yaml", EXTERNAL),
    "manifests/60-account-policies.yaml": ("account-policies.yaml", ()),
    "manifests/60-networkpolicy.yaml": ("networkpolicy.yaml", ()),
    "manifests/60-grants.yaml": ("grants.yaml", ()),
    "manifests/70-kept.yaml": ("kept.yaml", ()),
    "manifests/60-admission-policies.yaml": ("admission-policies.yaml", ()),
    # Only API servers from 1.36 on take it: elsewhere a webhook sets the gate.
    "manifests/gate-policy/gating.yaml": ("gate-policy.yaml", GATE_POLICY),
    "optional/labelled-namespaces.yaml": ("gate-policy.yaml", ("admissionPolicies.gateNamespaces=labelled",)),
    "optional/webhooks.yaml": ("webhook-configurations.yaml", EXTERNAL),
    "optional/refuse-dropped-capacity.yaml": (
        "webhook-configurations.yaml",
        (*EXTERNAL, f"{CAPACITY}=true"),
    ),
    "optional/preemption/rbac.yaml": ("rbac.yaml", PREEMPTION),
    "optional/preemption/policies.yaml": ("account-policies.yaml", PREEMPTION),
    "optional/rdma.yaml": ("rdma.yaml", ("rdma.enabled=true",)),
    "optional/publish-node.yaml": ("publish-node.yaml", ("publish=node", "allocator=scheduler")),
}
# What another file has already, as the same template with these values.
BESIDE: Mapping[str, Sequence[str]] = {
    "optional/refuse-dropped-capacity.yaml": EXTERNAL,
    "optional/labelled-namespaces.yaml": GATE_POLICY,
}
# What stands before the rendering, where something is to be said.
HEADS: Mapping[str, str] = {
    "optional/refuse-dropped-capacity.yaml": """\
# Beside webhooks.yaml, where the API server drops requests for capacity: before Kubernetes 1.36 by default,
# and wherever its feature gate DRAConsumableCapacity is off.
#     kubectl apply -f deploy/optional/refuse-dropped-capacity.yaml
#     dra-driver certificates
# It fails closed: without the second command, and while no controller answers, no claim that asks for
# capacity can be made, and no template for one. Others can.
""",
    "optional/labelled-namespaces.yaml": """\
# The gate in labelled namespaces alone, after gate-policy, from Kubernetes 1.36 on. The controller's devices
# are tainted then: take --open-pools out of its arguments, and remove what 60-grants.yaml has installed.
#     kubectl apply -f deploy/optional/labelled-namespaces.yaml
#     kubectl delete -f deploy/manifests/60-grants.yaml
""",
    "optional/webhooks.yaml": """\
# The webhooks, of which one gives pods the scheduling gate. No account of the driver may tell the API server
# which authority to trust, so you do:
#     kubectl apply -f deploy/optional/webhooks.yaml
#     dra-driver certificates
# Without the second command, which has your rights, the API server cannot call them, and lets objects pass.
""",
    "optional/publish-node.yaml": """\
# For node agents that run with --publish=node: each publishes the ResourceSlices of its own node, and no
# controller is needed. Whole devices, allocated by kube-scheduler; DevicePolicies need the controller.
# The gate is not for them, nor are open pools.
#
#   cd deploy/manifests
#   kubectl apply -f 00-namespace.yaml -f crds -f 10-rbac.yaml -f 20-deviceclasses.yaml
#   kubectl apply -f 40-kubelet-plugin.yaml -f 60-account-policies.yaml -f 60-admission-policies.yaml
#   kubectl apply -f ../optional/publish-node.yaml
#
# with --publish=node among the arguments of the DaemonSet. Install nothing that sets the scheduling gate:
# nobody would take it off pods.
""",
    "optional/rdma.yaml": """\
# RDMA NICs, published by the same binary under a second driver name:
#     kubectl apply -f deploy/optional/rdma.yaml
# Give the controller both names (--driver-name=gpu.dra-driver.dev --driver-name=rdma.dra-driver.dev), else a
# claim that asks for a GPU and a NIC is refused as one of two owners.
""",
}


def render(helm: str, template: str, values: Sequence[str] = ()) -> str:
    """One template of the chart, comments and all.

    Raises:
        subprocess.CalledProcessError: Helm refuses; its words are on stderr.
    """
    command = [helm, "template", "dra-driver", str(CHART), "--namespace", NAMESPACE]
    command += ["--kube-version", KUBE_VERSION, "--show-only", f"templates/{template}"]
    for value in values:
        command += ["--set", value]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout  # noqa: S603


def plain(rendered: str) -> str:
    """Without Helm's marks of where documents come from, and without what they leave empty."""
    return "\n---\n".join(_documents(rendered)) + "\n"


def without(rendered: str, installed: str) -> str:
    """Without the objects that an installation has just as they are here."""
    there = [d for d in map(yaml.safe_load, _documents(installed)) if d]
    return "\n---\n".join(d for d in _documents(rendered) if (y := yaml.safe_load(d)) and y not in there)


def _documents(rendered: str) -> list[str]:
    text = re.sub(r"(?m)^# Source: .*\n", "", rendered)
    return [d.strip("\n") for d in re.split(r"(?m)^---$", text) if d.strip()]


def manifests(helm: str) -> Iterator[tuple[Path, str]]:
    """Path and text of every file that follows from the chart."""
    installed = {template for template, values in MANIFESTS.values() if not values}
    for name, (template, values) in MANIFESTS.items():
        head = f"# Made by `make manifests` from deploy/helm/dra-driver/templates/{template}.\n"
        made = render(helm, template, values)
        if name in BESIDE or (values and template in installed):
            made = without(made, render(helm, template, BESIDE.get(name, ())))
        yield ROOT / "deploy" / name, head + HEADS.get(name, "") + plain(made)
    for crd in sorted((ROOT / "deploy" / "manifests" / "crds").glob("*.yaml")):
        yield CHART / "files" / "crds" / crd.name, crd.read_text(encoding="utf-8")
    yield CHART / "files" / "checks.yaml", checks()


def checks() -> str:
    """What the driver's programs refuse at start, for the chart, which refuses it before."""
    known = {
        "backends": {name: list(arguments) for name, arguments in ARGUMENTS.items()},
        "profiles": list(built_in_profiles()),
        "shapes": {"form": FORM, "words": f"^\\s*{WORDS}\\s*$"},
    }
    return "# Made by `make manifests` from the driver's own checks.\n" + yaml.safe_dump(known, width=1000)


def main(arguments: Sequence[str]) -> int:
    """Writes the files, or says which differ."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--helm", required=True, help="the program")
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 when a file differs")
    options = parser.parse_args(arguments)
    stale = []
    for path, text in manifests(options.helm):
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            stale.append(str(path.relative_to(ROOT)))
            if not options.check:
                path.parent.mkdir(exist_ok=True)
                path.write_text(text, encoding="utf-8")
    if options.check and stale:
        print(f"not up to date: {', '.join(stale)}; run: make manifests", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
