#!/usr/bin/env python3
"""Writes dra_driver/sim/apiserver/data/fields.txt: the fields of the API's kinds as a table.

usage: dra_driver/sim/apiserver/data/make_fields.py VENDOR_DIR > dra_driver/sim/apiserver/data/fields.txt

VENDOR_DIR holds ``k8s.io/api`` and ``k8s.io/apimachinery`` of some Kubernetes release. Only facts are taken:
names of types and fields, their types, the merge and list markers. Run it when a release adds fields that we
want to serve.
"""

import re
import sys
from pathlib import Path

# Types that the table starts from; everything that they refer to follows. Prefix in the table → Go package.
ROOTS = {
    "core": (
        "api/core/v1",
        [
            "Namespace",
            "Node",
            "Pod",
            "Binding",
            "ConfigMap",
            "Secret",
            "ServiceAccount",
            "Event",
            "Service",
            "PersistentVolumeClaim",
            "PersistentVolume",
        ],
    ),
    "apps": ("api/apps/v1", ["DaemonSet", "Deployment", "ReplicaSet", "StatefulSet"]),
    "batch": ("api/batch/v1", ["Job"]),
    "coordination": ("api/coordination/v1", ["Lease"]),
    "resource": (
        "api/resource/v1",
        ["ResourceSlice", "ResourceClaim", "ResourceClaimTemplate", "DeviceClass"],
    ),
    "resourcev1beta1": (
        "api/resource/v1beta1",
        ["ResourceSlice", "ResourceClaim", "ResourceClaimTemplate", "DeviceClass"],
    ),
    "resourcev1beta2": ("api/resource/v1beta2", ["DeviceTaintRule"]),
    "rbac": ("api/rbac/v1", ["Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding"]),
    "storage": ("api/storage/v1", ["StorageClass", "CSINode", "VolumeAttachment"]),
    "scheduling": ("api/scheduling/v1", ["PriorityClass"]),
    "schedulingv1alpha2": ("api/scheduling/v1alpha2", ["PodGroup"]),
    "policy": ("api/policy/v1", ["PodDisruptionBudget", "Eviction"]),
    "networking": ("api/networking/v1", ["NetworkPolicy"]),
    "admissionregistration": (
        "api/admissionregistration/v1",
        [
            "ValidatingAdmissionPolicy",
            "ValidatingAdmissionPolicyBinding",
            "MutatingAdmissionPolicy",
            "MutatingAdmissionPolicyBinding",
            "ValidatingWebhookConfiguration",
            "MutatingWebhookConfiguration",
        ],
    ),
    "meta": ("apimachinery/pkg/apis/meta/v1", ["ObjectMeta", "DeleteOptions"]),
}
ALIASES = {"metav1": "meta", "v1": "core", "corev1": "core", "rbacv1": "rbac"}
WELL_KNOWN = {
    "string": "string",
    "bool": "bool",
    "int32": "int32",
    "int64": "int64",
    "uint32": "int64",
    "int": "int64",
    "byte": "byte",
    "float64": "number",
    "resource.Quantity": "quantity",
    "meta.Time": "time",
    "meta.MicroTime": "microtime",
    "meta.Duration": "string",
    "intstr.IntOrString": "intorstring",
    "runtime.RawExtension": "any",
    "meta.FieldsV1": "any",
    "types.UID": "string",
    "types.NodeName": "string",
}
FIELD = re.compile(r'^\t(?:(\w+)\s+)?(\S+)\s+`json:"([^"]*)"([^`]*)`')


class Package:
    """The type declarations of one Go package."""

    def __init__(self, folder: Path) -> None:
        self.structs: dict[str, list[str]] = {}
        self.names: dict[str, str] = {}
        self.atomic: set[str] = set()
        atomic = False
        for file in sorted(folder.glob("*.go")):
            if file.name.startswith(("zz_generated", "generated")) or file.name.endswith("_test.go"):
                continue
            lines = file.read_text().splitlines()
            i = 0
            while i < len(lines):
                if lines[i].startswith("// +structType=atomic"):
                    atomic = True
                elif not lines[i].startswith("//") and not lines[i].startswith("type "):
                    atomic = False
                if m := re.match(r"^type (\w+) struct \{", lines[i]):
                    if atomic:
                        self.atomic.add(m[1])
                    atomic = False
                    end = next(j for j in range(i, len(lines)) if lines[j].startswith("}"))
                    self.structs[m[1]] = lines[i + 1 : end]
                    i = end
                elif m := re.match(r"^type (\w+) ([^\s{]+)", lines[i]):
                    self.names[m[1]] = m[2]
                i += 1


