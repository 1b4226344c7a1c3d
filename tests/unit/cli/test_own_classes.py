"""The driver's own DeviceClasses: known to ``explain -f`` and ``allocate -f``, and those of the chart."""

from pathlib import Path

import pytest
import yaml

from dra_driver.cli.allocator.own_classes import device_classes
from dra_driver.cli.main import main

Capture = pytest.CaptureFixture[str]
ROOT = Path(__file__).parents[3]
EXAMPLES = ROOT / "deploy/examples"


def test_they_are_those_of_the_chart() -> None:
    installed = {
        d["metadata"]["name"]: " ".join(d["spec"]["selectors"][0]["cel"]["expression"].split())
        for d in yaml.safe_load_all((ROOT / "deploy/manifests/20-deviceclasses.yaml").read_text())
    }
    known = {
        c.metadata.name: c.spec.selectors[0].cel.expression
        for c in device_classes()
        if c.spec.selectors[0].cel
    }
    assert {name: known[name] for name in installed} == installed
    assert known.keys() - installed.keys() == {
        "vfio.gpu.dra-driver.dev",
        "rdma.dra-driver.dev",
    }  # off by default


@pytest.fixture
def slices(tmp_path: Path, capsys: Capture) -> str:
    """Slices as a reader without a cluster makes them."""
    assert main(["devices", "--backend", "simulated=mixed", "-o", "slices"]) == 0
    path = tmp_path / "slices.yaml"
    path.write_text(capsys.readouterr().out)
    return str(path)


def test_explain_and_allocate_need_no_classes_in_files(slices: str, capsys: Capture) -> None:
    fits = str(EXAMPLES / "01-whole-gpu/whole-gpu.yaml")
    assert main(["explain", "-f", slices, "-f", fits]) == 0
    assert "dra-examples/whole-gpu fits on node " in capsys.readouterr().out
    assert main(["allocate", "-f", slices, "-f", fits]) == 0
    assert "dra-examples/whole-gpu" in capsys.readouterr().out
    vast = str(next((EXAMPLES / "18-unsatisfiable").glob("*.yaml")))
    assert main(["explain", "-f", slices, "-f", vast]) == 1
    assert "does not fit: needs 1 gpu.dra-driver.dev with memory 1000Gi\n" in capsys.readouterr().out


def test_a_class_of_the_files_is_the_one_that_counts(slices: str, tmp_path: Path, capsys: Capture) -> None:
    own = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "DeviceClass",
        "metadata": {"name": "gpu.dra-driver.dev"},
    }
    nothing = own | {"spec": {"selectors": [{"cel": {"expression": "false"}}]}}
    path = tmp_path / "class.yaml"
    path.write_text(yaml.safe_dump(nothing))
    asked = str(EXAMPLES / "01-whole-gpu/whole-gpu.yaml")
    assert main(["explain", "-f", slices, "-f", asked, str(path)]) == 1
    assert "not of class gpu.dra-driver.dev" in capsys.readouterr().out


def test_a_mistyped_class_is_said_with_the_one_that_was_meant(
    slices: str, tmp_path: Path, capsys: Capture
) -> None:
    text = (
        (EXAMPLES / "01-whole-gpu/whole-gpu.yaml")
        .read_text()
        .replace("gpu.dra-driver.dev", "gpu.dra-drivr.dev")
    )
    path = tmp_path / "typo.yaml"
    path.write_text(text)
    assert main(["explain", "-f", slices, "-f", str(path)]) == 1
    assert "did you mean `gpu.dra-driver.dev`?" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "meant"),
    [
        (["explian"], "explain"),
        (["devices", "--backend", "simulatd=mixed"], "simulated"),
        (["devices", "--backend", "simulated=mixd"], "mixed"),
        (["plan", "--fleet", "dgx-h10:2", "--gpus", "1"], "dgx-h100"),
        (["plan", "--fleet", "h10x8:2", "--gpus", "1"], "h100x8"),
        (["plan", "--fleet", "h100x8:2", "--gpus", "1", "--device-class", "gpu"], "gpu.dra-driver.dev"),
        (["plan", "--fleet", "h100x8:2", "--mig", "3g.40gb", "--partitions", "3g.40g"], "3g.40gb"),
    ],
)
def test_mistyped_names_are_said_with_those_that_were_meant(
    arguments: list[str], meant: str, capsys: Capture
) -> None:
    try:
        status = main(arguments)
    except SystemExit as e:
        status = e.code  # type: ignore[assignment]
    assert status == 2
    assert f"did you mean `{meant}`?" in capsys.readouterr().err
