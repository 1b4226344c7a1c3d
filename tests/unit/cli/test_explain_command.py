"""``dra-driver explain``: what is named on the command line, what is said about it, and the exit status."""

from __future__ import annotations

import io
import itertools
import json
import re
import threading
from pathlib import Path

import builders
import msgspec
import pytest
import rich.console
import work_counter
import yaml
from explained_fleet import asking, fleet, pod_of

from dra_driver.api import codec
from dra_driver.api.core import Node, Pod
from dra_driver.api.meta import ObjectKey, PoolName
from dra_driver.api.names import ALLOCATED_CONDITION, ALLOCATION_GATE
from dra_driver.api.own.inventory import DeviceInventory
from dra_driver.api.resource import DeviceClass, ResourceClaim, ResourceSlice
from dra_driver.cli.allocator.manifests import Manifests
from dra_driver.cli.display.progress import Progress, shown_if_long
from dra_driver.cli.display.report import Cell, Line, Report, Table, plain
from dra_driver.cli.display.terminal import rendered
from dra_driver.cli.explain import Explained, explained
from dra_driver.cli.explaining.answers import answers
from dra_driver.cli.explaining.targets import parse_target
from dra_driver.cli.main import main
from dra_driver.errors import InvalidInput
from dra_driver.fleet import GrantedToPod, GrantsShown
from dra_driver.ownership import OPEN_POOL, PoolAllocator
from dra_driver.publishing import conditions
from dra_driver.resourceslice import DesiredPool, SliceContent


def test_devices_are_counted_with_the_largest_and_the_nodes() -> None:
    found = explained(fleet(asking("huge", "1000Gi")))
    assert not found.fits
    lines = str(found).splitlines()
    assert lines[0] == "ns/huge does not fit: needs 1 gpu with memory 1000Gi"
    assert lines[1].split() == ["REQUEST", "DEVICES", "WHY", "NODES"]
    assert " ".join(lines[2].split()) == "gpu 6 of 6 memory of at most 160Gi n1, n2, n3"
    wide = str(explained(fleet(asking("huge", "1000Gi")), output="wide"))
    assert len(wide.splitlines()) == 2 + 6 + 1
    assert wide.endswith("Devices that become free do not help: no device can serve request gpu")


def test_a_claim_that_is_gone_and_keeps_its_devices_is_the_reason() -> None:
    manifests = fleet(asking("big", "160Gi"))
    inventory = builders.inventory("n3")
    inventory["status"]["registration"]["goneClaimsEpoch"] = 1
    inventory["status"]["goneClaims"] = [{"uid": "u-7", "devices": [{"device": "gpu-1"}]}]
    manifests.inventories.append(codec.convert(DeviceInventory, inventory))
    found = explained(manifests)
    assert not found.fits
    assert "a claim that is gone (UID u-7)" in str(found)


