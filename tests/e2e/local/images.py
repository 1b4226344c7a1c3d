"""Container images without a registry: archives made of files of this machine, for ``ctr images import``.

Everything lies at the path that it has here, so shebangs, virtual environments and library paths hold.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import io
import json
import os
import platform
import shutil
import subprocess
import sys
import sysconfig
import tarfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType

from packaging.requirements import Requirement

# What the pods of the suite and of deploy/examples call.
SHELL_TOOLS = ("sh", "cat", "env", "grep", "ls", "sleep", "sort")
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
# Of the standard library, what a program at run time has no use for.
LEFT_OUT = {
    "test",
    "tests",
    "idlelib",
    "turtledemo",
    "tkinter",
    "ensurepip",
    "lib2to3",
    "site-packages",
    "dist-packages",
}
PROJECT_PACKAGES = ("dra_driver", "controller", "kubelet_plugin")


class Layer:
    """A file system layer, written file by file; owners are root's, modes 0755 and 0644."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self._names: set[str] = set()
        self._tar = tarfile.open(file, "w")  # noqa: SIM115 -- closed by __exit__

    def __enter__(self) -> Layer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._tar.close()

    def folder(self, path: str, mode: int = 0o755) -> None:
        """An empty folder, and those above it."""
        name = path.strip("/")
        if not name or name in self._names:
            return
        self.folder(str(Path(name).parent) if "/" in name else "")
        info = tarfile.TarInfo(name)
        info.type, info.mode = tarfile.DIRTYPE, mode
        self._add(info)

    def text(self, path: str, content: str) -> None:
        """A file with this content."""
        data = content.encode()
        info = tarfile.TarInfo(path.strip("/"))
        info.size, info.mode = len(data), 0o644
        self._add(info, io.BytesIO(data))

    def link(self, path: str, target: str) -> None:
        """A symbolic link."""
        info = tarfile.TarInfo(path.strip("/"))
        info.type, info.linkname = tarfile.SYMTYPE, target
        self._add(info)

    def copy(self, source: Path, path: str | None = None) -> None:
        """A file of this machine, links resolved; time stamps stay, for they tell whether a .pyc is fresh."""
        status = source.stat()
        info = tarfile.TarInfo((path or str(source.absolute())).strip("/"))
        info.size, info.mtime = status.st_size, int(status.st_mtime)
        info.mode = 0o755 if status.st_mode & 0o100 else 0o644
        if info.name not in self._names:
            with source.open("rb") as content:
                self._add(info, content)

    def tree(self, folder: Path, left_out: Iterable[str] = (), *, source: Path | None = None) -> None:
        """A folder with all below it (in ``source``), without byte code of other interpreters."""
        skipped, base = set(left_out), source or folder
        for here, folders, files in os.walk(base):
            folders[:] = sorted(f for f in folders if f not in skipped and not f.startswith("config-"))
            for name in sorted(files):
                file = Path(here, name)
                if useful(file) and file.is_file():
                    self.copy(file, str(folder.absolute() / file.relative_to(base)))

    def _add(self, info: tarfile.TarInfo, content: io.BufferedIOBase | None = None) -> None:
        if info.name in self._names:
            return
        if "/" in info.name:
            self.folder(str(Path(info.name).parent))
        self._names.add(info.name)
        self._tar.addfile(info, content)


def useful(file: Path) -> bool:
    """Whether the file belongs in an image: no archives to link with, no byte code of other interpreters."""
    if file.suffix == ".pyc":
        return f".{sys.implementation.cache_tag}." in file.name
    return file.suffix not in (".a", ".pyi", ".whl")


def parse_ldd(output: str) -> set[str]:
    """The absolute paths in what ``ldd`` prints."""
    found = set()
    for line in output.splitlines():
        words = line.strip().partition("=> ")[2].split() or line.split()
        if line[:1].isspace() and words and words[0].startswith("/"):
            found.add(words[0])
    return found


def libraries(ldd: Path, files: Sequence[Path]) -> set[str]:
    """The shared libraries that the files need, and the loader; nothing for static ones."""
    found: set[str] = set()
    for start in range(0, len(files), 100):
        batch = [str(f) for f in files[start : start + 100]]
        # Exits with 1 when one of many is static; what it can tell about the others it still prints.
        found |= parse_ldd(subprocess.run([ldd, *batch], capture_output=True, text=True).stdout)
    return found


def add_libraries(layer: Layer, ldd: Path, files: Sequence[Path]) -> None:
    """Adds what the files are linked with, and the loader's cache, which tells where that is."""
    needed = libraries(ldd, files)
    for name in sorted(needed):
        layer.copy(Path(name), name)
    cache = Path("/etc/ld.so.cache")
    if needed and cache.exists():
        layer.copy(cache)


def add_system(layer: Layer) -> None:
    """The few folders and files that any program expects."""
    for folder in ("dev", "etc", "proc", "root", "run", "sys", "var"):
        layer.folder(folder)
    layer.folder("tmp", 0o1777)
    layer.link("var/run", "/run")
    layer.text("etc/passwd", "root:x:0:0:root:/root:/bin/sh\nnonroot:x:65532:65532::/:/bin/sh\n")
    layer.text("etc/group", "root:x:0:\nnonroot:x:65532:\n")


