"""Machines that do not exist: trees of sysfs, procfs and devfs, for tests, demonstrations and bare machines.

The backends that read files (``amdgpu``, ``intel``, ``rdma``, ``generic``) find the described devices in such
a tree when its ``sys`` and ``dev`` are given to them as roots. NVML is a library: of NVIDIA's GPUs the tree
has only what the kernel shows; ``--backend simulated`` stands in for the rest.
"""

from __future__ import annotations

from importlib import resources
from pathlib import Path

from dra_driver.discovery.core import strict
from dra_driver.discovery.simulated import fake_spec
from dra_driver.discovery.simulated.fake_amd import FakeKfd, write_amd
from dra_driver.discovery.simulated.fake_spec import FakeMachine
from dra_driver.discovery.simulated.fake_tree import FakeTree
from dra_driver.discovery.simulated.fake_vendors import write_intel, write_nvidia, write_rdma
from dra_driver.errors import ConfigurationError

__all__ = ["FakeMachine", "build", "built_in_specs", "load"]


def built_in_specs() -> tuple[str, ...]:
    """Names of the machines that are described already."""
    folder = resources.files("dra_driver.discovery").joinpath("data/fakes")
    return tuple(sorted(f.name.removesuffix(".yaml") for f in folder.iterdir() if f.name.endswith(".yaml")))


def load(spec: str) -> FakeMachine:
    """A built-in machine by name, or the file that ``spec`` names (anything with a ``/`` or ``.yaml``).

    Raises:
        ConfigurationError: there is no such machine, the file cannot be read, or it has mistakes.
    """
    if "/" not in spec and not spec.endswith((".yaml", ".yml")):
        known = built_in_specs()
        if spec not in known:
            raise ConfigurationError(
                f"fake hardware {spec[:80]!r} is unknown: allowed are {', '.join(known)}, "
                "or the path of a YAML file (./NAME.yaml)"
            )
        file = resources.files("dra_driver.discovery").joinpath(f"data/fakes/{spec}.yaml")
        return fake_spec.decode(file.read_text(encoding="utf-8"), spec)
    return fake_spec.decode(strict.read_text(Path(spec), "fake hardware"), spec)


def build(machine: FakeMachine, root: Path, *, mknod: bool = False) -> None:
    """Writes the machine's ``sys``, ``proc`` and ``dev`` below ``root``.

    Args:
        machine: what ``load`` gives.
        root: a directory that is new or empty.
        mknod: make device nodes, all of the null device (needs root), instead of regular files.

    Raises:
        ConfigurationError: ``root`` is not empty or cannot be written, or device nodes cannot be made.
    """
    tree = FakeTree(root, mknod=mknod)
    try:
        _write(tree, machine)
    except OSError as e:
        raise ConfigurationError(f"{e.filename or root}: {e.strerror or e}") from e


def _write(tree: FakeTree, machine: FakeMachine) -> None:
    kfd = FakeKfd(tree, machine) if any(g.kind == "amdgpu" for g in machine.groups) else None
    xcp = minor = rdma = 0
    for group in machine.groups:
        if group.kind == "amdgpu":
            assert kfd is not None
            xcp = write_amd(tree, kfd, group, xcp)
        elif group.kind == "intel":
            write_intel(tree, group)
        elif group.kind == "nvidia":
            minor = write_nvidia(tree, group, minor)
        else:
            rdma = write_rdma(tree, group, rdma)
    for module, version in machine.modules.items():
        tree.file(f"sys/module/{module}/version", version)
        if module == "nvidia":
            tree.file("proc/driver/nvidia/version", f"NVRM version: NVIDIA UNIX Kernel Module  {version}")