def test_what_is_withheld_is_told_where_something_does_not_fit(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """From exported objects too, whatever fields a newer version has."""
    inventory = builders.inventory("n1", driver=builders.DRIVER, future="x")
    other = {"driver": "gpu.other.example", "pools": ["n1"], "devices": ["gpu-0", "gpu-1"]}
    inventory["status"]["publication"] = {"otherDrivers": [other], "withheldFor": ["example.com/gpu"]}
    slices = [builders.resource_slice("n1", builders.device("gpu-2", "40Gi"))]
    for memory, told in (("1000Gi", True), ("32Gi", False)):
        claim = builders.claim("c", builders.request("gpu", memory=memory))
        file = tmp_path / "objects.yaml"
        file.write_text(yaml.safe_dump_all([*slices, builders.device_class("gpu"), claim, inventory]))
        assert main(["explain", "-f", str(file)]) == told
        text = " ".join(capsys.readouterr().out.split())
        assert (
            "2 devices of node n1 are not published: DRA driver gpu.other.example has the same" in text
        ) == told
        assert (
            "devices of node n1 are not published: a device plugin hands out example.com/gpu" in text
        ) == told
        assert main(["explain", "-f", str(file), "-o", "json"]) == told
        assert len(json.loads(capsys.readouterr().out).get("withheld", [])) == 2 * told


def test_equal_answers_are_one_paragraph() -> None:
    manifests = fleet(*(asking(f"huge{i}", "1000Gi") for i in range(5)), asking("fits", "32Gi"))
    text = str(explained(manifests))
    assert "ns/huge0, ns/huge1, ns/huge2 and 2 more do not fit (5 claims): " in text
    assert text.count("memory of at most") == 1
    data = json.loads(str(explained(manifests, output="json")))
    assert [c["fits"] for c in data["claims"]] == [False] * 5 + [True]
    assert not data["fits"]
    assert data["claims"][0]["reasons"][0]["devices"] == 6


def test_a_workload_is_explained_by_the_claims_of_its_pods() -> None:
    manifests = fleet(
        *(asking(name, "1000Gi") for name in ("a", "b", "c")),
        pods=(
            pod_of("serve-1-x", "a", "serve-1", "ReplicaSet", **{"pod-template-hash": "1"}),
            pod_of("serve-extra-1-x", "b", "serve-extra-1", "ReplicaSet", **{"pod-template-hash": "1"}),
            pod_of("train-0", "c", "train", "Job"),
        ),
    )

    def claims(text: str) -> list[str]:
        data = json.loads(str(explained(manifests, [parse_target(text)], "ns", output="json")))
        return [c["claim"] for c in data["claims"]]

    assert claims("deploy/serve") == ["ns/a"]
    assert claims("rs/serve-extra-1") == ["ns/b"]
    assert claims("job/train") == ["ns/c"]
    assert claims("pod/train-0") == ["ns/c"]
    assert claims("claim/b") == ["ns/b"]
    with pytest.raises(InvalidInput, match="no pod of Deployment train in namespace ns"):
        claims("deploy/train")


@pytest.mark.parametrize("text", ["train", "secret/x", "pod/", "pod/a/b", "device/n1"])
def test_what_is_no_kind_and_name_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match="KIND/NAME is wanted, such as pod/NAME"):
        parse_target(text)


def test_a_namespace_without_claims_points_to_the_others() -> None:
    with pytest.raises(InvalidInput, match="in namespace empty; -A looks at all namespaces"):
        explained(fleet(asking("a", "1Gi")), namespace="empty")


def test_files_have_claims_only(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "pod/x", "-f", "x.yaml"]) == 2
    assert "of manifests (-f) only claims are explained" in capsys.readouterr().err
    assert main(["explain", "-A", "-f", "x.yaml"]) == 2
    assert "--all-namespaces is for a live cluster" in capsys.readouterr().err


# --- how reports look ---------------------------------------------------------------------------------------

REPORT: Report = (
    (
        Line("a claim does not fit", "bad"),
        Table(("NAME", "WHY"), [("n1", "some words " * 20), ("n2", Cell(3, "good"))]),
    ),
    (Line("a note"),),
)


def on_terminal(report: Report, width: int, environment: dict[str, str]) -> str:
    stream = io.StringIO()
    console = rich.console.Console(
        file=stream, width=width, force_terminal=True, highlight=False, _environ=environment
    )
    rendered(report, console)
    return stream.getvalue()


@pytest.mark.parametrize("width", [40, 80, 100, 160])
def test_tables_fit_the_terminal(width: int) -> None:
    text = on_terminal(REPORT, width, {"NO_COLOR": "1", "TERM": "xterm"})
    lines = [line.replace("\x1b[1m", "").replace("\x1b[0m", "") for line in text.splitlines()]
    assert max(map(len, lines)) <= width
    assert sum(line.count("words") for line in lines) == 20


NUMBERS = ("DEVICES", "ALLOCATED", "FREE", "UNHEALTHY")


