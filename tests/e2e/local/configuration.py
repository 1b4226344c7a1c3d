"""The files and command lines of the components; pure, from a ``Node``."""

from __future__ import annotations

import base64
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# The network is the namespaces' own, so these meet nobody.
NODE_ADDRESS = "10.99.0.1"
SERVICE_RANGE = "10.96.0.0/24"
# The first of the range: the service `kubernetes`. The API server listens on it itself, hence no kube-proxy.
SERVICE_ADDRESS = "10.96.0.1"
POD_RANGE = "10.97.0.0/24"
SERVER = f"https://{SERVICE_ADDRESS}:443"
ETCD = "http://127.0.0.1:2379"
CONTAINERD_SOCKET = "/run/containerd/containerd.sock"
CDI_DIRECTORIES = ("/etc/cdi", "/var/run/cdi")
CNI_PLUGIN = "dra-e2e"
SHELL_IMAGE = "localhost/dra-e2e-shell:1"
DRIVER_IMAGE = "localhost/dra-driver-e2e:1"
PREVIOUS_IMAGE = "localhost/dra-driver-e2e:0"
KUBELET_HEALTH = "http://127.0.0.1:10248"
# The gates of what the driver uses, and the APIs without which a component does not start, or does nothing,
# with one of them. kube-scheduler 1.36 panics with DRADeviceTaintRules on, so that stays off; the one of 1.34
# watches the rules of taints with DRADeviceTaints alone. PodGroups are read in the form of 1.36.
RELEVANT_GATES = (
    "DRAAdminAccess",
    "DRAConsumableCapacity",
    "DRADeviceTaints",
    "DRAExtendedResource",
    "DRAPartitionableDevices",
    "DRAPrioritizedList",
    "DRAResourceClaimDeviceStatus",
    "ResourceHealthStatus",
)
POD_GROUP_GATES = (
    "GenericWorkload",
    "GangScheduling",
    "TopologyAwareWorkloadScheduling",
    "DRAWorkloadResourceClaims",
)
POD_GROUPS_API = "scheduling.k8s.io/v1alpha2=true"
TAINT_RULES_GATE = "DRADeviceTaintRules"
TAINT_RULES_API = "resource.k8s.io/v1alpha3=true"
DEFAULT_GATES, ALL_GATES = "default", "all"


@dataclass(frozen=True)
class Node:
    """The node, and what its machine can do.

    Attributes:
        root: the folder of everything that the cluster writes.
        name: of the Node object, the cgroup and the host name.
        cgroup_version: 1 or 2.
        may_lower_oom_score: whether CAP_SYS_RESOURCE is there; without it, critical pods cannot have the
            oom_score_adj that the kubelet asks for.
        snapshotter: containerd's; ``native`` where the root's file system cannot carry overlays.
    """

    root: Path
    name: str
    cgroup_version: int = 2
    may_lower_oom_score: bool = True
    snapshotter: str = "overlayfs"

    @property
    def pki(self) -> Path:
        """The folder of keys and certificates."""
        return self.root / "pki"

    @property
    def etc(self) -> Path:
        """The folder of configuration files."""
        return self.root / "etc"

    @property
    def admin_kubeconfig(self) -> Path:
        """For kubectl and the tests."""
        return self.etc / "admin.kubeconfig"


def kubeconfig(user: str, files: Mapping[str, bytes]) -> str:
    """A kubeconfig with everything inside; ``files``: ca.crt, and the user's crt and key, by file name."""

    def data(name: str) -> str:
        return base64.b64encode(files[name]).decode()

    # JSON is YAML.
    return json.dumps(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [
                {"name": "e2e", "cluster": {"server": SERVER, "certificate-authority-data": data("ca.crt")}}
            ],
            "users": [
                {
                    "name": user,
                    "user": {
                        "client-certificate-data": data(f"{user}.crt"),
                        "client-key-data": data(f"{user}.key"),
                    },
                }
            ],
            "contexts": [{"name": "e2e", "context": {"cluster": "e2e", "user": user}}],
            "current-context": "e2e",
        },
        indent=1,
    )


