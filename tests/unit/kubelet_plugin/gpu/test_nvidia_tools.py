"""Time slices through nvidia-smi, and MPS daemons that outlive whoever started them."""

from __future__ import annotations

import os
import signal
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from nvidia_tools import Tools, runs

from dra_driver.discovery.nvidia import smi as nvidia_smi
from dra_driver.errors import PrepareError
from kubelet_plugin.gpu.mps import Launcher, MpsDaemons, closed_directory, daemon_command


@pytest.fixture
def tools(tmp_path: Path) -> Tools:
    return Tools(tmp_path / "bin")


@pytest.fixture
def daemons(tmp_path: Path, tools: Tools) -> Iterator[MpsDaemons]:
    made = _daemons(tmp_path, tools)
    yield made
    for device in made.present():
        made.stop(device)


def _daemons(tmp_path: Path, tools: Tools, ready_seconds: float = 60.0) -> MpsDaemons:
    return MpsDaemons(
        tmp_path / "mps",
        control=str(tools.mps_control),
        launcher=Launcher.SESSION,
        root=False,
        ready_seconds=ready_seconds,
    )


@pytest.mark.parametrize(
    ("interval", "number"), [("Default", "0"), ("Short", "1"), ("Medium", "2"), ("Long", "3")]
)
def test_time_slice(tools: Tools, interval: str, number: str) -> None:
    nvidia_smi.set_time_slice(str(tools.nvidia_smi), "GPU-1", interval)
    assert tools.asked("nvidia-smi") == [["compute-policy", "-i", "GPU-1", "--set-timeslice", number]]


def test_time_slice_that_cannot_be_set(tools: Tools, tmp_path: Path) -> None:
    tools.write_smi('print("Not Supported"); sys.exit(3)')
    with pytest.raises(PrepareError, match="time slice Long of GPU GPU-1: nvidia-smi ended with 3: Not Supp"):
        nvidia_smi.set_time_slice(str(tools.nvidia_smi), "GPU-1", "Long")
    with pytest.raises(
        PrepareError, match=r"cannot be run .No such file or directory.; --nvidia-smi says where"
    ):
        nvidia_smi.set_time_slice(str(tmp_path / "none"), "GPU-1", "Long")
    tools.write_smi("time.sleep(30)")
    with pytest.raises(PrepareError, match=r"did not end within 0.5 s") as caught:
        nvidia_smi.set_time_slice(str(tools.nvidia_smi), "GPU-1", "Long", timeout=0.5)
    assert caught.value.retryable


def test_a_daemon_is_started_once_and_found_again(tmp_path: Path, tools: Tools, daemons: MpsDaemons) -> None:
    assert daemons.directory("gpu-0") == str(tmp_path / "mps" / "gpu-0")
    daemons.start("gpu-0", "GPU-1")
    daemons.start("gpu-0", "GPU-1")
    later = _daemons(tmp_path, tools)  # the plugin has started anew
    later.start("gpu-0", "GPU-1")
    assert tools.asked("mps") == [["GPU-1", "-d"]]
    assert later.present() == ["gpu-0"]
    assert {p.name for p in (tmp_path / "mps" / "gpu-0").iterdir()} == {"pipe", "log", "shm", "read-only"}
    later.stop("gpu-0")
    later.stop("gpu-0")
    assert tools.asked("mps")[1:] == [["GPU-1", "ended"]]
    assert later.present() == []


def test_a_daemon_that_has_died_is_started_again(tmp_path: Path, tools: Tools, daemons: MpsDaemons) -> None:
    daemons.start("gpu-0", "GPU-1")
    # Its traces stay: socket and process ID.
    pipe = tmp_path / "mps" / "gpu-0" / "pipe"
    pid = int((pipe / "nvidia-cuda-mps-control.pid").read_text())
    os.kill(pid, signal.SIGKILL)
    while runs(pid):
        time.sleep(0.01)
    daemons.start("gpu-0", "GPU-1")
    assert [call for call in tools.asked("mps") if call[-1] == "-d"] == [["GPU-1", "-d"]] * 2


def test_a_daemon_that_does_not_answer(tmp_path: Path, tools: Tools) -> None:
    tools.write_mps(broken=True)
    # Long enough for the tool to be started on a busy machine.
    with pytest.raises(PrepareError, match=r"does not answer after 1.5 s; its log ends with"):
        _daemons(tmp_path, tools, ready_seconds=1.5).start("gpu-0", "GPU-1")


