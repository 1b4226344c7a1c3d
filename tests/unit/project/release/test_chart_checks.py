"""What the chart refuses is what the driver's programs would refuse at start: one source for both."""

from __future__ import annotations

import itertools
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from dra_driver.discovery.built_in import ARGUMENTS, BUILT_IN
from dra_driver.discovery.simulated.profile import built_in_profiles
from dra_driver.errors import ConfigurationError
from dra_driver.fleet.request_shapes import FORM, parse_shapes

CHECKS: dict[str, Any] = yaml.safe_load(
    (Path(__file__).parents[4] / "deploy/helm/dra-driver/files/checks.yaml").read_text()
)
COUNTS = ("", "1", "0", "007", "-1", "x")
KINDS = ("gpu", "mig", "nvidia", "big.example.com", "big", "gpu.", "")
WORDS = (
    "",
    "model H100",
    "model",
    "model a/b",
    "profile 1g.10gb+me",
    "memory 32Gi",
    "memory 0",
    "memory 0Gi",
    "memory 1.5e3",
    "memory .5Gi",
    "memory -1",
    "memory 1GiB",
    "memory",
    "same nvlinkGroup",
    "same a.example.com/x",
    "same 1x",
    "same a same b",
    "memory 1Gi  model  L4",
    "and more",
)


def test_the_chart_knows_every_backend_and_profile() -> None:
    assert CHECKS["backends"] == {name: list(arguments) for name, arguments in ARGUMENTS.items()}
    assert set(CHECKS["backends"]) | {"generic", "simulated"} == set(BUILT_IN)
    assert CHECKS["profiles"] == list(built_in_profiles())
    assert CHECKS["shapes"]["form"] == FORM


@pytest.mark.parametrize("count", COUNTS)
def test_the_chart_takes_the_shapes_that_the_controller_takes(count: str) -> None:
    for kind, words in itertools.product(KINDS, WORDS):
        shape = " ".join(part for part in (count, kind, words) if part)
        try:
            understood = bool(parse_shapes([f"a={shape}"], "gpu.dra-driver.dev"))
        except ConfigurationError:
            understood = False
        assert bool(re.fullmatch(CHECKS["shapes"]["words"], shape)) == understood, shape
