"""The cluster that the end-to-end suite runs against: ``CLUSTER=embedded`` (default) or ``CLUSTER=existing``.

An existing cluster is reached through KUBECONFIG; the driver must be installed there. The assertions are the
same: they look at API objects, and at what a container sees where the cluster can tell. ``E2E_IMAGE``
replaces the image of all pods.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from e2e_support import Background, Cluster, open_cluster


@pytest.fixture(scope="session")
def background() -> Iterator[Background]:
    made = Background()
    try:
        yield made
    finally:
        made.close()


@pytest.fixture(scope="session")
def cluster(background: Background) -> Iterator[Cluster]:
    kind = os.environ.get("CLUSTER") or "embedded"
    if kind not in ("embedded", "existing"):
        pytest.fail(
            f"CLUSTER={kind}: this suite itself knows embedded and existing (KUBECONFIG)", pytrace=False
        )
    manager = open_cluster(kind)
    made = background.run(manager.__aenter__())
    try:
        yield made
    finally:
        background.run(manager.__aexit__(None, None, None))
