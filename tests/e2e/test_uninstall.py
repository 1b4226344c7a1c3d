"""Taking the driver off leaves nothing on nodes and nothing that blocks anybody in the cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from e2e_support import EXAMPLES, clear, eventually

from dra_driver.api.core import NODES
from dra_driver.api.names import DEFAULT_DRIVER_NAME, RDMA_DRIVER_NAME
from dra_driver.api.own.inventory import DEVICE_INVENTORIES
from dra_driver.api.resource import RESOURCE_CLAIMS, RESOURCE_SLICES
from dra_driver.errors import DraError

if TYPE_CHECKING:
    from e2e_support import Background, Cluster

pytestmark = [pytest.mark.e2e, pytest.mark.last]

OURS = "dra-driver.dev"
DRIVERS = (DEFAULT_DRIVER_NAME, RDMA_DRIVER_NAME)


def test_nothing_is_left(background: Background, cluster: Cluster) -> None:
    if cluster.actions is None:
        pytest.skip("only a cluster of its own is the suite's to take the driver off")
    left: list[str] = []

    async def nothing() -> bool:
        slices = (await cluster.api.list(RESOURCE_SLICES)).items
        claims = (await cluster.api.list(RESOURCE_CLAIMS)).items
        nodes = (await cluster.api.list(NODES)).items
        left[:] = [f"slice {s.metadata.name}" for s in slices if s.spec.driver in DRIVERS]
        left.extend(f"allocation of {c.key}" for c in claims if c.status.allocation is not None)
        left.extend(f"finalizer of {c.key}" for c in claims if c.metadata.finalizers)
        left.extend(f"taint of {n.metadata.name}" for n in nodes for t in n.spec.taints if OURS in t.key)
        # Labels of nodes may stay, as docs/installation.md says: whether the controller still sees the
        # inventories go is a matter of which of both is deleted first.
        return not left

    async def scenario() -> None:
        assert cluster.actions is not None
        # Workloads go first, as the documentation says: without the node agent their claims cannot be undone.
        for namespace in sorted({e.key.namespace for e in EXAMPLES}):
            await clear(cluster, namespace)
        files = await cluster.actions.uninstall()
        try:
            # The kubelet takes the slices of a driver that is gone away after 30 s.
            await eventually("nothing to be left", nothing)
        except AssertionError:
            pytest.fail(f"left behind: {', '.join(left)}")
        assert not files, ", ".join(files)
        try:
            inventories = (await cluster.api.list(DEVICE_INVENTORIES)).items
        except DraError:
            return  # the kind itself is gone
        assert not any(i.status.registration.registered for i in inventories)

    background.run(scenario())