def test_headers_and_numbers_stay_whole_where_there_is_room() -> None:
    header = ("NODE", "MODEL", "TYPE", *NUMBERS, "MEMORY")
    row = ("gpu-node-with-a-long-name", "NVIDIA-H100-80GB-HBM3-MIG", "partition", 10008, 10001, 7, 0, "7.8Ti")
    lines = on_terminal(((Table(header, [row]),),), 80, {"NO_COLOR": "1", "TERM": "xterm"}).splitlines()
    assert len(lines[1]) <= 80
    assert all(name in lines[0] for name in header)
    assert all(number in lines[1].split() for number in ("10008", "10001", "7", "0", "7.8Ti"))


def test_names_are_broken_behind_hyphens() -> None:
    table = Table(("MODEL", *NUMBERS), [("A100-SXM4-80GB", 1, 2, 3, 4), ("T4", 1, 2, 3, 4)])
    lines = without_styles(on_terminal(((table,),), 45, {"NO_COLOR": "1", "TERM": "xterm"}))
    assert [line.split()[0] for line in lines] == ["MODEL", "A100-SXM4-", "80GB", "T4"]


def without_styles(text: str) -> list[str]:
    return [line.rstrip() for line in re.sub(r"\x1b\[\d*m", "", text).splitlines()]


def test_rows_become_paragraphs_where_not_even_the_headers_fit() -> None:
    table = Table(NUMBERS, [("12345678", "1", Cell(2, "good"), "3"), ("4", "5", "6", "7")])
    lines = without_styles(on_terminal(((table,),), 30, {"NO_COLOR": "1", "TERM": "xterm"}))
    assert lines == [
        "12345678",
        "    ALLOCATED 1  FREE 2",
        "    UNHEALTHY 3",
        "4",
        "    ALLOCATED 5  FREE 6",
        "    UNHEALTHY 7",
    ]


def test_sentences_stand_below_their_row_where_their_column_would_be_narrow() -> None:
    why = 'none selected by device.attributes["gpu.dra-driver.dev"].?model.orValue("") == "T4"'
    table = Table(("CLAIM", "WHY", "NODES"), [("ns/c", why, "node1, node2, node3"), ("ns/d", "no class", "")])
    narrow = without_styles(on_terminal(((table,),), 80, {"NO_COLOR": "1", "TERM": "xterm"}))
    assert narrow == [
        "CLAIM  NODES",
        "ns/c   node1, node2, node3",
        '    none selected by device.attributes["gpu.dra-driver.dev"].?model.orValue("")',
        '    == "T4"',
        "ns/d",
        "    no class",
    ]
    wide = without_styles(on_terminal(((table,),), 120, {"NO_COLOR": "1", "TERM": "xterm"}))
    assert wide[0].split() == ["CLAIM", "WHY", "NODES"]
    assert len(wide) == 3


@pytest.mark.parametrize("width", [10, 20, 40, 80])
def test_a_table_without_rows_has_its_header(width: int) -> None:
    report = ((Table(("A", "B"), []), Table(("A",), [("x",)])),)
    lines = without_styles(on_terminal(report, width, {"NO_COLOR": "1", "TERM": "xterm"}))
    assert [line.split() for line in lines] == [["A", "B"], ["A"], ["x"]]


def test_colours_are_left_out_where_nobody_wants_them() -> None:
    assert "\x1b[31m" in on_terminal(REPORT, 80, {"TERM": "xterm"})
    assert "\x1b[3" not in on_terminal(REPORT, 80, {"TERM": "xterm", "NO_COLOR": "1"})
    assert "\x1b" not in plain(REPORT)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_what_takes_longer_than_a_second_is_said_on_a_terminal() -> None:
    seconds = iter((0.0, 0.5, 1.1, 1.2, 1.5))
    terminal = Terminal()
    line = Progress(terminal, lambda: next(seconds))
    for text in ("early", "first", "too soon", "second\x1b[2J"):
        line.show(text)
    line.clear()
    assert terminal.getvalue() == "\r\x1b[K… first\r\x1b[K… second\\x1b[2J\r\x1b[K"
    pipe = io.StringIO()
    Progress(pipe, lambda: 9.0).show("never")
    assert pipe.getvalue() == ""


