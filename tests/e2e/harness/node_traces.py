"""What a driver that was taken off has left on a node."""

from __future__ import annotations

from pathlib import Path

from kubelet_plugin.claims.checkpoint_file import read_checkpoint

# What the node agent remembers from one start to the next stays: it cannot tell an update from its end.
MEMORY = ("checkpoint.json", "health.json", "simulated-gpus.json", "state.lock", "state.wanted")
# With a lock for each device.
LOCKS = ("backends", "gpus")


def traces(registry: Path, plugins: Path, cdi: Path) -> list[str]:
    """Sockets, CDI files, entries of checkpoints, and files of the node agent that are not its memory."""
    found = [str(p) for folder in (registry, cdi) for p in folder.rglob("*") if not p.is_dir()]
    for path in sorted(plugins.rglob("*")):
        if path.is_dir():
            continue
        is_lock = path.parent.name in LOCKS and path.suffix == ".lock"
        if path.is_socket() or not (is_lock or path.name.lstrip(".").startswith(MEMORY)):
            found.append(str(path))
        elif path.name in ("checkpoint.json", "checkpoint.json.journal"):
            checkpoint = path.with_name("checkpoint.json")
            found += [f"{path}: {claim.key}" for claim in read_checkpoint(checkpoint)]
    return found
