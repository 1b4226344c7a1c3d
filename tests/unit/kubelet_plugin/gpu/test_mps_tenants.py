"""What tenants write into the directories of MPS daemons reaches nothing but their own GPU."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from nvidia_tools import Tools, runs

from dra_driver.api.own.parameters import DeviceType
from dra_driver.errors import PrepareError
from dra_driver.preparation import NodeDevice
from dra_driver.preparation.sharing import MPS_PIPES, plan_sharing
from kubelet_plugin.gpu import mps_processes
from kubelet_plugin.gpu.mps import Launcher, MpsDaemons

is_root = os.geteuid() == 0


def may_unshare(*what: str) -> bool:
    return is_root and subprocess.run(["unshare", *what, "true"], check=False).returncode == 0


@pytest.fixture
def root() -> Iterator[Path]:
    """A folder whose path leaves room for the names of sockets."""
    with tempfile.TemporaryDirectory(prefix="dra", dir="/tmp") as folder:
        yield Path(folder)


@pytest.fixture
def tools(root: Path) -> Tools:
    return Tools(root / "bin")


@pytest.fixture
def daemons(root: Path, tools: Tools) -> Iterator[MpsDaemons]:
    made = open_daemons(root, tools)
    yield made
    for device in made.present():
        made.stop(device)


def open_daemons(root: Path, tools: Tools, ready_seconds: float = 20.0) -> MpsDaemons:
    return MpsDaemons(
        root / "mps",
        control=str(tools.mps_control),
        launcher=Launcher.SESSION,
        root=False,
        ready_seconds=ready_seconds,
    )


def started(daemons: MpsDaemons, root: Path, device: str) -> int:
    """Start a daemon; return its process ID."""
    daemons.start(device, f"GPU-{device}")
    return int((root / "mps" / device / "pipe" / "nvidia-cuda-mps-control.pid").read_text())


def link(control: Path, other: Path) -> None:
    control.symlink_to(Path("../..") / other.parent.parent.name / "pipe/control")


def hard_link(control: Path, other: Path) -> None:
    control.hardlink_to(other)


def pipes_of_the_other(control: Path, other: Path) -> None:
    control.parent.rename(control.parent.with_name("moved"))
    control.parent.symlink_to(other.parent)


def fifo(control: Path, _: Path) -> None:
    os.mkfifo(control)


def directory(control: Path, _: Path) -> None:
    (control / "deep" / "er").mkdir(parents=True)


def text(control: Path, _: Path) -> None:
    control.write_bytes(bytes(1 << 20))


def nothing(_: Path, __: Path) -> None:
    pass


@pytest.mark.parametrize("plant", [link, hard_link, fifo, directory, text, nothing, pipes_of_the_other])
def test_what_is_planted_ends_no_other_daemon(
    root: Path, daemons: MpsDaemons, plant: Callable[[Path, Path], None]
) -> None:
    """With versions that let containers write among the pipes, a link ended the daemon of another GPU."""
    mine, others = (started(daemons, root, device) for device in ("gpu-0", "gpu-1"))
    control = root / "mps/gpu-0/pipe/control"
    for name in ("control", "nvidia-cuda-mps-control.pid"):
        (control.parent / name).unlink()
    (control.parent / "nvidia-cuda-mps-control.pid").write_text(str(others))
    with contextlib.suppress(OSError):
        plant(control, root / "mps/gpu-1/pipe/control")
    if plant is hard_link:
        # It is the other's own socket; nothing is sent to it, but somebody listens there.
        with pytest.raises(PrepareError, match="a process outside of this PID namespace listens"):
            open_daemons(root, Tools(root / "bin"), ready_seconds=1).stop("gpu-0")
        control.unlink()
    daemons.stop("gpu-0")
    assert not runs(mine)
    assert runs(others)
    assert mps_processes.listens(root / "mps/gpu-1/pipe")
    assert daemons.present() == ["gpu-1"]


def test_a_process_that_exits_may_still_listen(root: Path, daemons: MpsDaemons) -> None:
    """Its memory is given back before its files, and the memory has what it is known by."""
    pipes = root / "mps/gpu-0/pipe"
    pipes.mkdir(parents=True)
    with socket.socket(socket.AF_UNIX) as exiting:
        exiting.bind(str(pipes / "control"))
        exiting.listen()
        ended = threading.Timer(0.2, exiting.close)
        ended.start()
        daemons.stop("gpu-0")
        ended.join()
    assert daemons.present() == []


def test_links_are_not_followed_to_a_socket(root: Path, daemons: MpsDaemons) -> None:
    started(daemons, root, "gpu-0")
    pipes = root / "mps/gpu-0/pipe"
    assert mps_processes.listens(pipes)
    (root / "pipe").symlink_to(pipes)
    assert not mps_processes.listens(root / "pipe")
    (root / "other").mkdir()
    (root / "other" / "control").symlink_to(pipes / "control")
    assert not mps_processes.listens(root / "other")


@pytest.mark.parametrize("stopped", [False, True])
def test_a_daemon_that_hangs_is_killed_before_its_directory_goes(
    root: Path, tools: Tools, daemons: MpsDaemons, stopped: bool
) -> None:
    tools.write_mps(hangs=True)
    pid = started(daemons, root, "gpu-0")
    if stopped:
        os.kill(pid, signal.SIGSTOP)
    daemons.stop("gpu-0")
    assert not runs(pid)
    assert daemons.present() == []


def test_a_daemon_that_does_not_end_keeps_its_directory(
    root: Path, tools: Tools, daemons: MpsDaemons
) -> None:
    tools.write_mps(hangs=True)
    pid = started(daemons, root, "gpu-0")
    with pytest.raises(PrepareError, match=rf"does not end: process {pid} runs") as caught:
        open_daemons(root, tools, ready_seconds=0.0).stop("gpu-0")
    assert caught.value.retryable
    assert runs(pid)
    assert daemons.present() == ["gpu-0"]


def test_an_agent_that_starts_waits_for_what_exits_already(root: Path, daemons: MpsDaemons) -> None:
    """A process that hangs while it exits has no environment any more; the agent before has noted it."""
    pid = started(daemons, root, "gpu-0")
    with subprocess.Popen(["sleep", "60"]) as exiting:
        start = Path(f"/proc/{exiting.pid}/stat").read_text().rpartition(")")[2].split()[19]
        (root / "mps/gpu-0/ending").write_text(f"{exiting.pid} {start}\n")
        with pytest.raises(PrepareError, match=rf"does not end: process {exiting.pid} runs"):
            open_daemons(root, Tools(root / "bin"), ready_seconds=1.0).stop("gpu-0")
        assert not runs(pid)
        assert exiting.poll() is None, "what is not known to be a daemon is not killed"
        assert daemons.present() == ["gpu-0"]
        exiting.kill()
    daemons.stop("gpu-0")
    assert daemons.present() == []


def test_servers_end_with_their_daemon(root: Path, tools: Tools, daemons: MpsDaemons) -> None:
    tools.write_mps(server=True, hangs=True)
    pid = started(daemons, root, "gpu-0")
    pipes = root / "mps/gpu-0/pipe"
    deadline = time.monotonic() + 20
    # A server is its daemon's copy until it runs its own program.
    while len(found := mps_processes.find(str(tools.mps_control), pipes)) < 2 or [
        p.pid for p in found if p.is_control
    ] != [pid]:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    daemons.stop("gpu-0")
    assert not any(runs(p.pid) for p in found)


def test_a_daemon_whose_directory_was_deleted_is_replaced(root: Path, daemons: MpsDaemons) -> None:
    """Earlier versions took a daemon that did not answer for ended."""
    left = started(daemons, root, "gpu-0")
    shutil.rmtree(root / "mps/gpu-0")
    later = open_daemons(root, Tools(root / "bin"))
    pid = started(later, root, "gpu-0")
    assert not runs(left)
    shutil.rmtree(root / "mps/gpu-0")
    later.stop("gpu-0")
    assert not runs(pid)


def test_a_daemon_of_an_earlier_version_serves_on_and_is_cleaned_up(
    root: Path, tools: Tools, daemons: MpsDaemons
) -> None:
    pid = started(daemons, root, "gpu-0")
    folder = root / "mps/gpu-0"
    (folder / "read-only").unlink()
    (folder / "shm" / "kept").touch()
    later = open_daemons(root, tools)
    later.start("gpu-0", "GPU-gpu-0")
    assert (folder / "shm" / "kept").exists()
    assert [call for call in tools.asked("mps") if call[-1] == "-d"] == [["GPU-gpu-0", "-d"]]
    later.stop("gpu-0")
    assert not runs(pid)
    while later.sweep():
        pass
    assert list((root / "mps").iterdir()) == []


def test_no_daemon_is_started_where_containers_could_write(root: Path, daemons: MpsDaemons) -> None:
    """A daemon opens files of fixed names as root: a link of an earlier version's tenant must not be one."""
    outside = root / "outside"
    pipes = root / "mps/gpu-0/pipe"
    pipes.mkdir(parents=True)
    (pipes / "nvidia-cuda-mps-control.pid").symlink_to(outside)
    # A container of before has it mounted, and goes on writing there.
    held = os.open(pipes, os.O_RDONLY | os.O_DIRECTORY)
    daemons.start("gpu-0", "GPU-1")
    assert not outside.exists()
    assert not (pipes / "nvidia-cuda-mps-control.pid").is_symlink()
    os.symlink(outside, "control_lock", dir_fd=held)
    os.close(held)
    assert not (pipes / "control_lock").is_symlink()


