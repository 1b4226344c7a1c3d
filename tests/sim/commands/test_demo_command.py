"""The demo as people meet it: exit codes, messages, what it prints, what it leaves when interrupted."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import dataclasses
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import forked
import pytest
import virtual_time
import yaml

from dra_driver import cel
from dra_driver.api.resource import Device
from dra_driver.cli.main import main
from dra_driver.cli.processes import demo as demo_command
from dra_driver.discovery import open_backend
from dra_driver.sim import assets
from dra_driver.sim.cluster import ClusterConfig
from dra_driver.sim.demo.backends import THIS_COMPUTER, FurtherBackend, further_backend, with_backends
from dra_driver.sim.demo.cluster import DEFAULT_NODES, demo_cluster
from dra_driver.sim.demo.demo import Demo, DemoOptions

EXAMPLES = assets.deploy_directory("examples")


def children_of(root: str) -> list[int]:
    """Processes whose command line names the cluster's directory."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if root.encode() in path.read_bytes():
                found.append(int(path.parent.name))
        except OSError:
            continue
    return found


@contextlib.contextmanager
def started(command: list[str], **env: str) -> Iterator[subprocess.Popen[str]]:
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    with subprocess.Popen(command, env={**os.environ, **env}, **pipes) as process:
        try:
            yield process
        finally:
            if process.poll() is None:
                process.terminate()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--nodes", "0"], "--nodes 0: must be between 1 and 64"),
        (["--backend", "nope=1"], "--backend nope=1: no such backend; there are "),
        (["--profile", "nope"], "simulated profile 'nope' is unknown"),
        (["--examples", "/nonexistent"], "--examples /nonexistent: a directory with"),
        (["--kubeconfig", "/nonexistent/x"], "--kubeconfig /nonexistent/x: cannot be written"),
    ],
)
def test_bad_usage_is_one_message_and_exit_2(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["demo", *arguments]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert len(error.strip().splitlines()) == 1


def test_a_foreign_kubeconfig_is_not_overwritten(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "config"
    path.write_text("contexts: [{name: production}]")
    assert main(["demo", "--kubeconfig", str(path)]) == 2
    assert "exists and is not of an earlier embedded cluster" in capsys.readouterr().err
    assert "production" in path.read_text()


def test_runtime_without_a_runtime_is_exit_2(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main(["demo", "--runtime"]) == 2
    assert "--runtime: none of runc, crun, podman is in PATH" in capsys.readouterr().err


def test_a_temporary_directory_that_is_too_long_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    long = tmp_path / ("x" * 90)
    long.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(long))
    assert main(["demo"]) == 2
    assert "set TMPDIR to a shorter directory" in capsys.readouterr().err
    assert list(long.iterdir()) == []


def shown_by(spec: str, folder: Path, number: int = 0) -> FurtherBackend:
    driver, nodes = "gpu.example.com", {"node": "node1", "hardware_node": "node9"}
    return further_backend(spec, folder, driver=driver, number=number, **nodes)


def test_what_this_computer_has_is_on_one_node_that_no_other_pod_gets(tmp_path: Path) -> None:
    """Published by every node, one device could be allocated several times."""
    file = tmp_path / "zero.yaml"
    file.write_text("devices: [{name: zero, match: {dev: zero}, attributes: {model: {value: Zero}}}]")
    parser = argparse.ArgumentParser()
    demo_command.add_arguments(parser)
    flags = ["--nodes", "2", "--backend", f"generic={file}", "--backend", "simulated=t4x2"]
    options = demo_command.demo_options(parser.parse_args(flags), tmp_path)
    *simulated, own = options.cluster.nodes
    assert [(bool(n.profile), n.backends, n.taints) for n in simulated] == [(True, (), ())] * 2
    assert (own.profile, own.backends, own.taints) == ("", (f"generic={file}",), (THIS_COMPUTER,))
    assert options.cluster.plugin_flags == ("--backend=simulated=t4x2",)
    generic, _ = options.backends
    assert "1 devices on node3 (1 × Zero)" in generic.text
    spec = next(o for o in generic.objects if o["kind"] == "Pod")["spec"]
    assert spec["nodeSelector"] == {"kubernetes.io/hostname": "node3"}
    assert spec["tolerations"] == [{**THIS_COMPUTER, "operator": "Exists"}]


def test_a_backend_that_finds_nothing_is_no_flag_of_a_node_agent(tmp_path: Path) -> None:
    file = tmp_path / "npu.yaml"
    file.write_text("devices: [{name: npu, match: {dev: none-of-these/npu*}}]")
    parser = argparse.ArgumentParser()
    demo_command.add_arguments(parser)
    given = parser.parse_args(["--nodes", "1", "--backend", f"generic={file}"])
    options = demo_command.demo_options(given, tmp_path)
    assert len(options.cluster.nodes) == 1
    assert options.cluster.plugin_flags == ()


def test_the_page_and_backends_of_ones_own_are_flags_of_the_processes(tmp_path: Path) -> None:
    parser = argparse.ArgumentParser()
    demo_command.add_arguments(parser)
    options = demo_command.demo_options(parser.parse_args(["--web", "--backend", "simulated=t4x2"]), tmp_path)
    assert (options.web, options.keep) == (8090, True)
    assert options.cluster.controller_flags == ("--web-port", "8090")
    assert options.cluster.plugin_flags == ("--backend=simulated=t4x2",)
    assert [b.text for b in options.backends] == [
        "--backend simulated=t4x2: 2 devices on node1 (2 × T4); pod backend-simulated asks for one"
    ]
    assert not demo_command.demo_options(parser.parse_args([]), tmp_path).keep


def test_a_backend_without_hardware_is_said_and_has_no_pod(tmp_path: Path) -> None:
    file = tmp_path / "npu.yaml"
    file.write_text("devices: [{name: npu, match: {dev: none-of-these/npu*}}]")
    shown = shown_by(f"generic={file}", tmp_path, 0)
    assert shown.text.startswith(f"--backend generic={file}: no devices")
    assert (shown.objects, shown.pods, shown.devices) == ((), (), frozenset())


def test_partitions_of_a_further_backend_are_its_devices(tmp_path: Path) -> None:
    """What nodes they have is not compared with what simulated GPUs would have."""
    shown = shown_by("simulated=dgx-h100", tmp_path, 0)
    whole = {name for name in shown.devices if "-mig-" not in name}
    assert len(whole) == 8
    assert {name.partition("-mig-")[0] for name in shown.devices} == whole
    assert len(shown.devices) > 8


def test_the_namespace_of_its_pod_is_made_where_the_examples_have_none(tmp_path: Path) -> None:
    shown = shown_by("simulated=t4x2", tmp_path, 0)
    own = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "mine", "namespace": "default"}}
    made = with_backends([own], [shown])
    assert made[0]["kind"] == "Namespace"
    assert made[0]["metadata"]["name"] == shown.pods[0].key.namespace
    assert [*made[1:]] == [own, *shown.objects]
    there = {"kind": "Namespace", "metadata": {"name": "dra-examples"}}
    assert with_backends([there, own], [shown]) == [there, own, *shown.objects]
    assert with_backends([own], []) == [own]


