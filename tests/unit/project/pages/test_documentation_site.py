"""The pages of the site: all are gathered, every link between them leads somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from forked import ForkedScript
from nonempty import nonempty
from once import once_in_a_run
from paths import PROJECT

from dra_driver.cli.main import main
from dra_driver.cli.simulation.workload import DEFAULT_JOBS

ROOT = PROJECT
# ``python docs/site.py FOLDER``, without its imports.
MAKE = """
import runpy, sys
del sys.argv[0]
sys.path.insert(0, sys.argv[0])
runpy.run_path(f"{sys.argv[0]}/site.py", run_name="__main__")
"""


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    def make(folder: Path) -> None:
        ForkedScript(MAKE, str(ROOT / "docs"), str(folder / "pages"), environment={}).finish()

    return once_in_a_run(tmp_path_factory, "site", make) / "pages"


def test_links_lead_to_pages_and_their_sections(pages: Path) -> None:
    broken = []
    for page in nonempty(pages.rglob("*.md")):
        text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
        text = re.sub(r"`[^`\n]*`", "code", text)
        for target in re.findall(r"\]\(([^)\s]+)\)", text):
            if re.match(r"[a-z]+:", target):
                continue
            path, _, anchor = target.partition("#")
            file = (page.parent / path).resolve() if path else page
            if not file.is_file() or (anchor and anchor not in anchors(file)):
                broken.append((page.relative_to(pages).as_posix(), target))
    assert broken == []


def anchors(page: Path) -> set[str]:
    titles = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"\s+", "-", re.sub(r"[^\w\s-]", "", t.lower()).strip()) for t in titles}


def test_every_test_that_the_documentation_names_exists() -> None:
    files = [f for f in (ROOT / "tests").rglob("*.py") if f.name.startswith("test_")]
    known = {f.name for f in files} | {f.stem for f in files}
    for file in files:
        known |= set(re.findall(r"^ *(?:async )?def (test_\w+)", file.read_text(), re.MULTILINE))
    pages = [*(ROOT / "docs").rglob("*.md"), *ROOT.glob("*.md")]
    named = {(p.name, n) for p in pages for n in re.findall(r"`(test_\w+(?:\.py)?)`", p.read_text())}
    assert len(named) > 100
    assert sorted((page, name) for page, name in named if name not in known) == []


def neighbours(page: str) -> list[list[str]]:
    """Return the cells of each row of a page's table of what runs beside the driver."""
    section = (ROOT / "docs" / page).read_text().partition("## Beside other controllers")[2]
    lines = [line for line in section.partition("\n## ")[0].splitlines() if line.startswith("|")]
    _, _, *rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return rows


def test_each_neighbour_has_a_mode_a_way_and_a_test_or_is_said_to_have_none() -> None:
    for_users, proofs = neighbours("allocation-modes.md"), neighbours("safety-proofs.md")
    assert [row[:2] for row in for_users] == [row[:2] for row in proofs]
    assert all(len(row) == 3 and row[1] and row[2] for row in for_users)
    assert all(re.search(r"`test_\w+`|not tested here", row[2]) for row in proofs)
    known = {name for row in proofs for name in re.findall(r"[A-Z]\w+|autoscaler|volumes|affinity", row[0])}
    batch = {"Kueue", "Volcano", "KAI", "JobSet", "LeaderWorkerSet", "PodGroup"}
    assert known >= batch | {"autoscaler", "Karpenter", "affinity", "volumes"}


def test_the_reference_has_every_command_and_field(pages: Path) -> None:
    commands = (pages / "reference" / "commands.md").read_text()
    assert "## dra-driver kubelet-plugin" in commands
    assert "| `--node-name` `NAME` |" in commands
    # As --help shows them: groups, defaults as one types them, the examples at the end.
    assert "**Groups of pods.**" in commands
    assert "so that several replicas can run; default: --leader-elect |" in commands
    assert "```text\ndra-driver status " in commands
    assert "`share.memory.step`" in (pages / "reference" / "devicepolicy.md").read_text()
    inventory = (pages / "reference" / "deviceinventory.md").read_text()
    assert "| `devices[].name` | string |" in inventory
    assert re.search(r"\| `registration.epoch` .*\| How often slices were asked for\. \|", inventory)
    values = (pages / "reference" / "helm-values.md").read_text()
    assert "| `controller.preemption` | `dry-run`, or `off`, `on` | Evict pods of lower priority" in values
    assert "| `deviceClasses.CLASS.create` | `true` |" in values
    assert "([publishing](../publishing.md); needs" in values
    metrics = (pages / "reference" / "metrics.md").read_text()
    assert "`dra_driver_controller_allocations_total`" in metrics
    assert "`dra_driver_prepared_claims`" in metrics
    assert "| `nvlinkGroup` | string |" in (pages / "reference" / "attributes.md").read_text()
    assert "## `failed` until a reset" in (pages / "reference" / "xids.md").read_text()


def test_the_reference_has_every_public_name_with_its_words(pages: Path) -> None:
    text = (pages / "reference" / "python.md").read_text()
    sections = dict(re.findall(r"(?ms)^### (\w+)\n(.*?)(?=^##|\Z)", text))
    assert {"ClaimPreparation", "describe_device", "compile_selector", "allocate", "decode"} <= set(sections)
    assert "**`prepare_device(work: DeviceWork) -> None`**" in sections["ClaimPreparation"]
    assert "- `profile`: of a partition the name of its profile, else empty." in sections["DeviceUse"]
    assert "**`__call__(arg: str, *, " in sections["BackendFactory"]
    assert [name for name, words in sections.items() if len(words.split()) < 3 and "`" not in words] == []
    # Objects whose addresses change from build to build have no place on a page.
    assert " at 0x" not in text


def test_every_example_has_a_page(pages: Path) -> None:
    index = (pages / "examples" / "index.md").read_text()
    names = nonempty(p.stem for p in (ROOT / "deploy" / "examples").iterdir() if p.suffix != ".md")
    assert [n for n in names if f"({n}.md)" not in index] == []
    assert [n for n in names if "```yaml" not in (pages / "examples" / f"{n}.md").read_text()] == []


def test_every_workload_has_a_page(pages: Path) -> None:
    index = (pages / "workloads" / "index.md").read_text()
    names = nonempty(p.name for p in (ROOT / "deploy" / "workloads").iterdir() if p.is_dir())
    assert [n for n in names if f"({n}.md)" not in index] == []
    assert [n for n in names if "```yaml" not in (pages / "workloads" / f"{n}.md").read_text()] == []


@pytest.mark.long
def test_the_simulated_week_is_the_one_that_the_command_makes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = (ROOT / "docs" / "fragmentation.md").read_text()
    drawn = tmp_path / "plot.svg"
    assert main(["simulate", "--plot", str(drawn)]) == 0
    made = (drawn.read_text(), capsys.readouterr().out.strip() in page)
    assert made == ((ROOT / "docs" / "fragmentation.svg").read_text(), True), (
        "run `dra-driver simulate --plot docs/fragmentation.svg`, and put what it prints into the page"
    )
    for job in DEFAULT_JOBS:
        assert f"\n{job}\n" in page
