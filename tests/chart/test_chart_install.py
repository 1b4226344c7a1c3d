"""The life of a release on the embedded API server: helm installs, upgrades, uninstalls."""

from __future__ import annotations

import asyncio
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from chart_cases import EVERYTHING
from chart_support import CHART, Chart, Values

from dra_driver.sim.apiserver import ApiServer
from dra_driver.sim.apiserver.objects.releases import Served


class Release:
    """A release in a cluster of its own."""

    def __init__(self, chart: Chart, kubeconfig: Path, server: ApiServer) -> None:
        self._chart = chart
        self._kubeconfig = kubeconfig
        self.server = server

    def helm(self, *arguments: str) -> str:
        command = [self._chart.helm, *arguments, "--kubeconfig", str(self._kubeconfig), "--namespace", "gpus"]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr + done.stdout
        return done.stdout

    def apply(self, verb: str, values: Values, *arguments: str) -> str:
        file = self._kubeconfig.with_name("values.yaml")
        file.write_text(yaml.safe_dump(dict(values)))
        more = ("--disable-openapi-validation", "--values", str(file), *arguments)
        return self.helm(verb, "dra-driver", str(CHART), *more)

    def objects(self) -> set[tuple[str, str]]:
        """Kind and name of everything that is the driver's."""
        found = set()
        for kind in self.server.registry.kinds:
            for key in self.server.store.collection(kind.group, kind.plural).objects:
                if "dra-driver" in key.name and kind.plural != "secrets":
                    found.add((kind.kind, key.name))
        return found


# By which the API server goes on following the Lease; see the template kept.yaml.
KEPT = {
    (kind, f"dra-driver-follow-{what}")
    for what in ("leases", "configmaps")
    for kind in ("ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding")
}


@pytest.fixture
def release(chart: Chart, tmp_path: Path) -> Iterator[Release]:
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    server = ApiServer()
    asyncio.run_coroutine_threadsafe(server.start(), loop).result(30)
    kubeconfig = tmp_path / "kubeconfig"
    server.write_kubeconfig(kubeconfig)
    # Not by helm, which would validate it against an OpenAPI document; the embedded API server has none.
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "gpus"}}
    asyncio.run_coroutine_threadsafe(server.install([namespace]), loop).result(30)
    try:
        yield Release(chart, kubeconfig, server)
    finally:
        asyncio.run_coroutine_threadsafe(server.stop(), loop).result(30)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def test_a_release_comes_changes_and_goes(release: Release) -> None:
    plain = {"crds": {"keep": False}}
    release.apply("install", plain)
    installed = release.objects()
    assert ("DaemonSet", "dra-driver-kubelet-plugin") in installed
    assert ("CustomResourceDefinition", "devicepolicies.dra-driver.dev") in installed

    more = {
        **plain,
        "rdma": {"enabled": True},
        "networkPolicy": {"enabled": True},
        "controller": {"replicas": 1},
    }
    release.apply("upgrade", more)
    upgraded = release.objects()
    assert ("DaemonSet", "dra-driver-rdma-plugin") in upgraded
    assert ("PodDisruptionBudget", "dra-driver-controller") in installed - upgraded

    release.helm("rollback", "dra-driver", "1")
    assert release.objects() == installed
    release.helm("uninstall", "dra-driver")
    assert release.objects() == KEPT
    # A release of another name does not own what is there already, and leaves it as it is.
    values = ("--set", "crds.keep=false")
    release.helm("install", "other", str(CHART), "--disable-openapi-validation", *values)
    assert release.objects() >= KEPT | {("Deployment", "dra-driver-controller")}
    release.helm("uninstall", "other")
    assert release.objects() == KEPT


def test_definitions_survive_an_uninstallation_by_default(release: Release) -> None:
    release.apply("install", {})
    release.helm("uninstall", "dra-driver")
    assert {kind for kind, _ in release.objects() - KEPT} == {"CustomResourceDefinition"}
    release.apply("install", {})  # and are taken over again
    assert ("Deployment", "dra-driver-controller") in release.objects()


def test_notes_tell_what_to_do_next(release: Release) -> None:
    def notes(values: Values) -> str:
        text = release.apply("install", values, "--dry-run")
        return text.partition("\nNOTES:\n")[2]

    plain = notes({})
    label = "kubectl label namespace default dra-driver.dev/allocator=controller"
    assert label not in plain
    assert label in notes({"admissionPolicies": {"gateNamespaces": "labelled"}})
    assert "kubectl describe deviceinventories" in plain
    assert "kubectl delete crd" in plain
    assert "kubeletPlugin.nvidia.mig" in plain
    assert "one controller only" not in plain
    # Kinds of prometheus-operator are unknown here.
    everything = notes({**EVERYTHING, "controller": {"replicas": 1}, "monitoring": {"dashboard": True}})
    assert "nvidia.com/gpu" in everything
    assert "privileged" in everything
    assert "one controller only" in everything
    for text in (plain, everything):
        assert "<no value>" not in text
        assert "%!" not in text


def test_notes_promise_the_controller_only_where_it_allocates(release: Release) -> None:
    def first(values: Values) -> str:
        notes = release.apply("install", values, "--dry-run").partition("\nNOTES:\n")[2]
        return notes.partition("1. Wait for it")[0]

    assert first({}).strip().endswith("claims are allocated by its controller.")
    assert first({"allocator": "scheduler"}).strip().endswith("claims are allocated by kube-scheduler.")
    release.server.registry.served = Served("1.35")
    labelled = {"admissionPolicies": {"gateNamespaces": "labelled"}}
    assert "by its controller where the feature gate\nDRADeviceTaints is on" in first(labelled)
    assert first({}).strip().endswith("claims are allocated by its controller.")
    assert first({"allocator": "scheduler"}).strip().endswith("claims are allocated by kube-scheduler.")
