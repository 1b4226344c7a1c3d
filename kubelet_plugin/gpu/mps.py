"""MPS control daemons: one for each shared GPU, in a directory of its own, outliving the plugin.

``<state>/mps/<device>/`` holds ``pipe`` (sockets; containers have it read-only), ``log`` and ``shm`` (what
the daemon and its clients have as ``/dev/shm``). The last two are file systems in memory with a limit. Which
process the daemon is, the kernel says (``mps_processes``), so that a restarted plugin finds the daemons of
the one before. NVIDIA's server runs as the user of its first client, and goes to the daemon's sockets by
their path, so the daemon and its servers see these directories where any user gets to them.
"""

from __future__ import annotations

import contextlib
import enum
import os
import re
import shutil
import signal
import stat
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import structlog

from dra_driver.discovery.core.host import shared_folders
from dra_driver.errors import PrepareError
from kubelet_plugin.core import files
from kubelet_plugin.gpu import mps_processes
from kubelet_plugin.gpu.mps_processes import Process

__all__ = [
    "NO_DAEMON",
    "NO_TIME_SLICES",
    "Launcher",
    "MpsDaemons",
    "NoDaemons",
    "closed_directory",
    "daemon_command",
]

log = structlog.get_logger(__name__)

_LABEL: Final = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?")
# sockaddr_un has 108 bytes, the last one is NUL.
_MAX_PIPE_PATH: Final = 107
# Of a daemon and its servers to end by themselves, before they are killed.
_GRACE_SECONDS: Final = 3.0
_SHARED_MEMORY_INODES: Final = 1 << 16
_LOG_BYTES: Final = 16 << 20
_LOG_INODES: Final = 64
_SHOWN_LOG_BYTES: Final = 300
# Removed at a time of what plain directories held: about a tenth of a second.
_SWEPT_ENTRIES: Final = 2000
# Of units, unless they have another one (systemd.exec(5)).
_UNIT_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
# The file system of process 1, on which units are started.
_HOST: Final = Path("/proc/1/root")
# Arguments: what becomes /dev/shm, the directory that is closed to other users or nothing, the program, and
# what stays in that directory. After a mount over it, only the working directory leads to what was there.
_SESSION: Final = """
mount --bind "$1" /dev/shm || exit
[ -z "$2" ] || (
    umask 022
    cd "$2" && mount -t tmpfs -o size=1m,mode=755 dra-driver "$2" || exit
    closed=$2
    shift 3
    for place; do
        inside=/proc/self/cwd/${place#"$closed"/}
        mkdir -p "$place" && mount --no-canonicalize --bind "$inside" "$place" || exit
    done
) || exit
exec "$3" -d
"""
# The directory was made by a version that lets containers only read the pipes.
_READ_ONLY: Final = "read-only"
# The processes that are being ended, for an agent that is killed meanwhile.
_ENDING: Final = "ending"


# Why a device has none of these, as clauses of an error.
NO_TIME_SLICES: Final = "time slicing needs an NVIDIA GPU that NVML controls"
NO_DAEMON: Final = (
    "it needs an NVIDIA GPU that NVML controls, nvidia-cuda-mps-control on the node (--mps-control), and a "
    "--state-dir that is short enough for its sockets"
)


class Launcher(enum.Enum):
    """What keeps a daemon running."""

    SYSTEMD = "systemd"  # a transient unit of the host
    SESSION = "session"  # a session of its own, started by the plugin
    AUTO = "auto"  # systemd where it runs and can be asked


class NoDaemons:
    """A node without MPS."""

    def directory(self, device: str) -> str:
        """See ``ports.Daemons``."""
        return ""

    def start(self, device: str, gpu: str) -> None:
        """See ``ports.Daemons``."""
        raise PrepareError(f"device {device}: MPS is not available on this node")

    def stop(self, device: str) -> None:
        """See ``ports.Daemons``."""

    def present(self) -> Sequence[str]:
        """See ``ports.Daemons``."""
        return ()

    def sweep(self) -> bool:
        """See ``ports.Daemons``."""
        return False


@dataclass(frozen=True, slots=True)
class Command:
    """A command with its environment, on top of the plugin's own."""

    args: tuple[str, ...]
    env: Mapping[str, str]


