"""What the machine is like, and the few things of it that no namespace keeps apart: cgroups and folders."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import secrets
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

PREFIX = "dra-e2e-"
CGROUPS = Path("/sys/fs/cgroup")
CAP_SYS_RESOURCE = 24
# What a kubelet wants to find in its root on cgroup v2.
CONTROLLERS = ("cpu", "cpuset", "io", "memory", "pids")


def cgroup_version() -> int:
    """2 for the unified hierarchy, else 1."""
    return 2 if (CGROUPS / "cgroup.controllers").exists() else 1


def has_capability(number: int, status: str | None = None) -> bool:
    """Whether this process has a capability in effect; ``status`` is the text of /proc/self/status."""
    text = status if status is not None else Path("/proc/self/status").read_text()
    for line in text.splitlines():
        if line.startswith("CapEff:"):
            return bool(int(line.split()[1], 16) >> number & 1)
    return False


def snapshotter(folder: Path) -> str:
    """``native`` where overlays cannot be stacked, else ``overlayfs``."""
    out = subprocess.run(["stat", "-f", "-c", "%T", folder], capture_output=True, text=True).stdout
    return "native" if out.strip() == "overlayfs" else "overlayfs"


def die_with_parent() -> None:
    """For a child before exec: it is killed when the thread that started it ends, even by SIGKILL."""
    pr_set_pdeathsig = 1
    ctypes.CDLL(None, use_errno=True).prctl(pr_set_pdeathsig, signal.SIGKILL)


def mount_namespace() -> str:
    """The identity of this process's mount namespace."""
    return str(Path("/proc/self/ns/mnt").readlink())


def mounts_below(*folders: str, private: bool = True) -> list[str]:
    """The mount points at and below some folders, in the order in which they were mounted.

    Raises:
        RuntimeError: one is shared with other namespaces, so that unmounting it would reach them; not asked
            without ``private``, for mounts that are the namespace's own.
    """
    found = []
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        fields = line.split()
        place = fields[4].encode().decode("unicode_escape")  # a blank is \040
        if any(place == f or place.startswith(f"{f}/") for f in folders):
            if private and any(f.startswith("shared:") for f in fields[6 : fields.index("-")]):
                raise RuntimeError(f"{place} is shared with other mount namespaces")
            found.append(place)
    return found


def make_root() -> tuple[Path, int]:
    """A new root and its lock: held until all processes that have the descriptor have ended."""
    # Not mkdtemp: the name is the node's as well, where an underscore is not allowed.
    root = Path(tempfile.gettempdir(), PREFIX + secrets.token_hex(4))
    root.mkdir(mode=0o700)
    unnamed = root / "lock.new"
    lock = os.open(unnamed, os.O_CREAT | os.O_RDWR, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX)
    # Only now: to others, a root whose lock is free is a dead one.
    unnamed.rename(root / "lock")
    return root, lock


def remove_stale() -> list[Path]:
    """Removes the roots of runs that were killed: those whose lock nobody holds."""
    removed = []
    for root in _roots():
        with _try_lock(root / "lock") as free:
            if free:
                with contextlib.suppress(FileNotFoundError):  # another run removes it as well
                    remove_root(root)
                removed.append(root)
    return removed


def others_run() -> bool:
    """Whether another run of the harness holds its root."""
    for root in _roots():
        with _try_lock(root / "lock") as free:
            if not free:
                return True
    return False


def _roots() -> list[Path]:
    return [r for r in Path(tempfile.gettempdir()).glob(f"{PREFIX}*") if (r / "lock").is_file()]


@contextlib.contextmanager
def _try_lock(file: Path) -> Iterator[bool]:
    lock = os.open(file, os.O_RDWR)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        yield False
    else:
        yield True
    finally:
        os.close(lock)


def remove_root(root: Path) -> None:
    """Removes a cluster's folder and cgroup; waits for what is just being killed to stop writing there."""
    remove_cgroup(root.name)
    for _ in range(100):
        # The lock goes last: what cannot be removed still has it, and the next run tries again.
        rest = [p for p in root.iterdir() if p.name != "lock"]
        if not rest:
            shutil.rmtree(root)
            return
        for path in rest:
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)
        if any(p.name != "lock" for p in root.iterdir()):
            time.sleep(0.1)


def hierarchies() -> list[Path]:
    """The cgroup file systems: one, or one each controller."""
    if cgroup_version() == 2:
        return [CGROUPS]
    return sorted({p.resolve() for p in CGROUPS.iterdir() if (p / "cgroup.procs").exists()})


def make_cgroup(name: str) -> None:
    """The cgroup that all of the cluster's pods are below; what is allowed is inherited."""
    for hierarchy in hierarchies():
        if cgroup_version() == 2:
            _delegate(hierarchy)
        made = hierarchy / name
        made.mkdir(exist_ok=True)
        for file in ("cpuset.cpus", "cpuset.mems"):
            if cgroup_version() == 1 and (hierarchy / file).exists():
                (made / file).write_text((hierarchy / file).read_text())


def _delegate(hierarchy: Path) -> None:
    there = (hierarchy / "cgroup.controllers").read_text().split()
    for controller in CONTROLLERS:
        if controller in there:
            (hierarchy / "cgroup.subtree_control").write_text(f"+{controller}")


def kill_cgroup(name: str) -> None:
    """Kills all processes in it and below."""
    for hierarchy in hierarchies():
        for file in (hierarchy / name).rglob("cgroup.procs"):
            with contextlib.suppress(OSError):
                for pid in file.read_text().split():
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(int(pid), signal.SIGKILL)


def kill_named(start: str) -> None:
    """Kills the processes of this PID namespace whose programs' names begin so."""
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if file.read_bytes().partition(b"\0")[0].rpartition(b"/")[2].startswith(start.encode()):
                os.kill(int(file.parent.name), signal.SIGKILL)


def remove_cgroup(name: str) -> None:
    """Removes it with all below; for a moment the kernel may still count processes that have just died."""
    for hierarchy in hierarchies():
        for _ in range(50):
            top = hierarchy / name
            if not top.exists():
                break
            for folder, _, _ in os.walk(top, topdown=False):
                with contextlib.suppress(OSError):
                    Path(folder).rmdir()
            if top.exists():
                time.sleep(0.1)


@contextlib.contextmanager
def mount_points(*paths: str) -> Iterator[None]:
    """Makes folders to mount on, where they are missing, and removes those that it made."""
    made = []
    for path in map(Path, paths):
        missing = [p for p in (path, *path.parents) if not p.exists()]
        path.mkdir(parents=True, exist_ok=True)
        made += missing
    try:
        yield
    finally:
        # Removing a folder takes away what is mounted on it in other namespaces.
        for folder in made if not others_run() else ():
            with contextlib.suppress(OSError):
                folder.rmdir()


@contextlib.contextmanager
def kernel_settings() -> Iterator[None]:
    """Puts back what a kubelet changes below /proc/sys."""
    names = (
        "vm/overcommit_memory",
        "vm/panic_on_oom",
        "kernel/panic",
        "kernel/panic_on_oops",
        "kernel/keys/root_maxkeys",
        "kernel/keys/root_maxbytes",
    )
    files = [f for f in (Path("/proc/sys", n) for n in names) if f.exists()]
    before = {f: f.read_text() for f in files}
    try:
        yield
    finally:
        for file, value in before.items():
            if file.read_text() != value:
                with contextlib.suppress(OSError):
                    file.write_text(value)
