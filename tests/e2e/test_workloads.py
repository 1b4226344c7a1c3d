"""The workloads that people copy (``deploy/workloads``) get what their annotations promise."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from capabilities import needed_by, reason
from e2e_support import IMAGE, clear, eventually, gpu_settings
from workload_pods import WORKLOADS, manifests, objects_of

from dra_driver.sim.demo import checks, examples

if TYPE_CHECKING:
    from e2e_support import Background, Cluster

pytestmark = pytest.mark.e2e

NAMESPACE = "dra-workloads"
COMMAND = "env | grep -E '^(DRA|CUDA)_' | sort; sleep 3600"


@pytest.mark.parametrize("folder", manifests(), ids=lambda folder: folder.name)
def test_a_workload_gets_what_it_promises(
    background: Background, cluster: Cluster, folder: Path, tmp_path: Path
) -> None:
    expanded: list[dict[str, Any]] = [yaml.safe_load((WORKLOADS / "namespace.yaml").read_text())]
    expanded += objects_of(folder, IMAGE, COMMAND)
    (tmp_path / "all.yaml").write_text(yaml.safe_dump_all(expanded))
    objects, expected = examples.load_manifests(tmp_path)
    assert expected

    async def run() -> list[str]:
        if missing := [name for name in needed_by(*objects) if not cluster.served[name]]:
            pytest.skip(reason(missing))
        without_place = await examples.placeless(cluster.api, expected)
        if without_place:
            pytest.skip(next(iter(without_place.values())))
        await examples.apply(cluster.api, objects)
        try:

            async def settled() -> bool:
                return all(examples.settled(o) for o in await examples.observe(cluster.api, expected))

            await eventually(f"the pods of {folder.name}", settled)
            outcomes = await examples.observe(cluster.api, expected)
            for outcome in outcomes:
                if outcome.pod is not None and outcome.phase == "Running":
                    outcome.containers = await cluster.containers(outcome.pod)
                    if cluster.actions is not None:
                        outcome.gpu_settings = gpu_settings(cluster, outcome.node)
            found = [f"{o.example.key}: {f}" for o in outcomes for f in checks.verify(o, outcomes)]
            return found + [str(item) for item in checks.twice_allocated(outcomes)]
        finally:
            await clear(cluster, NAMESPACE)

    assert background.run(run()) == []