def test_a_further_backend_is_asked_for_by_what_its_devices_are(tmp_path: Path) -> None:
    shown = shown_by("simulated=dgx-h100", tmp_path, 1)
    device_class, _, pod = shown.objects
    (selector,) = device_class["spec"]["selectors"]
    compiled = cel.compile_selector(selector["cel"]["expression"])
    found = open_backend("simulated=dgx-h100", sysfs_root=tmp_path, dev_root=tmp_path, node_name="node1")
    for driver, wanted in (("gpu.example.com", True), ("other.example.com", False)):
        devices = [Device(name=d.device.name, attributes=d.device.attributes) for d in found.discover()]
        assert {compiled.matches(cel.DeviceView(driver, d)) for d in devices} == {wanted}
    assert pod["metadata"]["name"] == "backend-simulated-1" == shown.pods[0].key.name


def forked_demo(nodes: int = DEFAULT_NODES) -> ClusterConfig:
    """The demo's cluster, whose processes cost no imports; where the command itself runs they do."""
    return dataclasses.replace(demo_cluster(nodes), spawn=forked.spawn)


@pytest.mark.long
@pytest.mark.sim
def test_the_demo_succeeds_and_prints_its_table() -> None:
    out = io.StringIO()
    demo = Demo(DemoOptions(forked_demo(), EXAMPLES, verbose=True), out)
    assert asyncio.run(demo.run()) == 0, out.getvalue()
    text = out.getvalue()
    assert "POD" in text
    assert "WHAT THE CONTAINER SEES" in text
    assert "DRA_GPU__GPU__0_DEVICE=" in text
    assert "/dev/nvidia" in text
    table = text[text.index("EXAMPLE AND POD") : text.index(" waits:")]
    assert max(map(len, table.splitlines())) <= 100
    assert "dra-examples/unsatisfiable waits:" in text
    assert "nothing is left: no pod, no CDI file, no checkpoint entry, no allocation" in text
    assert "\nThe demo succeeded.\nNext: dra-driver demo --keep" in text


