"""Lives of node agents on the NVML stub, each a process of its own that costs no imports."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from forked import ForkedScript

_SCRIPT = """
import asyncio, json, sys
from pathlib import Path
import nvml_node
root, steps, backend = json.loads(sys.argv[1])
asyncio.run(nvml_node.main(Path(root), steps, backend))
"""


class Lives:
    """Makes the processes, see ``nvml_node``, with the stub in the folder ``library``."""

    def __init__(self, library: Path) -> None:
        self._library = library

    def live(self, root: Path, *steps: list[Any], backend: str = "nvml") -> list[dict[str, Any]]:
        """Return the answers of an agent to the steps; the stub reads ``nvml.conf`` below the root."""
        environment = {
            "LD_LIBRARY_PATH": str(self._library),
            "NVML_STUB_CONFIG": str(root / "nvml.conf"),
            "NVML_STUB_STATE": str(root / "state"),
        }
        life = json.dumps([str(root), steps, backend])
        process = ForkedScript(_SCRIPT, life, environment=environment, imports=["nvml_node"])
        return [json.loads(line) for line in process.finish() if line.startswith("{")]