def test_the_line_of_progress_fits_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    seconds = iter((0.0, 2.0))
    terminal = Terminal()
    Progress(terminal, lambda: next(seconds)).show("x" * 100)
    assert terminal.getvalue() == f"\r\x1b[K… {'x' * 17}"


def test_work_that_never_waits_is_said_too() -> None:
    class Seen(Terminal):
        said = threading.Event()

        def flush(self) -> None:
            self.said.set()

    terminal = Seen()
    line = Progress(terminal, itertools.count(0.0, 2.0).__next__)
    with shown_if_long("reading a.yaml", line):
        assert terminal.said.wait(60)
    assert terminal.getvalue().startswith("\r\x1b[K… reading a.yaml")
    assert terminal.getvalue().endswith("\r\x1b[K")
    pipe = io.StringIO()
    with shown_if_long("never", Progress(pipe, itertools.count(0.0, 2.0).__next__)):
        pass
    assert pipe.getvalue() == ""


def test_control_characters_of_others_do_not_reach_the_terminal() -> None:
    evil: Report = ((Line("a\x1b[2Jb"), Table(("WHY",), [("x\x1b]0;title\x07\ny",)])),)
    for text in (plain(evil), on_terminal(evil, 80, {"TERM": "xterm", "NO_COLOR": "1"})):
        assert "\x1b[2J" not in text
        assert "\\x1b[2J" in text
        assert "\x07" not in text


def test_claims_of_a_pod_that_are_not_there_yet_are_named() -> None:
    manifests = fleet(
        asking("a", "1Gi"), pods=(pod_of("p", "later", "o", "Job"), builders.pod("q", namespace="ns"))
    )
    found = explained(manifests, [parse_target("pod/p"), parse_target("pod/q")], "ns")
    assert "pod ns/p\nClaim c0 does not exist: ResourceClaim ns/later was not found" in str(found)
    assert "pod ns/q\nuses no ResourceClaim" in str(found)
    assert not found.fits
    assert explained(manifests, [parse_target("pod/q")], "ns").fits


@pytest.mark.parametrize(
    ("templates", "phase", "said"),
    [
        (("ns/t",), "Pending", "Claim gpu does not exist yet"),
        (None, "Pending", "Claim gpu does not exist yet"),
        (("ns/other",), "Pending", "Claim gpu does not exist: template ns/t was not found"),
        ((), "Succeeded", ""),
    ],
)
def test_a_claim_that_is_to_come_from_a_template_is_missing(
    templates: tuple[str, ...] | None, phase: str, said: str
) -> None:
    pod = builders.pod("p", namespace="ns") | {"status": {"phase": phase}}
    pod["spec"]["resourceClaims"] = [{"name": "gpu", "resourceClaimTemplateName": "t"}]
    manifests = fleet(asking("a", "1Gi"), pods=(pod,))
    if templates is not None:
        manifests.templates = frozenset(ObjectKey(*t.split("/")) for t in templates)
    found = explained(manifests, [parse_target("pod/p")], "ns")
    assert str(found) == "pod ns/p" + f"\n{said}" * bool(said)
    assert found.fits == (not said)
    data = json.loads(str(explained(manifests, [parse_target("pod/p")], "ns", output="json")))
    assert data["pods"][0]["missing"] == [said] * bool(said)


