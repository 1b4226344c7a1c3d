"""The pure parts of the cluster that ``make e2e CLUSTER=local`` starts: tests/e2e/local."""

from __future__ import annotations

import base64
import json
import os
import re
import socket
import sys
import tarfile
import tempfile
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest
from nonempty import nonempty

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "e2e"))

from local import binaries, cni_plugin, configuration, control, host, images, manifests, node_files
from local.configuration import Node
from local.processes import NotUpError, Processes, tail

if TYPE_CHECKING:
    from local.cluster import LocalCluster

PROJECT = Path(__file__).resolve().parents[3]
NODE = Node(root=Path("/tmp/dra-e2e-x y"), name="dra-e2e-x")


def executables(folder: Path, *names: str) -> Path:
    folder.mkdir(exist_ok=True)
    for name in names:
        (folder / name).write_text("#!/bin/sh\n")
        (folder / name).chmod(0o755)
    return folder


def test_programs_of_the_release_come_from_its_folder_and_others_also_from_the_path(tmp_path: Path) -> None:
    release = executables(tmp_path / "release", *binaries.KUBERNETES, "etcd")
    rest = [n for n in binaries.AROUND if n != "etcd"]
    system = executables(tmp_path / "system", *rest, *binaries.TOOLS, "etcd", "kubelet")
    found = binaries.find(release, [system])
    assert found["kubelet"] == release / "kubelet"
    assert found["etcd"] == release / "etcd"
    assert found["runc"] == system / "runc"
    assert binaries.TEST_DRIVER not in found


def test_the_test_driver_is_taken_where_somebody_has_built_it(tmp_path: Path) -> None:
    release = executables(
        tmp_path / "release", *binaries.KUBERNETES, *binaries.AROUND, *binaries.TOOLS, binaries.TEST_DRIVER
    )
    assert binaries.find(release, [release])[binaries.TEST_DRIVER] == release / binaries.TEST_DRIVER


def test_every_missing_program_is_named_with_the_places_where_it_was_looked_for(tmp_path: Path) -> None:
    # A kubelet of the system is another version than the rest, hence not taken.
    system = executables(tmp_path / "system", "kubelet", "kubectl", "containerd", "ctr", *binaries.TOOLS[1:])
    release = executables(tmp_path / "release", "kube-apiserver", "etcd", "containerd-shim-runc-v2")
    (release / "kube-scheduler").write_text("not executable")
    with pytest.raises(binaries.MissingBinariesError) as caught:
        binaries.find(release, [system])
    assert str(caught.value).splitlines() == [
        "programs are missing:",
        f"  kube-controller-manager, kube-scheduler, kubelet: not in BIN={release}",
        f"  runc: not in BIN={release} and PATH ({system})",
        f"  unshare: not in PATH ({system})",
    ]


def test_root_has_the_folders_of_system_programs_in_its_path() -> None:
    assert binaries.search_path({"PATH": "/usr/sbin:/a"}) == [
        Path(p) for p in ("/usr/sbin", "/a", "/usr/local/sbin", "/sbin")
    ]


def test_the_kubelet_is_told_of_cgroup_v1_only_where_it_is() -> None:
    assert "failCgroupV1" not in json.loads(configuration.kubelet(NODE))
    assert json.loads(configuration.kubelet(replace(NODE, cgroup_version=1)))["failCgroupV1"] is False


def test_the_kubelet_stays_below_a_cgroup_of_its_own() -> None:
    assert json.loads(configuration.kubelet(NODE))["cgroupRoot"] == "/dra-e2e-x"


@pytest.mark.parametrize("may", [True, False])
def test_oom_scores_are_lowered_only_where_that_is_allowed(may: bool) -> None:
    node = replace(NODE, may_lower_oom_score=may)
    assert ("oomScoreAdj" in json.loads(configuration.kubelet(node))) is not may
    cri = tomllib.loads(configuration.containerd(node, Path("/b/runc")))["plugins"][
        "io.containerd.grpc.v1.cri"
    ]
    assert cri["restrict_oom_score_adj"] is not may