def test_no_daemon_without_the_tool(tmp_path: Path) -> None:
    daemons = MpsDaemons(tmp_path, control=str(tmp_path / "none"))
    assert daemons.directory("gpu-0") == ""
    with pytest.raises(PrepareError, match="cannot be started: there is no"):
        daemons.start("gpu-0", "GPU-1")


def test_names_never_lead_out_of_the_directory(tmp_path: Path, tools: Tools) -> None:
    daemons = _daemons(tmp_path, tools)
    assert daemons.directory("../x") == ""
    with pytest.raises(PrepareError, match="no name for a directory"):
        daemons.start("../x", "GPU-1")
    with pytest.raises(PrepareError, match="no name for a directory"):
        daemons.stop("../x")


def test_commands() -> None:
    folder = Path("/state/mps/gpu-0")
    unit = daemon_command(Launcher.SYSTEMD, "/bin/mps", "gpu-0", "GPU-1", folder, root=True)
    assert unit.args[:3] == ("systemd-run", "--quiet", "--collect")
    assert "--unit=dra-driver-mps-gpu-0.service" in unit.args
    assert "--property=BindPaths=/state/mps/gpu-0/shm:/dev/shm" in unit.args
    assert "--setenv=CUDA_VISIBLE_DEVICES=GPU-1" in unit.args
    assert unit.args[-2:] == ("/bin/mps", "-f")
    assert not any("TemporaryFileSystem" in a for a in unit.args)
    closed = daemon_command(
        Launcher.SYSTEMD, "mps", "gpu-0", "GPU-1", folder, root=True, closed=Path("/state")
    )
    places = ("/state/mps/gpu-0/pipe", "/state/mps/gpu-0/log")
    hidden = [f"--property=BindPaths={place}" for place in places]
    assert [a for a in closed.args if a in ("--property=TemporaryFileSystem=/state:mode=755", *hidden)] == [
        "--property=TemporaryFileSystem=/state:mode=755",
        *hidden,
    ]
    beside = daemon_command(
        Launcher.SYSTEMD, "/state/bin/mps", "gpu-0", "GPU-1", folder, root=True, closed=Path("/state")
    )
    assert "--property=BindPaths=/state/bin" in beside.args
    session = daemon_command(Launcher.SESSION, "/bin/mps", "gpu-0", "GPU-1", folder, root=True)
    assert session.args[:2] == ("unshare", "--mount")
    assert session.env["CUDA_MPS_PIPE_DIRECTORY"] == "/state/mps/gpu-0/pipe"
    assert daemon_command(Launcher.SESSION, "mps", "gpu-0", "GPU-1", folder, root=False).args == ("mps", "-d")


def test_the_servers_program_is_found_beside_the_daemons(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The daemon looks for it in PATH."""
    folder = Path("/state/mps/gpu-0")
    monkeypatch.setenv("PATH", "/usr/bin")
    session = daemon_command(Launcher.SESSION, "/opt/nvidia/bin/mps", "gpu-0", "GPU-1", folder, root=False)
    assert session.env["PATH"] == "/opt/nvidia/bin:/usr/bin"
    unit = daemon_command(Launcher.SYSTEMD, "/opt/nvidia/bin/mps", "gpu-0", "GPU-1", folder, root=True)
    assert any(
        a.startswith("--setenv=PATH=/opt/nvidia/bin:") and a.endswith("/usr/bin:/sbin:/bin")
        for a in unit.args
    )
    assert "PATH" not in daemon_command(Launcher.SESSION, "mps", "gpu-0", "GPU-1", folder, root=False).env


def test_the_first_directory_is_found_that_is_closed_to_others() -> None:
    with tempfile.TemporaryDirectory(prefix="dra", dir="/tmp") as made:
        top = Path(made)
        top.chmod(0o711)  # may be passed, if not read
        folder = top / "state/mps/gpu-0"
        folder.mkdir(parents=True)
        assert closed_directory(folder, Path("/")) is None
        for place, mode in ((folder, 0o744), (folder.parent, 0o750), (folder.parent.parent, 0o700)):
            place.chmod(mode)
            assert closed_directory(folder, Path("/")) == place
        host = top / "host"
        (host / str(folder.parent.parent)[1:]).mkdir(parents=True)
        # What the host does not show is looked at here.
        assert closed_directory(folder, host) == folder.parent
