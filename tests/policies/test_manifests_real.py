"""The commands of docs/installation.md on the real API server (``DRA_K8S_BIN``), whatever its version."""

from __future__ import annotations

import asyncio
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from paths import PROJECT
from real_apiserver import RealApiServer, binaries, real_apiserver

from dra_driver.api.server.admission import ADMISSION_GROUP, MUTATING_POLICIES
from dra_driver.errors import NotFound

POLICY = "dra-driver-allocation-gate"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealApiServer]:
    if not (binaries() / "kubectl").exists():
        pytest.skip("kubectl is not beside the API server")
    with real_apiserver(tmp_path_factory.mktemp("real")) as started:
        yield started


def commands() -> dict[bool, str]:
    """Return the command for servers with the policies of the gate, and that for those without."""
    text = (PROJECT / "docs" / "installation.md").read_text(encoding="utf-8")
    found = re.findall(r"`kubectl (apply -f deploy/manifests [^`]+)`", text)
    return {"gate-policy" in command: command for command in found}


def kubectl(server: RealApiServer, command: str) -> str:
    program: Path = binaries() / "kubectl"
    line = [str(program), f"--kubeconfig={server.kubeconfig()}", *command.split()]
    done = subprocess.run(line, cwd=PROJECT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_documented_command_installs_everything(server: RealApiServer) -> None:
    async def gated() -> bool:
        async with await server.client() as client:
            by_policy = "mutatingadmissionpolicies" in await client.served(ADMISSION_GROUP, "v1")
            kubectl(server, commands()[by_policy])
            again = kubectl(server, commands()[by_policy])
            assert "unchanged" in again
            assert "created" not in again
            try:
                await client.get(MUTATING_POLICIES, POLICY)
            except NotFound:
                assert not by_policy
            else:
                assert by_policy
            return by_policy

    # Each form is one of two, and the other one is of no use to this server, or cannot be applied.
    assert len(commands()) == 2
    asyncio.run(gated())
