"""The commands of the documentation run, in their order, on an embedded cluster with one node."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from documented_commands import Block, Command, blocks, commands
from documented_reader import kept_demo, reader_folder, requires_kubectl
from paths import PROJECT

pytestmark = [pytest.mark.sim, pytest.mark.long]

PROGRAMS = Path(sys.executable).parent
SECONDS = 60.0
# What the pages write for what every reader has of his own.
PLACEHOLDERS = {
    "NODE": "node1",
    "NS": "dra-examples",
    "POD": "-n dra-examples gpu-32gi",
    "pod/POD": "pod/gpu-32gi",
}
# A refusal, or a machine without GPUs, is an answer too.
ANSWERS = {"dra-driver devices", "dra-driver explain", "dra-driver cdi", "kubectl dra"}


@dataclass(frozen=True)
class ReaderFolder:
    """A folder as the pages expect it, and the environment of commands there."""

    folder: Path
    environment: dict[str, str]

    def run(self, text: str) -> subprocess.CompletedProcess[str]:
        command = ["bash", "-o", "pipefail", "-c", text]
        return subprocess.run(
            command, cwd=self.folder, env=self.environment, capture_output=True, text=True, timeout=240
        )


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ReaderFolder]:
    requires_kubectl()
    folder = reader_folder(tmp_path_factory.mktemp("reader"), PROGRAMS)
    kubeconfig = folder / "kubeconfig"
    environment = {**os.environ, "KUBECONFIG": str(kubeconfig), "PATH": f"{PROGRAMS}:{os.environ['PATH']}"}
    made = ReaderFolder(folder, environment)
    with kept_demo(PROGRAMS, kubeconfig, "--nodes", "1"):
        prepare(made)
        yield made


def prepare(place: ReaderFolder) -> None:
    """Lay the files that the pages name."""
    shutil.copy(PROJECT / "deploy/examples/15-gang/gang.yaml", place.folder / "job.yaml")
    claim = PROJECT / "deploy/examples/02-gpu-32gi/gpu-32gi.yaml"
    shutil.copy(claim, place.folder / "claim.yaml")
    slices = place.run("kubectl get resourceslices,deviceclasses -o yaml > slices.yaml")
    assert slices.returncode == 0, slices.stderr
    profile = PROJECT / "dra_driver/discovery/data/profiles/l4x4.yaml"
    shutil.copy(profile, place.folder / "machine.yaml")
    # The pages of an installation go on from the namespace of the driver.
    done = place.run("kubectl apply -f deploy/manifests/00-namespace.yaml")
    assert done.returncode == 0, done.stderr


def script(text: str) -> str:
    """The command with what a reader would put in place of words in capitals."""
    words = text.split(" ")
    made = " ".join(PLACEHOLDERS.get(word, word) for word in words)
    for written, meant in (
        ("--kubeconfig FILE", '--kubeconfig "$KUBECONFIG"'),
        ("/tmp/demo.kubeconfig", '"$KUBECONFIG"'),
        ("--claim CLAIM", "--claim shared-gpu"),
        ("/tmp/", "$PWD/"),
    ):
        made = made.replace(written, meant)
    return made


def of_ours(block: Block) -> list[Command]:
    return [command for command in commands(block) if command.program in ("dra-driver", "kubectl")]


BLOCKS = [b for b in blocks() if not b.reason and b.language == "sh" and of_ours(b)]


@pytest.mark.parametrize("block", BLOCKS, ids=str)
def test_the_commands_of_a_block_run(place: ReaderFolder, block: Block) -> None:
    failed = []
    for command in of_ours(block):
        if " jq " in command.text and shutil.which("jq") is None:
            continue
        kind = " ".join((command.program, *command.words[1:2]))
        allowed = (0, 1) if kind in ANSWERS else (0,)
        # What was applied a moment ago need not be there yet: a reader would repeat it, too.
        deadline = time.monotonic() + SECONDS
        while True:
            done = place.run(script(command.text))
            if done.returncode in allowed or time.monotonic() > deadline:
                break
            time.sleep(2)
        if done.returncode not in allowed:
            failed.append(f"{command.text}: {done.returncode}\n{done.stdout[-500:]}{done.stderr[-1500:]}")
    assert failed == []
