"""The cluster that the end-to-end suite runs against: CLUSTER=embedded (default), local or existing.

An existing cluster is reached through KUBECONFIG; the driver must be installed there, and at least one node
labelled ``dra-driver.dev/examples=true`` must have the hardware of the examples. ``local`` is set by the
harness that starts such a cluster (``python -m local``). The assertions are the same: they look at API
objects, and at what can be told of nodes and containers. ``E2E_IMAGE`` replaces the image of all pods.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent / "harness"))

from e2e_support import Background, Cluster, open_cluster, set_up

KINDS = ("embedded", "existing", "local")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if "E2E_TEST_DRIVER" not in os.environ:
        # Few have built it, so these tests are not skipped in every run, they are not there.
        items[:] = [item for item in items if "test_driver" not in getattr(item, "fixturenames", ())]
    items.sort(key=lambda item: item.get_closest_marker("last") is not None)


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
    if kind not in KINDS:
        pytest.fail(
            f"CLUSTER={kind}: this suite itself knows embedded, and existing (KUBECONFIG)", pytrace=False
        )
    manager = open_cluster(kind)
    made = background.run(manager.__aenter__())
    try:
        background.run(set_up(made))
        yield made
    finally:
        background.run(manager.__aexit__(None, None, None))
