"""Renders the Helm chart."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from nonempty import nonempty

ROOT = Path(__file__).resolve().parents[3]
CHART = ROOT / "deploy" / "helm" / "dra-driver"
KUBE_VERSION = "1.36.0"

Values = Mapping[str, Any]
Object = dict[str, Any]


class Refused(Exception):
    """Helm refuses; the text says why."""


class Chart:
    """The chart, by one helm."""

    def __init__(self, helm: str) -> None:
        self.helm = helm

    def run(self, *arguments: str, values: Values | None = None) -> str:
        """What helm prints.

        Raises:
            Refused: it fails.
        """
        command = [self.helm, *arguments, "--values", "-"]
        done = subprocess.run(command, input=json.dumps(values or {}), capture_output=True, text=True)
        if done.returncode:
            raise Refused(done.stderr + done.stdout)
        return done.stdout

    def render(
        self, values: Values | None = None, namespace: str = "dra-driver", kubernetes: str = KUBE_VERSION
    ) -> list[Object]:
        """All objects, in the order in which helm installs them on this version of Kubernetes."""
        place = ("--namespace", namespace, "--kube-version", kubernetes)
        text = self.run("template", "dra-driver", str(CHART), *place, values=values)
        return [d for d in yaml.load_all(text, Loader=UniqueKeys) if d]


class UniqueKeys(yaml.SafeLoader):
    """Refuses what kubectl refuses: a key twice in one mapping."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        twice = {k for k in keys if keys.count(k) > 1}
        if twice:
            raise yaml.constructor.ConstructorError(None, None, f"key given twice: {twice}", node.start_mark)
        return super().construct_mapping(node, deep)


def of_kind(objects: list[Object], kind: str) -> list[Object]:
    return [o for o in objects if o["kind"] == kind]


def named(objects: list[Object], kind: str, name: str) -> Object:
    (found,) = [o for o in objects if o["kind"] == kind and o["metadata"]["name"] == name]
    return found


def workloads(objects: list[Object]) -> list[Object]:
    return nonempty(o for o in objects if o["kind"] in ("DaemonSet", "Deployment"))


def agent(objects: list[Object], name: str = "dra-driver-kubelet-plugin") -> tuple[Object, Object]:
    """Pod spec and container of a node agent."""
    spec = named(objects, "DaemonSet", name)["spec"]["template"]["spec"]
    return spec, spec["containers"][0]


def host_paths(spec: Object) -> dict[str, str]:
    return {v["name"]: v["hostPath"]["path"] for v in spec["volumes"] if "hostPath" in v}
