"""The wheel and the image: they hold what the driver needs where there is no source tree."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest
from chart_support import ROOT

import dra_driver

PIP = (sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check")
VERSION = dra_driver.__version__


def copied() -> list[str]:
    """What the Dockerfile takes from the project."""
    text = (ROOT / "deploy" / "Dockerfile").read_text()
    lines = re.findall(r"(?m)^COPY (?!--from)(.*)$", text)
    return [source for line in lines for source in line.split()[:-1]]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Made from what the Dockerfile copies, as the image makes it."""
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "src"
    for name in copied():
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, source / name)
    command = [*PIP, "wheel", "--no-deps", "--no-build-isolation", "--no-index", "--wheel-dir", str(folder)]
    subprocess.run([*command, str(source)], check=True)
    (made,) = folder.glob("*.whl")
    return made


def install(wheel: Path, fresh: Path) -> dict[str, str]:
    """Make an environment of the wheel and the dependencies, without the project's source tree.

    Returns:
        The variables for processes in it.
    """
    venv.create(fresh, with_pip=False, symlinks=True)
    python = fresh / "bin" / "python"
    here = subprocess.run(
        [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
        check=True,
        capture_output=True,
        text=True,
    ).stdout.strip()
    # A .pth file within a folder that a .pth file names is not read: the editable install stays out.
    Path(here, "dependencies.pth").write_text(sysconfig.get_path("purelib"))
    arguments = ["install", "--no-deps", "--no-index", str(wheel)]
    subprocess.run([sys.executable, "-m", "pip", "--python", str(python), "--quiet", *arguments], check=True)

    environment = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")}
    where = [str(python), "-c", "import dra_driver; print(dra_driver.__file__)"]
    found = subprocess.run(where, capture_output=True, text=True, cwd=fresh, env=environment)
    assert found.stdout.startswith(str(fresh)), found.stdout + found.stderr
    return environment


def test_the_wheel_has_one_package_of_its_own_name(wheel: Path) -> None:
    """Another project's ``controller`` would overwrite ours, or ours that one."""
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        metadata = archive.read(f"dra_driver-{VERSION}.dist-info/METADATA").decode()
    assert {name.partition("/")[0] for name in names} == {"dra_driver", f"dra_driver-{VERSION}.dist-info"}
    assert "dra_driver/controller/web/static/index.html" in names
    assert "dra_driver/kubelet_plugin/app.py" in names
    assert "dra_driver/sim/deploy/manifests/30-controller.yaml" in names
    assert not [
        name for name in names if "__pycache__" in name or name.startswith("dra_driver/sim/deploy/packaging")
    ]
    assert set(re.findall(r"(?m)^Provides-Extra: (.*)$", metadata)) == {"dev", "tracing"}


@pytest.mark.slow
def test_the_wheel_brings_the_embedded_cluster_with_its_manifests(wheel: Path, tmp_path: Path) -> None:
    """In an environment that has the dependencies, but neither the project nor its source tree."""
    fresh = tmp_path / "venv"
    environment = install(wheel, fresh)
    demo = [str(fresh / "bin" / "dra-driver"), "demo", "--nodes", "1"]
    done = subprocess.run(demo, capture_output=True, text=True, cwd=tmp_path, env=environment, timeout=300)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]