def kubelet(node: Node) -> str:
    """The KubeletConfiguration."""
    body: dict[str, Any] = {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "address": NODE_ADDRESS,
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": str(node.pki / "ca.crt")},
        },
        "authorization": {"mode": "Webhook"},
        "tlsCertFile": str(node.pki / "kubelet-serving.crt"),
        "tlsPrivateKeyFile": str(node.pki / "kubelet-serving.key"),
        "containerRuntimeEndpoint": f"unix://{CONTAINERD_SOCKET}",
        # A systemd, if there is one, knows nothing of this cluster.
        "cgroupDriver": "cgroupfs",
        # Two kubelets below one root would take each other's pods for orphans and kill them.
        "cgroupRoot": f"/{node.name}",
        "failSwapOn": False,
        "makeIPTablesUtilChains": False,
        "resolvConf": str(node.etc / "resolv.conf"),
        "volumePluginDir": str(node.root / "volume-plugins"),
        # Images come from no registry: once collected they are gone.
        "imageGCHighThresholdPercent": 100,
        "evictionHard": {
            "memory.available": "50Mi",
            "nodefs.available": "1%",
            "nodefs.inodesFree": "1%",
            "imagefs.available": "1%",
            "imagefs.inodesFree": "1%",
        },
    }
    if node.cgroup_version == 1:
        # From 1.35 on the kubelet refuses to start on cgroup v1 unless told otherwise.
        body["failCgroupV1"] = False
    if not node.may_lower_oom_score:
        body["oomScoreAdj"] = 0
    return json.dumps(body, indent=1)


def containerd(node: Node, runc: Path) -> str:
    """The configuration of containerd 1.7 and 2 (which reads version 2 as well)."""
    cdi = ", ".join(json.dumps(d) for d in CDI_DIRECTORIES)
    snapshotters = ("btrfs", "zfs", "devmapper", "aufs", "blockfile")
    unused = ["io.containerd.internal.v1.opt", "io.containerd.nri.v1.nri"]
    unused += [f"io.containerd.snapshotter.v1.{s}" for s in snapshotters]
    return f"""\
version = 2
root = {_toml(node.root / "containerd")}
state = "/run/containerd"
oom_score = 0
disabled_plugins = [{", ".join(json.dumps(u) for u in unused)}]

[grpc]
address = "{CONTAINERD_SOCKET}"

[plugins."io.containerd.grpc.v1.cri"]
sandbox_image = "{SHELL_IMAGE}"
enable_cdi = true
cdi_spec_dirs = [{cdi}]
restrict_oom_score_adj = {json.dumps(not node.may_lower_oom_score)}
disable_hugetlb_controller = true
tolerate_missing_hugetlb_controller = true

[plugins."io.containerd.grpc.v1.cri".cni]
bin_dir = {_toml(node.root / "cni" / "bin")}
conf_dir = {_toml(node.root / "cni" / "net.d")}

[plugins."io.containerd.grpc.v1.cri".containerd]
snapshotter = "{node.snapshotter}"
default_runtime_name = "runc"

[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"

[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
BinaryName = {_toml(runc)}
SystemdCgroup = false
"""


def _toml(path: Path) -> str:
    return json.dumps(str(path))


def network(node: Node) -> str:
    """The CNI configuration of our own plugin, ``cni_plugin.py``."""
    plugin = {
        "type": CNI_PLUGIN,
        "range": POD_RANGE,
        "gateway": NODE_ADDRESS,
        "reservations": str(node.root / "cni" / "reservations"),
    }
    return json.dumps({"cniVersion": "0.4.0", "name": "e2e", "plugins": [plugin]}, indent=1)


def gates_of(wanted: str, known: Collection[str]) -> list[str]:
    """Return the feature gates that are turned on.

    Args:
        wanted: ``default`` (none), ``all`` of those that concern the driver, or names with commas between.
        known: those of the release.

    Raises:
        ValueError: the release does not know one of the names.
    """
    if wanted == DEFAULT_GATES:
        return []
    if wanted == ALL_GATES:
        groups = POD_GROUP_GATES if set(POD_GROUP_GATES) <= set(known) else ()
        return [gate for gate in (*RELEVANT_GATES, *groups) if gate in known]
    named = [gate for gate in wanted.split(",") if gate]
    if unknown := [gate for gate in named if gate not in known]:
        raise ValueError(f"GATES={wanted}: this release has no feature gate {', '.join(unknown)}")
    return named


def command_lines(
    node: Node, binaries: Mapping[str, Path], gates: Sequence[str] = (), known: Collection[str] = ()
) -> dict[str, list[str]]:
    """The command line of every component, in the order in which they start.

    Args:
        node: the only one.
        binaries: of the components.
        gates: feature gates to turn on in all of them.
        known: the feature gates that the release has.
    """
    lines = _command_lines(node, binaries)
    for name in ("kube-controller-manager", "kube-scheduler", "kubelet"):
        lines[name] += _gate_flags(gates)
    lines["kube-apiserver"] += server_flags(gates, known)
    return lines