@pytest.mark.parametrize(
    ("message", "line"),
    [
        ("0 of 2 nodes: no devices", "waits: 0 of 2 nodes: no devices"),
        ("waits for a node to be added: 0 of 2 nodes", "waits for a node to be added: 0 of 2 nodes"),
    ],
)
def test_the_reason_of_a_pod_says_once_that_it_waits(message: str, line: str) -> None:
    pod = pod_of("p", "c", "", "")
    condition = {"type": ALLOCATED_CONDITION, "status": "False", "reason": "R", "message": message}
    pod["status"] = {"conditions": [condition]}
    text = str(explained(fleet(asking("c", "1Gi"), pods=(pod,)), [parse_target("pod/p")], "ns"))
    assert text.splitlines()[1] == line


def test_claims_that_ask_for_the_same_are_asked_about_once() -> None:
    def work(*sizes: str) -> int:
        manifests = fleet(*(asking(f"huge{i}", size) for i, size in enumerate(sizes)))
        return work_counter.calls(lambda: answers(manifests, manifests.claims))

    work("1000Gi")  # what is compiled and imported once
    different = work(*(f"{size}Gi" for size in range(1000, 1020)))
    same = work(*["1000Gi"] * 20)
    assert same < different / 4, (same, different)


def two_allocators(pod: dict[str, object], *requests: dict[str, object]) -> Manifests:
    """GPUs of the controller (n1) and of kube-scheduler (n2); NICs the other way round (n3, n1)."""
    ours = builders.device("gpu-0", "40Gi", taints=[builders.PROTECTED])
    slices = [
        builders.resource_slice("n1", ours),
        builders.resource_slice("n2", builders.device("gpu-0", "80Gi")),
        builders.resource_slice("n1", builders.device("nic-0"), driver="nic.example.com"),
        builders.resource_slice(
            "n3", builders.device("nic-0", taints=[builders.PROTECTED]), driver="nic.example.com"
        ),
    ]
    classes = [
        builders.device_class("gpu", 'device.driver == "gpu.example.com"'),
        builders.device_class("nic", 'device.driver == "nic.example.com"'),
    ]
    return Manifests(
        slices=[codec.convert(ResourceSlice, s) for s in slices],
        classes=[codec.convert(DeviceClass, c) for c in classes],
        claims=[codec.convert(ResourceClaim, builders.claim("c", namespace="ns", requests=list(requests)))],
        pods=[codec.convert(Pod, pod)],
    )


def gated(*gates: str) -> dict[str, object]:
    pod = builders.pod("p", "c", namespace="ns")
    pod["spec"]["schedulingGates"] = [{"name": gate} for gate in gates]
    return pod


def pools_of_kube_scheduler(found: Explained) -> list[str]:
    """Return the nodes of the row about pools that kube-scheduler allocates from."""
    row = next(line for line in str(found).splitlines() if "the pool is allocated by kube-scheduler" in line)
    return row.split()[8:]


def test_for_a_pod_with_our_gate_the_pools_of_kube_scheduler_do_not_count() -> None:
    large = builders.request("gpu", memory="80Gi")
    waits = explained(two_allocators(gated(ALLOCATION_GATE), large), [parse_target("pod/p")], "ns")
    assert not waits.fits
    assert pools_of_kube_scheduler(waits) == ["n2"]
    assert "memory of at most 40Gi" in str(waits)
    for pod in (gated(), gated("kueue.x-k8s.io/admission")):
        assert explained(two_allocators(pod, large), [parse_target("pod/p")], "ns").fits
    small = builders.request("gpu", memory="8Gi")
    fits = explained(two_allocators(gated(ALLOCATION_GATE), small), [parse_target("pod/p")], "ns")
    assert "fits on node n1" in str(fits)


def test_a_claim_over_pools_of_both_is_still_said_to_need_a_grant() -> None:
    both = (builders.request("a"), builders.request("b", "nic"))
    found = explained(two_allocators(gated(ALLOCATION_GATE), *both), [parse_target("pod/p")], "ns")
    assert "only kube-scheduler can allocate both" in str(found)