@dataclass(frozen=True)
class Image:
    """An environment with what the image's environment has, and without what the Dockerfile takes away."""

    root: Path
    environment: dict[str, str]

    def run(self, program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = [str(self.root / "bin" / program), *arguments]
        return subprocess.run(
            command, capture_output=True, text=True, cwd=self.root, env=self.environment, timeout=120
        )


@pytest.fixture(scope="module")
def image(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Image:
    root = tmp_path_factory.mktemp("image") / "opt"
    made = Image(root, install(wheel, root))
    text = (ROOT / "deploy" / "Dockerfile").read_text()
    for pattern in re.findall(r"\brm -r /opt/dra-driver/(\S+)", text):
        found = list(root.glob(pattern))
        assert found, f"deploy/Dockerfile removes {pattern}, which is not there"
        for path in found:
            shutil.rmtree(path)
    return made


@pytest.mark.slow
def test_the_image_has_no_embedded_cluster(image: Image) -> None:
    gone = image.run("python", "-c", "import dra_driver.sim")
    assert "ModuleNotFoundError: No module named 'dra_driver.sim'" in gone.stderr
    for command in (["demo"], ["sim", "apiserver", "--kubeconfig", "x"], ["demo", "--help"]):
        done = image.run("dra-driver", *command)
        assert done.returncode == 2, done.stdout + done.stderr
        assert "this image has no embedded cluster; install the package dra-driver" in done.stderr
        assert "Traceback" not in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    "command",
    [
        ["--help"],
        ["--version"],
        ["controller", "--help"],
        ["kubelet-plugin", "--help"],
        ["status", "--help"],
        ["explain", "--help"],
        ["devices", "--backend", "simulated=dgx-h100"],
    ],
)
def test_the_image_has_every_other_command(image: Image, command: list[str]) -> None:
    done = image.run("dra-driver", *command)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
def test_the_image_of_a_third_partys_driver_is_this_one_with_its_package(
    image: Image, tmp_path: Path
) -> None:
    """By the command of its Dockerfile, which is the one of the page."""
    example = ROOT / "docs" / "examples" / "acme-driver"
    (command,) = re.findall(
        r"(?m)^RUN --mount=type=bind,target=/wheels (.*)$", (example / "Dockerfile").read_text()
    )
    assert command in (ROOT / "docs" / "sdk.md").read_text()
    wheels = tmp_path / "wheels"
    make = [*PIP, "wheel", "--no-deps", "--no-build-isolation", "--no-index", "--wheel-dir", str(wheels)]
    subprocess.run([*make, str(example)], check=True)
    for inside, here in (
        ("/usr/local/bin/python", sys.executable),
        ("/opt/dra-driver", str(image.root)),
        ("/wheels", str(wheels)),
    ):
        assert inside in command
        command = command.replace(inside, here)
    subprocess.run(["sh", "-c", command], check=True, env=image.environment, capture_output=True)

    done = image.run("dra-driver", "devices", f"--backend=acme={tmp_path}")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("NPU-1") == 2
    assert re.findall(r"\d kinds?", done.stdout) == ["1 kind"] * 2
    assert "--backend" in image.run("dra-driver", "kubelet-plugin", "--help").stdout
    absent = image.run("dra-driver", "devices", "--backend=acme")
    assert "the driver acme is not loaded" in absent.stderr


@pytest.mark.slow
def test_everything_that_is_left_in_the_image_can_be_imported(image: Image) -> None:
    """Nothing but the two commands of the embedded cluster needs what the Dockerfile takes away."""
    script = (
        "import importlib, pkgutil, sys\n"
        "import dra_driver\n"
        "for module in pkgutil.walk_packages(dra_driver.__path__, 'dra_driver.'):\n"
        "    try:\n"
        "        importlib.import_module(module.name)\n"
        "    except ModuleNotFoundError as e:\n"
        "        print(module.name, 'needs', e.name)\n"
        "for package in ('controller', 'kubelet_plugin'):\n"
        "    assert package not in sys.modules, package\n"
    )
    done = image.run("python", "-c", script)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "dra_driver.cli.processes.demo needs dra_driver.sim",
        "dra_driver.cli.processes.sim needs dra_driver.sim",
    ]


def test_everything_that_the_image_copies_is_there_and_not_ignored() -> None:
    text = (ROOT / "deploy" / "Dockerfile").read_text()
    admitted = [
        line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")
    ]
    assert copied()
    for source in copied():
        assert (ROOT / source).exists(), source
        assert source in admitted, f".dockerignore keeps {source} from the build"
    for needed in ("dra_driver", "controller", "kubelet_plugin"):
        assert needed in copied()
    assert re.search(r"(?m)^USER 65532:65532$", text)
    assert "--require-hashes" in text


def test_locks_have_hashes_and_no_addresses() -> None:
    locks = [ROOT / "constraints.txt", ROOT / "docs" / "requirements.txt"]
    locks += [ROOT / ".github" / "requirements.txt", *sorted((ROOT / "deploy").glob("*requirements.txt"))]
    assert len(locks) == 7
    for path in locks:
        name, text = path.name, path.read_text()
        assert "://" not in text, path
        for block in re.split(r"(?m)^(?=[a-z0-9])", text):
            if "==" in block:
                assert "--hash=sha256:" in block, f"{name}: {block.splitlines()[0]}"
    for folder in ("deploy/helm", "tests/axe"):
        lock = json.loads((ROOT / folder / "package-lock.json").read_text())
        for place, package in lock["packages"].items():
            if place:
                assert package["integrity"].startswith("sha512-"), place
                assert "resolved" not in package, place