def server_flags(gates: Sequence[str], known: Collection[str]) -> list[str]:
    """Return the flags of an API server by which some gates are on, and what they need is served.

    Args:
        gates: feature gates to turn on.
        known: the feature gates that the release has.
    """
    apis = []
    if "GenericWorkload" in gates:
        apis.append(POD_GROUPS_API)
    if TAINT_RULES_GATE in gates or ("DRADeviceTaints" in gates and TAINT_RULES_GATE not in known):
        apis.append(TAINT_RULES_API)
    return [*_gate_flags(gates), *([f"--runtime-config={','.join(apis)}"] if apis else [])]


def _gate_flags(gates: Sequence[str]) -> list[str]:
    return [f"--feature-gates={','.join(f'{gate}=true' for gate in gates)}"] if gates else []


def _command_lines(node: Node, binaries: Mapping[str, Path]) -> dict[str, list[str]]:
    return {
        "etcd": [
            str(binaries["etcd"]),
            f"--name={node.name}",
            f"--data-dir={node.root / 'etcd'}",
            # Nothing of this cluster outlives it.
            "--unsafe-no-fsync",
            f"--listen-client-urls={ETCD}",
            f"--advertise-client-urls={ETCD}",
            "--log-level=warn",
        ],
        "containerd": [str(binaries["containerd"]), f"--config={node.etc / 'containerd.toml'}"],
        "kube-apiserver": _apiserver(node, binaries["kube-apiserver"]),
        "kube-controller-manager": [
            str(binaries["kube-controller-manager"]),
            *_client(node, "controller-manager"),
            f"--root-ca-file={node.pki / 'ca.crt'}",
            f"--service-account-private-key-file={node.pki / 'sa.key'}",
            "--use-service-account-credentials=true",
            f"--cluster-signing-cert-file={node.pki / 'ca.crt'}",
            f"--cluster-signing-key-file={node.pki / 'ca.key'}",
        ],
        "kube-scheduler": [str(binaries["kube-scheduler"]), *_client(node, "scheduler")],
        "kubelet": [
            str(binaries["kubelet"]),
            f"--config={node.etc / 'kubelet.yaml'}",
            f"--kubeconfig={node.etc / 'kubelet.kubeconfig'}",
            f"--hostname-override={node.name}",
            f"--node-ip={NODE_ADDRESS}",
            # The policies of deploy/examples are for nodes with this label.
            "--node-labels=dra-driver.dev/examples=true",
            "--v=2",
        ],
    }


def _client(node: Node, user: str) -> list[str]:
    file = node.etc / f"{user}.kubeconfig"
    return [
        f"--kubeconfig={file}",
        f"--authentication-kubeconfig={file}",
        f"--authorization-kubeconfig={file}",
        "--bind-address=127.0.0.1",
        f"--cert-dir={node.root / 'self-signed' / user}",
        "--leader-elect=false",
    ]


def _apiserver(node: Node, binary: Path) -> list[str]:
    pki = node.pki
    return [
        str(binary),
        f"--etcd-servers={ETCD}",
        "--bind-address=0.0.0.0",
        "--secure-port=443",
        # So that another release can be started beside it.
        "--permit-port-sharing=true",
        f"--advertise-address={NODE_ADDRESS}",
        f"--tls-cert-file={pki / 'apiserver.crt'}",
        f"--tls-private-key-file={pki / 'apiserver.key'}",
        f"--client-ca-file={pki / 'ca.crt'}",
        f"--kubelet-client-certificate={pki / 'apiserver-kubelet-client.crt'}",
        f"--kubelet-client-key={pki / 'apiserver-kubelet-client.key'}",
        f"--kubelet-certificate-authority={pki / 'ca.crt'}",
        "--kubelet-preferred-address-types=InternalIP",
        f"--requestheader-client-ca-file={pki / 'ca.crt'}",
        "--requestheader-allowed-names=front-proxy",
        "--requestheader-username-headers=X-Remote-User",
        "--requestheader-group-headers=X-Remote-Group",
        "--requestheader-extra-headers-prefix=X-Remote-Extra-",
        f"--proxy-client-cert-file={pki / 'front-proxy.crt'}",
        f"--proxy-client-key-file={pki / 'front-proxy.key'}",
        "--service-account-issuer=https://kubernetes.default.svc.cluster.local",
        f"--service-account-key-file={pki / 'sa.pub'}",
        f"--service-account-signing-key-file={pki / 'sa.key'}",
        f"--service-cluster-ip-range={SERVICE_RANGE}",
        # No kube-proxy runs: it calls webhooks at the addresses of their pods.
        "--enable-aggregator-routing=true",
        "--authorization-mode=Node,RBAC",
        "--enable-admission-plugins=NodeRestriction",
        "--allow-privileged=true",
    ]