def test_containerd_has_our_image_runc_network_and_snapshotter() -> None:
    text = configuration.containerd(replace(NODE, snapshotter="native"), Path('/b "q"/runc'))
    body = tomllib.loads(text)
    cri = body["plugins"]["io.containerd.grpc.v1.cri"]
    assert body["root"] == "/tmp/dra-e2e-x y/containerd"
    assert cri["sandbox_image"] == configuration.SHELL_IMAGE
    assert cri["cdi_spec_dirs"] == ["/etc/cdi", "/var/run/cdi"]
    assert cri["cni"]["bin_dir"] == "/tmp/dra-e2e-x y/cni/bin"
    assert cri["containerd"]["snapshotter"] == "native"
    assert cri["containerd"]["runtimes"]["runc"]["options"]["BinaryName"] == '/b "q"/runc'


def test_a_kubeconfig_carries_its_keys() -> None:
    files = {"ca.crt": b"CA", "admin.crt": b"CRT", "admin.key": b"KEY", "other.key": b"no"}
    body = json.loads(configuration.kubeconfig("admin", files))
    user = body["users"][0]["user"]
    assert base64.b64decode(user["client-key-data"]) == b"KEY"
    assert base64.b64decode(body["clusters"][0]["cluster"]["certificate-authority-data"]) == b"CA"


def test_every_component_has_a_command_line_of_a_found_binary() -> None:
    found = {n: Path("/b", n) for n in (*binaries.KUBERNETES, *binaries.AROUND)}
    lines = configuration.command_lines(NODE, found)
    assert {n: line[0] for n, line in lines.items()} == {n: f"/b/{n}" for n in lines}
    assert set(binaries.KUBERNETES) < set(lines)


GATES_OF_1_34 = ("DRADeviceTaints", "DRAConsumableCapacity", "Other")
GATES_OF_1_35 = (*GATES_OF_1_34, "DRADeviceTaintRules", "GenericWorkload", "GangScheduling")
GATES_OF_1_36 = (*GATES_OF_1_35, "TopologyAwareWorkloadScheduling", "DRAWorkloadResourceClaims")


@pytest.mark.parametrize(
    ("known", "groups", "apis"),
    [
        (GATES_OF_1_34, False, "resource.k8s.io/v1alpha3=true"),
        (GATES_OF_1_35, False, ""),
        (GATES_OF_1_36, True, "scheduling.k8s.io/v1alpha2=true"),
    ],
    ids=["1.34", "1.35", "1.36"],
)
def test_all_gates_that_concern_the_driver_are_on_as_far_as_the_release_has_them(
    known: tuple[str, ...], groups: bool, apis: str
) -> None:
    found = {n: Path("/b", n) for n in (*binaries.KUBERNETES, *binaries.AROUND)}
    gates = configuration.gates_of("all", known)
    assert set(gates) <= set(known) - {"Other", "DRADeviceTaintRules"}
    lines = configuration.command_lines(NODE, found, gates, known)
    for name in binaries.KUBERNETES:
        (flag,) = (flag for flag in lines[name] if flag.startswith("--feature-gates="))
        assert "DRAConsumableCapacity=true" in flag
        assert ("GangScheduling=true" in flag) is groups
    said = [flag for flag in lines["kube-apiserver"] if flag.startswith("--runtime-config=")]
    assert said == ([f"--runtime-config={apis}"] if apis else [])


def test_gates_are_as_the_release_has_them_or_by_name() -> None:
    found = {n: Path("/b", n) for n in (*binaries.KUBERNETES, *binaries.AROUND)}
    assert configuration.gates_of("default", GATES_OF_1_34) == []
    assert not any("gates" in f for line in configuration.command_lines(NODE, found).values() for f in line)
    assert configuration.gates_of("DRADeviceTaints,Other", GATES_OF_1_34) == ["DRADeviceTaints", "Other"]
    with pytest.raises(ValueError, match=r"no feature gate DRADeviceTaintRules"):
        configuration.gates_of("DRADeviceTaintRules", GATES_OF_1_34)


