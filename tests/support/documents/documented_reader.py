"""A folder and a cluster as a reader of the documentation has them."""

from __future__ import annotations

import contextlib
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from paths import PROJECT

__all__ = ["kept_demo", "reader_folder", "requires_kubectl"]


def reader_folder(folder: Path, programs: Path) -> Path:
    """Make a folder with what the pages name of a checkout.

    Args:
        folder: an empty one.
        programs: of the virtual environment.
    """
    for name in ("deploy", "docs"):
        (folder / name).symlink_to(PROJECT / name)
    (folder / ".venv").mkdir()
    (folder / ".venv" / "bin").symlink_to(programs)
    return folder


@contextlib.contextmanager
def kept_demo(programs: Path, kubeconfig: Path, *flags: str) -> Iterator[None]:
    """Run the demo and keep its cluster.

    Args:
        programs: of the virtual environment.
        kubeconfig: is written for it.
        flags: of ``dra-driver demo``.
    """
    demo = [str(programs / "dra-driver"), "demo", *flags, "--keep", "--kubeconfig", str(kubeconfig)]
    with subprocess.Popen(demo, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        try:
            assert process.stdout is not None
            shown = []
            for line in process.stdout:
                shown.append(line)
                if "The cluster stays until" in line:
                    break
            else:
                pytest.fail("".join(shown))
            yield
        finally:
            process.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.communicate(timeout=120)
            process.kill()


def requires_kubectl() -> None:
    """Skip the test where there is no kubectl."""
    if shutil.which("kubectl") is None:
        pytest.skip("kubectl is not installed")
