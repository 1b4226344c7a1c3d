"""Draws the pictures of the pages on concepts: ``python docs/pictures.py`` writes ``docs/pictures/*.svg``.

Each picture is a function that returns boxes, arrows and words on a grid of pixels. What is written is
compared with what is drawn by ``test_pictures.py``, so that nobody edits an SVG by hand.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Final
from xml.sax.saxutils import escape

FOLDER: Final = Path(__file__).parent / "pictures"
# Fill and border: ours, Kubernetes' own, free, in use, bad, plain.
KINDS: Final = {
    "ours": ("#d7efea", "#00796b"),
    "kube": ("#dfe7f5", "#3d5a80"),
    "free": ("#ffffff", "#7a7a7a"),
    "used": ("#e0e0e0", "#7a7a7a"),
    "high": ("#f9dcc4", "#c8553d"),
    "bad": ("#f6d5d9", "#b3243b"),
    "none": ("none", "none"),
}
_LINE: Final = 15


@dataclass(frozen=True, slots=True)
class Box:
    """A rectangle with lines of text in its middle."""

    x: float
    y: float
    width: float
    height: float
    text: str = ""
    kind: str = "free"
    top: bool = False

    def side(self, towards: Box) -> tuple[float, float]:
        """Return where an arrow to another box begins."""
        x, y = self.x + self.width / 2, self.y + self.height / 2
        if towards.x >= self.x + self.width:
            return self.x + self.width, y
        if towards.x + towards.width <= self.x:
            return self.x, y
        return x, self.y + self.height if towards.y > self.y else self.y


@dataclass(slots=True)
class Picture:
    """What is drawn, in the order of its parts.

    Attributes:
        width, height: of the picture, in pixels.
        title: what it shows, for those who do not see it.
    """

    width: float
    height: float
    title: str
    _parts: list[str] = field(default_factory=list)

    def box(
        self,
        x: float,
        y: float,
        width: float,
        height: float,
        text: str = "",
        kind: str = "free",
        top: bool = False,
    ) -> Box:
        """Draw a box; with ``top`` its text stands at its upper border."""
        made = Box(x, y, width, height, text, kind, top)
        fill, border = KINDS[kind]
        self._parts.append(
            f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="4" '
            f'fill="{fill}" stroke="{border}"/>'
        )
        lines = text.split("\n") if text else []
        first = y + 17 if top else y + height / 2 - (len(lines) - 1) * _LINE / 2 + 4
        for number, line in enumerate(lines):
            self.words(
                x + width / 2, first + number * _LINE, line, "middle", bold=number == 0 and len(lines) > 1
            )
        return made

    def words(self, x: float, y: float, text: str, anchor: str = "start", *, bold: bool = False) -> None:
        """Write a line of text."""
        weight = ' font-weight="bold"' if bold else ""
        self._parts.append(f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}"{weight}>{escape(text)}</text>')

    def arrow(self, start: Box, end: Box, text: str = "", *, shift: float = 0, dashed: bool = False) -> None:
        """Draw an arrow between the sides of two boxes, with words beside its middle.

        Args:
            start: where it begins.
            end: where it points to.
            text: the words; lines stand above each other.
            shift: moves it across its direction, where several lie side by side.
            dashed: whether its line is.
        """
        (x1, y1), (x2, y2) = start.side(end), end.side(start)
        across = abs(x2 - x1) < abs(y2 - y1)
        x1, x2 = (x1 + shift, x2 + shift) if across else (x1, x2)
        y1, y2 = (y1, y2) if across else (y1 + shift, y2 + shift)
        dash = ' stroke-dasharray="5 4"' if dashed else ""
        self._parts.append(
            f'<line x1="{x1:g}" y1="{y1:g}" x2="{x2:g}" y2="{y2:g}" stroke="#444" '
            f'marker-end="url(#head)"{dash}/>'
        )
        lines = text.split("\n") if text else []
        for number, line in enumerate(lines):
            if across:
                y = (y1 + y2) / 2 + 4 + (number - (len(lines) - 1) / 2) * _LINE
                self.words((x1 + x2) / 2 + 8, y, line)
            else:
                self.words(
                    (x1 + x2) / 2, (y1 + y2) / 2 - 6 - (len(lines) - 1 - number) * _LINE, line, "middle"
                )

    def svg(self) -> str:
        """Return the document; on white, so that it can be read on dark pages as well."""
        size = f'viewBox="0 0 {self.width:g} {self.height:g}"'
        font = 'font-family="sans-serif" font-size="12" fill="#222"'
        head = 'id="head" markerWidth="9" markerHeight="8" refX="8" refY="4" orient="auto"'
        lines = (
            f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" {font}>',
            f"<title>{escape(self.title)}</title>",
            f'<defs><marker {head}><path d="M0,0 L9,4 L0,8 z" fill="#444"/></marker></defs>',
            f'<rect width="{self.width:g}" height="{self.height:g}" fill="#fff"/>',
            *self._parts,
            "</svg>",
        )
        return "\n".join(lines) + "\n"


def objects() -> Picture:
    """Who writes which object."""
    p = Picture(820, 300, "Who writes which object, and who reads it")
    agent = p.box(20, 30, 150, 60, "node agent\none on each node", "ours")
    controller = p.box(330, 30, 160, 60, "controller\none leads", "ours")
    inventory = p.box(20, 190, 150, 60, "DeviceInventory\none per node", "ours")
    slices = p.box(330, 190, 160, 60, "ResourceSlices\nthe pools", "kube")
    claims = p.box(640, 190, 160, 60, "ResourceClaim\nspec, status", "kube")
    users = p.box(640, 30, 160, 60, "users\npods, templates")
    p.arrow(agent, inventory, "writes what it finds")
    p.arrow(inventory, controller)
    p.words(250, 156, "is read by")
    p.arrow(controller, slices, "publishes")
    p.arrow(users, claims, "ask")
    p.arrow(slices, claims, "are allocated to")
    p.words(
        20,
        285,
        "DeviceClass and DevicePolicy are the admin's: what can be asked for by name, and how devices are "
        "published.",
    )
    return p


def journey() -> Picture:
    """From the hardware to the container."""
    p = Picture(820, 250, "From the hardware to the container, in six steps")
    steps = (
        ("1 discovery", "NVML, sysfs, …\nDeviceInventory", "ours"),
        ("2 publication", "from inventories\nand policies", "ours"),
        ("3 allocation", "claim → devices,\non one node", "ours"),
        ("4 binding", "pod → the node\nof its devices", "kube"),
        ("5 preparation", "MIG, MPS, …\nCDI file", "ours"),
        ("6 the end", "unprepare,\ndevices are free", "ours"),
    )
    boxes = [
        p.box(10 + 136 * i, 50, 116, 84, f"{name}\n{text}", kind)
        for i, (name, text, kind) in enumerate(steps)
    ]
    for one, two in pairwise(boxes):
        p.arrow(one, two)
    who = (
        "node agent",
        "controller",
        "controller or\nkube-scheduler",
        "kube-scheduler",
        "node agent,\nfor the kubelet",
        "node agent,\nfor the kubelet",
    )
    for box, name in zip(boxes, who, strict=True):
        for number, line in enumerate(name.split("\n")):
            p.words(box.x + box.width / 2, 160 + number * _LINE, line, "middle")
    p.words(10, 30, "what happens", bold=True)
    p.words(
        10,
        215,
        "Between 5 and 6 the container runs, with the device nodes, libraries and variables of the CDI file.",
    )
    return p


def best_fit() -> Picture:
    """First fit and best fit for 32Gi, and what is left for the next claim."""
    p = Picture(
        820,
        240,
        "First fit may take one of four equal GPUs of 80 GiB for 32Gi; best fit takes the one with 40 GiB",
    )
    p.words(20, 26, "Two nodes. A claim for 32Gi comes, then one for four GPUs of 64Gi on one node.")
    p.words(330, 56, "node1", "middle", bold=True)
    p.words(552, 56, "node2", "middle", bold=True)
    for row, (name, taken, rest) in enumerate(
        (("first fit may take", 3, "the four do not fit"), ("best fit takes", 5, "the four fit"))
    ):
        y = 70 + 80 * row
        p.words(20, y + 29, name, bold=True)
        for number, size in enumerate((80, 80, 80, 80, 24, 40)):
            x = 190 + 70 * number + (60 if number > 3 else 0)
            p.box(x, y, 62, 48, f"{size} GiB", "high" if number == taken else "free")
        p.words(676, y + 29, rest)
    return p


def allocators() -> Picture:
    """The two allocators, step by step."""
    p = Picture(820, 330, "Who allocates in controller mode and in scheduler mode")
    columns = (
        (
            "--allocator controller",
            (
                ("pod is created, with a gate", "kube"),
                ("controller: best fit over all nodes;\nwrites devices and node into the claim", "ours"),
                ("controller lifts the gate", "ours"),
                ("kube-scheduler binds the pod there", "kube"),
            ),
        ),
        (
            "--allocator scheduler",
            (
                ("pod is created", "kube"),
                ("kube-scheduler: filters nodes, first fit\non each, chooses one", "kube"),
                ("kube-scheduler writes the claim", "kube"),
                ("kube-scheduler binds the pod", "kube"),
            ),
        ),
    )
    for column, (title, steps) in enumerate(columns):
        x = 40 + 400 * column
        p.words(x + 165, 28, title, "middle", bold=True)
        boxes = [
            p.box(x, 45 + 70 * i, 330, 46, text.replace("\n", " ") if len(text) < 50 else "", kind)
            for i, (text, kind) in enumerate(steps)
        ]
        for box, (text, _) in zip(boxes, steps, strict=True):
            if len(text) >= 50:
                for number, line in enumerate(text.split("\n")):
                    p.words(box.x + 165, box.y + 19 + number * _LINE, line, "middle")
        for one, two in pairwise(boxes):
            p.arrow(one, two)
    return p


def sharing() -> Picture:
    """The ways to share a GPU."""
    p = Picture(820, 250, "Four ways to share a GPU, and what keeps the users apart")
    p.words(20, 26, "What one GPU looks like to two pods, A and B", bold=True)
    gpus = [p.box(20 + 200 * i, 60, 180, 120) for i in range(4)]
    for gpu, name in zip(gpus, ("time slicing", "shares with MPS", "shares without MPS", "MIG"), strict=True):
        p.words(gpu.x + 90, 52, name, "middle", bold=True)
    for number in range(6):
        p.box(28 + 28 * number, 75, 24, 90, "AB"[number % 2], ("ours", "high")[number % 2])
    p.box(228, 75, 80, 90, "A\nlimit 20Gi", "ours")
    p.box(312, 75, 80, 90, "B\nlimit 20Gi", "high")
    p.box(428, 75, 80, 90, "A\ntold 20Gi", "ours")
    p.box(512, 75, 80, 90, "B\ntold 20Gi", "high")
    p.box(626, 72, 82, 96, "A\nown\nmemory,\nown SMs", "ours")
    p.box(712, 72, 82, 96, "B\nown\nmemory,\nown SMs", "high")
    for gpu, text in zip(
        gpus,
        (
            "they take turns;\nmemory is common",
            "a limit per process,\nset by the daemon",
            "nothing keeps them apart:\na promise",
            "hardware keeps them apart",
        ),
        strict=True,
    ):
        for number, line in enumerate(text.split("\n")):
            p.words(gpu.x + 90, 202 + number * _LINE, line, "middle")
    return p


def groups() -> Picture:
    """All or none."""
    p = Picture(820, 230, "A group of four pods gets its devices all at once, or none")
    for row, (name, free, result) in enumerate(
        (
            ("three are free", 3, "none is allocated, and nothing is held: others can use the three"),
            ("four are free", 4, "all four are allocated together, in one decision"),
        )
    ):
        y = 45 + 95 * row
        p.words(20, y + 24, name, bold=True)
        for number in range(4):
            kind = "used" if number >= free else "ours" if free == 4 else "free"
            p.box(140 + 62 * number, y, 54, 40, f"GPU {number}", kind)
        for number in range(4):
            p.box(420 + 42 * number, y, 36, 40, f"p{number}", "ours" if free == 4 else "kube")
        p.words(140, y + 60, result)
    p.words(20, 26, "Pods p0 to p3 with one label dra-driver.dev/group, one GPU each.")
    p.words(600, 69, "wait, with the reason")
    p.words(600, 164, "run")
    return p


def preemption() -> Picture:
    """Before and after."""
    p = Picture(
        820,
        220,
        "A pod of priority 100 that needs four GPUs takes those of a and b, the least of all removals",
    )
    devices = (
        ("before", ("a 0", "a 0", "b 10", "b 10", "c 10", "d 10", "e 50", "e 50")),
        ("after", ("new 100", "new 100", "new 100", "new 100", "c 10", "d 10", "e 50", "e 50")),
    )
    p.words(
        20, 28, "Each box is a GPU with its pod and the pod's priority; a pod of priority 100 needs four."
    )
    p.words(
        20,
        208,
        "a and b go: two pods, none above priority 10. With c and d instead of b it would be three; e has a "
        "higher priority.",
    )
    for row, (name, held) in enumerate(devices):
        y = 50 + 80 * row
        p.words(20, y + 30, name, bold=True)
        for number, text in enumerate(held):
            kind = "high" if text.startswith("new") else "used"
            p.box(100 + 85 * number, y, 78, 50, text.replace(" ", "\n"), kind)
    return p


def autoscaling() -> Picture:
    """How a pod makes a node come."""
    p = Picture(
        820, 170, "A pod that only a new node can serve is shown to the autoscaler, which adds the node"
    )
    texts = (
        "controller:\nno node has it,\na policy lets\nnodes be added",
        "controller\nlifts the gate,\nthe pod has\nno devices yet",
        "kube-scheduler\nPodScheduled:\nUnschedulable",
        "autoscaler\nadds a node",
        "node agent,\ncontroller:\nthe devices\nare published",
        "the pod\ngets devices\nand runs",
    )
    kinds = ("ours", "ours", "kube", "kube", "ours", "kube")
    boxes = [
        p.box(10 + 136 * i, 40, 116, 90, t, k) for i, (t, k) in enumerate(zip(texts, kinds, strict=True))
    ]
    for one, two in pairwise(boxes):
        p.arrow(one, two)
    return p


def durability() -> Picture:
    """The durable steps of prepare and unprepare."""
    p = Picture(820, 230, "The durable steps of prepare and unprepare, and what a crash after each leaves")
    steps = (
        ("record\nPrepareStarted", "ours", "undone at\nthe start"),
        ("effects\nMIG, MPS,\nsettings", "high", "undone at\nthe start"),
        ("CDI file", "ours", "undone at\nthe start"),
        ("record\nPrepareCompleted", "ours", "prepared"),
        ("CDI file goes,\neffects undone", "high", "unprepare\nis repeated"),
        ("record\nremoved", "ours", "nothing\nis left"),
    )
    boxes = [p.box(10 + 136 * i, 55, 118, 70, text, kind) for i, (text, kind, _) in enumerate(steps)]
    for number, (one, two) in enumerate(pairwise(boxes)):
        p.arrow(one, two, dashed=number == 3)
    for box, (_, _, crash) in zip(boxes, steps, strict=True):
        for number, line in enumerate(crash.split("\n")):
            p.words(box.x + box.width / 2, 172 + number * _LINE, line, "middle")
    p.words(10, 35, "prepare", bold=True)
    p.words(554, 35, "unprepare", bold=True)
    p.words(10, 150, "killed after this step:", bold=True)
    return p


PICTURES: Final[Sequence[Callable[[], Picture]]] = (
    objects,
    journey,
    best_fit,
    allocators,
    sharing,
    groups,
    preemption,
    autoscaling,
    durability,
)


def main() -> int:
    """Write all pictures."""
    FOLDER.mkdir(exist_ok=True)
    for picture in PICTURES:
        (FOLDER / f"{picture.__name__.replace('_', '-')}.svg").write_text(picture().svg(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