def main() -> None:
    """Print the table."""
    vendor = Path(sys.argv[1]) / "k8s.io"
    packages = {name: Package(vendor / folder) for name, (folder, _) in ROOTS.items()}
    queue = [(name, root) for name, (_, roots) in ROOTS.items() for root in roots]
    done: dict[str, list[str]] = {}

    def spell(package: str, go: str) -> str:
        go = go.removeprefix("*")
        if go == "[]byte":
            return "bytes"
        if go.startswith("[]"):
            return f"[{spell(package, go[2:])}]"
        if m := re.match(r"map\[[\w.]+\](.*)", go):
            return f"map({spell(package, m[1])})"
        if go in WELL_KNOWN:
            return WELL_KNOWN[go]
        if "." in go:
            prefix, go = go.split(".")
            package = ALIASES.get(prefix, prefix)
        if f"{package}.{go}" in WELL_KNOWN:
            return WELL_KNOWN[f"{package}.{go}"]
        if package not in packages:
            return "string" if go == "PreemptionPolicy" else "any"
        if go in packages[package].structs:
            queue.append((package, go))
            return f"{package}.{go}"
        if go in packages[package].names:
            return spell(package, packages[package].names[go])
        return "any"

    def fields(package: str, name: str) -> list[str]:
        out: list[str] = []
        markers: dict[str, list[str]] = {}
        for line in packages[package].structs[name]:
            if m := re.match(r"^\t// ?\+(listType|listMapKey|structType|mapType)=(\S+)", line):
                markers.setdefault(m[1], []).append(m[2])
                continue
            m = FIELD.match(line)
            if m is None:
                continue
            go_name, go_type, tag, rest = m[1], m[2], m[3], m[4]
            json_name, *options = tag.split(",")
            if "inline" in options or not go_name:
                embedded = go_type.removeprefix("*")
                if embedded.endswith("TypeMeta"):
                    markers = {}
                    continue
                if "inline" in options or not json_name:
                    inner_package = package
                    if "." in embedded:
                        prefix, embedded = embedded.split(".")
                        inner_package = ALIASES.get(prefix, prefix)
                    number = re.search(r'protobuf:"\w+,(\d+)', rest)
                    out += [
                        re.sub(r"#(\S+)", rf"#{number[1]}.\1", line) if number else line
                        for line in fields(inner_package, embedded)
                    ]
                    markers = {}
                    continue
            words = [json_name or go_name, spell(package, go_type)]
            if number := re.search(r'protobuf:"\w+,(\d+)', rest):
                words.append("#" + number[1])
            if go_type.startswith("*"):
                words.append("pointer")
            if "omitempty" not in options:
                words.append("always")
            if "omitzero" in options:
                words.append("omitzero")
            if "map" in markers.get("listType", []) or markers.get("listMapKey"):
                words.append("keys=" + ",".join(markers["listMapKey"]))
            elif "set" in markers.get("listType", []):
                words.append("set")
            if "atomic" in markers.get("structType", []) + markers.get("mapType", []):
                words.append("atomic")
            strategy = re.search(r'patchStrategy:"([^"]*)"', rest)
            key = re.search(r'patchMergeKey:"([^"]*)"', rest)
            if strategy:
                words.append("patch=" + strategy[1] + (":" + key[1] if key else ""))
            out.append(" ".join(words))
            markers = {}
        return out

    while queue:
        package, name = queue.pop(0)
        if f"{package}.{name}" not in done:
            done[f"{package}.{name}"] = fields(package, name)
    print("# Made by make_fields.py from the types of the Kubernetes API: TYPE, then its fields:")
    print("# NAME TYPE [#protobuf number] [pointer] [always: encoded even if zero] [keys=: list map] [set]")
    print("# [atomic] [patch=STRATEGY:KEY]")
    for name in sorted(done):
        package, _, short = name.partition(".")
        print(name + " atomic" * (short in packages[package].atomic))
        for line in done[name]:
            print(" " + line)


main()