class _Kept:
    """What a kept demo needs of its cluster."""

    root, kubeconfig = Path("/root-of-it"), Path("/kubeconfig")

    def __init__(self) -> None:
        self.failures: tuple[str, ...] = ()


def test_a_kept_demo_stays_when_a_part_ends_and_says_so_once() -> None:
    out = io.StringIO()
    demo = Demo(DemoOptions(demo_cluster(1), EXAMPLES, keep=True), out)
    cluster = _Kept()

    async def keep() -> None:
        kept = asyncio.create_task(demo._keep(cluster, True))  # type: ignore[arg-type]
        await asyncio.sleep(5)
        cluster.failures = ("plugin of node1 ended with -9",)
        await asyncio.sleep(60)
        assert not kept.done()
        kept.cancel()
        await asyncio.wait([kept])

    virtual_time.run(keep())
    assert out.getvalue().count("the cluster stays without a part of it: plugin of node1 ended with -9") == 1


@pytest.mark.sim
def test_the_results_as_data(tmp_path: Path) -> None:
    for folder in EXAMPLES.glob("0[02]*"):
        if folder.is_dir():
            shutil.copytree(folder, tmp_path / folder.name)
    out = io.StringIO()
    given: list[dict[str, Any]] = []
    demo = Demo(DemoOptions(forked_demo(1), tmp_path), out, publish=given.append)
    assert asyncio.run(demo.run()) == 0, out.getvalue()
    (results,) = given
    json.dumps(results)
    assert (results["succeeded"], results["findings"]) == (True, [])
    pod = next(p for p in results["pods"] if p["name"] == "gpu-32gi")
    assert (pod["phase"], pod["node"], len(pod["devices"])) == ("Running", "node1", 1)
    device = pod["devices"][0]
    assert pod["containers"]["main"]["env"]["DRA_GPU__GPU__0_DEVICE"] == device["device"]
    assert "WHAT THE CONTAINER SEES" not in out.getvalue()
    assert "The demo succeeded." in out.getvalue()


@pytest.mark.sim
@pytest.mark.parametrize(
    "folders", [("00*", "01*", "*extended-resource*"), pytest.param(("*",), marks=pytest.mark.long)]
)
def test_one_node_is_enough_for_all_examples_but_those_that_need_another(
    tmp_path: Path, folders: tuple[str, ...]
) -> None:
    for folder in {f for pattern in folders for f in EXAMPLES.glob(pattern) if f.is_dir()}:
        shutil.copytree(folder, tmp_path / folder.name)
    out = io.StringIO()
    demo = Demo(DemoOptions(forked_demo(1), tmp_path), out)
    assert asyncio.run(demo.run()) == 0, out.getvalue()
    assert "extended-resource: left out: no node has the label dra-driver.dev/examples=" in out.getvalue()