def test_a_number_that_is_another_process_by_now_gets_no_signal() -> None:
    with subprocess.Popen(["sleep", "60"]) as other:
        start = int(Path(f"/proc/{other.pid}/stat").read_text().rpartition(")")[2].split()[19])
        ended = mps_processes.Process(other.pid, start - 1)
        assert not mps_processes.is_running(ended)
        mps_processes.send([ended], signal.SIGKILL)
        with pytest.raises(subprocess.TimeoutExpired):
            other.wait(0.2)
        mps_processes.send([mps_processes.Process(other.pid, start)], signal.SIGKILL)
        assert other.wait(20) == -signal.SIGKILL


_FIRST_THREAD_ENDS = """
import ctypes, threading, time
threading.Thread(target=time.sleep, args=(300,)).start()
ctypes.CDLL(None).pthread_exit(None)
"""


def test_a_process_runs_until_its_last_thread_has_ended() -> None:
    """One of its threads hangs in the GPU's driver, or just takes its time."""
    daemon = subprocess.Popen([sys.executable, "-c", _FIRST_THREAD_ENDS])
    try:
        stat = Path(f"/proc/{daemon.pid}/stat")
        deadline = time.monotonic() + 20
        while (fields := stat.read_text().rpartition(")")[2].split())[0] != "Z":
            assert time.monotonic() < deadline
            time.sleep(0.02)
        process = mps_processes.Process(daemon.pid, int(fields[19]))
        assert mps_processes.is_running(process)
        mps_processes.send([process], signal.SIGKILL)
        while mps_processes.is_running(process):
            assert time.monotonic() < deadline
            time.sleep(0.02)
    finally:
        daemon.kill()
        daemon.wait()


