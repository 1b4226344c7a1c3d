"""What the node agent does not load: it runs on every node, and its memory is not the pods'."""

from __future__ import annotations

import subprocess
import sys


def test_the_node_agent_does_not_load_selectors_and_the_allocator() -> None:
    code = (
        "import sys; import dra_driver.cli.processes.kubelet_plugin; "
        "print([m for m in sys.modules if m.startswith(('dra_driver.cel', 'dra_driver.structured', "
        "'dra_driver.sim', 'controller', 're2', 'kubernetes'))])"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"
