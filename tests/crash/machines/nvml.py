"""GPUs of the NVML stub, with files of drivers, a document of the toolkit, and daemons as processes."""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence, Set
from pathlib import Path
from typing import Any

import crash_mounts
import yaml
from crash_gpus import address, due, of_daemons, of_gpus

from dra_driver.api.names import DEFAULT_DRIVER_NAME

sys.path.insert(0, str(Path(__file__).parents[2] / "support"))
sys.path.insert(0, str(Path(__file__).parents[2] / "support" / "hardware"))

import nvml_stub_support as stub
from node_agent import nvidia_nodes
from nvidia_tools import Tools

BUSES = ("1b", "43", "52", "61", "9d", "c3", "d1", "df")
LIBRARIES = "usr/lib/x86_64-linux-gnu"
# Each driver has its own set of files.
DRIVERS: Mapping[str, tuple[str, ...]] = {
    "550.163.01": ("libcuda.so", "libnvidia-ml.so", "libnvidia-ptxjitcompiler.so"),
    "570.148.08": ("libcuda.so", "libnvidia-ml.so", "libnvidia-ptxjitcompiler.so", "libnvidia-nvvm.so"),
    "580.65.06": ("libcuda.so", "libnvidia-ml.so", "libnvidia-gpucomp.so", "libcudadebugger.so"),
}
TOOLKIT = "etc/cdi/nvidia.yaml"
_MODES = ("default", "thread", "prohibited", "exclusive-process")
_GPU_NODE = re.compile(r"/dev/nvidia[0-9]+")
_CAPABILITY = "/dev/nvidia-caps/nvidia-cap"


