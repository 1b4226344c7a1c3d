"""What containers get of NVIDIA's driver: from the toolkit's CDI document, or found below a root."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pytest
import structlog
import yaml
from driver_tree import LIB, complete, driver, gpu, linker_cache, mounted, seen, touch

from dra_driver.cdi import DeviceNode
from dra_driver.discovery.nvidia.driver import ld_cache


def test_without_libraries_a_container_gets_its_nodes(tmp_path: Path) -> None:
    assert complete(tmp_path, gpu()) == [gpu().material]


def test_other_devices_are_left_alone(tmp_path: Path) -> None:
    driver(tmp_path)
    simulated = gpu(0, "570.148.8", "SIMULATED=1")
    assert complete(tmp_path, simulated) == [simulated.material]


def test_libraries_of_the_drivers_version_are_mounted(tmp_path: Path) -> None:
    driver(tmp_path)
    driver(tmp_path, "usr/lib64", "535.1")
    touch(tmp_path, "lib/firmware/nvidia/570.148.08/gsp_ga10x.bin")
    (material,) = complete(tmp_path, gpu())
    mounts = mounted(material)
    assert mounts[f"/{LIB}/libcuda.so.570.148.08"] == f"/{LIB}/libcuda.so.570.148.08"
    assert mounts["/usr/bin/nvidia-smi"] == "/usr/bin/nvidia-smi"
    assert "/lib/firmware/nvidia/570.148.08/gsp_ga10x.bin" in mounts
    assert not any("libc.so" in m or "535.1" in m or "1.2.3" in m for m in mounts)
    # There is no hook program: the links are mounted, none is assumed.
    assert material.hooks == ()
    for link in ("libcuda.so.1", "libcuda.so", "libnvidia-ml.so.1"):
        assert mounts[f"/{LIB}/{link}"].endswith(".so.570.148.08")
    assert all("ro" in m.options for m in material.mounts)


def test_with_the_hook_program_links_and_cache_are_made_in_the_container(tmp_path: Path) -> None:
    driver(tmp_path)
    touch(tmp_path, "usr/bin/nvidia-cdi-hook")
    (material,) = complete(tmp_path, gpu())
    *links, cache = material.hooks
    assert {(h.hook_name, h.path, *h.args[:2]) for h in links} == {
        ("createContainer", "/usr/bin/nvidia-cdi-hook", "nvidia-cdi-hook", "create-symlinks")
    }
    arguments = [a for h in links for a in h.args]
    assert f"libcuda.so.570.148.08::/{LIB}/libcuda.so.1" in arguments
    assert f"libcuda.so.1::/{LIB}/libcuda.so" in arguments
    assert cache.args == ("nvidia-cdi-hook", "update-ldcache", "--folder", f"/{LIB}")
    assert f"/{LIB}/libcuda.so.1" not in {m.container_path for m in material.mounts}


def test_a_driver_in_a_root_of_its_own_is_mounted_from_there(tmp_path: Path) -> None:
    driver(tmp_path / "run/nvidia/driver")
    (material,) = complete(tmp_path, gpu(), driver_root="/run/nvidia/driver")
    mounts = mounted(material)
    assert mounts[f"/{LIB}/libcuda.so.570.148.08"] == f"/run/nvidia/driver/{LIB}/libcuda.so.570.148.08"


@pytest.mark.parametrize("daemon", ["nvidia-persistenced", "nvidia-fabricmanager"])
@pytest.mark.parametrize("driver_root", ["/", "/run/nvidia/driver"])
def test_sockets_of_the_drivers_daemons_are_mounted(
    tmp_path: Path, monkeypatch: Any, daemon: str, driver_root: str
) -> None:
    """A driver in a container has its daemons there; others run on the host."""
    driver(tmp_path / driver_root.strip("/"))
    for place in {"/", driver_root}:
        folder = tmp_path / place.strip("/") / "run" / daemon
        folder.mkdir(parents=True)
        monkeypatch.chdir(folder)  # the path of a Unix socket is short
        with socket.socket(socket.AF_UNIX) as server:
            server.bind("socket")
            (material,) = complete(tmp_path, gpu(), driver_root=driver_root)
        (found,) = (m for m in material.mounts if m.container_path == f"/run/{daemon}/socket")
        assert found.host_path == f"{place.rstrip('/')}/run/{daemon}/socket"
        assert "noexec" in found.options
        Path("socket").unlink()


def test_the_linkers_cache_tells_where_libraries_are(tmp_path: Path) -> None:
    driver(tmp_path, "opt/nvidia/lib")
    touch(tmp_path, "etc/ld.so.cache")
    entries = (("libc.so.6", "/lib/libc.so.6"), ("libcuda.so.1", "/opt/nvidia/lib/libcuda.so.1"))
    (tmp_path / "etc/ld.so.cache").write_bytes(b"ld.so-1.7.0\0old" + linker_cache(*entries))
    (material,) = complete(tmp_path, gpu())
    assert "/opt/nvidia/lib/libcuda.so.570.148.08" in mounted(material).values()


def test_a_broken_cache_is_no_cache() -> None:
    whole = linker_cache(("libcuda.so.1", "/x/libcuda.so.1"))
    assert list(ld_cache.libraries(whole)) == [("libcuda.so.1", "/x/libcuda.so.1")]
    assert list(ld_cache.libraries(b"garbage")) == []
    for cut in range(len(whole)):
        list(ld_cache.libraries(whole[:cut]))
    huge = bytearray(whole)
    huge[20:24] = b"\xff\xff\xff\xff"
    assert list(ld_cache.libraries(bytes(huge))) == []


def toolkit(root: Path, names: dict[str, str], folder: str = "etc/cdi", **more: Any) -> None:
    """A document of the toolkit: CDI device name → node."""
    (root / folder).mkdir(parents=True, exist_ok=True)
    everything = [{"path": n} for n in sorted(set(names.values()))]
    hook = {
        "hookName": "createContainer",
        "path": "/usr/bin/nvidia-cdi-hook",
        "args": ["nvidia-cdi-hook", "x"],
    }
    document = {
        "cdiVersion": "0.5.0",
        "kind": "nvidia.com/gpu",
        "devices": [
            *({"name": n, "containerEdits": {"deviceNodes": [{"path": p}]}} for n, p in names.items()),
            {"name": "all", "containerEdits": {"deviceNodes": everything}},
        ],
        "containerEdits": {
            "env": ["NVIDIA_VISIBLE_DEVICES=void", "FROM=toolkit"],
            "deviceNodes": [{"path": "/dev/nvidia-uvm", "hostPath": "/dev/nvidia-uvm"}],
            "hooks": [hook],
            "mounts": [
                {"hostPath": "/l/libcuda.so.1", "containerPath": "/l/libcuda.so.1", "options": ["ro"]}
            ],
        },
        **more,
    }
    (root / folder / "nvidia.yaml").write_text(yaml.safe_dump(document))


def test_the_toolkits_document_is_preferred_and_copied(tmp_path: Path) -> None:
    driver(tmp_path)
    touch(tmp_path, "usr/bin/nvidia-cdi-hook")
    toolkit(tmp_path, {"GPU-0": "/dev/nvidia0", "GPU-1": "/dev/nvidia1"})
    first, second = complete(tmp_path, gpu(0), gpu(1))
    assert [n.path for n in second.device_nodes] == ["/dev/nvidia1", "/dev/nvidiactl", "/dev/nvidia-uvm"]
    assert first.env == ("FROM=toolkit", "NVIDIA_VISIBLE_DEVICES=void")
    assert [m.container_path for m in first.mounts] == ["/l/libcuda.so.1"]
    assert [h.path for h in first.hooks] == ["/usr/bin/nvidia-cdi-hook"]


def test_a_document_that_names_gpus_by_index_is_matched_by_node(tmp_path: Path) -> None:
    toolkit(tmp_path, {"0": "/dev/nvidia1", "1": "/dev/nvidia0"})
    first, second = complete(tmp_path, gpu(0), gpu(7))
    assert "FROM=toolkit" in first.env
    assert not any(v.startswith("FROM=") for v in second.env)


def test_hooks_that_are_not_there_are_left_out(tmp_path: Path) -> None:
    toolkit(tmp_path, {"GPU-0": "/dev/nvidia0"})
    seen(tmp_path, "usr")
    assert complete(tmp_path, gpu())[0].hooks == ()
    touch(tmp_path, "opt/own/nvidia-cdi-hook")
    (material,) = complete(tmp_path, gpu(), hook="/opt/own/nvidia-cdi-hook")
    assert [h.path for h in material.hooks] == ["/opt/own/nvidia-cdi-hook"]


def test_the_run_directory_counts_more_than_etc(tmp_path: Path) -> None:
    toolkit(tmp_path, {"GPU-0": "/dev/nvidia0"}, containerEdits={"env": ["FROM=etc"]})
    toolkit(tmp_path, {"GPU-0": "/dev/nvidia0"}, "var/run/cdi", containerEdits={"env": ["FROM=run"]})
    assert "FROM=run" in complete(tmp_path, gpu())[0].env


def test_broken_documents_and_those_of_others_are_passed_over(tmp_path: Path) -> None:
    toolkit(tmp_path, {"GPU-0": "/dev/nvidia0"})
    (tmp_path / "etc/cdi/a.yaml").write_text("kind: nvidia.com/gpu\ndevices: [{")
    (tmp_path / "etc/cdi/b.json").write_text('{"kind": "nvidia.com/gpu", "devices": 7}')
    (tmp_path / "etc/cdi/z.yaml").write_text("kind: example.com/nvidia\n# nvidia.com/gpu\n")
    assert "FROM=toolkit" in complete(tmp_path, gpu())[0].env


def test_a_document_whose_hook_program_has_gone_loses_against_the_files(tmp_path: Path) -> None:
    """Without its hook nothing in a container leads to the libraries."""
    driver(tmp_path)
    toolkit(tmp_path, {"GPU-0": "/dev/nvidia0"})
    seen(tmp_path, "usr")
    with structlog.testing.capture_logs() as logs:
        (material,) = complete(tmp_path, gpu())
    assert f"/{LIB}/libcuda.so.1" in mounted(material)
    assert "/usr/bin/nvidia-cdi-hook is not there" in logs[0]["reason"]
    # Another one does as well.
    touch(tmp_path, "usr/local/nvidia/toolkit/nvidia-cdi-hook")
    (material,) = complete(tmp_path, gpu())
    assert "FROM=toolkit" in material.env
    assert {h.path for h in material.hooks} == {"/usr/local/nvidia/toolkit/nvidia-cdi-hook"}


def test_a_hook_at_a_place_that_is_not_seen_is_kept(tmp_path: Path) -> None:
    hook = {
        "hookName": "createContainer",
        "path": "/var/lib/toolkit/nvidia-ctk",
        "args": ["nvidia-ctk", "hook"],
    }
    toolkit(tmp_path, {"GPU-0": "/dev/nvidia0"}, containerEdits={"hooks": [{**hook, "timeout": 7}]})
    seen(tmp_path, "usr", "etc/cdi")
    (kept,) = complete(tmp_path, gpu())[0].hooks
    assert (kept.path, kept.timeout) == ("/var/lib/toolkit/nvidia-ctk", 7)


def test_groups_owners_and_permissions_of_the_document_are_kept(tmp_path: Path) -> None:
    node = {"path": "/dev/nvidia-uvm", "permissions": "rw", "fileMode": 0o660, "uid": 0, "gid": 44}
    numbered = {**node, "path": "/dev/nvidia0", "type": "c", "major": 195, "minor": 3}
    toolkit(
        tmp_path,
        {"GPU-0": "/dev/nvidia0"},
        devices=[{"name": "GPU-0", "containerEdits": {"deviceNodes": [numbered], "additionalGids": [109]}}],
        containerEdits={"deviceNodes": [node], "additionalGids": [44]},
    )
    (material,) = complete(tmp_path, gpu())
    assert material.additional_gids == (44, 109)
    kept = {n.path: n for n in material.device_nodes}
    for path in ("/dev/nvidia-uvm", "/dev/nvidia0"):
        # The numbers may be of an earlier boot.
        assert kept[path] == DeviceNode(path, permissions="rw", file_mode=0o660, uid=0, gid=44)


# --- documents that are out of date -------------------------------------------------------------------------


def stale(root: Path, version: str, name: str = "GPU-0") -> None:
    """A document of the toolkit that has been written for another driver."""
    mounts = [f"/{LIB}/{lib}.so.{version}" for lib in ("libcuda", "libnvidia-ml")]
    toolkit(
        root,
        {name: "/dev/nvidia0"},
        containerEdits={
            "env": ["FROM=toolkit"],
            "mounts": [{"hostPath": m, "containerPath": m} for m in (*mounts, "/run/gone/socket")],
        },
    )


@pytest.mark.parametrize("name", ["GPU-0", "0"])
def test_a_document_of_another_driver_loses_against_the_files(tmp_path: Path, name: str) -> None:
    driver(tmp_path)
    stale(tmp_path, "535.104.05", name)
    with structlog.testing.capture_logs() as logs:
        (material,) = complete(tmp_path, gpu())
    assert "FROM=toolkit" not in material.env
    assert f"/{LIB}/libcuda.so.570.148.08" in mounted(material)
    assert not any("535.104.05" in m for m in mounted(material))
    (log,) = logs
    assert "is out of date (it is of driver 535.104.05, and 570.148.8 is loaded)" in log["reason"]


def test_a_document_whose_libraries_have_gone_loses_against_the_files(tmp_path: Path) -> None:
    driver(tmp_path, "usr/lib64")
    stale(tmp_path, "570.148.08")
    # Nothing can be said of what is not seen, and a document is not worth less for a socket that has gone.
    assert "FROM=toolkit" in complete(tmp_path, gpu())[0].env
    seen(tmp_path, "usr", "run")
    with structlog.testing.capture_logs() as logs:
        (material,) = complete(tmp_path, gpu())
    assert "FROM=toolkit" not in material.env
    assert "/usr/lib64/libcuda.so.570.148.08" in mounted(material).values()
    assert f"/{LIB}/libcuda.so.570.148.08 is not there" in logs[0]["reason"]
    touch(tmp_path, *(f"{LIB}/{lib}.so.570.148.08" for lib in ("libcuda", "libnvidia-ml")))
    assert "FROM=toolkit" in complete(tmp_path, gpu())[0].env


def test_without_anything_newer_a_document_that_is_out_of_date_is_used(tmp_path: Path) -> None:
    stale(tmp_path, "535.104.05")
    with structlog.testing.capture_logs() as logs:
        (material,) = complete(tmp_path, gpu())
    assert "FROM=toolkit" in material.env
    assert "there is nothing newer on this node" in logs[0]["reason"]


@pytest.mark.parametrize("files", [True, False])
def test_a_newer_document_counts_before_the_files_and_before_older_ones(
    tmp_path: Path, *, files: bool
) -> None:
    if files:
        driver(tmp_path)
    stale(tmp_path, "535.104.05")
    (tmp_path / "etc/cdi/nvidia.yaml").rename(tmp_path / "etc/cdi/z-old.yaml")
    toolkit(tmp_path, {"GPU-0": "/dev/nvidia0"}, containerEdits={"env": ["FROM=new"]})
    assert "FROM=new" in complete(tmp_path, gpu())[0].env


def test_the_pipes_of_an_mps_daemon_of_the_node_are_not_mounted(tmp_path: Path) -> None:
    mounts = [
        {"hostPath": p, "containerPath": p} for p in ("/tmp/nvidia-mps", "/tmp/x/../nvidia-mps/", "/tmp/a")
    ]
    toolkit(tmp_path, {"GPU-0": "/dev/nvidia0"}, containerEdits={"env": ["FROM=toolkit"], "mounts": mounts})
    assert list(mounted(complete(tmp_path, gpu())[0])) == ["/tmp/a"]
