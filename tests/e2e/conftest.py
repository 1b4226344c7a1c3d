"""The cluster that the end-to-end suite runs against: CLUSTER=embedded (default), local or existing.

An existing cluster is reached through KUBECONFIG; the driver must be installed there, and at least one node
labelled ``dra-driver.dev/examples=true`` must have the hardware of the examples. ``local`` is set by the
harness that starts such a cluster (``python -m local``). The assertions are the same: they look at API
objects, and at what can be told of nodes and containers. ``E2E_IMAGE`` replaces the image of all pods. The
embedded cluster serves the API of the release ``KUBERNETES``, one later than the default with all its gates.

A test says by ``pytest.mark.needs("device taints")`` what it needs of the API server, by the names of
``capabilities.CAPABILITIES``, and is skipped where that is missing. ``E2E_RECORD=FILE`` writes what the
server has, and what became of the tests (``version_table``).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent / "harness"))

import capabilities
import version_table
from e2e_support import Background, Cluster, open_cluster, set_up

KINDS = ("embedded", "existing", "local")
RECORDER = version_table.Recorder(os.environ.get("E2E_RECORD", ""))


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
        if RECORDER.wanted:
            RECORDER.served(background.run(version_table.version(made.api)), made.served)
        yield made
    finally:
        background.run(manager.__aexit__(None, None, None))


@pytest.fixture(scope="module", autouse=True)
def module_needs(request: pytest.FixtureRequest) -> None:
    """Skip a module before anything is set up for it, where it needs what the API server does not have."""
    _skip_without(request)


@pytest.fixture(autouse=True)
def test_needs(request: pytest.FixtureRequest, module_needs: None) -> None:
    """Skip a test that needs what the API server does not have."""
    _skip_without(request)


def _skip_without(request: pytest.FixtureRequest) -> None:
    needed = [name for mark in request.node.iter_markers("needs") for name in mark.args]
    if needed:
        served = request.getfixturevalue("cluster").served
        if missing := [name for name in capabilities.CAPABILITIES if name in needed and not served[name]]:
            pytest.skip(capabilities.reason(missing))


def pytest_configure(config: pytest.Config) -> None:
    if RECORDER.wanted:
        config.pluginmanager.register(RECORDER)
