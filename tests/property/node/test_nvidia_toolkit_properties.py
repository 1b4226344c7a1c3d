"""Whatever a toolkit's document says, a device gets no capability node and no other GPU's node from it."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from dra_driver import cdi
from dra_driver.discovery.nvidia.injection.toolkit import OwnNodes, ToolkitDocument

OWN = OwnNodes("/dev/nvidia0", frozenset({"/dev/dri/card1", "/dev/dri/renderD128"}))
SHARED = frozenset({"/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-modeset"})
FOREIGN = frozenset(
    {
        "/dev/nvidia1",
        "/dev/nvidia10",
        "/dev/dri/card0",
        "/dev/dri/card10",
        "/dev/dri/renderD129",
        "/dev/dri/by-path/pci-0000:07:00.0-card",
        "/dev/nvidia-caps/nvidia-cap0",
        "/dev/nvidia-caps/nvidia-cap12",
        "/dev/nvidia-caps/nvidia-cap13",
        "/dev/nvidia-caps-imex-channels/channel0",
    }
)
TARGETS = sorted({OWN.gpu, *OWN.drm} | SHARED | FOREIGN)
SPELLINGS = (
    "{}",
    "/{}",
    "/run/nvidia/driver{}",
    "/host/./{}",
    "/tmp/..{}",
    "/dev/dri/../..{}",
    "/proc/1/root{}",
)
# What each of the spellings stands for.
MEANING = {s.format(t): t for t in TARGETS for s in SPELLINGS} | {t.lstrip("/"): t for t in TARGETS}

FILES = ("/usr/lib/libcuda.so.1", "/run/nvidia/driver/usr/bin/nvidia-smi", "/usr/share/nvidia/dev.json")

spelled = st.sampled_from(sorted(MEANING))
mounted = spelled | st.sampled_from(FILES)
nodes = st.builds(
    cdi.DeviceNode,
    path=spelled,
    host_path=st.one_of(st.just(""), spelled),
    type=st.sampled_from(["", "c"]),
    major=st.sampled_from([0, 195, 237]),
    minor=st.integers(0, 30),
)
links = st.lists(
    st.tuples(st.sampled_from(["--link", "-link", "--link="]), spelled, spelled), max_size=3
).map(lambda drawn: tuple(word for option, target, link in drawn for word in _words(option, target, link)))
hooks = st.builds(
    cdi.Hook,
    hook_name=st.just("createContainer"),
    path=st.just("/usr/bin/nvidia-cdi-hook"),
    args=links.map(lambda args: ("nvidia-cdi-hook", "create-symlinks", *args)),
)
edits = st.builds(
    cdi.ContainerEdits,
    env=st.just(("NVIDIA_VISIBLE_DEVICES=all",)),
    device_nodes=st.lists(nodes, max_size=6).map(tuple),
    mounts=st.lists(st.builds(cdi.Mount, host_path=mounted, container_path=mounted), max_size=2).map(tuple),
    hooks=st.lists(hooks, max_size=2).map(tuple),
)
UUIDS = ("GPU-0", "MIG-a")
names = st.sampled_from([*UUIDS, "GPU-1", "MIG-b", "0", "1", "0:0", "0:1", "gpu0", "mig0:1", "all"])
ours = st.tuples(*(st.builds(cdi.Device, name=st.just(u), container_edits=edits) for u in UUIDS))
others = st.lists(st.builds(cdi.Device, name=names, container_edits=edits), max_size=5).map(tuple)
documents = st.builds(
    cdi.Spec,
    cdi_version=st.just("0.5.0"),
    kind=st.just("nvidia.com/gpu"),
    devices=others | st.builds(lambda those, known: (*those, *known), others, ours),
    container_edits=edits,
)


def _words(option: str, target: str, link: str) -> tuple[str, ...]:
    value = f"{target}::{link}"
    return (f"{option}{value}",) if option.endswith("=") else (option, value)


@given(documents, st.sampled_from(UUIDS))
def test_a_device_gets_its_own_nodes_and_shared_ones_alone(spec: cdi.Spec, uuid: str) -> None:
    found = ToolkitDocument(Path("nvidia.yaml"), spec).edits(uuid, OWN, lambda _: None)
    if found is None:
        return
    allowed = {OWN.gpu, *OWN.drm, *SHARED}
    for node in found.device_nodes:
        assert MEANING[node.path] in allowed
        assert MEANING[node.host_path or node.path] in allowed
    for mount in found.mounts:
        assert MEANING.get(mount.host_path) in {None, *SHARED}
        assert MEANING.get(mount.container_path) in {None, *SHARED}
    assert found.env == ()


@given(documents, st.sampled_from(UUIDS))
def test_no_link_of_a_hook_leads_to_a_foreign_node(spec: cdi.Spec, uuid: str) -> None:
    found = ToolkitDocument(Path("nvidia.yaml"), spec).edits(uuid, OWN, lambda _: None)
    for hook in found.hooks if found is not None else ():
        values = [a.removeprefix("--link=") for a in hook.args if "::" in a]
        for target, _, _ in (v.partition("::") for v in values):
            # A relative target is taken from the folder of the link, which the spellings do not lead out of.
            assert not target.startswith("/") or MEANING[target] not in FOREIGN


@given(documents)
def test_what_a_document_says_by_index_gives_common_edits_alone(spec: cdi.Spec) -> None:
    """No entry of a document is taken for a device unless it has the device's UUID."""
    unnamed = cdi.Spec(
        cdi_version=spec.cdi_version,
        kind=spec.kind,
        devices=tuple(d for d in spec.devices if d.name not in UUIDS),
        container_edits=spec.container_edits,
    )
    found = ToolkitDocument(Path("nvidia.yaml"), unnamed).edits("GPU-0", OWN, lambda _: None)
    if found is not None:
        assert set(found.device_nodes) <= set(spec.container_edits.device_nodes)
        assert set(found.mounts) <= set(spec.container_edits.mounts)
