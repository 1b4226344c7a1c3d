"""The stub of NVIDIA's library: compiles it, writes its configuration, and asks it from a process of its own.

ctypes loads a library once per process, so whatever needs the stub runs in a forked process that has it in
LD_LIBRARY_PATH. One such process (``Probe``) serves many tests: the stub reads its configuration again
whenever the library is opened or the GPUs are counted.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from forked import ForkedScript
from once import once_in_a_run

from dra_driver.discovery.nvidia.products import MIB, products

if TYPE_CHECKING:  # what runs as a script without tests need not import it
    import pytest

SOURCE = Path(__file__).parents[2] / "nvml_stub" / "nvml_stub.c"
NOT_SUPPORTED, GPU_IS_LOST, UNKNOWN = 3, 15, 999

# NVML's number of each kind of GPU instance, by how many slices it has and what is special about it.
_PROFILE_NUMBERS = {(1, ""): 0, (2, ""): 1, (3, ""): 2, (4, ""): 3, (7, ""): 4, (1, "+me"): 7, (2, "+me"): 8}
_DOUBLE_MEMORY = 9
_ARCHITECTURES = {"Volta": 5, "Turing": 6, "Ampere": 7, "Ada Lovelace": 8, "Hopper": 9, "Blackwell": 10}
_CORES = {"7.0": 64, "7.5": 64, "8.0": 64, "8.9": 128, "9.0": 128, "10.0": 128}
_MODES = {"None": 0, "HMM": 1, "ATS": 2}


def compiler() -> list[str]:
    """A C compiler: the machine's, else the one that comes with the development dependencies."""
    for name in ("cc", "gcc", "clang"):
        if found := shutil.which(name):
            return [found]
    probe = subprocess.run([sys.executable, "-m", "ziglang", "version"], capture_output=True)
    if probe.returncode == 0:
        return [sys.executable, "-m", "ziglang", "cc"]
    raise AssertionError(
        "the NVML tests need a C compiler for their stub library: install cc, "
        "or the package ziglang of the dev extra"
    )


def build(folder: Path, command: Sequence[str]) -> Path:
    """Compiles the stub into ``folder`` (to be put in LD_LIBRARY_PATH)."""
    folder.mkdir(parents=True, exist_ok=True)
    library = folder / "libnvidia-ml.so.1"
    env = {
        **os.environ,
        "ZIG_GLOBAL_CACHE_DIR": str(folder / "zig"),
        "ZIG_LOCAL_CACHE_DIR": str(folder / "zig"),
    }
    flags = [
        "-std=c11",
        "-Wall",
        "-Wextra",
        "-Werror",
        "-O1",
        "-shared",
        "-fPIC",
        "-pthread",
        # NVIDIA's has it too: a process that has loaded the library finds it again by its name.
        f"-Wl,-soname,{library.name}",
        "-o",
        str(library),
        str(SOURCE),
    ]
    done = subprocess.run([*command, *flags], capture_output=True, text=True, env=env, timeout=300)
    assert done.returncode == 0, f"the NVML stub does not compile with {command}:\n{done.stderr}"
    return folder


def shared(factory: pytest.TempPathFactory) -> Path:
    """Compile the stub once in a run; return its folder (to be put in LD_LIBRARY_PATH)."""
    return once_in_a_run(factory, "nvml-stub", lambda folder: build(folder, compiler()))


@dataclass
class Gpu:
    """One GPU of the stub: a product, where it sits, and what of it fails."""

    product: str
    bus: str
    minor: int
    uuid: str
    extra: Sequence[str] = ()
    fail: Mapping[str, int] = field(default_factory=dict)
    mig_names: bool = True

    def lines(self) -> list[str]:
        p = products()[self.product]
        per = _CORES[p.cuda_compute_capability]
        lines = [
            "gpu",
            f"bus {self.bus}",
            f"uuid {self.uuid}",
            f"minor {self.minor}",
            f"name {p.product_name}",
            f"memory {p.memory_mib * MIB}",
            f"arch {_ARCHITECTURES[p.architecture]}",
            "brand 14",
            f"cc {p.cuda_compute_capability}",
            "ecc 1",
            "virt 0",
        ]
        if p.multiprocessors:
            lines.append(f"cores {p.multiprocessors * per}")
        if p.addressing_mode:
            lines.append(f"mode {_MODES[p.addressing_mode]}")
        if p.mig_capable:
            lines.append("mig 0")
        for m in p.mig_profiles:
            slices, suffix = int(m.name.split("g.")[0]), m.name[m.name.find("gb") + 2 :]
            number = _DOUBLE_MEMORY if slices == 1 and m.size == 2 else _PROFILE_NUMBERS[slices, suffix]
            amounts = (
                m.memory_mib,
                m.multiprocessors,
                m.copy_engines,
                m.decoders,
                m.encoders,
                m.jpeg_engines,
                m.ofa_engines,
            )
            starts = ",".join(map(str, m.starts))
            numbers = (number, m.id, slices, len(m.starts), *amounts, m.size)
            line = f"profile {' '.join(map(str, numbers))} {starts}"
            lines.append(f"{line} MIG {m.name}" if self.mig_names else line)
        return [*lines, *self.extra, *(f"fail {name} {code}" for name, code in self.fail.items())]


def config(
    gpus: Sequence[Gpu], *, driver: str = "570.148.08", cuda: int = 12080, system: Sequence[str] = ()
) -> str:
    """Text of a configuration file."""
    lines = [f"driver {driver}", f"cuda {cuda}", *system]
    for gpu in gpus:
        lines += gpu.lines()
    return "\n".join(lines) + "\n"


