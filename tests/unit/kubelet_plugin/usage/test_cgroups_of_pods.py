"""Which pods have processes, on trees of a cgroup file system."""

from __future__ import annotations

import itertools
import os
import shutil
from pathlib import Path

import pytest
from listing_kubelet import cgroup

from dra_driver.api.meta import Uid
from kubelet_plugin.usage.cgroups import PodCgroups

POD, OTHER = Uid("11111111-2222-4333-8444-555555555555"), Uid("66666666-7777-4888-9999-aaaaaaaaaaaa")
OWN = "0a0a0a0a-2222-4333-8444-555555555555"
KINDS = tuple(itertools.product(("systemd", "cgroupfs"), (1, 2)))


@pytest.mark.parametrize(("driver", "version"), KINDS)
def test_a_pod_with_processes_is_found_and_one_without_is_not(
    tmp_path: Path, driver: str, version: int
) -> None:
    cgroup(tmp_path, OWN, driver=driver, version=version)
    folder = cgroup(tmp_path, POD, driver=driver, version=version)
    cgroup(tmp_path, OTHER, populated=False, driver=driver, version=version)
    groups = PodCgroups(tmp_path, OWN)
    assert groups.with_processes({POD, OTHER}) == {POD: f"/{folder.relative_to(tmp_path)}"}
    # It has ended, and the kubelet has removed its cgroup.
    shutil.rmtree(folder)
    assert groups.with_processes({POD, OTHER}) == {}


def test_guaranteed_pods_have_no_class(tmp_path: Path) -> None:
    for above, name in (
        ("kubepods.slice", f"kubepods-pod{POD.replace('-', '_')}.slice"),
        ("kubepods", f"pod{OTHER}"),
    ):
        for place in (tmp_path / above, tmp_path / above / name):
            place.mkdir()
            (place / "cgroup.events").write_text("populated 1\n")
    found = PodCgroups(tmp_path).with_processes({POD, OTHER})
    assert found is not None
    assert found.keys() == {POD, OTHER}


@pytest.mark.parametrize("above", ["kubelet.slice/kubelet-kubepods.slice", "node-1/kubelet/kubepods"])
def test_a_kubelet_may_have_its_pods_below_another_cgroup(tmp_path: Path, above: str) -> None:
    """As in kind, or with --cgroup-root; beside it the host has cgroups of its own."""
    (tmp_path / "system.slice/sshd.service").mkdir(parents=True)
    folder = tmp_path / above
    prefix = folder.name.removesuffix(".slice")
    name = f"{prefix}-pod{POD.replace('-', '_')}.slice" if folder.suffix else f"pod{POD}"
    (folder / name).mkdir(parents=True)
    for place in (folder, folder / name):
        (place / "cgroup.events").write_text("populated 1\n")
    assert PodCgroups(tmp_path).with_processes({POD}) == {POD: f"/{above}/{name}"}


def test_where_the_agents_own_pod_is_not_found_nothing_is_proved(tmp_path: Path) -> None:
    """A container's own cgroup namespace, or a kubelet that makes no cgroups for pods."""
    assert PodCgroups(tmp_path / "none").with_processes({POD}) is None
    (tmp_path / "system.slice").mkdir()
    assert PodCgroups(tmp_path).with_processes({POD}) is None
    cgroup(tmp_path)
    assert PodCgroups(tmp_path, OWN).with_processes({POD}) is None
    # It is there, but its processes are not counted: those of others would not be either.
    cgroup(tmp_path, OWN, populated=False)
    assert PodCgroups(tmp_path, OWN).with_processes({POD}) is None
    cgroup(tmp_path, OWN)
    assert PodCgroups(tmp_path, OWN).with_processes({POD}) == {}


def test_hierarchies_that_do_not_count_processes_prove_nothing(tmp_path: Path) -> None:
    """In a PID namespace of its own, the agent reads lists of processes of version 1 as empty."""
    folder = tmp_path / "memory/kubepods"
    (folder / f"pod{POD}").mkdir(parents=True)
    for place in (folder, folder / f"pod{POD}"):
        (place / "cgroup.procs").write_text("")
    assert PodCgroups(tmp_path).with_processes({POD}) is None


@pytest.mark.parametrize("text", ["", "frozen 0\n", "populated 2\n", "populated 0\npopulated 1\n"])
def test_what_is_not_understood_proves_nothing(tmp_path: Path, text: str) -> None:
    (cgroup(tmp_path, POD) / "cgroup.events").write_text(text)
    assert PodCgroups(tmp_path).with_processes({POD}) is None


def test_pods_that_the_kubelet_moves_are_found_again(tmp_path: Path) -> None:
    groups = PodCgroups(tmp_path, OWN)
    cgroup(tmp_path, OWN, driver="cgroupfs")
    assert groups.with_processes({POD}) == {}
    shutil.rmtree(tmp_path / "kubepods")
    assert groups.with_processes({POD}) is None
    cgroup(tmp_path, OWN)
    cgroup(tmp_path, POD)
    found = groups.with_processes({POD})
    assert found is not None
    assert found.keys() == {POD}


def test_what_containers_make_below_their_pods_is_not_entered(tmp_path: Path) -> None:
    """Cgroups that a container may make must neither cost time nor stand for other pods."""
    cgroup(tmp_path, OWN)
    forged = cgroup(tmp_path, OTHER) / "cri-1.scope"
    (forged / "kubepods").mkdir(parents=True)
    cgroup(forged, POD)
    for number in range(200):
        (forged / f"deep-{number}").mkdir()
    (tmp_path / "link").symlink_to(forged)
    assert PodCgroups(tmp_path, OWN).with_processes({POD}) == {}


def test_the_search_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(30):
        (tmp_path / f"session-{number}.scope").mkdir()
    cgroup(tmp_path)
    assert PodCgroups(tmp_path).with_processes({POD}) == {}
    monkeypatch.setattr("kubelet_plugin.usage.cgroups._MOST_FOLDERS", 20)
    assert PodCgroups(tmp_path).with_processes({POD}) is None


def test_names_that_are_no_uids_become_no_paths(tmp_path: Path) -> None:
    cgroup(tmp_path)
    (tmp_path / "kubepods.slice/cgroup.events").write_text("populated 1\n")
    assert PodCgroups(tmp_path).with_processes({Uid("../../kubepods"), Uid("")}) == {}


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to make cgroups")
def test_a_process_in_the_kernels_own_cgroups_is_seen(tmp_path: Path) -> None:
    """On the kernel of this machine, if it lets us: the count of processes goes up and down with them."""
    root = Path("/sys/fs/cgroup")
    hierarchy = root if (root / "cgroup.controllers").exists() else root / "pids"
    above = hierarchy / f"dra-test-{os.getpid()}" / "kubepods"
    pod = above / f"pod{POD}"
    try:
        pod.mkdir(parents=True)
    except OSError as e:
        pytest.skip(f"no cgroups can be made here: {e}")
    groups = PodCgroups(root)
    child = os.fork()
    if child == 0:
        os.read(os.pipe()[0], 1)
        os._exit(0)
    try:
        assert groups.with_processes({POD}) == {}
        (pod / "cgroup.procs").write_text(str(child))
        assert groups.with_processes({POD}) == {POD: f"/{pod.relative_to(root)}"}
    finally:
        os.kill(child, 9)
        os.waitpid(child, 0)
        empty = groups.with_processes({POD})
        for folder in (pod, above, above.parent):
            folder.rmdir()
    assert empty == {}
