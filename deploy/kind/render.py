"""The driver's manifests for a kind cluster, on stdout: an image that nobody can pull, simulated hardware."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "e2e"))

from local.manifests import adapt, load  # noqa: E402 - the suite's folder is no package
from local.node_files import NodeFiles  # noqa: E402


def main() -> None:
    """Prints the manifests of ``deploy``, adapted as those of the suite's local cluster are."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--image", required=True)
    parser.add_argument("--node-files", required=True, type=Path, metavar="DIR", help="on the node")
    options = parser.parse_args()
    # The webhook sets the gate there, as an installation by Helm has it.
    documents = load(ROOT / "deploy", policies=False)
    yaml.safe_dump_all(
        adapt(documents, options.image, NodeFiles(options.node_files)), sys.stdout, sort_keys=False
    )


if __name__ == "__main__":
    main()
