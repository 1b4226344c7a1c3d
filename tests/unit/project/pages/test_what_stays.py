"""The page of the installation names everything that an uninstalled node agent leaves on its node."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from node_agent import configuration
from paths import PROJECT

from dra_driver.discovery.simulated.backend import STATE_FILE
from kubelet_plugin.gpu.setup import daemon_folder

sys.path.insert(0, str(PROJECT / "tests" / "e2e" / "harness"))

from node_traces import LOCKS, MEMORY


def test_the_page_names_all_files_and_directories_that_stay(tmp_path: Path) -> None:
    page = (PROJECT / "docs" / "installation.md").read_text()
    (row,) = re.findall(r"^\| `/var/lib/kubelet/plugins/gpu\.dra-driver\.dev` .*$", page, re.MULTILINE)
    agent = configuration(tmp_path)
    directories = {*LOCKS, agent.metadata_dir.name, daemon_folder(agent).name}
    for name in {*MEMORY, STATE_FILE, *(f"{d}/" for d in directories)}:
        assert f"`{name}`" in row
