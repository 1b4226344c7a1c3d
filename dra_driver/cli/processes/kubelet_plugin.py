"""``dra-driver kubelet-plugin``: the node agent."""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
import threading
import traceback
from pathlib import Path

from dra_driver.api.names import DEFAULT_DRIVER_NAME
from dra_driver.api.own.policy import PUBLISH, WITHHOLD
from dra_driver.api.quantity import Quantity
from dra_driver.cli import common
from dra_driver.errors import DraError, InvalidQuantity
from kubelet_plugin import app as plugin
from kubelet_plugin.config import Configuration
from kubelet_plugin.core import ending

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of the subcommand."""
    _add_node(parser.add_argument_group("node"))
    _add_directories(parser.add_argument_group("files and sockets of the node"))
    _add_discovery(parser.add_argument_group("discovery"))
    _add_nvidia(parser.add_argument_group("NVIDIA's GPUs"))
    _add_containers(parser.add_argument_group("what containers get"))
    _add_publication(parser.add_argument_group("publication"))
    _add_http(parser.add_argument_group("HTTP"))


def _bytes(text: str) -> int:
    try:
        amount = Quantity.parse(text).value()
    except InvalidQuantity as e:
        raise argparse.ArgumentTypeError(str(e)) from e
    if not 1 << 20 <= amount <= 1 << 44:
        raise argparse.ArgumentTypeError(f"{text}: expected from 1Mi to 16Ti")
    return amount


def _add_node(parser: argparse._ActionsContainer) -> None:
    parser.add_argument(
        "--node-name", required=True, metavar="NAME", help="name of the Node; in a pod: spec.nodeName"
    )
    parser.add_argument(
        "--kubeconfig",
        type=Path,
        metavar="FILE",
        help="kubeconfig; default: the KUBECONFIG variable, then the pod's service account",
    )
    parser.add_argument(
        "--driver-name", default=DEFAULT_DRIVER_NAME, metavar="NAME", help="driver name in ResourceSlices"
    )
    parser.add_argument(
        "--instance-id",
        default="",
        metavar="ID",
        help="part of the socket's name that distinguishes two plugins on one node during an update; in a "
        "pod: metadata.uid",
    )


def _add_directories(parser: argparse._ActionsContainer) -> None:
    parser.add_argument(
        "--kubelet-dir",
        type=Path,
        default=Path("/var/lib/kubelet"),
        metavar="DIR",
        help="the kubelet's --root-dir",
    )
    parser.add_argument(
        "--plugins-dir",
        type=Path,
        metavar="DIR",
        help="directory of the plugin's socket; default: plugins below --kubelet-dir",
    )
    parser.add_argument(
        "--registry-dir",
        type=Path,
        metavar="DIR",
        help="directory in which the kubelet finds plugins; default: plugins_registry below --kubelet-dir",
    )
    parser.add_argument(
        "--pod-resources-socket",
        type=Path,
        metavar="PATH",
        help="the kubelet's socket that lists the claims of pods; default: pod-resources/kubelet.sock below "
        "--kubelet-dir",
    )
    parser.add_argument(
        "--cdi-dir",
        type=Path,
        default=Path("/var/run/cdi"),
        metavar="DIR",
        help="directory from which the container runtime reads CDI documents",
    )
    parser.add_argument(
        "--state-dir",
        type=Path,
        metavar="DIR",
        help="directory of the checkpoint; default: the driver's name below --plugins-dir",
    )
    parser.add_argument("--sysfs-root", type=Path, default=Path("/sys"), metavar="DIR", help="mount of sysfs")
    parser.add_argument(
        "--dev-root", type=Path, default=Path("/dev"), metavar="DIR", help="directory of device nodes"
    )
    parser.add_argument(
        "--procfs-root",
        type=Path,
        metavar="DIR",
        default=Path("/proc"),
        help="mount of the host's procfs, for the boot ID and for processes that have devices open",
    )
    parser.add_argument(
        "--cgroup-root",
        type=Path,
        metavar="DIR",
        default=Path("/sys/fs/cgroup"),
        help="mount of the host's cgroup file system; a claim keeps its devices while its pods have "
        "processes there",
    )


def _add_discovery(parser: argparse._ActionsContainer) -> None:
    parser.add_argument(
        "--backend",
        action="append",
        default=[],
        metavar="NAME[=ARG]",
        help="backend that discovers devices, for example nvml or simulated=dgx-h100 (repeatable); "
        "default: every built-in backend that finds its hardware",
    )
    parser.add_argument(
        "--rescan-interval",
        type=float,
        default=60.0,
        metavar="SECONDS",
        help="time between two scans of the hardware",
    )
    parser.add_argument(
        "--scan-deadline",
        type=float,
        default=60.0,
        metavar="SECONDS",
        help="time after which a driver or library that does not answer counts as hanging; its devices then "
        "get no new claims, and their health is unknown",
    )
    parser.add_argument(
        "--busy-threshold",
        type=float,
        default=5.0,
        metavar="PERCENT",
        help="load at which a device counts as busy; equally good idle devices are allocated first. Below "
        "half of it, the device is idle",
    )
    parser.add_argument(
        "--busy-seconds",
        type=float,
        default=60.0,
        metavar="SECONDS",
        help="period over which the load is averaged, and for which it must last before it is reported; at "
        "least 60",
    )


def _add_nvidia(parser: argparse._ActionsContainer) -> None:
    common.add_driver_root_arguments(parser)
    parser.add_argument(
        "--nvidia-cdi-hook",
        default="",
        metavar="PATH",
        help="NVIDIA's program nvidia-cdi-hook on the host; default: the usual places. Containers also "
        "start without it",
    )
    parser.add_argument(
        "--nvidia-smi",
        default="nvidia-smi",
        metavar="PATH",
        help="program that sets time slices; a path or a name in PATH",
    )
    parser.add_argument(
        "--mps-control",
        default="nvidia-cuda-mps-control",
        metavar="PATH",
        help="NVIDIA's MPS control daemon; without it, there is no MPS",
    )
    parser.add_argument(
        "--mps-launcher",
        choices=("auto", "systemd", "session"),
        default="auto",
        help="how MPS daemons run, which outlive the plugin: as systemd units, or in sessions of their own",
    )
    parser.add_argument(
        "--mps-shared-memory",
        type=_bytes,
        default="8Gi",
        metavar="AMOUNT",
        help="maximum size of /dev/shm for all containers together that share one GPU by MPS",
    )
    parser.add_argument(
        "--destroy-unowned-partitions",
        action=argparse.BooleanOptionalAction,
        default=False,
        help="at the start, destroy MIG instances that no claim holds and no administrator owns: by a label "
        "of NVIDIA's MIG manager on the Node, or by the file owned-partitions in the state directory",
    )


def _add_containers(parser: argparse._ActionsContainer) -> None:
    parser.add_argument(
        "--device-metadata",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="give containers files that describe their devices (KEP-5304)",
    )
    parser.add_argument(
        "--passthrough",
        action=argparse.BooleanOptionalAction,
        default=False,
        help="give claims whole GPUs as bare PCI functions (GpuConfig driver: vfio-pci), for virtual "
        "machines; needs sysfs writable, the host's processes visible, and the module vfio-pci",
    )
    parser.add_argument(
        "--passthrough-class-namespace",
        action="append",
        default=[],
        metavar="NAMESPACE",
        help="with --passthrough: namespace whose claims may use it if the parameters of their DeviceClass "
        "request it (repeatable); default: every namespace",
    )
    parser.add_argument(
        "--passthrough-claim-namespace",
        action="append",
        default=[],
        metavar="NAMESPACE",
        help="with --passthrough: namespace whose claims may request it in their own parameters; * for all "
        "(repeatable); default: none",
    )


def _add_publication(parser: argparse._ActionsContainer) -> None:
    parser.add_argument(
        "--publish",
        choices=("controller", "node"),
        default="controller",
        help="publisher of the node's ResourceSlices: the driver's controller, or this agent if there is no "
        "controller (whole devices, allocated by kube-scheduler; needs deploy/optional/publish-node.yaml)",
    )
    parser.add_argument(
        "--beside-device-plugin",
        choices=(WITHHOLD, PUBLISH),
        default=WITHHOLD,
        help="with --publish=node: whether to publish devices that a device plugin of the node seems to "
        "hand out (status.capacity counts nvidia.com/gpu, for example); choose publish only if it does not "
        "hand them out, otherwise two pods get one device",
    )
    parser.add_argument(
        "--beside-other-driver",
        choices=(WITHHOLD, PUBLISH),
        default=WITHHOLD,
        help="with --publish=node: whether to publish devices that another DRA driver publishes for the "
        "node (with the same PCI address or UUID); choose publish only if one of the two never hands them "
        "out",
    )


def _add_http(parser: argparse._ActionsContainer) -> None:
    parser.add_argument(
        "--metrics-address",
        default="",
        metavar="HOST:PORT",
        help="address of /metrics, /healthz, /readyz and /debug/state, for example 127.0.0.1:9400 or :9400; "
        "/metrics and /debug/state contain names of claims and pods; default: not served",
    )
    common.add_http_authorization_argument(parser, "/metrics and /debug/state")


def run(args: argparse.Namespace) -> int:
    """Run the node agent until SIGTERM or SIGINT.

    Returns:
        0 after an orderly shutdown.

    Raises:
        ConfigurationError: the flags or what they name cannot be used.
        DraError: the agent cannot continue.
    """
    configuration = Configuration(
        node_name=args.node_name,
        driver_name=args.driver_name,
        kubeconfig=args.kubeconfig,
        plugins_dir=args.plugins_dir or args.kubelet_dir / "plugins",
        registry_dir=args.registry_dir or args.kubelet_dir / "plugins_registry",
        pod_resources_socket=args.pod_resources_socket or args.kubelet_dir / "pod-resources" / "kubelet.sock",
        cdi_dir=args.cdi_dir,
        state_dir=args.state_dir,
        backends=tuple(args.backend),
        sysfs_root=args.sysfs_root,
        dev_root=args.dev_root,
        procfs_root=args.procfs_root,
        cgroup_root=args.cgroup_root,
        instance_id=args.instance_id,
        rescan_seconds=args.rescan_interval,
        scan_deadline=args.scan_deadline,
        busy_percent=args.busy_threshold,
        busy_seconds=args.busy_seconds,
        host_root=args.host_root,
        nvidia_driver_root=args.nvidia_driver_root,
        nvidia_cdi_hook=args.nvidia_cdi_hook,
        metrics_address=args.metrics_address,
        http_authorization=args.http_authorization,
        device_metadata=args.device_metadata,
        nvidia_smi=args.nvidia_smi,
        mps_control=args.mps_control,
        mps_launcher=args.mps_launcher,
        mps_shared_memory=args.mps_shared_memory,
        passthrough=args.passthrough,
        destroy_unowned_partitions=args.destroy_unowned_partitions,
        passthrough_class_namespaces=tuple(args.passthrough_class_namespace),
        passthrough_claim_namespaces=tuple(args.passthrough_claim_namespace),
        publish=args.publish,
        beside_device_plugin=args.beside_device_plugin,
        beside_other_driver=args.beside_other_driver,
    )
    timers: list[threading.Timer] = []
    try:
        asyncio.run(_main(configuration, timers))
    except Exception as e:
        if not ending.hang():
            raise
        # Said here, because after this nothing runs any more.
        if isinstance(e, DraError):
            print(f"dra-driver kubelet-plugin: {e}", file=sys.stderr)
        else:
            traceback.print_exception(e)
        return ending.leave(1)
    finally:
        for timer in timers:
            timer.cancel()
    return ending.leave(0)


async def _main(configuration: Configuration, timers: list[threading.Timer]) -> None:
    stop = asyncio.Event()

    def end() -> None:
        if not stop.is_set():
            timers.append(ending.end_within(ending.GRACE_SECONDS))
        stop.set()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, end)
    await plugin.run(configuration, stop)