@pytest.mark.parametrize("policies", [True, False])
def test_our_manifests_change_in_image_hardware_and_drivers_only(tmp_path: Path, policies: bool) -> None:
    deploy = PROJECT / "deploy"
    files = node_files.NodeFiles(tmp_path)

    def load() -> list[dict[str, Any]]:
        return manifests.load(deploy, policies=policies)

    before, after = load(), manifests.adapt(load(), "localhost/ours:1", files)
    kinds = {document["kind"] for document in before}
    assert ("MutatingAdmissionPolicy" in kinds) is policies
    assert ("MutatingWebhookConfiguration" in kinds) is not policies
    drivers = ["--driver-name=gpu.dra-driver.dev", "--driver-name=rdma.dra-driver.dev"]
    for old, new in nonempty(zip(before, after, strict=True)):
        if old["kind"] not in ("DaemonSet", "Deployment"):
            assert old == new
            continue
        (was,) = old["spec"]["template"]["spec"]["containers"]
        (now,) = new["spec"]["template"]["spec"]["containers"]
        assert (now["image"], now["imagePullPolicy"]) == ("localhost/ours:1", "Never")
        if old["kind"] == "Deployment":
            assert [a for a in now["args"] if "--driver-name" in a] == drivers
        else:
            (driver,) = (a.partition("=")[2] for a in was["args"] if "--driver-name" in a)
            assert now["args"] == [*was["args"], *files.arguments(driver)]
            assert {"name": "e2e-files", "mountPath": str(tmp_path), "readOnly": True} in now["volumeMounts"]


def test_manifests_without_a_node_agent_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="kubelet-plugin"):
        manifests.adapt([{"kind": "Namespace"}], "image", node_files.NodeFiles(tmp_path))


def test_each_driver_has_simulated_hardware_of_its_own(tmp_path: Path) -> None:
    files = node_files.NodeFiles(tmp_path)
    assert f"--backend=simulated={files.gpus}" in files.arguments("gpu.dra-driver.dev")
    assert "--backend=rdma" in files.arguments("rdma.dra-driver.dev")
    files.boot_id.parent.mkdir(parents=True)
    files.boot()
    first = files.boot_id.read_text()
    files.boot()
    assert files.boot_id.read_text() != first


def test_another_version_takes_the_place_of_this_one_in_an_image(tmp_path: Path) -> None:
    for version in ("this", "previous"):
        (tmp_path / version / "pkg").mkdir(parents=True)
        (tmp_path / version / "pkg" / "a.py").write_text(version)
    with images.Layer(tmp_path / "a.layer") as layer:
        layer.tree(tmp_path / "this" / "pkg", source=tmp_path / "previous" / "pkg")
    with tarfile.open(layer.file) as tar:
        content = tar.extractfile(str(tmp_path / "this/pkg/a.py").strip("/"))
        assert content is not None
        assert content.read() == b"previous"


class Deeds:
    """What a control asks of a cluster."""

    def restart(self, name: str) -> str:
        return f"restarted {name}"

    def boot(self) -> None:
        raise NotUpError("no node")

    install = install_previous = uninstall = add_agent_flag = scale_controller = shut_down = boot
    move = replace_server = boot
    turn_preemption_on = boot


def test_the_suite_asks_the_harness_through_a_socket(tmp_path: Path) -> None:
    served = control.Control(cast("LocalCluster", Deeds()), tmp_path / "s")
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(tmp_path / "s"))
        with connection.makefile("rwb") as stream:
            answers = []
            for request in ({"do": "restart", "name": "kubelet"}, {"do": "boot"}, {"do": "dance"}):
                stream.write(json.dumps(request).encode() + b"\n")
                stream.flush()
                answers.append(json.loads(stream.readline()))
    served.close()
    assert answers == [
        {"done": "restarted kubelet"},
        {"error": "NotUpError: no node"},
        {"error": "KeyError: 'dance'"},
    ]


def test_what_ldd_prints_is_understood() -> None:
    output = (
        "/usr/bin/sh:\n\tlinux-vdso.so.1 (0x00007)\n\tlibc.so.6 => /lib/libc.so.6 (0x00007)\n"
        "\t/lib64/ld-linux-x86-64.so.2 (0x00007)\n\tlibgone.so => not found\n/a/b.so:\n\tstatically linked\n"
    )
    assert images.parse_ldd(output) == {"/lib/libc.so.6", "/lib64/ld-linux-x86-64.so.2"}


