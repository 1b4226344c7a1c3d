"""The whole controller with lending off, and with lending on in a cluster where it is not installed."""

from __future__ import annotations

import pytest
import virtual_time
from controller_harness import claim, cluster_of, controlling, pod, request
from lending_world import POOL, process, world_of

from controller.config import LendingMode


@pytest.mark.parametrize("mode", list(LendingMode))
def test_claims_are_allocated_in_every_mode_and_only_where_it_is_on_the_object_is_read(
    mode: LendingMode,
) -> None:
    async def main() -> None:
        cluster = cluster_of(n1=(40,))
        claim(cluster, "c", request())
        pod(cluster, "p", "c")
        async with controlling(cluster, lending=mode) as h:
            await h.quiet()
            assert h.devices("c") == [("n1", "gpu-0")]
            registry = h.controller.metrics.registry
            counted = registry.get_sample_value("dra_driver_controller_loans", {"state": "lent"})
        assert ("ConfigMap" in {call.kind for call in cluster.calls}) is (mode is not LendingMode.OFF)
        assert counted == (None if mode is LendingMode.OFF else 0.0)

    virtual_time.run(main())


@pytest.mark.parametrize("mode", LendingMode)
def test_counters_are_withheld_only_while_devices_are_lent(mode: LendingMode) -> None:
    async def main() -> None:
        async with process(world_of(), mode=mode) as p:
            assert p.loans.seen(POOL).withholds_counters == (mode is LendingMode.ON)

    virtual_time.run(main())