@functools.cache
def library() -> Path:
    """Return the folder of the stub, compiled once."""
    folder = Path(tempfile.mkdtemp(prefix="dra-crash-nvml-", dir="/tmp"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return stub.build(folder, stub.compiler())


class NvmlMachine:
    """Eight H100 of the NVML stub; implements ``Machine``.

    Attributes:
        lines: what the stub is told of each GPU beside what it is, by bus.
    """

    driver = DEFAULT_DRIVER_NAME

    def __init__(self, root: Path, _node: str) -> None:
        self._root = root
        self._minors = list(range(len(BUSES)))
        self._version = ""
        self._capabilities = 1
        self.lines: dict[str, list[str]] = {bus: [] for bus in BUSES}
        self.tools = Tools(root / "bin")
        self._places = root / "state/mps"
        self._shows_mounts = False
        nvidia_nodes(root)
        # Of the host the agent sees what a container does.
        mounts = "".join(f"1 0 0:1 / {root}/{place} ro - tmpfs tmpfs ro\n" for place in ("usr", "etc/cdi"))
        (root / "proc/self").mkdir(parents=True)
        (root / "proc/self/mountinfo").write_text(mounts)

    def arguments(self) -> Sequence[str]:
        return (
            f"--sysfs-root={self._root}/sys",
            f"--dev-root={self._root}/dev",
            "--backend=nvml",
            f"--nvidia-smi={self.tools.nvidia_smi}",
            f"--mps-control={self.tools.mps_control}",
            "--mps-launcher=session",
        )

    def environment(self) -> Mapping[str, str]:
        return {
            "NVML_STUB_CONFIG": f"{self._root}/nvml.conf",
            "NVML_STUB_STATE": f"{self._root}/nvml.state",
        }

    def boot(self, chance: random.Random) -> None:
        self.close()
        (self._root / "nvml.state").unlink(missing_ok=True)
        before = self._version
        self._version = chance.choice([v for v in DRIVERS if v != before])
        shutil.rmtree(self._root / LIBRARIES, ignore_errors=True)
        (self._root / LIBRARIES).mkdir(parents=True)
        for name in DRIVERS[self._version]:
            (self._root / LIBRARIES / f"{name}.{self._version}").write_bytes(b"\x7fELF")
            (self._root / LIBRARIES / f"{name}.1").symlink_to(f"{name}.{self._version}")
        self._capabilities = chance.randrange(1, 100)
        self.swap()
        # The toolkit has written its document, or none, or has not written it anew since the last boot.
        document = self._root / TOOLKIT
        document.parent.mkdir(parents=True, exist_ok=True)
        match chance.randrange(3):
            case 0:
                document.unlink(missing_ok=True)
            case 1:
                self._write_toolkit(document)
            case _:
                pass

    def swap(self) -> None:
        self._minors = [*self._minors[1:], self._minors[0]]
        lines = [
            f"gpu{m}/gi{gi}{compute}/access {self._number(m, gi) + more}\n"
            for m in self._minors
            for gi in range(15)
            for more, compute in enumerate(("", "/ci0"))
        ]
        table = self._root / "proc/driver/nvidia-caps/mig-minors"
        table.parent.mkdir(parents=True, exist_ok=True)
        table.write_text("".join(lines))
        nvidia_nodes(self._root)
        self.write()

    def write(self) -> None:
        """Tell the stub what there is."""
        gpus = [
            stub.Gpu("H100-80", f"00000000:{bus}:00.0", m, _uuid(bus), extra=[*_COMMON, *self.lines[bus]])
            for bus, m in zip(BUSES, self._minors, strict=True)
        ]
        fresh = self._root / "nvml.conf.new"
        fresh.write_text(stub.config(gpus, driver=self._version))
        fresh.rename(self._root / "nvml.conf")

    def mistake(self, device: Mapping[str, Any], nodes: set[str], spec: Mapping[str, Any]) -> str:
        partition = device.get("partition", {})
        bus = address(partition.get("gpu", device["device"])).split(":")[1]
        minor = self._minors[BUSES.index(bus)]
        wanted = {f"/dev/nvidia{minor}"}
        if partition:
            for number in self._instances_of(_uuid(bus), partition):
                first = self._number(minor, number)
                wanted |= {f"{_CAPABILITY}{first}", f"{_CAPABILITY}{first + 1}"}
        own = {n for n in nodes if _GPU_NODE.fullmatch(n) or n.startswith(_CAPABILITY)}
        if own != wanted:
            return f"{device['device']}: {sorted(own)}, not {sorted(wanted)}"
        edits = (spec.get("containerEdits", {}), *(d["containerEdits"] for d in spec["devices"]))
        files = {
            m["hostPath"] for e in edits for m in e.get("mounts", ()) if m["hostPath"].startswith("/usr/")
        }
        if missing := sorted(f for f in files if not (self._root / f.lstrip("/")).exists()):
            return f"{device['device']}: {missing} are not there; the driver is {self._version}"
        return ""

    def differences(self, records: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
        wanted, daemons = due({}, records)
        found: dict[str, dict[str, Any]] = {}
        for words in self._state():
            if words[0] == "mode":
                gpu = found.setdefault(words[1], {})
                gpu["mig"], gpu["compute"] = words[2] == "1", _MODES[int(words[4])]
                # The stand-in of nvidia-smi keeps no time slices.
                gpu["slice"] = wanted.get(words[1], {}).get("slice", "Default")
            elif words[0] == "instance":
                place = [int(words[n]) for n in (4, 5, 6)]
                gpu = found.setdefault(words[2], {})
                gpu["instances"] = [*gpu.get("instances", ()), place]
        for uuid, gpu in wanted.items():
            found.setdefault(uuid, {})["slice"] = gpu.get("slice", "Default")
        yield from of_gpus(wanted, found)
        yield from of_daemons(daemons, set(self.daemons()))
        yield from self._left_of_daemons(daemons)

    def _left_of_daemons(self, daemons: Set[str]) -> Iterator[tuple[str, str]]:
        processes = list(self._processes())
        controls = Counter(device for device, _, control in processes if control)
        servers = {device for device, _, control in processes if not control}
        if left := [*(servers - daemons), *(device for device, n in controls.items() if n > 1)]:
            yield "leaked daemons", f"servers of no daemon, or a second daemon: {sorted(left)}"
        if self._shows_mounts:
            mounts = Counter(self._mounts())
            wanted = Counter({f"{device}/{name}": 1 for device in daemons for name in ("shm", "log")})
            if more := mounts - wanted:
                yield "leaked mounts", f"{sorted(more.elements())}"
            if missing := wanted - mounts:
                yield "half-prepared claims", f"no limit of {sorted(missing)}"

    def show_mounts(self) -> None:
        """Let the agents' mounts reach others, as on a host, where this process may mount anything."""
        if not crash_mounts.isolated():
            return
        self._places.parent.mkdir(mode=0o700, exist_ok=True)
        self._places.mkdir(exist_ok=True)
        for arguments in (("--bind", self._places, self._places), ("--make-shared", self._places)):
            subprocess.run(["mount", *arguments], check=True)
        self._shows_mounts = True

    def daemons(self) -> Mapping[str, int]:
        """Return the process IDs of the sharing daemons that run, by device."""
        return {device: pid for device, pid, control in self._processes() if control}

    def close(self) -> None:
        """End the daemons and their servers, and undo every mount, as the end of a machine does."""
        # Again, because a daemon that ends may have started a server meanwhile.
        while processes := list(self._processes()):
            for _, pid, _ in processes:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        for mount in list(self._mounts()):
            crash_mounts.unmount(self._places / mount)
        if self._shows_mounts:
            crash_mounts.unmount(self._places)
            self._shows_mounts = False

    def _processes(self) -> Iterator[tuple[str, int, bool]]:
        """Yield device, process ID, and whether it is the daemon, of all that was started for sharing."""
        folder = f"CUDA_MPS_PIPE_DIRECTORY={self._places}/"
        for process in Path("/proc").iterdir():
            if not process.name.isdecimal():
                continue
            with contextlib.suppress(OSError):
                arguments = (process / "cmdline").read_bytes().split(b"\0")
                if arguments[1:2] != [str(self.tools.mps_control).encode()]:
                    continue
                for variable in (process / "environ").read_text(errors="replace").split("\0"):
                    if variable.startswith(folder):
                        device = variable.removeprefix(folder).partition("/")[0]
                        yield device, int(process.name), b"server" not in arguments

    def _mounts(self) -> Iterator[str]:
        lines = Path("/proc/self/mountinfo").read_text().splitlines() if self._shows_mounts else ()
        for line in reversed(lines):
            place = Path(line.split()[4])
            if self._places in place.parents:
                yield str(place.relative_to(self._places))

    def _state(self) -> list[list[str]]:
        file = self._root / "nvml.state"
        return [line.split() for line in file.read_text().splitlines()] if file.exists() else []

    def _instances_of(self, uuid: str, partition: Mapping[str, Any]) -> list[int]:
        place = [str(partition[key]) for key in ("profileId", "start", "size")]
        return [int(w[3]) for w in self._state() if w[0] == "instance" and w[2] == uuid and w[4:7] == place]

    def _number(self, minor: int, instance: int) -> int:
        return self._capabilities + 32 * minor + 2 * instance

    def _write_toolkit(self, document: Path) -> None:
        files = [f"/{LIBRARIES}/{name}.{self._version}" for name in DRIVERS[self._version]]
        mounts = [{"hostPath": f, "containerPath": f, "options": ["ro", "bind"]} for f in files]
        devices = [
            {"name": _uuid(bus), "containerEdits": {"deviceNodes": [{"path": f"/dev/nvidia{m}"}]}}
            for bus, m in zip(BUSES, self._minors, strict=True)
        ]
        spec = {"cdiVersion": "0.5.0", "kind": "nvidia.com/gpu", "devices": devices}
        document.write_text(yaml.safe_dump({**spec, "containerEdits": {"mounts": mounts}}))


_COMMON = ("compute 0", "supported_events 0xFFFF")


def _uuid(bus: str) -> str:
    return f"GPU-{bus}000000-0000-4000-8000-000000000000"
