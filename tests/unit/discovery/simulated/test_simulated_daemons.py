"""MPS of simulated GPUs: directories as with a real daemon, and none beside real hardware."""

from __future__ import annotations

from pathlib import Path

import pytest

from dra_driver.discovery.core.control import ToolPaths
from dra_driver.discovery.simulated.backend import SimulatedBackend
from dra_driver.discovery.simulated.daemons import SimulatedDaemons


def test_a_daemon_is_its_directory(tmp_path: Path) -> None:
    daemons = SimulatedDaemons(tmp_path / "mps")
    assert daemons.present() == ()
    folder = Path(daemons.directory("gpu-0"))
    for _ in range(2):
        daemons.start("gpu-0", "GPU-1")
    assert (folder / "pipe" / "control").read_text() == "GPU-1\n"
    assert oct((folder / "shm").stat().st_mode)[-4:] == "1777"
    assert SimulatedDaemons(tmp_path / "mps").present() == ["gpu-0"]
    daemons.stop("gpu-0")
    daemons.stop("gpu-0")
    assert daemons.present() == []


@pytest.mark.parametrize("available", [True, False])
def test_simulated_gpus_have_daemons_where_those_are_simulated_too(available: bool) -> None:
    control = SimulatedBackend("t4x2", seed="n").control(ToolPaths(own_daemons=available))
    assert control.runs_daemons is available