def test_clients_find_the_next_daemon_where_the_last_one_was(root: Path, daemons: MpsDaemons) -> None:
    """A process that is started again in a container has the directory that the container was given."""
    pid = started(daemons, root, "gpu-0")
    pipes, shared = (root / "mps/gpu-0" / name for name in ("pipe", "shm"))
    held = os.open(pipes, os.O_PATH)
    (shared / "mine").touch()
    os.kill(pid, signal.SIGKILL)
    while runs(pid):
        time.sleep(0.01)
    assert started(daemons, root, "gpu-0") != pid
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as client:
        client.connect(f"/proc/self/fd/{held}/control")
    os.close(held)
    assert (shared / "mine").exists()


@pytest.mark.long
def test_three_million_files_are_not_removed_inside_a_call(root: Path, daemons: MpsDaemons) -> None:
    started(daemons, root, "gpu-0")
    for i in range(5000):
        (root / "mps/gpu-0/shm" / str(i)).touch()
    daemons.stop("gpu-0")
    (aside,) = (root / "mps").iterdir()
    assert len(list((aside / "shm").iterdir())) == 5000, "a call has removed files one by one"
    assert daemons.present() == []
    # The device is to be had at once, with nothing of before.
    started(daemons, root, "gpu-0")
    assert list((root / "mps/gpu-0/shm").iterdir()) == []
    steps = 1
    while daemons.sweep():
        steps += 1
    assert steps >= 2
    assert not aside.exists()


