"""Discovery: of NVIDIA's GPUs through the real binding and the stub library, of the others on fake trees.

Each backend looks at 16 devices, and at as many as the largest machines have. What NVML takes of a real
driver is not in it: the stub answers at once, so the figure is what we add.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[2] / "unit"))

import nvml_stub_support as stub

from dra_driver.discovery import open_backend
from dra_driver.discovery.simulated import layout, profile

_TIMES = 15
_IDS = {"amdgpu": "74a1", "intel": "56c0", "rdma": "1021"}
# Of the issue: 16 GPUs with the stub library.
_AIM = {"baseline": 200.0, "baseline_of": "the aim"}


def run() -> list[dict[str, Any]]:
    """Milliseconds of one look, the median of several; the first one, which opens the library, apart."""
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        rows += _nvml(root)
        for kind in _IDS:
            for number in (16, 256):
                seconds = _looks(_opened(kind, number, root / f"{kind}-{number}"))
                rows.append(_row(f"{kind}, {number} devices", seconds, number))
    return rows


def _nvml(root: Path) -> list[dict[str, Any]]:
    links = [f"nvlink {n} 1 2 00000000:C4:00.0" for n in range(18)]
    buses = [f"00000000:{16 + i:02X}:00.0" for i in range(16)]
    text = stub.config([stub.Gpu("H200", bus, i, f"GPU-{i}", links) for i, bus in enumerate(buses)])
    places = {bus[4:].lower(): (f"pci0000:{bus[9:11].lower()}", 0) for bus in buses}
    sysfs = stub.fake_sysfs(root / "sys", places)
    probe = stub.Probe(stub.build(root / "stub", stub.compiler()), root)
    try:
        probe.open(text, sysfs=sysfs)
        first = probe.discover()
        assert len(first["devices"]) == 16
        again = statistics.median(probe.discover()["seconds"] for _ in range(_TIMES))
        samples = []
        for _ in range(_TIMES):
            start = time.perf_counter()
            assert len(probe.sample()) == 16
            samples.append(time.perf_counter() - start)
    finally:
        probe.stop()
    return [
        _row("nvml, 16 H200 with MIG profiles and NVLink, first look", first["seconds"], 16),
        _row("nvml, 16 H200 with MIG profiles and NVLink", again, 16),
        {"name": "nvml, one sample of 16", "value": statistics.median(samples) * 1000, "unit": "ms"},
    ]


def _row(name: str, seconds: float, number: int) -> dict[str, Any]:
    return {"name": name, "value": seconds * 1000, "unit": "ms"} | (_AIM if number == 16 else {})


def _opened(kind: str, number: int, root: Path) -> Callable[[], int]:
    at = ", ".join(f'"{n >> 7:04x}:{n & 127:02x}:00.0 pci{n >> 7:04x}:00"' for n in range(number))
    text = f"devices:\n- {{kind: {kind}, deviceID: '{_IDS[kind]}', at: [{at}]}}\n"
    layout.build(profile.decode(text, "benchmark"), root)
    backend = open_backend(kind, sysfs_root=root / "sys", dev_root=root / "dev", node_name="n")

    def look() -> int:
        found = len(backend.discover())
        assert found == number
        return found

    return look


def _looks(look: Callable[[], int]) -> float:
    times: list[float] = []
    for _ in range(_TIMES):
        start = time.perf_counter()
        look()
        times.append(time.perf_counter() - start)
    return statistics.median(times)
