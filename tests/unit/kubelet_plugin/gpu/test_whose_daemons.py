"""Whose sharing daemons a node has: those that its backends bring, else those of the vendor's tools."""

from __future__ import annotations

from pathlib import Path

import pytest
from node_agent import Backend, configuration

from dra_driver.discovery.simulated.backend import SimulatedBackend
from dra_driver.discovery.simulated.daemons import SimulatedDaemons
from dra_driver.ports import DeviceBackend
from kubelet_plugin.gpu.mps import MpsDaemons
from kubelet_plugin.gpu.setup import set_up


class Real(Backend):
    """Devices that exist; those of ``Backend`` say that they do not."""

    simulated = False


@pytest.mark.parametrize(
    ("backends", "kind"),
    [
        ([SimulatedBackend("t4x2", seed="n")], SimulatedDaemons),
        ([SimulatedBackend("t4x2", seed="n"), SimulatedBackend("t4x2", seed="m")], SimulatedDaemons),
        ([SimulatedBackend("t4x2", seed="n"), Backend(())], SimulatedDaemons),
        ([SimulatedBackend("t4x2", seed="n"), Real(())], MpsDaemons),
        ([], MpsDaemons),
    ],
)
def test_beside_real_hardware_the_daemons_are_real(
    tmp_path: Path, backends: list[DeviceBackend], kind: type
) -> None:
    made = set_up(configuration(tmp_path), backends)
    made.close()
    assert type(made.daemons) is kind
    controls = [c for c in made.controls if c is not None]
    assert [c.runs_daemons for c in controls] == [kind is SimulatedDaemons] * len(controls)
