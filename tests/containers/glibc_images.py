"""Root file systems of images with glibc, made of this machine's, and a host with a driver of stub libraries.

Two kinds of images are told apart by the dynamic linker: where it searches for a library that its cache
does not know. Debian's and Ubuntu's search ``/lib/<triplet>``, ``/usr/lib/<triplet>``, ``/lib`` and
``/usr/lib``; those of Red Hat (UBI), Fedora and SUSE ``/lib64`` and ``/usr/lib64``. These folders are built
into the linker, so an image of the second kind gets this machine's with the other folders written over.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import pytest
from nvml_stub_support import compiler

from dra_driver import cdi

VERSION = "570.148.08"
TRIPLET = f"{platform.machine()}-linux-gnu"
DEBIAN, REDHAT = "debian", "redhat"

# What CUDA does: it is opened by name, and opens others of the driver by theirs.
_LIBRARY = """
#include <dlfcn.h>
#include <stddef.h>
const char *version(void) { return TEXT; }
const char *needs(void) {
    const char *names[] = {NEEDED NULL};
    for (int i = 0; names[i]; i++) if (!dlopen(names[i], RTLD_NOW)) return dlerror();
    return "";
}
"""
_PROGRAM = """
#include <dlfcn.h>
#include <stdio.h>
int main(int argc, char **argv) {
    int failed = 0;
    for (int i = 1; i < argc; i++) {
        void *library = dlopen(argv[i], RTLD_NOW);
        const char *(*version)(void) = library ? (const char *(*)(void))dlsym(library, "version") : NULL;
        const char *(*needs)(void) = library ? (const char *(*)(void))dlsym(library, "needs") : NULL;
        const char *missing = needs ? needs() : "";
        printf("%s %s%s\\n", argv[i], version ? version() : dlerror(), missing);
        failed |= !version || *missing;
    }
    return failed;
}
"""


def runc() -> Path:
    """Return the program; skip the test where containers cannot be run."""
    found = shutil.which("runc", path=os.pathsep.join((os.environ.get("DRA_K8S_BIN", ""), os.defpath)))
    if found is None or os.geteuid() != 0:
        pytest.skip("running containers takes root and runc (in PATH, or in the folder DRA_K8S_BIN)")
    return Path(found)


# Of the C library, beside those that the linker and our own programs need.
_OF_GLIBC: Final = ("libm.so.6", "libdl.so.2", "libpthread.so.0", "librt.so.1")


def _compile(source: str, target: Path, *flags: str) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    file = target.with_name(f"{target.name}.c")
    file.write_text(source)
    compile_file(file, target, *flags)
    file.unlink()


def compile_file(file: Path, target: Path, *flags: str) -> None:
    """Compile a C program or library that may open others."""
    zig = {
        "ZIG_GLOBAL_CACHE_DIR": str(target.parent / "zig"),
        "ZIG_LOCAL_CACHE_DIR": str(target.parent / "zig"),
    }
    subprocess.run(
        [*compiler(), "-std=gnu17", "-o", str(target), str(file), *flags, "-ldl"],
        check=True,
        env={**os.environ, **zig},
    )


def library(target: Path, soname: str, *needed: str, text: str = VERSION) -> None:
    """Make a library that names its version, and opens others when asked for what it needs."""
    names = "".join(f'"{n}",' for n in needed)
    flags = ("-shared", "-fPIC", f"-Wl,-soname,{soname}", f'-DTEXT="{text}"', f"-DNEEDED={names}")
    _compile(_LIBRARY, target, *flags)


def driver(root: Path, folder: str, version: str = VERSION) -> None:
    """Install a driver below a root as its installer does, with links of the linker's."""
    jit, compute = "libnvidia-ptxjitcompiler.so.1", f"libnvidia-gpucomp.so.{version}"
    made = {
        "libcuda": ("libcuda.so.1", jit, compute),
        "libnvidia-ml": ("libnvidia-ml.so.1",),
        "libnvidia-ptxjitcompiler": (jit,),
        "libnvidia-gpucomp": (compute,),
        "libGLX_nvidia": ("libGLX_nvidia.so.0",),
    }
    for name, (soname, *needed) in made.items():
        library(root / folder / f"{name}.so.{version}", soname, *needed, text=version)
        if soname != f"{name}.so.{version}":
            (root / folder / soname).symlink_to(f"{name}.so.{version}")
    program(root / "usr/bin/nvidia-smi")