def test_what_is_too_large_for_the_controller_is_refused() -> None:
    pod = gated(ALLOCATION_GATE)
    pod["spec"]["tolerations"] = [{"operator": "Exists"}] * 1_025  # type: ignore[index]
    small = builders.request("gpu", memory="8Gi")
    found = explained(two_allocators(pod, small), [parse_target("pod/p")], "ns")
    assert not found.fits
    text = "spec.tolerations of the pod has 1025 entries, and the controller serves at most 1024"
    assert f"cannot be allocated: {text}" in str(found)
    selectors = [{"cel": {"expression": "x" * 10_000}}] * 53
    large = {**small, "exactly": {**small["exactly"], "selectors": selectors}}
    found = explained(two_allocators(gated(ALLOCATION_GATE), large), [parse_target("pod/p")], "ns")
    assert "spec of the claim has 531" in str(found)
    assert "bytes of JSON, and the controller serves at most 524288" in str(found)


# --- grants -------------------------------------------------------------------------------------------------


def granting_fleet(pod: dict[str, object], *claims: dict[str, object], is_open: bool = True) -> Manifests:
    """A node with a GPU of the controller, in an open pool or a tainted one, and a NIC of kube-scheduler."""
    gpu = builders.device("gpu-0", "40Gi", taints=[] if is_open else [builders.PROTECTED])
    ours = builders.resource_slice("n1", gpu)
    if is_open:
        ours["metadata"]["labels"] = dict(OPEN_POOL)
    slices = [
        ours,
        builders.resource_slice("n1", builders.device("nic-0"), driver="nic.example.com"),
    ]
    classes = [
        builders.device_class(
            "gpu", 'device.driver == "gpu.example.com"', extendedResourceName="example.com/gpu"
        ),
        builders.device_class("nic", 'device.driver == "nic.example.com"'),
    ]
    return Manifests(
        slices=[codec.convert(ResourceSlice, s) for s in slices],
        classes=[codec.convert(DeviceClass, c) for c in classes],
        claims=[codec.convert(ResourceClaim, c) for c in claims],
        pods=[codec.convert(Pod, pod)],
    )


def extended_pod() -> dict[str, object]:
    container = {"name": "c", "image": "i", "resources": {"requests": {"example.com/gpu": "1"}}}
    return builders.pod("p", namespace="ns", containers=[container])


GRANTED = GrantedToPod("ns/p", "n1", "2027-01-15T08:00:00Z", "granted", ("gpu-0",))


@pytest.mark.parametrize("is_open", [True, False], ids=["open", "tainted"])
@pytest.mark.parametrize(
    ("shown", "text"),
    [
        (None, "chart value admissionPolicies.gateNamespaces: all"),
        (GrantsShown(enabled=False), "devices are granted for that in open pools"),
        (GrantsShown(obstacle="no policy"), "nothing is granted now: no policy"),
        (GrantsShown(), "nothing is granted to it at the moment"),
        (GrantsShown(pods=(GRANTED,)), "gpu-0 of node n1 are granted to it: kube-"),
    ],
)
def test_it_is_said_whether_devices_are_granted_for_a_pod(
    shown: GrantsShown | None, text: str, is_open: bool
) -> None:
    claim = builders.claim(
        "both", namespace="ns", requests=[builders.request("a"), builders.request("b", "nic")]
    )
    mixed = granting_fleet(builders.pod("p", "both", namespace="ns"), claim, is_open=is_open)
    for manifests, why in (
        (granting_fleet(extended_pod(), is_open=is_open), "asks for example.com/gpu: only kube-scheduler"),
        (mixed, "claim both asks for devices of the controller and of others"),
    ):
        found = str(explained(manifests, [parse_target("pod/p")], "ns", granted=shown))
        assert text in found
        has = shown is not None and bool(shown.pods)
        assert (why in found) is not has
        data = json.loads(
            str(explained(manifests, [parse_target("pod/p")], "ns", output="json", granted=shown))
        )
        assert data["pods"][0]["needsGrant"].startswith(why)
        assert bool(data["pods"][0]["grants"]) is has


