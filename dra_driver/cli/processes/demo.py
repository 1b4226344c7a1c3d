"""``dra-driver demo``: the embedded cluster from end to end."""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import functools
import signal
import sys
import tempfile
from pathlib import Path
from typing import Final

from dra_driver.cli import common
from dra_driver.discovery import registry
from dra_driver.discovery.simulated import profile as simulated_profile
from dra_driver.errors import ConfigurationError
from dra_driver.sim import assets, container_runtime
from dra_driver.sim.cluster_config import NodeConfig
from dra_driver.sim.demo.backends import THIS_COMPUTER, further_backend
from dra_driver.sim.demo.cluster import DEFAULT_NODES, demo_cluster
from dra_driver.sim.demo.demo import Demo, DemoOptions

DEFAULT_PORT: Final = 8090
"""Of the page."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags."""
    # The demo reports its progress in lines of its own.
    parser.set_defaults(log_level="warning")
    parser.add_argument(
        "--nodes",
        type=common.whole_number,
        metavar="N",
        help=f"number of simulated nodes; default: {DEFAULT_NODES}, of kinds that show the examples best",
    )
    parser.add_argument(
        "--profile",
        metavar="NAME",
        help="profile of all nodes, which may have less than the examples ask for: a built-in one "
        f"({', '.join(simulated_profile.built_in_profiles())}) or a YAML file; default: different kinds",
    )
    parser.add_argument(
        "--keep", action="store_true", help="keep the cluster running for kubectl until Ctrl-C or SIGTERM"
    )
    parser.add_argument(
        "--backend",
        action="append",
        default=[],
        metavar="NAME[=ARG]",
        help="an additional backend, such as your own; a pod gets one of its devices. Devices of this "
        "computer are on a node of their own, simulated ones on all nodes. Without ARG, a third party's "
        "backend shows simulated devices if it has any (repeatable)",
    )
    parser.add_argument(
        "--web",
        type=_port,
        nargs="?",
        const=DEFAULT_PORT,
        metavar="PORT",
        help="serve the page that shows the fleet at http://127.0.0.1:PORT/, and keep the cluster running; "
        f"without PORT: {DEFAULT_PORT}",
    )
    parser.add_argument(
        "--kubeconfig", type=Path, metavar="FILE", help="where to write the kubeconfig of the cluster"
    )
    parser.add_argument(
        "--examples", type=Path, metavar="DIR", help="manifests to apply; default: deploy/examples"
    )
    parser.add_argument(
        "--faults",
        metavar="FILE|TEXT",
        help="faults that begin when all devices are published: a file, or statements such as 'kill plugin "
        "node2 at 1s for 2s'; see docs/faults.md",
    )
    parser.add_argument(
        "--runtime",
        action="store_true",
        help="run each example's container with runc, crun or podman (needs root)",
    )
    parser.add_argument(
        "-v", "--verbose", action="store_true", help="also show a table of what each container sees"
    )
    common.add_output_argument(parser)


def _port(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 65535:
        raise argparse.ArgumentTypeError(f"{text!r}: must be a port from 1 to 65535")
    return int(text)


def run(args: argparse.Namespace) -> int:
    """Run the demo.

    Returns:
        0 if every example pod got what it expects, else 1; 130 if it was interrupted.

    Raises:
        ConfigurationError: a flag is wrong, or there is no container runtime for ``--runtime``.
    """
    # A short path: agents are told it by their command lines.
    with tempfile.TemporaryDirectory(prefix="dra-backends-") as folder:
        demo = Demo(demo_options(args, Path(folder)))
        if args.output != "table":
            # Data alone is on stdout.
            demo.out = sys.stderr
            demo.publish = functools.partial(common.print_data, form=args.output)
        return asyncio.run(_main(demo))


def demo_options(args: argparse.Namespace, folder: Path) -> DemoOptions:
    """Return the options of the run.

    Args:
        args: of the command line.
        folder: an empty one, for the files of devices that do not exist.

    Raises:
        ConfigurationError: a flag is wrong, or there is no container runtime for ``--runtime``.
    """
    if args.profile is not None:
        simulated_profile.load(args.profile)
    cluster = demo_cluster(args.nodes, args.profile, args.kubeconfig)
    known = registry.backend_names()
    unknown = [spec for spec in args.backend if spec.partition("=")[0] not in known]
    if unknown:
        raise ConfigurationError(f"--backend {unknown[0]}: no such backend; there are {', '.join(known)}")
    backends = []
    hardware_node = f"node{len(cluster.nodes) + 1}"
    for number, spec in enumerate(args.backend):
        own = folder / str(number)
        own.mkdir()
        backends.append(
            further_backend(
                spec,
                own,
                driver=cluster.driver_name,
                node="node1",
                hardware_node=hardware_node,
                number=number,
            )
        )
    hardware = tuple(b.spec for b in backends if b.devices and not b.simulated)
    if hardware:
        node = NodeConfig(backends=hardware, taints=(THIS_COMPUTER,))
        cluster = dataclasses.replace(cluster, profiles=(*cluster.profiles, node))
    cluster = dataclasses.replace(
        cluster,
        plugin_flags=tuple(f"--backend={b.spec}" for b in backends if b.devices and b.simulated),
        controller_flags=("--web-port", str(args.web)) if args.web else (),
    )
    return DemoOptions(
        cluster=cluster,
        examples=args.examples or assets.deploy_directory("examples"),
        keep=args.keep or bool(args.web),
        web=args.web or 0,
        faults=assets.read_plan(args.faults, "--faults") if args.faults is not None else None,
        runtime=container_runtime.find_runtime() if args.runtime else None,
        backends=backends,
        verbose=args.verbose,
    )


async def _main(demo: Demo) -> int:
    task = asyncio.current_task()
    assert task is not None
    interrupted: list[int] = []

    def stop(number: int) -> None:
        interrupted.append(number)
        task.cancel()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop, int(number))
    try:
        return await demo.run()
    except asyncio.CancelledError:
        if demo.kept is not None:
            return demo.kept
        return 128 + interrupted[0] if interrupted else 1
