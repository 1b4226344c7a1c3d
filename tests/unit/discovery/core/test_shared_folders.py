"""What containers have written is removed in steps, without leading anywhere else; limits of mounts hold."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from dra_driver.discovery.core.host import shared_folders

needs_mounts = pytest.mark.skipif(
    os.geteuid() != 0 or subprocess.run(["unshare", "--mount", "true"], check=False).returncode != 0,
    reason="needs mounts of its own",
)


def sweep(root: Path, entries: int = 100) -> int:
    """Sweep until nothing is left; return in how many steps."""
    steps = 1
    while shared_folders.sweep(root, entries):
        steps += 1
        assert steps < 1000
    return steps


def test_links_and_odd_entries_lead_nowhere(tmp_path: Path) -> None:
    root, outside = tmp_path / "mps", tmp_path / "outside"
    device = root / "gpu-0"
    (device / "shm").mkdir(parents=True)
    outside.mkdir()
    (outside / "kept").write_text("kept")
    (device / "shm" / "link").symlink_to(outside)
    (device / "shm" / "file").symlink_to(outside / "kept")
    os.link(outside / "kept", device / "shm" / "hard")
    os.mkfifo(device / "shm" / "fifo")
    (device / "shm" / ("n" * 255)).touch()
    shared_folders.put_aside(device, root)
    assert not device.exists()
    sweep(root)
    assert list(root.iterdir()) == []
    assert (outside / "kept").read_text() == "kept"


def test_an_entry_that_was_put_aside_may_be_no_directory(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    kept.mkdir()
    (kept / "file").touch()
    root = tmp_path / "mps"
    root.mkdir()
    (root / "one").symlink_to(kept)
    os.mkfifo(root / "two")
    for name in ("one", "two"):
        shared_folders.put_aside(root / name, root)
    sweep(root)
    assert list(root.iterdir()) == []
    assert (kept / "file").exists()


def test_a_tree_that_is_deeper_than_any_path_is_removed(tmp_path: Path) -> None:
    root = tmp_path / "mps"
    device = root / "gpu-0"
    device.mkdir(parents=True)
    at = os.open(device, os.O_RDONLY)
    for _ in range(60):  # each name alone is allowed, all of them together are longer than any path
        os.mkdir("d" * 250, dir_fd=at)
        below = os.open("d" * 250, os.O_RDONLY, dir_fd=at)
        os.close(at)
        at = below
    os.close(at)
    shared_folders.put_aside(device, root)
    assert sweep(root, 10) > 10
    assert list(root.iterdir()) == []


def test_a_step_is_bounded_and_the_next_goes_on(tmp_path: Path) -> None:
    root = tmp_path / "mps"
    device = root / "gpu-0"
    device.mkdir(parents=True)
    for i in range(1000):
        (device / str(i)).touch()
    shared_folders.put_aside(device, root)
    (aside,) = root.iterdir()
    assert shared_folders.sweep(root, 100)
    assert len(list(aside.iterdir())) == 900
    # Whatever process comes next.
    assert sweep(root) <= 11
    assert list(root.iterdir()) == []


def test_what_a_container_writes_meanwhile_is_removed_too(tmp_path: Path) -> None:
    root = tmp_path / "mps"
    device = root / "gpu-0"
    (device / "busy").mkdir(parents=True)
    (device / "busy" / "file").touch()
    held = os.open(device / "busy", os.O_RDONLY)
    shared_folders.put_aside(device, root)
    assert shared_folders.sweep(root, 1)
    os.close(os.open("later", os.O_CREAT | os.O_WRONLY, dir_fd=held))
    os.close(held)
    sweep(root)
    assert list(root.iterdir()) == []


def test_devices_that_are_in_use_are_not_swept(tmp_path: Path) -> None:
    (tmp_path / "mps" / "gpu-0" / "shm").mkdir(parents=True)
    assert not shared_folders.sweep(tmp_path / "mps", 100)
    assert not shared_folders.sweep(tmp_path / "none", 100)
    assert (tmp_path / "mps" / "gpu-0" / "shm").is_dir()


_LIMITS = """
import errno, os, subprocess, sys
from pathlib import Path
from dra_driver.discovery.core.host import shared_folders as sf

base = Path(sys.argv[1])
shared = sys.argv[2] == "shared"
subprocess.run(["mount", "--make-rprivate", "/"], check=True)
subprocess.run(["mount", "--bind", base, base], check=True)
if shared:
    subprocess.run(["mount", "--make-shared", base], check=True)
folder = base / "mps/gpu 0/shm"
folder.mkdir(parents=True)
problem = sf.mount_memory(folder, size=1 << 20, inodes=16, mode=0o1777)
if not shared:
    assert "mountPropagation" in problem, problem
    assert not sf.is_mounted(folder)
    sys.exit(0)
assert problem == "", problem
assert sf.is_mounted(folder)
assert oct(folder.stat().st_mode)[-4:] == "1777"
before = os.statvfs(base).f_bfree
try:
    (folder / "large").write_bytes(bytes(2 << 20))
    raise SystemExit("no limit of bytes")
except OSError as e:
    assert e.errno == errno.ENOSPC, e
assert (base / "mps/other").write_bytes(bytes(4096)) == 4096, "the file system beside it is full"
(folder / "large").unlink()
try:
    for i in range(100):
        (folder / str(i)).touch()
    raise SystemExit("no limit of files")
except OSError as e:
    assert e.errno == errno.ENOSPC, e
# Two of them, as after a race: all are undone.
assert sf.mount_memory(folder, size=1 << 20, inodes=16, mode=0o1777) == ""
# A mount that was forgotten below what is put aside.
sf.put_aside(folder.parent, base / "mps")
while sf.sweep(base / "mps", 10):
    pass
assert [p.name for p in (base / "mps").iterdir()] == ["other"]
assert str(base) + "/mps" not in Path("/proc/self/mountinfo").read_text()
"""


@needs_mounts
@pytest.mark.parametrize("shared", ["shared", "private"])
def test_memory_has_limits_and_is_mounted_only_where_the_host_sees_it(tmp_path: Path, shared: str) -> None:
    done = subprocess.run(
        ["unshare", "--mount", sys.executable, "-c", _LIMITS, str(tmp_path), shared],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