def program(target: Path) -> None:
    """Make a program that opens the libraries that it is told, and fails if one is not found."""
    _compile(_PROGRAM, target)


def image(root: Path, kind: str) -> Path:
    """Make an image's file system with a C library, the linker's cache and a program; return it."""
    folder = f"usr/lib/{TRIPLET}" if kind == DEBIAN else "usr/lib64"
    for name in ("usr/lib64", "usr/lib", "usr/bin", "etc", "proc", "dev", "sys", "tmp", folder):
        (root / name).mkdir(parents=True, exist_ok=True)
    for name in ("lib", "lib64", "bin"):
        (root / name).symlink_to(f"usr/{name}")
    program(root / "usr/bin/look")
    linked = subprocess.run(["ldd", root / "usr/bin/look"], check=True, capture_output=True, text=True).stdout
    for line in linked.splitlines():
        path = next((Path(w) for w in line.split() if w.startswith("/")), None)
        if path is None:
            continue
        if path.name.startswith("ld-linux"):
            _linker(path, root / "usr" / path.parent.relative_to("/") / path.name, kind)
        else:
            shutil.copy(path, root / folder / path.name)
            for beside in (path.with_name(name) for name in _OF_GLIBC):
                if path.name == "libc.so.6" and beside.exists():
                    shutil.copy(beside, root / folder / beside.name)
    (root / "etc/ld.so.conf.d").mkdir()
    (root / "etc/ld.so.conf").write_text("include /etc/ld.so.conf.d/*.conf\n")
    (root / "etc/ld.so.conf.d/own.conf").write_text(f"/{folder}\n")
    subprocess.run(["ldconfig", "-r", root], check=True, capture_output=True)
    return root


def _linker(source: Path, target: Path, kind: str) -> None:
    """Copy the linker, with the folders that it searches in such an image."""
    built_in = [f"/lib/{TRIPLET}/", f"/usr/lib/{TRIPLET}/", "/lib/", "/usr/lib/"]
    data = source.read_bytes()
    own = b"\0".join(f.encode() for f in built_in)
    if own not in data:
        pytest.skip("this machine's dynamic linker is not Debian's: its folders are not known")
    if kind == REDHAT:
        # Each of the same length; more than one slash counts as one.
        others = ["/lib64/", "/usr/lib64/", "/no1/", "/usr/no1/"]
        padded = [o.ljust(len(f), "/") for o, f in zip(others, built_in, strict=True)]
        data = data.replace(own, b"\0".join(p.encode() for p in padded))
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(data)
    target.chmod(0o755)


def run(
    program: Path, bundle: Path, root: Path, edits: cdi.ContainerEdits, host: Path, *arguments: str
) -> subprocess.CompletedProcess[str]:
    """Run a program in a container of the image, changed as a container runtime does by CDI.

    Args:
        program: runc.
        bundle: folder for what runc wants.
        root: the image's file system.
        edits: what they name on the host is below ``host``.
        host: the host's file system.
        arguments: of the container's process.
    """
    bundle.mkdir()
    subprocess.run([program, "spec"], cwd=bundle, check=True)
    config = json.loads((bundle / "config.json").read_text())
    config["root"] = {"path": str(root), "readonly": True}
    config["process"].update(terminal=False, args=list(arguments))
    config["process"]["env"] += edits.env
    config["mounts"] += [
        {
            "source": str(host / m.host_path.strip("/")),
            "destination": m.container_path,
            "options": list(m.options),
            "type": "bind",
        }
        for m in edits.mounts
    ]
    for node in edits.device_nodes:
        number = (host / (node.host_path or node.path).strip("/")).stat().st_rdev
        numbers = {"type": "c", "major": os.major(number), "minor": os.minor(number)}
        config["linux"].setdefault("devices", []).append({"path": node.path, "fileMode": 0o666, **numbers})
        config["linux"]["resources"]["devices"].append({"allow": True, "access": "rwm", **numbers})
    hooks = config.setdefault("hooks", {})
    for hook in edits.hooks:
        added = {"path": str(host / hook.path.strip("/")), "args": list(hook.args), "env": list(hook.env)}
        hooks.setdefault(hook.hook_name, []).append(added)
    (bundle / "config.json").write_text(json.dumps(config))
    name = f"dra-test-{os.getpid()}-{bundle.name}"
    command: Sequence[str | Path] = [program, "--root", bundle / "state", "run", "--bundle", bundle, name]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)