def daemon_command(
    launcher: Launcher,
    control: str,
    device: str,
    gpu: str,
    folder: Path,
    *,
    root: bool,
    closed: Path | None = None,
) -> Command:
    """Return the command that starts the daemon of a device.

    Its ``/dev/shm`` is ``folder/shm``, because it meets its clients there too and theirs is not the host's.
    Under systemd the unit sees to that; a session needs root and ``unshare`` for it.

    Args:
        launcher: what keeps it running.
        control: the program; that of the server is beside it, or in PATH.
        device: whose daemon it is.
        gpu: UUID of its GPU.
        folder: of the daemon.
        root: whether a session may get a mount namespace.
        closed: see ``closed_directory``. The daemon sees nothing in there but its directories and programs.
    """
    env = {
        "CUDA_VISIBLE_DEVICES": gpu,
        "CUDA_MPS_PIPE_DIRECTORY": str(folder / "pipe"),
        "CUDA_MPS_LOG_DIRECTORY": str(folder / "log"),
    }
    if "/" in control:
        others = _UNIT_PATH if launcher is Launcher.SYSTEMD else os.environ.get("PATH", os.defpath)
        env["PATH"] = f"{Path(control).parent}:{others}"
    kept = [folder / "pipe", folder / "log"]
    if closed is not None and closed in Path(control).parents:
        kept.append(Path(control).parent)
    if launcher is Launcher.SYSTEMD:
        settings = [f"--setenv={name}={value}" for name, value in env.items()]
        mounts = [f"BindPaths={folder / 'shm'}:/dev/shm"]
        if closed is not None:
            mounts += [f"TemporaryFileSystem={closed}:mode=755"]
            mounts += [f"BindPaths={place}" for place in kept]
        return Command(
            (
                "systemd-run",
                "--quiet",
                "--collect",
                f"--unit={_unit(device)}",
                f"--description=MPS for {device}",
                *(f"--property={mount}" for mount in mounts),
                f"--property=TimeoutStopSec={_GRACE_SECONDS:g}",
                *settings,
                control,
                "-f",
            ),
            {},
        )
    if root:
        arguments = (str(folder / "shm"), "" if closed is None else str(closed), control, *map(str, kept))
        return Command(("unshare", "--mount", "sh", "-c", _SESSION, "mps", *arguments), env)
    return Command((control, "-d"), env)


def closed_directory(folder: Path, root: Path) -> Path | None:
    """Return the first directory on the way to ``folder`` that not every user may pass, if there is one.

    Args:
        folder: an absolute path.
        root: where the file system is seen; this process's own is looked at instead where it cannot be.
    """
    for place in (*reversed(folder.parents[:-1]), folder):
        try:
            mode = (root / place.relative_to("/")).stat().st_mode
        except OSError:
            mode = place.stat().st_mode
        if not mode & stat.S_IXOTH:
            return place
    return None


def _unit(device: str) -> str:
    return f"dra-driver-mps-{device}.service"


