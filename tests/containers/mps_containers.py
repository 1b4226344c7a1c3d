"""An agent's MPS daemon, and processes beside it as containers have them with a claim's document."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from dra_driver.api.own.parameters import DeviceType
from dra_driver.api.quantity import Quantity
from dra_driver.preparation import NodeDevice
from dra_driver.preparation.sharing import MPS_PIPES, plan_sharing
from kubelet_plugin.gpu.mps import Launcher, MpsDaemons

CONTROL: Final = "nvidia-cuda-mps-control"
DEVICE: Final = "gpu-0"
USERS: Final = (0, 1000, 65534)

# Arguments: the user, then source, place and flags of each mount.
_CONTAINER: Final = """
user=$1; shift
mount --make-rprivate / || exit
while [ "$1" != -- ]; do
    mount --bind "$1" "$2" && mount -o "remount,bind,$3" "$2" || exit
    shift 3
done
shift
exec setpriv --reuid "$user" --regid "$user" --clear-groups "$@"
"""


def can_mount() -> bool:
    """Return whether this process may have mounts of its own."""
    return os.geteuid() == 0 and subprocess.run(["unshare", "--mount", "true"], check=False).returncode == 0


@contextlib.contextmanager
def folder() -> Iterator[Path]:
    """Make a folder whose path leaves room for the names of sockets, with an agent's state directory."""
    with tempfile.TemporaryDirectory(prefix="dra", dir="/tmp") as name:
        made = Path(name)
        made.chmod(0o755)
        (made / "state").mkdir(mode=0o700)
        subprocess.run(["mount", "--bind", name, name], check=True)
        subprocess.run(["mount", "--make-shared", name], check=True)
        try:
            yield made
        finally:
            subprocess.run(["umount", "--recursive", "--lazy", name], check=True)


def agent(root: Path, control: str) -> MpsDaemons:
    """Return an agent's daemons, below a folder."""
    return MpsDaemons(root / "state/mps", control=control, launcher=Launcher.SESSION, shared_memory=64 << 20)


def pipes(root: Path) -> Path:
    """Return the directory of the daemon's sockets."""
    return root / "state/mps" / DEVICE / "pipe"


def start(
    root: Path, user: int, *words: str, gpu: str = "GPU-1", memory: str = "1Gi"
) -> subprocess.Popen[str]:
    """Start a program with a share of the GPU, as a user in the namespaces of a container."""
    device = NodeDevice(DEVICE, gpu, gpu, mps_directory=str(pipes(root).parent))
    edits = plan_sharing(device, DeviceType.SHARE, None, position=0, memory=Quantity.parse(memory)).edits
    # Not where containers have it: that folder need not be there on this computer.
    place = root / "container"
    place.mkdir(exist_ok=True)
    mounts = []
    for mount in edits.mounts:
        target = str(place) if mount.container_path == MPS_PIPES else mount.container_path
        flags = ",".join(o for o in mount.options if o not in ("rbind", "rprivate"))
        mounts += [mount.host_path, target, flags]
    return subprocess.Popen(
        [
            *("unshare", "--mount", "--ipc", "--pid", "--fork", "--mount-proc"),
            *("sh", "-c", _CONTAINER, "sh", str(user), *mounts, "--", *words),
        ],
        text=True,
        env={
            **os.environ,
            **dict(variable.split("=", 1) for variable in edits.env),
            "CUDA_MPS_PIPE_DIRECTORY": str(place),
        },
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )


def finish(process: subprocess.Popen[str], words: str = "", seconds: float = 30) -> tuple[int, str, str]:
    """Return status, output and errors of a program that was started, once it has ended."""
    try:
        out, errors = process.communicate(words, timeout=seconds)
    except subprocess.TimeoutExpired:
        kill(process)
        raise
    return process.returncode, out, errors


def kill(process: subprocess.Popen[str]) -> None:
    """Kill a program that was started, if it runs."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
    process.communicate()


def eventually(what: Callable[[], object]) -> None:
    """Wait until something holds."""
    deadline = time.monotonic() + 20
    while not what():
        assert time.monotonic() < deadline
        time.sleep(0.02)
