"""Which processes of pods have device nodes open, on trees of a procfs."""

from __future__ import annotations

import itertools
import os
from pathlib import Path

import pytest
from examples import share
from listing_kubelet import process

from dra_driver.api.meta import Uid
from dra_driver.preparation import NodeProcess
from kubelet_plugin.usage.processes import Processes

POD, OTHER = "11111111-2222-4333-8444-555555555555", "66666666-7777-4888-9999-aaaaaaaaaaaa"
CLAIM = Uid("c1c1c1c1-0000-4000-8000-000000000000")
GPU = "/dev/nvidia0"
MOUNT = f"1 2 8:1 /var/lib/kubelet/plugins/d/dra-device-metadata/{CLAIM}/gpu/metadata.json /x ro\n"


@pytest.mark.parametrize("driver", ["systemd", "cgroupfs"])
def test_a_process_of_a_pod_that_has_the_node_open_is_found(tmp_path: Path, driver: str) -> None:
    process(tmp_path, 1, files=[GPU])  # a service of the host: no pod
    process(tmp_path, 20, pod=POD, files=[GPU], mounts=MOUNT, driver=driver)
    process(tmp_path, 30, pod=OTHER, files=["/dev/nvidiactl"], driver=driver)
    view = Processes(tmp_path).look({GPU}, [CLAIM])
    assert view is not None
    assert view.complete
    assert view.pods.keys() == {POD, OTHER}
    assert view.open == {GPU: (NodeProcess(20, Uid(POD), frozenset({CLAIM})),)}


def test_a_process_namespace_of_its_own_shows_nothing(tmp_path: Path) -> None:
    for pid in (1, 7):
        process(tmp_path, pid)
    assert Processes(tmp_path).look({GPU}, []) is None
    assert Processes(tmp_path / "none").look({GPU}, []) is None


@pytest.mark.parametrize("shows_folder", [True, False])
def test_where_processes_are_hidden_those_that_are_shown_prove_nothing(
    tmp_path: Path, shows_folder: bool
) -> None:
    """As with hidepid=1 and 2: the pod that has the GPU open is not seen, another one is."""
    process(tmp_path, 30, pod=OTHER)
    if shows_folder:
        # What root of a test may read all the same: a folder where the file should be gives another error.
        for hidden in (1, 20):
            (tmp_path / str(hidden) / "cgroup").mkdir(parents=True)
    assert Processes(tmp_path).look({GPU}, []) is None


def test_the_agents_own_pod_does_not_count(tmp_path: Path) -> None:
    process(tmp_path, 1)
    process(tmp_path, 20, pod=POD, files=[GPU])
    (tmp_path / "self").symlink_to(tmp_path / "20")
    # Nor does it prove that the processes of others would be seen.
    assert Processes(tmp_path).look({GPU}, []) is None
    process(tmp_path, 30, pod=OTHER)
    view = Processes(tmp_path).look({GPU}, [])
    assert view is not None
    assert view.pods.keys() == {OTHER}
    assert view.open == {}


def test_without_rights_the_pods_are_seen_and_their_files_are_not(tmp_path: Path) -> None:
    process(tmp_path, 1)
    process(tmp_path, 20, pod=POD, files=[GPU])
    # What root of a test may read all the same: a file where the folder should be gives another error.
    for link in (tmp_path / "20/fd").iterdir():
        link.unlink()
    (tmp_path / "20/fd").rmdir()
    (tmp_path / "20/fd").write_text("")
    view = Processes(tmp_path).look({GPU}, [])
    assert view is not None
    assert view.pods.keys() == {POD}
    assert not view.complete


def test_a_process_that_ends_meanwhile_costs_nothing(tmp_path: Path) -> None:
    process(tmp_path, 1)
    process(tmp_path, 20, pod=POD, files=[GPU])
    (tmp_path / "30").mkdir()
    view = Processes(tmp_path).look({GPU}, [])
    assert view is not None
    assert view.complete
    assert view.pods.keys() == {POD}


@pytest.mark.parametrize("number", share([1_000, 10_000], 1))
def test_many_processes_are_looked_at_once_and_only_those_of_pods_closely(
    tmp_path: Path, number: int
) -> None:
    # Of the host's services no open files are there: reading them would make the view incomplete.
    template = tmp_path / "template"
    template.write_text("0::/system.slice/containerd.service\n")
    for pid in range(1, number + 1):
        (tmp_path / str(pid)).mkdir()
        os.link(template, tmp_path / str(pid) / "cgroup")
        os.link(template, tmp_path / str(pid) / "fd")
    process(tmp_path, 20_000, pod=POD, files=[GPU])
    looks = itertools.count()
    view = Processes(tmp_path, monotonic=lambda: next(looks) / number).look({GPU}, [])
    assert view is not None
    assert view.complete
    assert view.open.keys() == {GPU}
    # One step for each process.
    assert next(looks) == 1 + number + 1


def test_the_look_is_given_up_when_it_takes_too_long(tmp_path: Path) -> None:
    for pid in range(1, 50):
        process(tmp_path, pid, pod=POD if pid % 2 else OTHER, files=[GPU])
    seconds = itertools.count()
    assert Processes(tmp_path, budget=20.0, monotonic=lambda: next(seconds)).look({GPU}, []) is None