def test_an_image_is_an_archive_of_one_layer_with_folders_before_files(tmp_path: Path) -> None:
    (tmp_path / "tool").write_text("#!/bin/sh\n")
    (tmp_path / "tool").chmod(0o700)
    with images.Layer(tmp_path / "a.layer") as layer:
        layer.copy(tmp_path / "tool", "/usr/bin/tool")
        layer.copy(tmp_path / "tool", "/usr/bin/tool")
        layer.text("etc/passwd", "root\n")
    with tarfile.open(layer.file) as tar:
        modes = {m.name: (m.isdir(), m.mode) for m in tar}
    assert list(modes) == ["usr", "usr/bin", "usr/bin/tool", "etc", "etc/passwd"]
    assert modes["usr/bin/tool"] == (False, 0o755)
    images.write_archive(layer.file, tmp_path / "a.tar", "localhost/a:1", {"Cmd": ["tool"]})
    with tarfile.open(tmp_path / "a.tar") as tar:
        member = tar.extractfile("manifest.json")
        assert member is not None
        (index,) = json.load(member)
        assert index["RepoTags"] == ["localhost/a:1"]
        assert {index["Config"], *index["Layers"]} < set(tar.getnames())


def test_the_driver_image_takes_what_runs_and_not_what_develops() -> None:
    names = {d.metadata["Name"].lower() for d in images.distributions("dra-driver")}
    assert {"dra-driver", "msgspec", "grpcio", "aiohttp", "yarl"} <= names
    assert not names & {"pytest", "mypy", "ruff", "ziglang"}


def test_only_roots_that_nobody_holds_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    dead, dead_lock = host.make_root()
    held, held_lock = host.make_root()
    assert re.fullmatch(r"[a-z0-9-]+", dead.name), "it is the name of a Node too"
    being_made = tmp_path / f"{host.PREFIX}new"
    being_made.mkdir()
    (dead / "etcd" / "member").mkdir(parents=True)
    os.close(dead_lock)
    try:
        assert host.remove_stale() == [dead]
        assert sorted(tmp_path.iterdir()) == sorted([held, being_made])
        assert host.others_run()
    finally:
        os.close(held_lock)
    assert not host.others_run()


def test_a_capability_is_read_from_the_effective_set() -> None:
    assert not host.has_capability(24, "CapPrm:\tffffffffff\nCapEff:\t000001fffeffffff\n")
    assert host.has_capability(23, "CapEff:\t000001fffeffffff\n")


def test_pod_addresses_are_given_once_and_come_back(tmp_path: Path) -> None:
    def reserve(owner: str) -> str:
        return cni_plugin.reserve(tmp_path / "r", "10.97.0.0/29", "10.97.0.1", owner)

    assert [reserve(o) for o in "abcde"] == [f"10.97.0.{n}" for n in range(2, 7)]
    with pytest.raises(RuntimeError, match=r"10\.97\.0\.0/29 are taken"):
        reserve("f")
    cni_plugin.release(tmp_path / "r", "c")
    assert reserve("g") == "10.97.0.4"


def test_an_interface_name_fits_into_the_kernel() -> None:
    assert len(cni_plugin.interface_name("f" * 64 + "/eth0")) <= 15


def test_a_component_that_ends_is_reported_with_its_last_words(tmp_path: Path) -> None:
    processes = Processes(tmp_path, {})
    processes.start("etcd", ["/bin/sh", "-c", "echo no space left; exit 3"])
    with pytest.raises(NotUpError, match=r"etcd has ended with status 3; its log:\n  \| no space left"):
        processes.wait("etcd", "its health", lambda: False, 30)
    processes.stop_all()


def test_a_component_that_does_not_come_up_is_reported_and_stopped(tmp_path: Path) -> None:
    processes = Processes(tmp_path, {})
    processes.start("kubelet", ["/bin/sleep", "60"])
    with pytest.raises(NotUpError, match="kubelet: a ready node is not there after 0 s"):
        processes.wait("kubelet", "a ready node", lambda: False, 0)
    assert processes.dead() == []
    processes.stop_all()


def test_a_log_is_cut_to_its_end(tmp_path: Path) -> None:
    (tmp_path / "a.log").write_text("".join(f"{n}\n" for n in range(100)))
    assert tail(tmp_path / "a.log", 2) == "  | 98\n  | 99"
    assert tail(tmp_path / "b.log") == "(b.log does not exist)"
