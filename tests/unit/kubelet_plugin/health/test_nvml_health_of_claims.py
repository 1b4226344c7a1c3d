"""An XID of a GPU with MIG partitions reaches the claims that hold them, through the NVML stub and back."""

from __future__ import annotations

import json
from pathlib import Path

import nvml_stub_support as stub
import pytest
from forked import ForkedScript

SCRIPT = """
import asyncio, sys
from pathlib import Path
import nvml_health_node
asyncio.run(nvml_health_node.main(Path(sys.argv[1])))
"""
GPU, OTHER = "gpu-0000-07-00-0", "gpu-0000-08-00-0"
PARTS = [f"{GPU}-mig-3g-40gb-4", f"{GPU}-mig-1g-10gb-0"]
HEALTHY, UNHEALTHY = 1, 2


def test_an_xid_reaches_the_claims_on_partitions_and_a_reload_ends_it(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    library = stub.shared(tmp_path_factory)
    watched = ["compute 2", "supported_events 0xFFFF"]
    gpus = [
        stub.Gpu("H100-80", "00000000:07:00.0", 3, "GPU-a", extra=watched),
        stub.Gpu("H100-80", "00000000:08:00.0", 4, "GPU-b", extra=watched),
    ]
    (tmp_path / "nvml.conf").write_text(stub.config(gpus))
    folder = tmp_path / "proc/driver/nvidia-caps"
    folder.mkdir(parents=True)
    lines = [f"gpu3/gi{g}/access {408 + 9 * g}\ngpu3/gi{g}/ci0/access {409 + 9 * g}\n" for g in range(15)]
    (folder / "mig-minors").write_text("".join(lines))
    environment = {
        "LD_LIBRARY_PATH": str(library),
        "NVML_STUB_CONFIG": str(tmp_path / "nvml.conf"),
        "NVML_STUB_STATE": str(tmp_path / "state"),
    }
    imports = ["nvml_health_node"]
    lines = ForkedScript(SCRIPT, str(tmp_path), environment=environment, imports=imports).finish()
    well, ill, reloaded = [json.loads(line) for line in lines if line.startswith("{")]
    assert well["stream"] == dict.fromkeys([GPU, OTHER, *PARTS], HEALTHY)
    assert well["conditions"] == {PARTS[0]: [], PARTS[1]: [], OTHER: []}
    assert ill["stream"] == {**dict.fromkeys([GPU, *PARTS], UNHEALTHY), OTHER: HEALTHY}
    assert ill["conditions"] == {**{key: [["False", "Xid79"]] for key in PARTS}, OTHER: []}
    # Two claims hold the GPU, so that the count is nobody's.
    (line,) = ill["xids"]
    assert 'claim=""' in line
    assert f'device="{GPU}"' in line
    assert 'xid="79"' in line
    assert reloaded["stream"] == well["stream"]
    assert reloaded["conditions"] == {**{key: [["True", "Healthy"]] for key in PARTS}, OTHER: []}
