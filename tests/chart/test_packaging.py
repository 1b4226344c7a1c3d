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
from pathlib import Path

import pytest
from chart_support import ROOT

PIP = (sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check")


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


@pytest.mark.slow
def test_the_wheel_brings_the_embedded_cluster_with_its_manifests(wheel: Path, tmp_path: Path) -> None:
    """In an environment that has the dependencies, but neither the project nor its source tree."""
    fresh = tmp_path / "venv"
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
    where = [python, "-c", "import dra_driver; print(dra_driver.__file__)"]
    found = subprocess.run(where, capture_output=True, text=True, cwd=tmp_path, env=environment)
    assert found.stdout.startswith(str(fresh)), found.stdout + found.stderr
    demo = [str(fresh / "bin" / "dra-driver"), "demo"]
    done = subprocess.run(demo, capture_output=True, text=True, cwd=tmp_path, env=environment, timeout=300)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]


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
    for name in ("requirements.txt", "build-requirements.txt", "sbom-requirements.txt"):
        text = (ROOT / "deploy" / name).read_text()
        assert "://" not in text, name
        for block in re.split(r"(?m)^(?=[a-z0-9])", text):
            if "==" in block:
                assert "--hash=sha256:" in block, f"{name}: {block.splitlines()[0]}"
    lock = json.loads((ROOT / "deploy" / "helm" / "package-lock.json").read_text())
    for path, package in lock["packages"].items():
        if path:
            assert package["integrity"].startswith("sha512-"), path
            assert "resolved" not in package, path
