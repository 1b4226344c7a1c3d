"""The nodes of NVIDIA's unified memory, without which no CUDA program starts: made, or reported.

Neither the kernel nor udev makes ``/dev/nvidia-uvm``; NVIDIA's own tools do when something asks for it first
(``nvidia-modprobe --unified-memory``). Its major number is assigned when the module is loaded, and stands in
``/proc/devices``. The rules here are those of nvidia-modprobe: numbers 0 and 1 under that major, mode, owner
and ``ModifyDeviceFiles`` of ``/proc/driver/nvidia/params``; a node with other numbers, as one of an earlier
loading of the module, is replaced. Where the major is not known, nothing is made; nor in the ``/dev`` of a
container, which is not the host's.
"""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path
from typing import Final

import structlog

from dra_driver.discovery.core.problems import Problem

__all__ = ["UvmNodes"]

_log = structlog.get_logger(__name__)

_NODES: Final = (("nvidia-uvm", 0), ("nvidia-uvm-tools", 1))
_MAJOR: Final = re.compile(r"^\s*([0-9]{1,4})\s+nvidia-uvm\s*$", re.MULTILINE)
_PARAMETER: Final = re.compile(r"^(\w+):\s*([0-9]{1,10})\s*$", re.MULTILINE)
# The kernel has 12 bits for it (MKDEV).
_MOST_MAJOR: Final = (1 << 12) - 1
_USUAL_MODE: Final = 0o666


class UvmNodes:
    """The nodes of one machine.

    Args:
        proc_root: where the host's procfs is.
        dev_root: where the host's device nodes are.
    """

    def __init__(self, *, proc_root: Path, dev_root: Path) -> None:
        self._proc = proc_root
        self._dev = dev_root

    def ensure(self) -> list[Problem]:
        """Make the nodes that are missing or have other numbers, where that is allowed.

        Returns:
            What is missing still, and what can be done about it.
        """
        if not self._dev.is_dir():
            return []  # no device nodes are to be seen at all
        major = self._major()
        problems = [p for name, minor in _NODES if (p := self._ensure(name, major, minor))]
        # One problem is reported once: the second node is of use only beside the first.
        return problems[:1]

    def _ensure(self, name: str, major: int, minor: int) -> Problem | None:
        node = self._dev / name
        try:
            found: os.stat_result | None = node.lstat()
        except OSError:
            found = None
        if found is not None and not stat.S_ISCHR(found.st_mode):
            return None  # a link of the administrator's, or a tree of a test
        if not major:
            if found is not None or name != _NODES[0][0]:
                return None
            why = f"{self._proc}/devices has no number for it, so the module nvidia-uvm is not loaded"
            return _missing(node, why)
        wanted = os.makedev(major, minor)
        if found is not None and found.st_rdev == wanted:
            return None
        parameters = self._parameters()
        if not parameters.get("ModifyDeviceFiles", 1):
            why = "the driver's parameter ModifyDeviceFiles forbids creating it"
        elif not self._is_the_hosts():
            why = f"{self._dev} is not the host's, whose file system is a devtmpfs"
        else:
            why = self._make(node, wanted, parameters, replace=found is not None)
        if not why:
            return None
        if found is not None:
            numbers = f"{os.major(found.st_rdev)}:{os.minor(found.st_rdev)}"
            return _problem(f"{node} has the numbers {numbers} and not {major}:{minor}: {why}")
        return _missing(node, why)

    def _is_the_hosts(self) -> bool:
        """Return whether the folder is the kernel's own; that of a container is another one."""
        found = ("", "")
        for line in _read(self._proc / "self/mountinfo").splitlines():
            before, _, after = line.partition(" - ")
            point = (before.split(" ") + [""] * 5)[4]
            # The last mount of a place hides those before it.
            if self._dev.is_relative_to(point or "-") and len(point) >= len(found[0]):
                found = point, after.split(" ")[0]
        return found[1] == "devtmpfs"

    def _make(self, node: Path, device: int, parameters: dict[str, int], *, replace: bool) -> str:
        """Make a node, and return why that could not be done; empty if it was."""
        # Under another name first: a container must never be given a node with the wrong numbers or mode.
        temporary = node.with_name(f".{node.name}.{os.getpid()}")
        try:
            os.mknod(temporary, stat.S_IFCHR | 0o600, device)
            try:
                os.chown(temporary, parameters.get("DeviceFileUID", 0), parameters.get("DeviceFileGID", 0))
                temporary.chmod(parameters.get("DeviceFileMode", _USUAL_MODE) & 0o777)
                if replace:
                    temporary.replace(node)
                else:
                    # Another tool may have made it meanwhile.
                    os.link(temporary, node)
            finally:
                temporary.unlink(missing_ok=True)
        except FileExistsError:
            return ""
        except OSError as e:
            return f"it cannot be created here: {e.strerror}"
        _log.info("device node made", node=str(node), major=os.major(device), minor=os.minor(device))
        return ""

    def _major(self) -> int:
        """Return the number of the loaded module; 0 if it is not known."""
        match = _MAJOR.search(_read(self._proc / "devices"))
        number = int(match[1]) if match else 0
        return number if number <= _MOST_MAJOR else 0

    def _parameters(self) -> dict[str, int]:
        text = _read(self._proc / "driver/nvidia/params")
        return {name: int(value) for name, value in _PARAMETER.findall(text)}


def _missing(node: Path, why: str) -> Problem:
    return _problem(
        f"{node} is missing, and CUDA programs do not start without it: {why}; on the host run "
        "nvidia-modprobe --unified-memory --create-nvidia-device-file=0, or run nvidia-persistenced"
    )


def _problem(message: str) -> Problem:
    return Problem("", "unified memory", message)


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""