def test_the_nodes_of_the_demo() -> None:
    def profiles(*arguments: Any) -> list[str]:
        return [n.profile for n in demo_cluster(*arguments).nodes]

    assert profiles(2) == ["examples", "l4x4"]
    assert profiles(3, "t4x2") == ["t4x2"] * 3
    assert profiles(DEFAULT_NODES) == profiles()
    assert profiles(DEFAULT_NODES + 1)[:-1] == profiles()
    assert demo_cluster().drivers == ("gpu.dra-driver.dev", "rdma.dra-driver.dev")
    assert demo_cluster(1, "t4x2").drivers == ("gpu.dra-driver.dev",)
    racks = [n.labels["topology.kubernetes.io/rack"] for n in demo_cluster().nodes]
    assert racks == ["r1", "r1", "r2", "r2", "r3", "r3"]


@pytest.mark.sim
def test_the_demo_fails_where_a_pod_does_not_get_what_it_was_promised(tmp_path: Path) -> None:
    for name in ("00-setup/namespaces.yaml", "01-whole-gpu/whole-gpu.yaml"):
        text = (EXAMPLES / name).read_text().replace('{"devices": 1,', '{"devices": 1, "minMemory": "30Gi",')
        (tmp_path / Path(name).name).write_text(text)
    out = io.StringIO()
    options = DemoOptions(ClusterConfig(profiles=("l4x4",), spawn=forked.spawn), tmp_path)
    assert asyncio.run(Demo(options, out).run()) == 1
    assert "memory, less than 30Gi" in out.getvalue()
    assert "The demo FAILED" in out.getvalue()


@pytest.mark.long
@pytest.mark.sim
def test_keep_stays_until_a_signal_and_leaves_nothing(tmp_path: Path) -> None:
    kubeconfig, few = tmp_path / "kubeconfig", tmp_path / "examples"
    few.mkdir()
    for name in ("00-setup/namespaces.yaml", "01-whole-gpu/whole-gpu.yaml"):
        shutil.copy(EXAMPLES / name, few)
    command = [sys.executable, "-m", "dra_driver.cli.main", "demo", "--keep", "--nodes", "2"]
    with started([*command, "--examples", str(few), "--kubeconfig", str(kubeconfig)]) as process:
        assert process.stdout is not None
        root = ""
        for line in process.stdout:
            if "Its files are in " in line:
                root = line.partition("Its files are in ")[2].partition(". Try")[0]
            if "get deviceinventories" in line:
                break
        assert Path(root).is_dir()
        assert yaml.safe_load(kubeconfig.read_text())["current-context"]
        assert len(children_of(root)) == 4  # one plugin is for NICs; the controller has an account
        assert len(children_of(f"--kubeconfig={kubeconfig}")) == 3
        os.kill(process.pid, signal.SIGTERM)
        assert process.wait(60) == 0
    assert not kubeconfig.exists()
    assert not Path(root).exists()
    assert children_of(root) == []
    assert children_of(f"--kubeconfig={kubeconfig}") == []


@pytest.mark.long
@pytest.mark.sim
def test_an_interrupted_start_leaves_nothing() -> None:
    command = [sys.executable, "-m", "dra_driver.cli.main", "demo"]
    # Its own: other tests have clusters, too. The name is short because sockets lie below.
    with (
        tempfile.TemporaryDirectory(prefix="d-", dir="/tmp") as folder,
        started(command, TMPDIR=folder) as process,
    ):
        assert process.stdout is not None
        process.stdout.readline()  # the API server is up, the plugins are starting
        time.sleep(0.1)
        os.kill(process.pid, signal.SIGINT)
        assert process.wait(60) == 130
        assert "Traceback" not in process.stdout.read()
        assert children_of(folder) == []
