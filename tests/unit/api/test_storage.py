"""Storage objects as clusters write them."""

from __future__ import annotations

import pytest

from dra_driver.api import codec
from dra_driver.api.storage import CSINode


@pytest.mark.parametrize("spec", ['{"drivers": null}', '{"drivers": []}', "{}"])
def test_a_node_without_csi_drivers_has_no_limits(spec: str) -> None:
    node = codec.decode(CSINode, f'{{"metadata": {{"name": "n"}}, "spec": {spec}}}'.encode())
    assert node.limited == ()
    assert node.limit("any.example.com") is None
