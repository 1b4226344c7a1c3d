"""``dra-driver bench allocator`` on a small inventory."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from dra_driver.cli.main import main

DRIVER = "gpu.example.com"


def files(folder: Path) -> dict[str, str]:
    def slice_of(node: str) -> dict[str, Any]:
        devices = [{"name": f"gpu-{i}", "capacity": {"memory": {"value": "40Gi"}}} for i in range(2)]
        return {
            "metadata": {"name": node},
            "spec": {
                "driver": DRIVER,
                "nodeName": node,
                "pool": {"name": node, "generation": 1, "resourceSliceCount": 1},
                "devices": devices,
            },
        }

    def claim(count: int) -> dict[str, Any]:
        request = {"deviceClassName": "gpu", "allocationMode": "ExactCount", "count": count}
        return {
            "metadata": {"name": "c", "namespace": "default", "uid": "u"},
            "spec": {"devices": {"requests": [{"name": "r", "exactly": request}]}},
        }

    nodes = ("n1", "n2")
    content = {
        "inventory": {
            "nodes": [{"metadata": {"name": n}} for n in nodes],
            "slices": [slice_of(n) for n in nodes],
        },
        "workload": {
            "classes": [{"metadata": {"name": "gpu"}, "spec": {}}],
            "features": {},
            "workloads": {"one": {"claim": claim(1)}, "many": {"claim": claim(3)}},
        },
        "fill": [{"driver": DRIVER, "pool": "n1", "device": "gpu-0"}],
        "full": [{"driver": DRIVER, "pool": n, "device": f"gpu-{i}"} for n in nodes for i in range(2)],
    }
    paths = {}
    for name, value in content.items():
        path = folder / f"{name}.json"
        path.write_text(json.dumps(value))
        paths[name] = str(path)
    return paths


def bench(paths: dict[str, str], *more: str, name: str = "one") -> int:
    source = ["--inventory", paths["inventory"], "--workload", paths["workload"], "--name", name]
    return main(["bench", "allocator", *source, "--claims", "6", *more])


@pytest.mark.parametrize("strategy", ["best-fit", "first-fit"])
@pytest.mark.parametrize("commit", [False, True])
def test_claims_are_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], strategy: str, commit: bool
) -> None:
    paths = files(tmp_path)
    more = ["--fill", paths["fill"], "--strategy", strategy, *(["--commit"] if commit else [])]
    assert bench(paths, *more) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["name"] == "one"
    assert result["claims"] == 6
    # With --commit the fourth finds the three free GPUs taken, and everything is given back.
    assert result["allocated"] == (5 if commit else 6)
    assert result["claims_per_second"] > 0


def test_yaml_holds_the_same_as_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = files(tmp_path)
    assert bench(paths) == 0
    fields = set(json.loads(capsys.readouterr().out))
    assert bench(paths, "-o", "yaml") == 0
    assert set(yaml.safe_load(capsys.readouterr().out)) == fields


def test_what_does_not_fit_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = files(tmp_path)
    assert bench(paths, name="many") == 0
    assert json.loads(capsys.readouterr().out)["allocated"] == 0
    assert bench(paths, "--fill", paths["full"]) == 0
    assert json.loads(capsys.readouterr().out)["allocated"] == 0


def test_bad_usage_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = files(tmp_path)
    assert bench(paths, name="other") in (1, 2)
    assert "no workload 'other'; there are: many, one" in capsys.readouterr().err
    assert bench({**paths, "inventory": str(tmp_path / "none")}) in (1, 2)
    assert "No such file" in capsys.readouterr().err
    Path(paths["workload"]).write_text("{")
    assert bench(paths) in (1, 2)
    assert "not JSON" in capsys.readouterr().err