def make_shell(archive: Path, name: str, ldd: Path, search: Sequence[Path]) -> None:
    """An image with a shell and a few tools: busybox where there is one, else this machine's own.

    It is the pods' pause image as well: its command sleeps.

    Raises:
        FileNotFoundError: one of the tools is nowhere in ``search``.
    """
    path = os.pathsep.join(str(p) for p in search)
    busybox = shutil.which("busybox", path=path)
    with Layer(archive.with_suffix(".layer")) as layer:
        add_system(layer)
        programs: list[Path] = []
        for tool in SHELL_TOOLS:
            found = busybox or shutil.which(tool, path=path)
            if found is None:
                raise FileNotFoundError(f"no {tool} and no busybox in {path}")
            programs.append(Path(found).resolve())
            layer.copy(programs[-1], f"bin/{tool}")
        add_libraries(layer, ldd, programs)
    command = ["/bin/sh", "-c", "trap 'exit 0' TERM; while :; do sleep 3600 & wait $!; done"]
    write_archive(layer.file, archive, name, {"Cmd": command, "Env": ["PATH=/bin"]})


def distributions(project: str) -> list[importlib.metadata.Distribution]:
    """The installed distributions that the project needs at run time, itself included."""
    found: dict[str, importlib.metadata.Distribution] = {}
    waiting: list[tuple[str, frozenset[str]]] = [(project, frozenset())]
    while waiting:
        name, extras = waiting.pop()
        distribution = importlib.metadata.distribution(name)
        known = distribution.metadata["Name"].lower()
        if known in found and not extras:
            continue
        found[known] = distribution
        for text in distribution.requires or ():
            requirement = Requirement(text)
            marker = requirement.marker
            if marker is None or any(marker.evaluate({"extra": e}) for e in extras or {""}):
                waiting.append((requirement.name, frozenset(requirement.extras)))
    return list(found.values())


def make_driver(archive: Path, name: str, ldd: Path, project: Path, code: Path | None = None) -> None:
    """An image with this interpreter, the driver and what it needs; as ``deploy/Dockerfile`` makes it.

    With ``code`` the driver is the one in that folder, another version, in the place of this project's.
    """
    interpreter = Path(sys.executable).resolve()
    standard = {Path(sysconfig.get_path(p, vars={"base": sys.base_prefix})) for p in ("stdlib", "platstdlib")}
    installed = [
        Path(str(d.locate_file(f))).resolve() for d in distributions("dra-driver") for f in d.files or ()
    ]
    files = [f for f in installed if f.is_file() and useful(f)]
    with Layer(archive.with_suffix(".layer")) as layer:
        add_system(layer)
        layer.copy(interpreter)
        for folder in standard:
            layer.tree(folder, LEFT_OUT)
        for file in files:
            layer.copy(file)
        for package in PROJECT_PACKAGES:
            layer.tree(project / package, source=None if code is None else code / package)
        layer.tree(project / "deploy")
        for script in sorted(Path(sys.executable).parent.glob("python*")):
            if script.is_symlink():
                layer.link(str(script), str(interpreter))
        configuration = Path(sys.prefix, "pyvenv.cfg")
        if configuration.exists():
            layer.copy(configuration)
            # The environment's `home`: the interpreter as it was called then.
            home = Path(getattr(sys, "_base_executable", interpreter))
            if home != interpreter:
                layer.link(str(home), str(interpreter))
        native = [f for f in files if ".so" in f.suffixes]
        native += [
            f for folder in standard for f in (folder / "lib-dynload").glob("*.so") if "tkinter" not in f.name
        ]
        add_libraries(layer, ldd, [interpreter, *native])
    path = f"{Path(sys.executable).parent}:/bin"
    environment = [f"PATH={path}", "PYTHONUNBUFFERED=1", "PYTHONDONTWRITEBYTECODE=1"]
    write_archive(
        layer.file,
        archive,
        name,
        {"Cmd": ["dra-driver", "--help"], "Env": environment, "User": "65532:65532"},
    )


def write_archive(layer: Path, archive: Path, name: str, config: Mapping[str, object]) -> None:
    """An image of one layer, as ``docker save`` would write it; the layer's file is used up."""
    with layer.open("rb") as content:
        digest = hashlib.file_digest(content, "sha256").hexdigest()
    machine = platform.machine()
    body = json.dumps(
        {
            "architecture": ARCHITECTURES.get(machine, machine),
            "os": "linux",
            "config": {**config, "WorkingDir": "/"},
            "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]},
        }
    ).encode()
    config_name = f"{hashlib.sha256(body).hexdigest()}.json"
    layer_name = f"{digest}/layer.tar"
    index = json.dumps([{"Config": config_name, "RepoTags": [name], "Layers": [layer_name]}]).encode()
    with tarfile.open(archive, "w") as tar:
        for file, data in ((config_name, body), ("manifest.json", index)):
            info = tarfile.TarInfo(file)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
        tar.add(layer, layer_name)
    layer.unlink()