def fake_sysfs(root: Path, functions: Mapping[str, tuple[str, int]]) -> Path:
    """A sysfs tree with PCI functions: address → (PCIe root, NUMA node)."""
    links = root / "bus" / "pci" / "devices"
    links.mkdir(parents=True, exist_ok=True)
    for address, (pcie_root, node) in functions.items():
        target = root / "devices" / pcie_root / "0000:00:01.0" / address
        target.mkdir(parents=True)
        (target / "numa_node").write_text(f"{node}\n")
        (target / "class").write_text("0x030200\n")
        (target / "vendor").write_text("0x10de\n")
        (links / address).symlink_to(Path("../../../devices") / pcie_root / "0000:00:01.0" / address)
    return root


_PROBE = """
import dataclasses, json, sys
from pathlib import Path
import work_counter
from dra_driver.api import codec
from dra_driver.cli import common
from dra_driver.discovery import open_backend
from dra_driver.discovery.core.control import ToolPaths
from dra_driver.errors import DraError
common.configure_logging("error", "json")
backend = None
for line in sys.stdin:
    ask = json.loads(line)
    if ask["op"] == "open":
        if backend is not None:
            backend.close()
        sysfs, dev = Path(ask["sysfs"]), Path(ask["dev"])
        backend = open_backend("nvml", sysfs_root=sysfs, dev_root=dev, node_name="n")
        answer = {}
    elif ask["op"] == "close":
        backend.close()
        answer = {}
    elif ask["op"] == "pause":
        with backend.paused():
            answer = {}
    elif ask["op"] == "wait":
        events = backend.wait_for_events(ask["seconds"])
        answer = {"events": [[e.uuid, e.reason, e.severity, e.message, e.code] for e in events]}
    elif ask["op"] == "control":
        control = backend.control(ToolPaths(proc_root=Path(ask["proc"])))
        control._patience = 0.0
        try:
            found = getattr(control, ask["method"])(*ask["arguments"])
        except DraError as e:
            answer = {"error": str(e), "retryable": getattr(e, "retryable", None)}
        else:
            answer = {"answer": [i.instance_id for i in found] if isinstance(found, list) else str(found)}
    elif ask["op"] == "patience":
        backend.patience = ask["seconds"]
        answer = {}
    elif ask["op"] == "sample":
        answer = {"samples": [dataclasses.asdict(s) for s in backend.sample()]}
    elif ask["op"] == "calls":
        answer = {"calls": work_counter.calls(backend.discover)}
    else:
        try:
            found = backend.discover()
        except DraError as e:
            answer = {"error": type(e).__name__, "text": str(e)}
        else:
            answer = {
                "devices": [
                    json.loads(codec.encode(d.device))
                    | {
                        "identity": d.uuid,
                        "nodes": [n.path for n in d.material.device_nodes],
                        "env": dict(v.split("=", 1) for v in d.material.env),
                    }
                    for d in found
                ],
                "problems": [str(p) for p in backend.problems],
                "unnamed": backend.unnamed,
            }
    print(json.dumps(answer), flush=True)
"""


class Probe:
    """A process that has loaded the stub and discovers on request."""

    def __init__(self, library: Path, folder: Path) -> None:
        self.config = folder / "nvml.conf"
        self.config.write_text(config([]))
        self.hanging = folder / "hang"
        self._proc = folder / "proc"
        environment = {
            "LD_LIBRARY_PATH": str(library),
            "NVML_STUB_CONFIG": str(self.config),
            "NVML_STUB_HANG": str(self.hanging),
        }
        self._process = ForkedScript(_PROBE, environment=environment)

    def _ask(self, op: str, **arguments: Any) -> dict[str, Any]:
        answer: dict[str, Any] = json.loads(self._process.ask(json.dumps({"op": op, **arguments})))
        return answer

    def open(
        self, text: str, *, sysfs: Path = Path("/nonexistent"), dev: Path = Path("/nonexistent")
    ) -> None:
        """A new backend on a machine that ``text`` configures."""
        self.config.write_text(text)
        self._ask("open", sysfs=str(sysfs), dev=str(dev))

    def discover(self, text: str | None = None) -> dict[str, Any]:
        """``devices``, ``problems`` and ``unnamed``, or ``error`` and ``text``.

        Changes the machine first if told to.
        """
        if text is not None:
            self.config.write_text(text)
        return self._ask("discover")

    def wait(self, text: str | None = None, seconds: float = 60.0) -> list[list[Any]]:
        """Events (uuid, reason, severity, message, code) that come within so many seconds."""
        if text is not None:
            self.config.write_text(text)
        events: list[list[Any]] = self._ask("wait", seconds=seconds)["events"]
        return events

    def control(self, method: str, *arguments: Any) -> dict[str, Any]:
        """``answer`` of the backend's control, or ``error`` and ``retryable``."""
        return self._ask("control", method=method, arguments=arguments, proc=str(self._proc))

    def hang(self, *lines: str) -> None:
        """From now on these calls do not come back, see the stub; none do if there are no lines."""
        fresh = self.hanging.with_suffix(".new")
        fresh.write_text("".join(f"{line}\n" for line in lines))
        fresh.rename(self.hanging)

    def patience(self, seconds: float) -> None:
        """``patience`` of the backend."""
        self._ask("patience", seconds=seconds)

    def sample(self) -> list[dict[str, Any]]:
        """``sample`` of the backend."""
        samples: list[dict[str, Any]] = self._ask("sample")["samples"]
        return samples

    def calls(self) -> int:
        """Return how many functions ``discover`` calls."""
        number: int = self._ask("calls")["calls"]
        return number

    def close_library(self) -> None:
        """``close`` of the backend."""
        self._ask("close")

    def pause(self) -> None:
        """``paused`` of the backend, and on."""
        self._ask("pause")

    def stop(self) -> None:
        """Ends the process."""
        self._process.stop()
