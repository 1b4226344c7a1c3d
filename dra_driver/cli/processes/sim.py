"""``dra-driver sim``: parts of the embedded cluster alone."""

from __future__ import annotations

import argparse
import asyncio
import re
import signal
import sys
from pathlib import Path
from typing import Any

import yaml

from dra_driver.errors import ConfigurationError
from dra_driver.sim.apiserver import DEFAULT, RELEASES, ApiServer
from dra_driver.sim.assets import deploy_directory, read_plan
from dra_driver.sim.faults import FaultPlan

__all__ = ["add_arguments", "run"]


def _port(text: str) -> int:
    try:
        port = int(text)
    except ValueError:
        port = -1
    if not 0 <= port <= 65535:
        raise argparse.ArgumentTypeError(
            f"{text!r} is no port: give a number from 0 (any free port) to 65535"
        )
    return port


def _service(text: str) -> tuple[str, str]:
    found = re.fullmatch(r"([^/=]+/[^/=]+)=([^=]+:\d+)", text)
    if found is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form NAMESPACE/NAME=HOST:PORT")
    return found[1], found[2]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``dra-driver sim``."""
    parts = parser.add_subparsers(dest="part", metavar="PART", required=True)
    text = "the API server alone, with the driver's CRDs and DeviceClasses; runs until SIGTERM"
    server = parts.add_parser(
        "apiserver", help=text, description=text, formatter_class=parser.formatter_class
    )
    server.add_argument(
        "--port", type=_port, default=0, metavar="PORT", help="port on --host; 0 for any free one"
    )
    server.add_argument("--host", default="127.0.0.1", metavar="ADDRESS", help="address to listen on")
    server.add_argument(
        "--kubeconfig",
        type=Path,
        required=True,
        metavar="FILE",
        help="where to write a kubeconfig for kubectl",
    )
    server.add_argument(
        "--token", metavar="TOKEN", help="bearer token that every request must carry; default: none is needed"
    )
    server.add_argument(
        "--data",
        type=Path,
        metavar="FILE",
        help="keep the objects in this file, and start with those in it",
    )
    server.add_argument(
        "--service",
        type=_service,
        action="append",
        default=[],
        metavar="NAMESPACE/NAME=HOST:PORT",
        help="address behind the Service of an admission webhook, because no pods run here (repeatable)",
    )
    server.add_argument(
        "--kubernetes",
        choices=RELEASES,
        default=DEFAULT,
        help="release of Kubernetes whose API is served; default: %(default)s",
    )
    gates = "; ".join(f"{release}: {', '.join(known)}" for release, known in RELEASES.items())
    server.add_argument(
        "--feature-gate",
        action="append",
        default=[],
        metavar="NAME",
        help=f"turn on a feature gate that is off in that release by default (repeatable). {gates}",
    )
    server.add_argument(
        "--faults",
        metavar="FILE|TEXT",
        help="a file with faults, or statements such as 'error 429 10%% on patch; drop watches every 3s'; "
        "see docs/faults.md",
    )


def run(args: argparse.Namespace) -> int:
    """Run until SIGTERM or SIGINT."""
    return asyncio.run(_serve(args))


def _manifests() -> list[dict[str, Any]]:
    """Return our CustomResourceDefinitions and DeviceClasses."""
    folder = deploy_directory("manifests")
    found = []
    for path in [*sorted((folder / "crds").glob("*.yaml")), *sorted(folder.glob("*.yaml"))]:
        try:
            documents = list(yaml.safe_load_all(path.read_text()))
        except yaml.YAMLError as e:
            raise ConfigurationError(f"{path}: not YAML: {e}") from e
        found += [d for d in documents if d and d.get("kind") in ("CustomResourceDefinition", "DeviceClass")]
    return found


def _faults(given: str | None) -> FaultPlan | None:
    """Return the plan of ``--faults``.

    Raises:
        ConfigurationError: it cannot be read, or needs more than an API server.
    """
    if given is None:
        return None
    plan = read_plan(given, "--faults")
    beyond = plan.for_cluster()
    if beyond:
        raise ConfigurationError(
            f"--faults, in {str(beyond[0])!r}: there is only an API server here; 'dra-driver demo --faults' "
            "has controllers and nodes"
        )
    return plan


async def _serve(args: argparse.Namespace) -> int:
    server = ApiServer(
        token=args.token,
        faults=_faults(args.faults),
        services=dict(args.service),
        data=args.data,
        kubernetes=args.kubernetes,
        gates=args.feature_gate,
    )
    await server.install(_manifests())
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    await server.start(args.host, args.port)
    try:
        server.write_kubeconfig(args.kubeconfig)
        print(f"API server at {server.url}, kubeconfig {args.kubeconfig}", flush=True)
        await stop.wait()
    finally:
        await server.stop()
    print("API server stopped", file=sys.stderr)
    return 0