def opened(manifests: Manifests, *, record: str = "open", marked: bool = True, why: str = "") -> Manifests:
    """The same fleet with open pools: no taint of ours, but a record, and a mark of the slices."""
    gpus, *others = manifests.slices
    bare = tuple(msgspec.structs.replace(d, taints=()) for d in gpus.spec.devices)
    labels = dict(OPEN_POOL) if marked else None
    gpus = msgspec.structs.replace(
        gpus,
        metadata=msgspec.structs.replace(gpus.metadata, labels=labels),
        spec=msgspec.structs.replace(gpus.spec, devices=bare),
    )
    manifests.slices = [gpus, *others]
    body = builders.inventory("n1", builders.device("gpu-0"), driver=builders.DRIVER)
    body["status"] |= {"publication": {"allocator": record}}
    if why:
        pool, allocator = PoolName("n1"), PoolAllocator.CONTROLLER
        desired = DesiredPool(builders.DRIVER, pool, "n1", allocator, (SliceContent(),))
        said = conditions.published(desired, None, unguarded=why)
        body["status"]["conditions"] = [codec.plain(said)]
    manifests.inventories = [codec.convert(DeviceInventory, body)]
    return manifests


@pytest.mark.parametrize(
    ("record", "marked"), [("open", True), ("open", False), ("", True), ("draining", True)]
)
def test_devices_of_an_open_pool_are_the_controllers_without_a_taint(record: str, marked: bool) -> None:
    granting = GrantsShown(enabled=True)
    claim = builders.claim(
        "both", namespace="ns", requests=[builders.request("a"), builders.request("b", "nic")]
    )
    for pod, claims, why in (
        (extended_pod(), (), "asks for example.com/gpu: only kube-scheduler"),
        (
            builders.pod("p", "both", namespace="ns"),
            (claim,),
            "claim both asks for devices of the controller",
        ),
    ):
        manifests = opened(granting_fleet(pod, *claims), record=record, marked=marked)
        found = str(explained(manifests, [parse_target("pod/p")], "ns", granted=granting))
        assert why in found
        assert "nothing is granted to it at the moment" in found
    theirs = opened(granting_fleet(extended_pod()), record="scheduler")
    assert "only kube-scheduler" not in str(explained(theirs, [parse_target("pod/p")], "ns"))


def test_for_a_pod_with_our_gate_pools_of_kube_scheduler_do_not_count_beside_open_ones() -> None:
    manifests = two_allocators(gated(ALLOCATION_GATE), builders.request("gpu", memory="80Gi"))
    ours, *others = manifests.slices
    bare = tuple(msgspec.structs.replace(d, taints=()) for d in ours.spec.devices)
    manifests.slices = [
        msgspec.structs.replace(ours, spec=msgspec.structs.replace(ours.spec, devices=bare)),
        *others,
    ]
    body = builders.inventory("n1", driver=builders.DRIVER)
    body["status"] |= {"publication": {"allocator": "open"}}
    manifests.inventories = [codec.convert(DeviceInventory, body)]
    found = explained(manifests, [parse_target("pod/p")], "ns")
    assert not found.fits
    assert pools_of_kube_scheduler(found) == ["n2"]


def test_it_is_said_why_pools_cannot_be_open_to_a_pod_that_waits() -> None:
    why = "the policy dra-driver-grants is not there"
    manifests = opened(granting_fleet(extended_pod()), why=why)
    found = explained(manifests, [parse_target("pod/p")], "ns")
    assert "the pool of n1 cannot be open: " in str(found)
    assert why in str(found)
    data = json.loads(str(explained(manifests, [parse_target("pod/p")], "ns", output="json")))
    assert why in data["notOpen"][0]
    raw = extended_pod()
    raw["spec"] |= {"nodeName": "n1"}  # type: ignore[operator]
    served = opened(granting_fleet(raw), why=why)
    assert why not in str(explained(served, [parse_target("pod/p")], "ns"))
    assert "cannot be open" not in str(
        explained(opened(granting_fleet(extended_pod())), [parse_target("pod/p")], "ns")
    )


