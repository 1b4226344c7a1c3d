"""What a node demands of pods."""

from __future__ import annotations

import pytest

from dra_driver.api.core import Taint, Toleration
from dra_driver.nodefit import tolerates


@pytest.mark.parametrize(
    ("toleration", "covers"),
    [
        (Toleration(operator="Exists"), True),
        (Toleration(key="k", operator="Exists"), True),
        (Toleration(key="k", value="v"), True),
        (Toleration(key="k", value="w"), False),
        (Toleration(key="k", value="v", effect="NoExecute"), False),
        (Toleration(), False),
        (Toleration(key="k", value="v", operator=""), True),
        (Toleration(key="k", value="v", operator="Gt"), False),
    ],
)
def test_tolerations(toleration: Toleration, covers: bool) -> None:
    assert tolerates([toleration], Taint(key="k", value="v", effect="NoSchedule")) is covers
