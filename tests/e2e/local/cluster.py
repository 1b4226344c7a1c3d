"""The cluster inside its namespaces: node, components, images, driver."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path

import previous_version
import yaml

from local import certificates, cni_plugin, configuration, host, images, manifests, node_files
from local.configuration import Node
from local.node_files import NodeFiles
from local.processes import NotUpError, Processes, tail

NAMESPACE = "dra-driver"
AGENT, CONTROLLER = "daemonset/dra-driver-kubelet-plugin", "deployment/dra-driver-controller"
MUTATING_POLICIES = "mutatingadmissionpolicies.v1.admissionregistration.k8s.io"
# On two cores that others use too, everything takes its time.
PATIENCE_SECONDS = 180.0
MOUNT_POINTS = ("/var/lib/kubelet", "/etc/cdi", "/var/log", "/dev/infiniband", node_files.GPU_NODES)


class LocalCluster:
    """One node and its control plane. To be used in namespaces of its own: it mounts over system folders.

    Args:
        node: the only one.
        releases: the programs of each release of Kubernetes; the cluster begins with the first.
        project: whose driver is installed.
        gates: as ``configuration.gates_of`` takes them, of each release those that it knows.

    Attributes:
        releases: the releases by their names, such as ``v1.36.2``.
    """

    def __init__(self, node: Node, releases: Sequence[Mapping[str, Path]], project: Path, gates: str) -> None:
        self.node = node
        self._binaries = binaries = releases[0]
        self.releases = {_release(b["kube-apiserver"]): b for b in releases}
        self._project = project
        folders = dict.fromkeys(str(p.parent) for p in binaries.values())
        path = os.pathsep.join([*folders, os.environ.get("PATH", os.defpath)])
        self.environment = {**os.environ, "PATH": path, "KUBECONFIG": str(node.admin_kubeconfig)}
        self.processes = Processes(node.root / "log", self.environment)
        self.files = NodeFiles(node.root / "files")
        self._gates = gates
        self._commands = self._command_lines(next(iter(self.releases)))

    def start(self, gpus: str) -> None:
        """Brings everything up, to the node's readiness; ``gpus`` is the node's simulated hardware.

        Raises:
            NotUpError: something does not come up.
        """
        self.files.make(gpus)
        self._mount()
        self._configure()
        self._start("etcd")
        self._start("containerd")
        archives = self._make_images()
        self.processes.wait("etcd", "its health", etcd_healthy, 60)
        self._start("kube-apiserver")
        self.processes.wait("containerd", "its socket", self._containerd_answers, 60)
        for archive in archives:
            self._import(archive)
        self._wait("kube-apiserver")
        for name in ("kube-controller-manager", "kube-scheduler", "kubelet"):
            self._start(name)
        self.processes.wait("kubelet", "a ready node", self._node_ready, PATIENCE_SECONDS)
        account = ["-n", "default", "get", "serviceaccount", "default"]
        self.processes.wait(
            "kube-controller-manager", "a service account", lambda: self._succeeds(account), PATIENCE_SECONDS
        )

    def install(self, project: Path | None = None, image: str = configuration.DRIVER_IMAGE) -> None:
        """Installs the driver, or another version over it, from ``deploy``; waits until it works.

        Args:
            project: whose manifests; None: this one's.
            image: for all of them.

        Raises:
            NotUpError: it does not work.
        """
        deploy = (project or self._project) / "deploy"
        policies = self._succeeds(["get", MUTATING_POLICIES])
        documents = manifests.load(deploy, policies=policies)
        file = self.node.etc / "driver.yaml"
        file.write_text(yaml.safe_dump_all(manifests.adapt(documents, image, self.files)))
        if not manifests.has_webhooks(deploy):
            # What is left of a webhook of ours when its other fields go would be refused.
            for kind in ("mutatingwebhookconfiguration", "validatingwebhookconfiguration"):
                self.kubectl("delete", "--ignore-not-found", kind, "dra-driver-admission")
        self.kubectl("apply", "--server-side", "--force-conflicts", "-f", str(file))
        if not policies:
            # As the page on admission says.
            self._run(str(Path(sys.executable).with_name("dra-driver")), "certificates")
        self.wait_for_driver()

    def wait_for_driver(self) -> None:
        """Waits until all pods of the driver are of the newest revision and ready, and devices are offered.

        Raises:
            NotUpError: they are not.
        """
        deadline = time.monotonic() + PATIENCE_SECONDS
        for workload in self.kubectl("-n", NAMESPACE, "get", "daemonsets,deployments", "-o", "name").split():
            left = f"--timeout={max(1.0, deadline - time.monotonic()):.0f}s"
            done = self._kubectl("-n", NAMESPACE, "rollout", "status", workload, left)
            if done.returncode:
                raise NotUpError(f"{workload} does not become ready; {self.describe_driver()}")
        while not json.loads(self.kubectl("get", "resourceslices", "-o", "json"))["items"]:
            if time.monotonic() > deadline:
                raise NotUpError(f"the driver publishes no ResourceSlices; {self.describe_driver()}")
            time.sleep(0.2)

    def install_previous(self) -> str:
        """Puts the version before over this one; gives its commit, or ``- why`` there is none.

        Raises:
            NotUpError: it does not work.
        """
        folder = self.node.root / "previous"
        try:
            commit = previous_version.unpack(folder)
        except previous_version.NoPreviousVersion as e:
            return f"- {e}"
        archive = self.node.root / "images" / "previous.tar"
        images.make_driver(
            archive, configuration.PREVIOUS_IMAGE, self._binaries["ldd"], self._project, code=folder
        )
        self._import(archive)
        if not manifests.has_grants(folder / "deploy"):
            # As the page on allocation modes says: nobody would allocate what the policy keeps for a
            # controller that knows nothing of it, where that one cannot keep devices by their taint.
            self.scale_controller("0")
            self.kubectl("delete", "validatingadmissionpolicybinding", manifests.GRANTS)
        self.install(folder, configuration.PREVIOUS_IMAGE)
        return commit

    def add_agent_flag(self, flag: str) -> None:
        """Gives the node agent for GPUs one more flag, until ``install`` is called again.

        Raises:
            NotUpError: it does not come up with it.
        """
        patch = [{"op": "add", "path": "/spec/template/spec/containers/0/args/-", "value": flag}]
        self.kubectl("-n", NAMESPACE, "patch", AGENT, "--type=json", "--patch", json.dumps(patch))
        self.wait_for_driver()

    def turn_on(self, option: str, *flags: str) -> None:
        """Gives the controller flags, and the rights and policies of an option.

        Args:
            option: a folder of ``deploy/optional``.
            flags: of the controller, until ``install`` is called again.

        Raises:
            NotUpError: it does not come up with it.
        """
        folder = self._project / "deploy" / "optional" / option
        self.kubectl("apply", "--server-side", "--force-conflicts", "-f", str(folder))
        args = "/spec/template/spec/containers/0/args/-"
        patch = [{"op": "add", "path": args, "value": flag} for flag in flags]
        self.kubectl("-n", NAMESPACE, "patch", CONTROLLER, "--type=json", "--patch", json.dumps(patch))
        self.wait_for_driver()

    def turn_preemption_on(self) -> None:
        """Has the controller preempt, until ``install`` is called again.

        Raises:
            NotUpError: it does not come up with it.
        """
        self.turn_on("preemption", "--preemption=on", "--preemption-rate=100")

    def scale_controller(self, number: str) -> None:
        """As many controllers; returns when they run, or are gone.

        Raises:
            NotUpError: they do not.
        """
        self.kubectl("-n", NAMESPACE, "scale", CONTROLLER, f"--replicas={number}")
        gone = ("wait", "--for=delete", "pods", "-l", "app.kubernetes.io/component=controller")
        there = ("rollout", "status", CONTROLLER)
        what = gone if number == "0" else there
        self.kubectl("-n", NAMESPACE, *what, f"--timeout={PATIENCE_SECONDS:.0f}s")

    def restart(self, name: str) -> None:
        """Kills a component and starts it again.

        Raises:
            NotUpError: it does not come up.
        """
        self.processes.stop(name, signal.SIGKILL)
        self._start(name)
        self._wait(name)

    def move(self, name: str, release: str) -> None:
        """Stop a component as an administrator does, and start it as it is in another release.

        Raises:
            KeyError: the harness was not given that release.
            NotUpError: it does not come up.
        """
        command = self._command(name, release)
        self.processes.stop(name)
        self.processes.start(name, command)
        self._wait(name)

    def replace_server(self, release: str) -> None:
        """Start the API server of another release beside the present one, which is stopped then.

        In between requests go to either, as in a control plane of several machines.

        Raises:
            KeyError: the harness was not given that release.
            NotUpError: it does not come up.
        """
        old = self.processes.start("kube-apiserver", self._command("kube-apiserver", release))

        def serves() -> bool:
            answers = [self._kubectl("get", "--raw", path) for path in ("/version", "/readyz") * 5]
            return all(a.returncode == 0 for a in answers) and any(
                f'"{release}"' in a.stdout for a in answers
            )

        self.processes.wait("kube-apiserver", "/readyz beside the other", serves, PATIENCE_SECONDS)
        self.processes.end(old)
        self._wait("kube-apiserver")

    def _command(self, name: str, release: str) -> list[str]:
        command = self._command_lines(release)[name]
        self._commands[name] = command
        return command

    def _command_lines(self, release: str) -> dict[str, list[str]]:
        programs = self.releases[release]
        known = known_gates(programs["kube-apiserver"])
        on = configuration.gates_of(self._gates, known)
        return configuration.command_lines(self.node, programs, on, known)

    def shut_down(self) -> None:
        """End what a reboot ends on a node, and empty its tmpfs."""
        for name in ("kubelet", "containerd"):
            self.processes.stop(name, signal.SIGKILL)
        host.kill_cgroup(self.node.name)
        host.kill_named("containerd-shim")
        # A kubelet that finds these asks containerd for each of them, for seconds.
        host.remove_cgroup(f"{self.node.name}/kubepods")
        for mount in reversed(host.mounts_below("/run/containerd", "/run/netns", private=False)):
            self._unmount(mount)
        for folder in map(Path, ("/run/containerd", "/run/netns", "/run/cdi")):
            shutil.rmtree(folder, ignore_errors=True)

    def boot(self) -> None:
        """Bring the node up again, in another boot.

        Raises:
            NotUpError: it does not come back.
        """
        self.files.boot()
        for name in ("containerd", "kubelet"):
            self._start(name)
            self._wait(name)

    def _wait(self, name: str) -> None:
        if name == "containerd":
            self.processes.wait(name, "its socket", self._containerd_answers, 60)
        elif name == "kubelet":
            self.processes.wait(name, "its health", self._kubelet_healthy, 60)
            self.processes.wait(name, "a ready node", self._node_ready, PATIENCE_SECONDS)
        elif name == "kube-apiserver":
            ready = ["get", "--raw", "/readyz"]
            self.processes.wait(name, "/readyz", lambda: self._succeeds(ready), PATIENCE_SECONDS)
            # kubectl looks at it before it applies anything; on a busy machine it comes some time after that.
            schema = ["get", "--raw", "/openapi/v2"]
            self.processes.wait(name, "its schema", lambda: self._succeeds(schema), PATIENCE_SECONDS)

    def uninstall(self) -> None:
        """Takes the driver off again, in the order opposite to the installation's."""
        file = self.node.etc / "driver.yaml"
        documents = list(yaml.safe_load_all(file.read_text()))
        file.write_text(yaml.safe_dump_all(reversed(documents)))
        self.kubectl("delete", "--ignore-not-found", "--timeout=120s", "-f", str(file))

    def stop(self) -> None:
        """Ends the components. Containers end with the PID namespace, mounts with theirs."""
        self.processes.stop_all()

    def kubectl(self, *arguments: str) -> str:
        """What kubectl prints.

        Raises:
            NotUpError: it fails; with what it says.
        """
        done = self._kubectl(*arguments)
        if done.returncode:
            raise NotUpError(f"kubectl {' '.join(arguments)}: exit {done.returncode}\n{done.stderr.strip()}")
        return done.stdout

    def describe_driver(self) -> str:
        """Its pods, their events and logs: what one would look at first."""
        texts = ["what its pods say:"]
        for arguments in (
            ("get", "pods", "-o", "wide"),
            ("get", "events", "--sort-by=.lastTimestamp"),
            ("logs", "-l", "app.kubernetes.io/name=dra-driver", "--all-containers", "--tail=15", "--prefix"),
        ):
            done = self._kubectl("-n", NAMESPACE, *arguments)
            texts.append("\n".join(f"  | {t[:300]}" for t in (done.stdout + done.stderr).splitlines()[-30:]))
        return "\n".join(texts)

    def _mount(self) -> None:
        """The node's own /run, /var/lib/kubelet, /var/log and CDI folder, and its addresses."""
        root = self.node.root
        runs = {os.path.realpath(p) for p in ("/run", "/var/run")}
        for inherited in reversed(host.mounts_below(*runs, *MOUNT_POINTS)):
            # Only this namespace's copies: they would keep another cluster's volumes and networks alive.
            self._unmount(inherited)
        for folder in runs:
            self._run("mount", "-t", "tmpfs", "-o", "mode=755", "dra-e2e", folder)
            # As on machines with systemd: a driver container mounts its files below, and others see them.
            self._run("mount", "--make-rshared", folder)
        for place in MOUNT_POINTS:
            own = root / "node" / place.strip("/")
            own.mkdir(parents=True)
            self._run("mount", "--bind", str(own), place)
        self._run("mount", "--bind", str(self.files.rdma_nodes), "/dev/infiniband")
        self._run("mount", "--bind", str(self.files.gpu_nodes), node_files.GPU_NODES)
        self._run("mount", "--bind", str(self.files.boot_id), str(node_files.BOOT_ID))
        # Volumes of pods are mounted below; containers that ask for propagation see them.
        self._run("mount", "--make-rshared", "/var/lib/kubelet")
        self._run("ip", "link", "set", "lo", "up")
        for address in (configuration.NODE_ADDRESS, configuration.SERVICE_ADDRESS):
            self._run("ip", "address", "add", f"{address}/32", "dev", "lo")
        Path("/proc/sys/net/ipv4/ip_forward").write_text("1")
        host.make_cgroup(self.node.name)

    def _unmount(self, place: str) -> None:
        try:
            self._run("umount", "--lazy", place)
        except NotUpError:
            # Another cluster may have unmounted its own meanwhile, and ours is a slave of that.
            if place in host.mounts_below(place, private=False):
                raise

    def _configure(self) -> None:
        node = self.node
        node.etc.mkdir()
        certificates.make(self._binaries["openssl"], node.pki, node.name)
        files = {p.name: p.read_bytes() for p in node.pki.iterdir()}
        for user in certificates.USERS:
            (node.etc / f"{user}.kubeconfig").write_text(configuration.kubeconfig(user, files))
        (node.etc / "kubelet.yaml").write_text(configuration.kubelet(node))
        (node.etc / "containerd.toml").write_text(configuration.containerd(node, self._binaries["runc"]))
        (node.etc / "resolv.conf").write_text("# no name service\n")
        plugins, networks = node.root / "cni" / "bin", node.root / "cni" / "net.d"
        plugins.mkdir(parents=True)
        networks.mkdir()
        (networks / "10-e2e.conflist").write_text(configuration.network(node))
        source = Path(cni_plugin.__file__).read_text()
        for name in (configuration.CNI_PLUGIN, "loopback"):
            (plugins / name).write_text(f"#!{os.path.realpath(sys.executable)} -IS\n{source}")
            (plugins / name).chmod(0o755)

    def _make_images(self) -> list[Path]:
        folder = self.node.root / "images"
        folder.mkdir()
        ldd = self._binaries["ldd"]
        shell, driver = folder / "shell.tar", folder / "driver.tar"
        search = [Path(p) for p in self.environment["PATH"].split(os.pathsep)]
        images.make_shell(shell, configuration.SHELL_IMAGE, ldd, search)
        images.make_driver(driver, configuration.DRIVER_IMAGE, ldd, self._project)
        return [shell, driver]

    def _import(self, archive: Path) -> None:
        self._ctr("images", "import", "--snapshotter", self.node.snapshotter, str(archive))
        archive.unlink()

    def _start(self, name: str) -> None:
        self.processes.start(name, self._commands[name])

    def _containerd_answers(self) -> bool:
        try:
            self._ctr("version")
        except NotUpError:
            return False
        return True

    def _kubelet_healthy(self) -> bool:
        # containerd answers before its CRI service does, and a kubelet that meets it then ends. A node would
        # start it again.
        if any(dead.startswith("kubelet ") for dead in self.processes.dead()):
            self._start("kubelet")
        return kubelet_healthy()

    def _node_ready(self) -> bool:
        done = self._kubectl("get", "node", self.node.name, "-o", "json")
        if done.returncode:
            return False
        conditions = json.loads(done.stdout).get("status", {}).get("conditions", ())
        return any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)

    def _succeeds(self, arguments: Sequence[str]) -> bool:
        return self._kubectl(*arguments).returncode == 0

    def _kubectl(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = [str(self._binaries["kubectl"]), *arguments]
        return subprocess.run(command, env=self.environment, capture_output=True, text=True)

    def _ctr(self, *arguments: str) -> None:
        address = f"--address={configuration.CONTAINERD_SOCKET}"
        self._run(str(self._binaries["ctr"]), address, "--namespace=k8s.io", *arguments)

    def _run(self, *command: str) -> None:
        program = str(self._binaries.get(command[0], command[0]))
        done = subprocess.run([program, *command[1:]], env=self.environment, capture_output=True, text=True)
        if done.returncode:
            raise NotUpError(f"{' '.join(command)}: exit {done.returncode}\n{done.stderr.strip()}")

    def keep_logs(self, folder: Path) -> None:
        """Copies the components' logs and those of the pods."""
        shutil.copytree(self.node.root / "log", folder, dirs_exist_ok=True)
        pods = self.node.root / "node" / "var" / "log" / "pods"
        if pods.exists():
            shutil.copytree(pods, folder / "pods", dirs_exist_ok=True)


def kubelet_healthy() -> bool:
    """Whether the kubelet answers."""
    return answers(f"{configuration.KUBELET_HEALTH}/healthz")


def etcd_healthy() -> bool:
    """Whether etcd answers."""
    return answers(f"{configuration.ETCD}/health")


def answers(url: str) -> bool:
    """Whether a server says that all is well."""
    try:
        with urllib.request.urlopen(url, timeout=2) as answer:
            return bool(answer.status == 200)
    except (OSError, urllib.error.URLError):
        return False


__all__ = ["MOUNT_POINTS", "LocalCluster", "etcd_healthy", "known_gates", "tail"]


def _release(server: Path) -> str:
    """Return the release of Kubernetes that an API server says it is, such as ``v1.36.2``."""
    command = [str(server), "--version"]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()[-1]


def known_gates(server: Path) -> set[str]:
    """Return the feature gates of Kubernetes that an API server lists."""
    text = subprocess.run([str(server), "--help"], check=True, capture_output=True, text=True).stdout
    return set(re.findall(r"kube:(\w+)=true\|false", text))