@pytest.mark.skipif(not may_unshare("--pid", "--fork"), reason="needs a PID namespace of its own")
def test_a_container_cannot_pass_for_the_daemon(root: Path, tools: Tools, daemons: MpsDaemons) -> None:
    """Containers may have NVIDIA's program and any environment, but not our PID namespace."""
    pipes = root / "mps/gpu-0/pipe"
    (root / "fake").mkdir()
    impostor = subprocess.Popen(
        ["unshare", "--pid", "--fork", "--kill-child", str(tools.mps_control), "-f"],
        env={**os.environ, "CUDA_MPS_PIPE_DIRECTORY": str(root / "fake")},
    )
    try:
        deadline = time.monotonic() + 20
        while not mps_processes.listens(root / "fake"):
            assert time.monotonic() < deadline
            time.sleep(0.02)
        assert mps_processes.find(str(tools.mps_control), root / "fake") == ()
        started(daemons, root, "gpu-0")
        assert len(mps_processes.find(str(tools.mps_control), pipes)) == 1
    finally:
        impostor.kill()
        impostor.wait()


_LIFE = """
import os, shutil, signal, subprocess, sys, time
from pathlib import Path
from dra_driver.discovery.core.host import shared_folders
from kubelet_plugin.gpu.mps import Launcher, MpsDaemons

base = Path(sys.argv[1])
subprocess.run(["mount", "--make-rprivate", "/"], check=True)
subprocess.run(["mount", "--bind", base, base], check=True)
subprocess.run(["mount", "--make-shared", base], check=True)
folder, size = base / "mps/gpu-0", 64 << 20


def agent():
    return MpsDaemons(
        base / "mps",
        control=sys.argv[2],
        launcher=Launcher.SESSION,
        root=True,
        shared_memory=size,
        ready_seconds=20.0,
    )


def mounts():
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    places = [line.split()[4] for line in lines]
    # Not those of tests beside this one.
    return sorted(place.removeprefix(str(base)) for place in places if place.startswith(f"{base}/mps/"))


def pid():
    return int((folder / "pipe/nvidia-cuda-mps-control.pid").read_text())


def kill():
    number = pid()
    os.kill(number, signal.SIGKILL)
    while Path(f"/proc/{number}/stat").exists() and agent()._controls(folder):
        time.sleep(0.01)


both = ["/mps/gpu-0/log", "/mps/gpu-0/shm"]
agent().start("gpu-0", "GPU-1")
assert mounts() == both, mounts()
space = os.statvfs(folder / "shm")
assert space.f_blocks * space.f_frsize == size
assert os.stat(f"/proc/{pid()}/root/dev/shm").st_dev == (folder / "shm").stat().st_dev
(folder / "shm/kept").touch()
# The agent starts anew; then the daemon has died.
agent().start("gpu-0", "GPU-1")
kill()
agent().start("gpu-0", "GPU-1")
assert mounts() == both, mounts()
assert (folder / "shm/kept").exists()
# The machine has started anew: there are neither processes nor mounts.
kill()
for name in ("shm", "log"):
    shared_folders.unmount(folder / name)
agent().start("gpu-0", "GPU-1")
assert mounts() == both, mounts()
assert not (folder / "shm/kept").exists()
assert agent().present() == ["gpu-0"]
agent().stop("gpu-0")
assert mounts() == [], mounts()
# Killed between a mount and the start of the daemon, and while it stopped: the claim's record undoes it.
for name in ("shm", "log"):
    (folder / name).mkdir(parents=True)
    for _ in range(2):
        assert shared_folders.mount_memory(folder / name, size=size, inodes=9, mode=0o1777) == ""
agent().start("gpu-0", "GPU-1")
assert mounts() == both, mounts()
# An earlier version ended the claim, and could not unmount anything.
kill()
shutil.rmtree(folder, ignore_errors=True)
assert mounts() == both, mounts()
assert agent().present() == ["gpu-0"]
agent().stop("gpu-0")
assert mounts() == [], mounts()
while agent().sweep():
    pass
assert list((base / "mps").iterdir()) == []
"""


