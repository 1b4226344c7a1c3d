"""Lives of node agents on the NVML stub, each a process of its own that costs no imports."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Self

from paths import HARDWARE, SUPPORT


class Lives:
    """The server that forks the processes, see ``nvml_node``, with the stub in the folder ``library``."""

    def __init__(self, library: Path) -> None:
        # The dynamic linker reads its variable at the start of a process alone.
        env = {
            **os.environ,
            "LD_LIBRARY_PATH": str(library),
            "PYTHONPATH": f"{HARDWARE}:{SUPPORT}",
        }
        self._server = subprocess.Popen(
            [sys.executable, str(HARDWARE / "nvml_node.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=env,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._server.communicate()

    def live(self, root: Path, *steps: list[Any], backend: str = "nvml") -> list[dict[str, Any]]:
        """Return the answers of an agent to the steps; the stub reads ``nvml.conf`` below the root."""
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        environment = {
            "NVML_STUB_CONFIG": str(root / "nvml.conf"),
            "NVML_STUB_STATE": str(root / "state"),
        }
        output, errors = root / "output", root / "errors"
        request = {
            "root": str(root),
            "steps": steps,
            "backend": backend,
            "environment": environment,
            "output": str(output),
            "errors": str(errors),
        }
        print(json.dumps(request), file=self._server.stdin, flush=True)
        status = self._server.stdout.readline()
        assert status == "0\n", errors.read_text()
        return [json.loads(line) for line in output.read_text().splitlines() if line.startswith("{")]
