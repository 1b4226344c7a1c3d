"""In the wheel all packages lie in one, and import each other there."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from paths import PROJECT


@pytest.fixture(scope="module")
def hook() -> ModuleType:
    path = PROJECT / "deploy" / "packaging" / "wheel_namespace.py"
    spec = importlib.util.spec_from_file_location("wheel_namespace", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("source", "moved"),
    [
        ("from controller import app\n", "from dra_driver.controller import app\n"),
        ("from controller.app import A\n", "from dra_driver.controller.app import A\n"),
        (
            "if x:\n    from kubelet_plugin.config import (\n        A,\n    )\n",
            "if x:\n    from dra_driver.kubelet_plugin.config import (\n        A,\n    )\n",
        ),
        ("from dra_driver.api import names\n", "from dra_driver.api import names\n"),
        ("from . import controller\n", "from . import controller\n"),
        ("from controllers import app\n", "from controllers import app\n"),
        ('text = "from controller import app"\n', 'text = "from controller import app"\n'),
        ('part = "controller"\n', 'part = "controller"\n'),
    ],
)
def test_imports_of_moved_packages_alone_are_changed(hook: ModuleType, source: str, moved: str) -> None:
    assert hook.moved_imports(source, "x.py") == moved


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("import os\nimport controller.app\n", "x.py:2: write `from PACKAGE import MODULE`"),
        ("import kubelet_plugin\n", "x.py:1: write `from PACKAGE import MODULE`"),
        (
            'run("-m", "controller.allocate.worker")\n',
            "'controller.allocate.worker' names a module that moves",
        ),
    ],
)
def test_what_cannot_be_moved_ends_the_build(hook: ModuleType, source: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        hook.moved_imports(source, "x.py")


def test_the_written_package_runs_beside_strangers_of_the_same_name(hook: ModuleType, tmp_path: Path) -> None:
    source, installed = tmp_path / "source", tmp_path / "installed"
    files = {
        "dra_driver/__init__.py": "",
        "dra_driver/cli.py": "from controller.app import NAME\n",
        "controller/__init__.py": "",
        "controller/app.py": "from kubelet_plugin import agent\nNAME = 'ours, ' + agent.NAME\n",
        "controller/page.html": "<p>",
        "controller/__pycache__/app.pyc": "",
        "kubelet_plugin/__init__.py": "",
        "kubelet_plugin/agent.py": "NAME = __name__\n",
    }
    for name, text in files.items():
        path = source / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    hook.write_package(source, installed / "dra_driver")

    assert (installed / "dra_driver" / "controller" / "page.html").read_text() == "<p>"
    assert list(installed.rglob("*.pyc")) == []
    (installed / "controller.py").write_text("raise AssertionError('another project')\n")
    program = "import sys; sys.path.insert(0, sys.argv[1]); from dra_driver.cli import NAME; print(NAME)"
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", program, str(installed)], capture_output=True, text=True
    )
    assert done.stdout == "ours, dra_driver.kubelet_plugin.agent\n", done.stderr


def test_a_name_that_is_taken_in_the_namespace_ends_the_build(hook: ModuleType, tmp_path: Path) -> None:
    for name in ("dra_driver/controller", "controller", "kubelet_plugin"):
        (tmp_path / name).mkdir(parents=True)
    with pytest.raises(FileExistsError):
        hook.write_package(tmp_path, tmp_path / "out")