@pytest.mark.skipif(not may_unshare("--mount"), reason="needs mounts of its own")
def test_mounts_come_and_go_with_the_claims(root: Path, tools: Tools) -> None:
    done = subprocess.run(
        ["unshare", "--mount", sys.executable, "-c", _LIFE, str(root), str(tools.mps_control)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.skipif(not may_unshare("--mount"), reason="needs mounts of its own")
@pytest.mark.parametrize("closed", [None, "", "state", "state/mps"])
def test_a_server_of_any_user_reaches_its_daemon(root: Path, tools: Tools, closed: str | None) -> None:
    """NVIDIA's server has the user ID of its first client, and connects by the path of the socket."""
    tools.write_mps(user=65534)
    root.chmod(0o755)
    mps = root / "state/mps"
    (mps / "gpu-0").mkdir(parents=True)
    if closed is not None:
        (root / closed).chmod(0o700)
    done = subprocess.run(
        ["unshare", "--mount", sys.executable, "-c", _SERVED, str(mps), str(tools.mps_control)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert tools.asked("server") == [["connected"]]


_SERVED = """
import os, subprocess, sys, time
from pathlib import Path
from kubelet_plugin.gpu.mps import Launcher, MpsDaemons

mps, control = Path(sys.argv[1]), sys.argv[2]
subprocess.run(["mount", "--make-rprivate", "/"], check=True)
daemons = MpsDaemons(mps, control=control, launcher=Launcher.SESSION, root=True, ready_seconds=20.0)
daemons.start("gpu-0", "GPU-1")
asked = Path(control).parent / "asked.jsonl"
deadline = time.monotonic() + 20
# Until it has ended, the stand-in for the server is a copy of the one for the daemon.
while '"server"' not in asked.read_text() or len(daemons._controls(mps / "gpu-0")) > 1:
    assert time.monotonic() < deadline
    time.sleep(0.02)
(process,) = daemons._controls(mps / "gpu-0")
seen = Path(f"/proc/{process.pid}/root{mps / 'gpu-0'}")
for name in ("pipe", "log"):
    assert (seen / name).stat().st_ino == (mps / "gpu-0" / name).stat().st_ino, name
# And may not write there, whatever is mounted.
assert not any(place.stat().st_mode & 0o022 for place in (seen, seen.parent, seen.parent.parent))
# A later agent finds it by the same path, whatever covers that for the daemon.
later = MpsDaemons(mps, control=control, launcher=Launcher.SESSION, root=True, ready_seconds=20.0)
assert later._controls(mps / "gpu-0") == [process]
later.stop("gpu-0")
assert later._controls(mps / "gpu-0") == []
"""


_READ_ONLY = """
import errno, os, socket, subprocess, sys
from pathlib import Path

pipes, options = Path(sys.argv[1]), sys.argv[2].split(",")
place = pipes.parent / "container"
place.mkdir()
subprocess.run(["mount", "--make-rprivate", "/"], check=True)
subprocess.run(["mount", "--bind", pipes, place], check=True)
flags = ",".join(o for o in options if o not in ("rbind", "rprivate"))
subprocess.run(["mount", "-o", f"remount,bind,{flags}", place], check=True)
for attempt in (
    lambda: (place / "control").unlink(),
    lambda: (place / "control").rename(place / "moved"),
    lambda: (place / "link").symlink_to("/"),
    lambda: os.link(place / "control", place / "hard"),
    lambda: (place / "folder").mkdir(),
    lambda: os.mkfifo(place / "fifo"),
    lambda: (place / "nvidia-cuda-mps-control.pid").write_text("1"),
    lambda: (place / "control").chmod(0o777),
):
    try:
        attempt()
        raise SystemExit("a container may write among the pipes")
    except OSError as e:
        assert e.errno in (errno.EROFS, errno.EXDEV), e
os.close(os.open(place / "log", os.O_WRONLY | os.O_NONBLOCK))
os.setuid(65534)
with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as client:
    client.connect(str(place / "control"))
"""


@pytest.mark.skipif(not may_unshare("--mount"), reason="needs mounts of its own")
def test_a_container_connects_and_cannot_rewrite_the_pipes(root: Path, daemons: MpsDaemons) -> None:
    root.chmod(0o755)  # the way to what stands for the container's own directory
    started(daemons, root, "gpu-0")
    pipes = root / "mps/gpu-0/pipe"
    reader = os.open(pipes / "log", os.O_RDONLY | os.O_NONBLOCK)
    device = NodeDevice("gpu-0", "GPU-1", "GPU-1", mps_directory=str(root / "mps/gpu-0"))
    planned = plan_sharing(device, DeviceType.SHARE, None, position=0, memory=None)
    (mount,) = (m for m in planned.edits.mounts if m.container_path == MPS_PIPES)
    done = subprocess.run(
        ["unshare", "--mount", sys.executable, "-c", _READ_ONLY, str(pipes), ",".join(mount.options)],
        capture_output=True,
        text=True,
        check=False,
    )
    os.close(reader)
    assert done.returncode == 0, done.stderr
