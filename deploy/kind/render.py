"""The driver's manifests for a kind cluster, on stdout: an image that nobody can pull, simulated devices."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "e2e"))

from local.manifests import adapt, load  # noqa: E402 - the suite's folder is no package


def main() -> None:
    """Prints the manifests of ``deploy/manifests``, adapted as those of the suite's local cluster are."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--image", required=True)
    parser.add_argument("--backend", required=True, action="append")
    parser.add_argument("--without", default=[], action="append", metavar="KIND", help="leave out this kind")
    options = parser.parse_args()
    loaded = [d for d in load(ROOT / "deploy" / "manifests") if d["kind"] not in options.without]
    documents = adapt(loaded, options.image, options.backend)
    yaml.safe_dump_all(documents, sys.stdout, sort_keys=False)


if __name__ == "__main__":
    main()