class MpsDaemons:
    """The MPS daemons of a node (``ports.Daemons``).

    Args:
        folder: of all daemons; its path has to be the same on the host.
        control: ``nvidia-cuda-mps-control``, a path or a name to be found in PATH.
        launcher: what keeps the daemons running.
        root: whether a daemon may get a mount namespace; if None, whether we are root.
        shared_memory: that all clients of a daemon may use together as ``/dev/shm``, in bytes.
        ready_seconds: how long a daemon may take to be ready, and to end.
        pause: between two questions.
    """

    def __init__(
        self,
        folder: Path,
        *,
        control: str = "nvidia-cuda-mps-control",
        launcher: Launcher = Launcher.AUTO,
        root: bool | None = None,
        shared_memory: int = 8 << 30,
        ready_seconds: float = 10.0,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        self._folders = folder
        self._control = control
        self._launcher = _choose(launcher)
        self._is_root = os.geteuid() == 0 if root is None else root
        self._shared_memory = shared_memory
        self._ready_seconds = ready_seconds
        self._pause = pause
        # Control daemons that were ready when they were looked at last; a look at one of them is cheap.
        self._ready: dict[str, Process] = {}

    def directory(self, device: str) -> str:
        """See ``ports.Daemons``."""
        if not _LABEL.fullmatch(device) or not shutil.which(self._control):
            return ""
        folder = str(self._folders / device)
        return folder if len(f"{folder}/pipe/control_privileged".encode()) <= _MAX_PIPE_PATH else ""

    def start(self, device: str, gpu: str) -> None:
        """See ``ports.Daemons``."""
        folder = self._folder(device)
        known = self._ready.get(device)
        if known is not None and mps_processes.is_running(known):
            return
        self._ready.pop(device, None)
        if not self._controls(folder) or not folder.exists():
            if not shutil.which(self._control):
                raise PrepareError(
                    f"device {device}: the MPS daemon cannot be started: there is no {self._control} "
                    "(--mps-control)"
                )
            # Servers of a daemon that is gone would keep the GPU from those of the next one, and so would a
            # daemon whose directory an earlier version has deleted.
            self._end(device, folder)
            self._make(device, folder)
            self._launch(device, self._command(device, gpu, folder))
            log.info("MPS daemon started", device=device, launcher=self._launcher.value)
        deadline = time.monotonic() + self._ready_seconds
        while not ((controls := self._controls(folder)) and mps_processes.listens(folder / "pipe")):
            if time.monotonic() >= deadline:
                raise PrepareError(
                    f"device {device}: the MPS daemon does not answer after {self._ready_seconds:g} s; "
                    f"its log ends with {_end_of(folder / 'log' / 'control.log')!r}",
                    retryable=True,
                )
            self._pause(0.1)
        self._ready[device] = controls[0]

    def stop(self, device: str) -> None:
        """See ``ports.Daemons``."""
        folder = self._folder(device)
        self._ready.pop(device, None)
        if not folder.exists() and not mps_processes.find(self._control, folder / "pipe"):
            return
        self._end(device, folder)
        self._remove(device, folder)
        log.info("MPS daemon ended", device=device)

    def present(self) -> Sequence[str]:
        """See ``ports.Daemons``."""
        if not self._folders.is_dir():
            return ()
        return sorted(p.name for p in self._folders.iterdir() if p.is_dir() and _LABEL.fullmatch(p.name))

    def sweep(self) -> bool:
        """See ``ports.Daemons``."""
        return shared_folders.sweep(self._folders, _SWEPT_ENTRIES)

    def _controls(self, folder: Path) -> list[Process]:
        """Return the control daemons of a directory: one, or none."""
        return [p for p in mps_processes.find(self._control, folder / "pipe") if p.is_control]

    def _end(self, device: str, folder: Path) -> None:
        """End a daemon and its servers, and see that they are gone.

        Raises:
            PrepareError: one of them does not end, or they cannot be seen.
        """
        begun = time.monotonic()
        if self._launcher is Launcher.SYSTEMD and folder.exists():
            # One that never answered may still be on its way.
            self._run("systemctl", "stop", _unit(device))
        # Those that exit have no environment any more, by which they are found; the driver may hang in that.
        known = _read_ending(folder)
        while True:
            found = set(mps_processes.find(self._control, folder / "pipe"))
            if not found <= known:
                # SIGTERM to each once, also to those that are started meanwhile.
                fresh, known = found - known, known | found
                _write_ending(folder, known)
                mps_processes.send(fresh, signal.SIGTERM)
            left = [p for p in known if mps_processes.is_running(p)]
            waited = time.monotonic() - begun
            grace = min(_GRACE_SECONDS, self._ready_seconds / 2)
            if not left:
                if not mps_processes.listens(folder / "pipe"):
                    return
                # One that exits has no environment any more, and its socket still.
                if waited >= grace:
                    raise PrepareError(
                        f"device {device}: a process outside of this PID namespace listens at "
                        f"{folder}/pipe/control; it may be the MPS daemon and must end first. An agent in "
                        "a container needs the host's PID namespace (hostPID)",
                        retryable=True,
                    )
            elif waited >= self._ready_seconds:
                numbers = ", ".join(str(p.pid) for p in left)
                raise PrepareError(
                    f"device {device}: the MPS daemon does not end: process {numbers} runs {waited:.3g} s "
                    "after it was asked to end; if the GPU's driver hangs, only a reboot of the node ends it",
                    retryable=True,
                )
            if waited >= grace:
                mps_processes.send(found, signal.SIGKILL)
            self._pause(0.05)

    def _make(self, device: str, folder: Path) -> None:
        """Make the directories of a daemon; what its clients have open stays, if they could only read it.

        Raises:
            PrepareError: they cannot be made.
        """
        try:
            if not (folder / _READ_ONLY).is_file():
                self._remove(device, folder)
            for name, mode in (("pipe", 0o755), ("log", 0o700), ("shm", 0o1777)):
                (folder / name).mkdir(parents=True, exist_ok=True)
                if not shared_folders.is_mounted(folder / name):
                    (folder / name).chmod(mode)
            for stale in (folder / "pipe").iterdir():
                shared_folders.put_aside(stale, self._folders)
            self._mount(device, folder / "shm", self._shared_memory, _SHARED_MEMORY_INODES, 0o1777)
            self._mount(device, folder / "log", _LOG_BYTES, _LOG_INODES, 0o700)
            # The last step: without it, all of this is made again.
            (folder / _READ_ONLY).touch()
        except OSError as e:
            raise PrepareError(
                f"device {device}: no directory for the MPS daemon: {e}", retryable=True
            ) from e

    def _mount(self, device: str, folder: Path, size: int, inodes: int, mode: int) -> None:
        # Containers may have files there, which a mount would hide from the next daemon.
        if shared_folders.is_mounted(folder) or not self._is_root or any(folder.iterdir()):
            return
        if problem := shared_folders.mount_memory(folder, size=size, inodes=inodes, mode=mode):
            log.warning(
                "a directory of an MPS daemon has no limit: it is on the file system of the state directory",
                device=device,
                folder=str(folder),
                reason=problem,
            )

    def _remove(self, device: str, folder: Path) -> None:
        """Unmount what a daemon had, and put its directory aside.

        Raises:
            PrepareError: its files would be there for the next claim.
        """
        try:
            for name in ("shm", "log"):
                shared_folders.unmount(folder / name)
            shared_folders.put_aside(folder, self._folders)
        except OSError as e:
            raise PrepareError(
                f"device {device}: the files of its MPS daemon cannot be moved away: {e}", retryable=True
            ) from e

    def _folder(self, device: str) -> Path:
        if not _LABEL.fullmatch(device):
            raise PrepareError(f"device {device[:80]!r}: no name for a directory")
        return self._folders / device

    def _command(self, device: str, gpu: str, folder: Path) -> Command:
        seen = _HOST if self._launcher is Launcher.SYSTEMD else Path("/")
        closed = closed_directory(folder, seen)
        return daemon_command(
            self._launcher, self._control, device, gpu, folder, root=self._is_root, closed=closed
        )

    def _launch(self, device: str, command: Command) -> None:
        try:
            done = subprocess.run(  # noqa: S603 - no shell, and names are checked
                command.args,
                env={**os.environ, **command.env},
                stdin=subprocess.DEVNULL,
                # Not a pipe: the daemon inherits it and would keep it open.
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
                timeout=self._ready_seconds,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as e:
            raise PrepareError(f"device {device}: {command.args[0]} cannot be run: {e}") from e
        if done.returncode != 0:
            raise PrepareError(
                f"device {device}: the MPS daemon cannot be started: {command.args[0]} ended with "
                f"{done.returncode}"
            )

    def _run(self, *command: str) -> None:
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            subprocess.run(  # noqa: S603 - names are checked
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                timeout=self._ready_seconds,
                check=False,
            )


def _read_ending(folder: Path) -> set[Process]:
    """Return the processes that an agent has begun to end, whatever has become of them; only to wait for."""
    try:
        lines = (folder / _ENDING).read_text(encoding="ascii").splitlines()
        return {Process(int(pid), int(started)) for pid, started in map(str.split, lines)}
    except (OSError, ValueError):
        return set()


def _write_ending(folder: Path, processes: Iterable[Process]) -> None:
    with contextlib.suppress(
        OSError
    ):  # a directory that is gone, or a disk that is full: they end all the same
        text = "".join(f"{p.pid} {p.started}\n" for p in processes)
        files.write(folder / _ENDING, text.encode(), 0o600)


def _end_of(file: Path) -> str:
    """Return the last of a daemon's log, which goes with the daemon; no container can write there."""
    try:
        with file.open("rb") as log_file:
            log_file.seek(max(0, file.stat().st_size - _SHOWN_LOG_BYTES))
            return log_file.read(_SHOWN_LOG_BYTES).decode(errors="replace").strip()
    except OSError:
        return ""


def _choose(launcher: Launcher) -> Launcher:
    if launcher is not Launcher.AUTO:
        return launcher
    systemd = Path("/run/systemd/system").is_dir() and shutil.which("systemd-run")
    return Launcher.SYSTEMD if systemd and os.geteuid() == 0 else Launcher.SESSION
