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
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

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

    def daemons(self) -> Mapping[str, int]:
        """Return the process IDs of the sharing daemons that run, by device."""
        found: dict[str, int] = {}
        for file in self._root.glob("state/mps/*/pipe/nvidia-cuda-mps-control.pid"):
            with contextlib.suppress(OSError, ValueError):
                pid = int(file.read_text())
                state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
                if state not in "ZX":
                    found[file.parent.parent.name] = pid
        return found

    def close(self) -> None:
        for pid in self.daemons().values():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

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