def test_nothing_is_said_of_grants_where_nothing_is_the_controllers_or_the_pod_runs() -> None:
    manifests = granting_fleet({**extended_pod()})
    manifests.slices = manifests.slices[1:]
    assert "kube-scheduler" not in str(explained(manifests, [parse_target("pod/p")], "ns"))
    raw = extended_pod()
    spec = raw["spec"]
    assert isinstance(spec, dict)
    spec["nodeName"] = "n1"
    assert "kube-scheduler" not in str(explained(granting_fleet(raw), [parse_target("pod/p")], "ns"))


def placed(nodes: tuple[dict[str, object], ...], *specs: dict[str, object]) -> Manifests:
    """Return the fleet with some nodes, and a small claim that a pod of each of these specs uses."""
    pods = [pod_of(f"p{i}", "c", "o", "Job") for i, _ in enumerate(specs)]
    for pod, spec in zip(pods, specs, strict=True):
        pod["spec"] = {**pod["spec"], **spec}  # type: ignore[dict-item]
    manifests = fleet(asking("c", "100Gi"), pods=tuple(pods))
    manifests.nodes = [codec.convert(Node, node) for node in nodes]
    return manifests


def zones(*of: str) -> tuple[dict[str, object], ...]:
    return tuple(builders.node(f"n{i}", labels={"zone": zone}) for i, zone in enumerate(of, 1))


@pytest.mark.parametrize(
    ("specs", "fits", "said"),
    [
        ([{"nodeSelector": {"zone": "c"}}], True, "ns/c fits on node n3:"),
        (
            [{"nodeSelector": {"zone": "a"}}],
            False,
            "needs 1 gpu with memory 100Gi; 1/3 nodes can take the pod: 2 not matching the node selector\n",
        ),
        (
            [{"nodeSelector": {"zone": "z"}}],
            False,
            "ns/c cannot be allocated: 0/3 nodes can take the pod: 3 not matching the node selector",
        ),
        (
            [{"nodeSelector": {"zone": "b"}}, {"nodeSelector": {"zone": "c"}}],
            False,
            "ns/c cannot be allocated: 0/3 nodes can take the pods: 3 not matching the node selector",
        ),
        ([{"nodeName": "n3", "nodeSelector": {"zone": "a"}}], True, "ns/c fits on node n3:"),
        ([{}], True, "ns/c fits on node n"),
    ],
)
def test_only_nodes_that_can_take_the_pods_count(
    specs: list[dict[str, object]], fits: bool, said: str
) -> None:
    found = explained(placed(zones("a", "b", "c"), *specs))
    assert (found.fits, said in str(found)) == (fits, True), str(found)
    data = json.loads(str(explained(placed(zones("a", "b", "c"), *specs), output="json")))
    assert data["fits"] == fits


def test_what_becomes_free_is_said_of_the_nodes_that_can_take_the_pods() -> None:
    text = str(explained(placed(zones("a", "b", "c"), {"nodeSelector": {"zone": "a"}})))
    assert "do not help: no device of these nodes can serve request gpu" in text


def test_a_pod_that_has_ended_leaves_out_no_node() -> None:
    manifests = placed(zones("a", "b", "c"), {"nodeSelector": {"zone": "a"}})
    assert not explained(manifests).fits
    (pod,) = manifests.pods
    ended = msgspec.structs.replace(pod.status, phase="Succeeded")
    manifests.pods = [msgspec.structs.replace(pod, status=ended)]
    assert explained(manifests).fits


def test_nodes_that_may_not_be_read_are_not_left_out() -> None:
    """The slices name them, but not their labels."""
    assert explained(placed((), {"nodeSelector": {"zone": "a"}})).fits
    assert explained(placed(zones("a"), {"nodeSelector": {"zone": "a"}})).fits
