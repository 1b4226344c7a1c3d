"""MPS control daemons: one for each shared GPU, in a directory of its own, outliving the plugin.

``<state>/mps/<device>/`` holds ``pipe`` (sockets, for clients), ``log`` and ``shm`` (what the daemon and its
clients have as ``/dev/shm``). Whether a daemon runs is asked of the daemon itself, through its pipe, never of
a process table, so that a restarted plugin finds the daemons of the one before.
"""

from __future__ import annotations

import contextlib
import enum
import os
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import structlog

from dra_driver.errors import PrepareError

__all__ = [
    "NO_DAEMON",
    "NO_TIME_SLICES",
    "Launcher",
    "MpsDaemons",
    "NoDaemons",
    "daemon_command",
]

log = structlog.get_logger(__name__)

_LABEL: Final = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?")
# sockaddr_un has 108 bytes, the last one is NUL.
_MAX_PIPE_PATH: Final = 107
_PROBE: Final = "get_default_active_thread_percentage"


# Why a device has none of these, as clauses of an error.
NO_TIME_SLICES: Final = "time slicing needs an NVIDIA GPU that NVML controls"
NO_DAEMON: Final = (
    "it needs an NVIDIA GPU that NVML controls, and nvidia-cuda-mps-control on the node (--mps-control), and "
    "a --state-dir whose path leaves room for its sockets"
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


@dataclass(frozen=True, slots=True)
class Command:
    """A command with its environment, on top of the plugin's own."""

    args: tuple[str, ...]
    env: Mapping[str, str]


def daemon_command(
    launcher: Launcher, control: str, device: str, gpu: str, folder: Path, *, root: bool
) -> Command:
    """Return the command that starts the daemon of a device.

    Its ``/dev/shm`` is ``folder/shm``, because it meets its clients there too and theirs is not the host's.
    Under systemd the unit sees to that; a session needs root and ``unshare`` for it.
    """
    env = {
        "CUDA_VISIBLE_DEVICES": gpu,
        "CUDA_MPS_PIPE_DIRECTORY": str(folder / "pipe"),
        "CUDA_MPS_LOG_DIRECTORY": str(folder / "log"),
    }
    if launcher is Launcher.SYSTEMD:
        settings = [f"--setenv={name}={value}" for name, value in env.items()]
        return Command(
            (
                "systemd-run",
                "--quiet",
                "--collect",
                f"--unit={_unit(device)}",
                f"--description=MPS for {device}",
                f"--property=BindPaths={folder / 'shm'}:/dev/shm",
                *settings,
                control,
                "-f",
            ),
            {},
        )
    if root:
        script = 'mount --bind "$1" /dev/shm && exec "$2" -d'
        return Command(
            ("unshare", "--mount", "sh", "-c", script, "mps", str(folder / "shm"), control),
            env,
        )
    return Command((control, "-d"), env)


def _unit(device: str) -> str:
    return f"dra-driver-mps-{device}.service"


class MpsDaemons:
    """The MPS daemons of a node (``ports.Daemons``).

    Args:
        folder: of all daemons; its path has to be the same on the host.
        control: ``nvidia-cuda-mps-control``, a path or a name to be found in PATH.
        launcher: what keeps the daemons running.
        root: whether a daemon may get a mount namespace; if None, whether we are root.
        ready_seconds: how long a daemon may take to answer.
        pause: between two questions.
    """

    def __init__(
        self,
        folder: Path,
        *,
        control: str = "nvidia-cuda-mps-control",
        launcher: Launcher = Launcher.AUTO,
        root: bool | None = None,
        ready_seconds: float = 10.0,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        self._folders = folder
        self._control = control
        self._launcher = _choose(launcher)
        self._is_root = os.geteuid() == 0 if root is None else root
        self._ready_seconds = ready_seconds
        self._pause = pause

    def directory(self, device: str) -> str:
        """See ``ports.Daemons``."""
        if not _LABEL.fullmatch(device) or not shutil.which(self._control):
            return ""
        folder = str(self._folders / device)
        return folder if len(f"{folder}/pipe/control_privileged".encode()) <= _MAX_PIPE_PATH else ""

    def start(self, device: str, gpu: str) -> None:
        """See ``ports.Daemons``."""
        folder = self._folder(device)
        if self._answers(folder):
            return
        if not shutil.which(self._control):
            raise PrepareError(
                f"device {device}: the MPS daemon cannot be started: there is no {self._control} "
                "(--mps-control)"
            )
        for name, mode in (("pipe", 0o755), ("log", 0o700), ("shm", 0o1777)):
            (folder / name).mkdir(parents=True, exist_ok=True)
            (folder / name).chmod(mode)
        command = daemon_command(self._launcher, self._control, device, gpu, folder, root=self._is_root)
        self._launch(device, command)
        deadline = time.monotonic() + self._ready_seconds
        while not self._answers(folder):
            if time.monotonic() >= deadline:
                raise PrepareError(
                    f"device {device}: the MPS daemon does not answer after {self._ready_seconds:g} s; "
                    f"see {folder / 'log' / 'control.log'}",
                    retryable=True,
                )
            self._pause(0.1)
        log.info("MPS daemon started", device=device, launcher=self._launcher.value)

    def stop(self, device: str) -> None:
        """See ``ports.Daemons``."""
        folder = self._folder(device)
        if not folder.exists():
            return
        deadline = time.monotonic() + self._ready_seconds
        while self._answers(folder):
            self._command(folder, "quit -t 1")
            if time.monotonic() >= deadline:
                raise PrepareError(f"device {device}: the MPS daemon does not end", retryable=True)
            self._pause(0.1)
        if self._launcher is Launcher.SYSTEMD:
            # One that never answered may still be on its way.
            self._run("systemctl", "stop", _unit(device))
        shutil.rmtree(folder, ignore_errors=True)
        log.info("MPS daemon ended", device=device)

    def present(self) -> Sequence[str]:
        """See ``ports.Daemons``."""
        if not self._folders.is_dir():
            return ()
        return sorted(p.name for p in self._folders.iterdir() if p.is_dir() and _LABEL.fullmatch(p.name))

    def _folder(self, device: str) -> Path:
        if not _LABEL.fullmatch(device):
            raise PrepareError(f"device {device[:80]!r}: no name for a directory")
        return self._folders / device

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

    def _answers(self, folder: Path) -> bool:
        # Without a pipe the tool would try to start a daemon of its own in some versions.
        return (folder / "pipe" / "control").exists() and self._command(folder, _PROBE)

    def _command(self, folder: Path, words: str) -> bool:
        try:
            done = subprocess.run(  # noqa: S603
                [self._control],
                env={**os.environ, "CUDA_MPS_PIPE_DIRECTORY": str(folder / "pipe")},
                input=f"{words}\n".encode(),
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                timeout=5.0,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired):
            return False
        # The tool says what is wrong in words, and in old versions ends with 0 all the same.
        return done.returncode == 0 and b"Cannot find MPS control daemon" not in done.stdout


def _choose(launcher: Launcher) -> Launcher:
    if launcher is not Launcher.AUTO:
        return launcher
    systemd = Path("/run/systemd/system").is_dir() and shutil.which("systemd-run")
    return Launcher.SYSTEMD if systemd and os.geteuid() == 0 else Launcher.SESSION
