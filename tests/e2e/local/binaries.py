"""The programs that a cluster is made of: which, where, and what to say when one is missing."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

# What a Kubernetes release brings; kubectl is often installed by itself.
KUBERNETES = ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet")
AROUND = ("kubectl", "etcd", "containerd", "containerd-shim-runc-v2", "ctr", "runc")
# Kubernetes' own DRA driver (test/e2e/dra/test-driver of its source), which no release brings: tests that
# need it are there only where somebody has built it.
TEST_DRIVER = "dra-test-driver"
# Of the operating system: util-linux, iproute2, openssl, libc.
TOOLS = ("unshare", "nsenter", "mount", "umount", "ip", "openssl", "ldd")


class MissingBinariesError(Exception):
    """Some programs are nowhere; the message names all of them and where they were looked for."""


def search_path(environ: Mapping[str, str]) -> list[Path]:
    """The folders of PATH, and those of system programs, which root's PATH does not always have."""
    folders = [p for p in environ.get("PATH", "").split(os.pathsep) if p]
    folders += [p for p in ("/usr/local/sbin", "/usr/sbin", "/sbin") if p not in folders]
    return [Path(p) for p in folders]


def find(folder: Path, path: Sequence[Path]) -> dict[str, Path]:
    """Every program by its name; those of the release only from ``folder``, the others from ``path`` too.

    The test driver is among them where it is in ``folder``.

    Raises:
        MissingBinariesError: some are nowhere.
    """
    wanted = {name: [folder] for name in KUBERNETES}
    wanted |= {name: [folder, *path] for name in AROUND}
    wanted |= {name: list(path) for name in TOOLS}
    wanted |= {TEST_DRIVER: [folder]}
    found: dict[str, Path] = {}
    for name, folders in wanted.items():
        for candidate in (f / name for f in folders):
            if candidate.is_file() and os.access(candidate, os.X_OK):
                found[name] = candidate.absolute()
                break
    if missing := [name for name in wanted if name not in found and name != TEST_DRIVER]:
        raise MissingBinariesError(missing_message(missing, folder, path))
    return found


def missing_message(missing: Sequence[str], folder: Path, path: Sequence[Path]) -> str:
    """What is missing, one line each place that it could be."""
    listed = ":".join(str(p) for p in path)
    places = (
        (KUBERNETES, f"in BIN={folder}"),
        (AROUND, f"in BIN={folder} and PATH ({listed})"),
        (TOOLS, f"in PATH ({listed})"),
    )
    lines = []
    for names, place in places:
        if gone := [name for name in names if name in missing]:
            lines.append(f"  {', '.join(gone)}: not {place}")
    return "programs are missing:\n" + "\n".join(lines)
