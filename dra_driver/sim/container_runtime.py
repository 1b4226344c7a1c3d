"""Running a container with runc, crun or podman, with what a simulated node made of its CDI devices.

The container is minimal: its root file system is one static busybox, or the host's own ``/bin``, ``/lib`` and
``/usr`` mounted read-only. Device nodes of simulated GPUs do not exist on the host; they are
made in the container with the numbers of ``/dev/null``, so that the container has something to open.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dra_driver.errors import ConfigurationError, DraError
from dra_driver.sim.cdi_reader import ContainerView

__all__ = ["NOT_OURS", "ContainerFailed", "ContainerRuntime", "find_runtime"]

RUNTIMES = ("runc", "crun", "podman")
SECONDS = 60
SCRIPT = "env; for f in $DEVICE_NODES; do ls -l $f; done"
HOST_DIRECTORIES = ("/bin", "/sbin", "/lib", "/lib32", "/lib64", "/usr")
NULL_DEVICE = (1, 3)
# Lines of the output that are not about devices.
NOT_OURS = ("HOME=", "PWD=", "PATH=", "DEVICE_NODES=", "OLDPWD=", "SHLVL=", "_=")


class ContainerFailed(DraError):
    """The runtime could not run the container; the text is the runtime's."""


def find_runtime() -> ContainerRuntime:
    """Return the first runtime on this machine that can be used.

    Raises:
        ConfigurationError: there is none, or this process is not root; the message says what is needed.
    """
    found = next((path for name in RUNTIMES if (path := shutil.which(name))), None)
    findings = []
    if found is None:
        findings.append(f"--runtime: none of {', '.join(RUNTIMES)} is in PATH; install one, or leave it out")
    if os.geteuid() != 0:
        findings.append("--runtime: containers are run as root; use sudo, or leave it out")
    if findings or found is None:
        raise ConfigurationError(findings)
    return ContainerRuntime(Path(found))


@dataclass(frozen=True, slots=True)
class ContainerRuntime:
    """One runtime."""

    path: Path

    @property
    def name(self) -> str:
        """Name of the runtime, for people."""
        return self.path.name

    def run(self, view: ContainerView, directory: Path) -> str:
        """Run ``env`` and ``ls -l`` of the device nodes in a container.

        Args:
            view: what the container gets.
            directory: for the bundle, which is removed again.

        Returns:
            the output.

        Raises:
            ContainerFailed: the container could not be run.
        """
        with tempfile.TemporaryDirectory(dir=directory, prefix="bundle-") as bundle:
            rootfs = Path(bundle) / "rootfs"
            host = _fill(rootfs)
            if self.name == "podman":
                return _execute(self._podman(view, rootfs, host))
            config = _config(view, host)
            (Path(bundle) / "config.json").write_text(json.dumps(config))
            name = f"dra-demo-{uuid.uuid4().hex[:12]}"
            try:
                return _execute(
                    [str(self.path), "--root", f"{bundle}/state", "run", "--bundle", bundle, name]
                )
            finally:
                subprocess.run(
                    [str(self.path), "--root", f"{bundle}/state", "delete", "--force", name],
                    capture_output=True,
                    check=False,
                    timeout=SECONDS,
                )

    def _podman(self, view: ContainerView, rootfs: Path, host: tuple[str, ...]) -> list[str]:
        command = [str(self.path), "run", "--rm", "--network=none", "--pull=never"]
        command += [f"--env={k}={v}" for k, v in _environment(view).items()]
        command += [f"--volume={d}:{d}:ro" for d in host]
        command += [f"--volume={m.source}:{m.destination}:ro" for m in view.mounts]
        command += [
            f"--device={d.host_path if Path(d.host_path).exists() else '/dev/null'}:{d.path}"
            for d in view.devices
        ]
        return [*command, "--rootfs", str(rootfs), "/bin/sh", "-c", SCRIPT]


def _fill(rootfs: Path) -> tuple[str, ...]:
    """Make the root file system, and return the directories of the host that have to be mounted."""
    for name in ("proc", "dev", "sys", "tmp"):
        (rootfs / name).mkdir(parents=True)
    busybox = _static_busybox()
    if busybox is not None:
        (rootfs / "bin").mkdir()
        shutil.copy2(busybox, rootfs / "bin" / "busybox")
        for applet in ("sh", "env", "ls"):
            (rootfs / "bin" / applet).symlink_to("busybox")
        return ()
    mounted = []
    for name in HOST_DIRECTORIES:
        source, target = Path(name), rootfs / name.lstrip("/")
        if source.is_symlink():
            target.symlink_to(source.readlink())
        elif source.is_dir():
            target.mkdir(parents=True)
            mounted.append(name)
    return tuple(mounted)


def _static_busybox() -> Path | None:
    for name in ("busybox-static", "busybox"):
        found = shutil.which(name)
        if found is not None:
            probe = Path(found).resolve()
            # A program that needs the dynamic loader names it in its ELF header.
            if b"ld-linux" not in probe.read_bytes() and b"ld-musl" not in probe.read_bytes():
                return probe
    return None


def _environment(view: ContainerView) -> Mapping[str, str]:
    nodes = " ".join(d.path for d in view.devices)
    return {"PATH": "/usr/bin:/bin:/usr/sbin:/sbin", "DEVICE_NODES": nodes, **view.env}


def _config(view: ContainerView, host: tuple[str, ...]) -> dict[str, Any]:
    oci = view.as_oci()
    devices = []
    for device in oci["linux"]["devices"]:
        if not device["major"]:
            device["type"], (device["major"], device["minor"]) = "c", NULL_DEVICE
        devices.append({"fileMode": 0o666, "uid": 0, "gid": 0, **device})
    system = [
        {"destination": "/proc", "type": "proc", "source": "proc"},
        {
            "destination": "/dev",
            "type": "tmpfs",
            "source": "tmpfs",
            "options": ["nosuid", "mode=755", "size=64k"],
        },
    ]
    binds = [{"destination": d, "type": "bind", "source": d, "options": ["rbind", "ro"]} for d in host]
    return {
        "ociVersion": "1.0.2",
        "process": {
            "terminal": False,
            "user": oci["process"]["user"],
            "args": ["/bin/sh", "-c", SCRIPT],
            "env": [f"{k}={v}" for k, v in _environment(view).items()],
            "cwd": "/",
            "noNewPrivileges": True,
        },
        "root": {"path": "rootfs", "readonly": False},
        "hostname": "dra-demo",
        "mounts": [*system, *binds, *oci["mounts"]],
        "hooks": oci["hooks"],
        "linux": {
            "devices": devices,
            "namespaces": [{"type": t} for t in ("pid", "ipc", "uts", "mount", "network")],
        },
    }


def _execute(command: list[str]) -> str:
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=SECONDS, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.TimeoutExpired) as e:
        raise ContainerFailed(f"{command[0]}: {e}") from e
    if done.returncode:
        raise ContainerFailed(
            f"{command[0]} ended with status {done.returncode}: {done.stderr.strip()[-800:]}"
        )
    return done.stdout
