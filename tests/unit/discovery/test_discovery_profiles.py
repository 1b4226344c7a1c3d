"""Every built-in profile of the simulated backend, against a golden file; and profiles in files."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from paths import GOLDEN

from dra_driver.api.own.inventory import InventoryDevice
from dra_driver.discovery import open_backend
from dra_driver.discovery.simulated.backend import SimulatedBackend
from dra_driver.discovery.simulated.profile import built_in_profiles
from dra_driver.errors import ConfigurationError, DiscoveryError

PROFILES = GOLDEN / "discovery"
GIB = 1 << 30
MIB = 1 << 20


def backend(profile: str, seed: str = "node-1") -> SimulatedBackend:
    return SimulatedBackend(profile, seed=seed)


def describe(device: InventoryDevice) -> list[str]:
    lines = [device.name]
    for name, value in sorted(device.attributes.items()):
        kinds = {
            "string": value.string_value,
            "int": value.int_value,
            "bool": value.bool_value,
            "version": value.version_value,
        }
        lines += [f"  {name}: {kind} {v}" for kind, v in kinds.items() if v is not None]
    lines += [f"  capacity {name}: {c.value}" for name, c in sorted(device.capacity.items())]
    for p in device.partitions:
        amounts = " ".join(f"{name}={c.value}" for name, c in p.capacity.items())
        places = ",".join(f"{q.start}+{q.size}" for q in p.placements)
        lines.append(f"  partition {p.name} id={p.profile_id} at {places}: {amounts}")
    lines += [f"  link {link.type} {link.count} x {link.peer}" for link in device.links]
    return lines


@pytest.mark.parametrize("profile", built_in_profiles())
def test_a_built_in_profile_is_as_recorded(profile: str) -> None:
    """UPDATE_GOLDEN=1 writes the files anew; read the difference before it is committed."""
    text = "\n".join(line for d in backend(profile).discover() for line in describe(d.device)) + "\n"
    file = PROFILES / f"{profile}.txt"
    if os.environ.get("UPDATE_GOLDEN"):
        file.write_text(text)
    assert text == file.read_text()


def test_every_profile_has_its_golden_file() -> None:
    assert {f.stem for f in PROFILES.glob("*.txt")} == set(built_in_profiles())
    assert set(built_in_profiles()) >= {"dgx-a100-40", "dgx-a100-80", "dgx-h100", "l4x4", "t4x2", "mixed"}


@pytest.mark.parametrize(
    ("profile", "mebibytes"),
    [
        ("dgx-a100-40", [40960] * 8),
        ("dgx-a100-80", [81920] * 8),
        ("dgx-h100", [81559] * 8),
        ("dgx-h200", [143771] * 8),
        ("l4x4", [23034] * 4),
        ("t4x2", [15360] * 2),
        ("mixed", [23034, 24576, 40960, 40960, 81920]),
    ],
)
def test_memory_is_what_nvml_tells_of_the_real_thing(profile: str, mebibytes: list[int]) -> None:
    found = [d.device.capacity["memory"].value.value() for d in backend(profile).discover()]
    assert found == [m * MIB for m in mebibytes]


@pytest.mark.parametrize("profile", built_in_profiles())
def test_a_profile_keeps_the_limits_of_the_api(profile: str) -> None:
    devices = backend(profile).discover()
    assert len({d.device.name for d in devices}) == len(devices)
    assert len({d.uuid for d in devices}) == len(devices)
    for found in devices:
        device = found.device
        assert len(device.attributes) + len(device.capacity) <= 32
        uuid = device.attributes.get("uuid")
        # Intel's GPUs have no identity that software can read.
        assert uuid is None or uuid.string_value == found.uuid
        assert uuid is not None or device.attributes["vendor"].string_value == "intel"
        for partition in device.partitions:
            assert partition.placements
            assert partition.capacity["memory"].value <= device.capacity["memory"].value
            for name, amount in partition.capacity.items():
                assert amount.value <= device.capacity[name].value, (partition.name, name)


def test_uuids_belong_to_seed_and_address() -> None:
    def uuids(seed: str) -> list[str]:
        return [d.uuid for d in backend("l4x4", seed).discover()]

    assert uuids("a") == uuids("a")
    assert not set(uuids("a")) & set(uuids("b"))


def test_simulated_devices_bring_one_variable_each_and_no_nodes() -> None:
    materials = [d.material for d in backend("t4x2").discover()]
    assert all(not m.device_nodes and not m.mounts for m in materials)
    assert [[v.partition("=")[0] for v in m.env] for m in materials] == [
        ["SIMULATED_GPU_0000_3B_00_0"],
        ["SIMULATED_GPU_0000_D8_00_0"],
    ]


def write(path: Path, text: str) -> str:
    path.write_text(text)
    return str(path)


FULL = """
description: everything that can be said
driverVersion: 570.86.10
cudaDriverVersion: 12.10
gpus:
- pciAddress: 0000:3b:00.0
  productName: Model X 1000
  vendor: amd
  model: X-1000
  architecture: gfx942
  brand: Big
  memory: 192Gi
  multiprocessors: 304
  pcieRoot: pci0000:3a
  numaNode: 1
  eccEnabled: false
  fabricClique: some-cluster.7
  uuid: GPU-given
  deviceNodes: [/dev/null, /dev/dri/renderD128]
  env: {A: "1", B: ""}
  health: [{reason: XidError, severity: failed, message: off the bus}]
- product: A100-40
  pciAddress: 0000:5e:00.0
  cudaComputeCapability: 8.0
  partitions: [{name: 1g.5gb, id: 19, size: 1, starts: [0, 3], memory: 4864Mi, decoders: 2}]
- {product: H100-80, pciAddress: 0000:86:00.0, partitions: []}
nvlink:
- {members: ["0000:5e:00.0", "0000:86:00.0"], links: 4}
"""


def test_everything_that_a_file_may_say(tmp_path: Path) -> None:
    first, second, third = backend(write(tmp_path / "p.yaml", FULL)).discover()
    golden = """
gpu-0000-3b-00-0
  architecture: string gfx942
  brand: string Big
  driverVersion: version 570.86.10
  eccEnabled: bool False
  fabricClique: string some-cluster.7
  index: int 0
  migCapable: bool False
  model: string X-1000
  productName: string Model X 1000
  resource.kubernetes.io/numaNode: int 1
  resource.kubernetes.io/pciBusID: string 0000:3b:00.0
  resource.kubernetes.io/pcieRoot: string pci0000:3a
  type: string gpu
  uuid: string GPU-given
  vendor: string amd
  capacity memory: 192Gi
  capacity multiprocessors: 304
"""
    assert "\n".join(describe(first.device)) == golden.strip()
    assert [n.path for n in first.material.device_nodes] == ["/dev/null", "/dev/dri/renderD128"]
    assert first.material.env == ("SIMULATED_GPU_0000_3B_00_0=GPU-given", "A=1", "B=")
    assert [(h.reason, h.severity, h.message) for h in first.device.health] == [
        ("XidError", "failed", "off the bus")
    ]
    assert [p.name for p in second.device.partitions] == ["1g.5gb"]
    assert second.device.capacity["decoders"].value.value() == 2
    assert second.device.attributes["cudaDriverVersion"].version_value == "12.10.0"
    assert second.device.links[0].peer == third.device.name
    assert not third.device.partitions
    assert third.device.attributes["migCapable"].bool_value is False


def test_a_file_is_read_again_and_its_mistakes_are_then_failures(tmp_path: Path) -> None:
    path = tmp_path / "p.yaml"
    one = backend(write(path, 'gpus: [{product: T4, pciAddress: "0000:01:00.0"}]'))
    assert len(one.discover()) == 1
    write(path, "gpus: []")
    assert list(one.discover()) == []
    write(path, "gpus: {}")
    with pytest.raises(DiscoveryError, match="a mapping is not a list"):
        one.discover()


BAD = """
foo: 1
gpus:
- product: A1
  pciAddress: x
  memory: 40Gx
  numaNode: -1
  env: {A B: c}
  deviceNodes: [/etc/passwd, /dev/../x]
- {productName: X, pciAddress: 0000:3b:00.0, uuid: "", memory: 0.5}
- {product: T4, pciAddress: 0000:3b:00.0, memory: [], multiprocessors: many, eccEnabled: yes}
- {}
- nonsense
nvlink: [{members: ["0000:00:00.0"], links: 0}]
"""


def test_all_mistakes_are_named_at_once(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError) as caught:
        backend(write(tmp_path / "bad.yaml", BAD))
    prefix = f"simulated profile {tmp_path}/bad.yaml: "
    assert all(f.startswith(prefix) for f in caught.value.findings)
    findings = [f.removeprefix(prefix) for f in caught.value.findings]
    expected = [
        "unknown key 'foo'; allowed are description, driverVersion, cudaDriverVersion, processors,",
        "gpus[0].pciAddress: 'x' is not a PCI address, for example 0000:3b:00.0",
        "gpus[0].product: 'A1' is not allowed; allowed are A30, A100-40, A100-80, H100-80,",
        "gpus[0].numaNode: '-1' is not a whole number from 0 to 1023",
        "gpus[0].memory: '40Gx' is not a quantity: a number with an optional suffix is allowed",
        "gpus[0].deviceNodes[0]: '/etc/passwd' is not a path below /dev without . and ..",
        "gpus[0].deviceNodes[1]: '/dev/../x' is not a path below /dev without . and ..",
        "gpus[0].env: 'A B' is not the name of an environment variable",
        "gpus[1].memory: '0.5' is not a positive whole number of bytes",
        "gpus[1].uuid: nothing is not a text",
        "gpus[2].eccEnabled: 'yes' is not allowed; allowed are true, false",
        "gpus[2].memory: a list is not a quantity, for example 40960Mi",
        "gpus[2].multiprocessors: 'many' is not a whole number from 1 to 1000000",
        "gpus[2].pciAddress: '0000:3b:00.0' is given twice; every GPU has its own",
        "gpus[3]: pciAddress is missing",
        "gpus[3]: product or productName is missing",
        "gpus[4]: 'nonsense' is not a mapping; its keys may be pciAddress, product,",
        "nvlink[0].members[0]: '0000:00:00.0' is no pciAddress of gpus",
        "nvlink[0].links: '0' is not a whole number from 1 to 64",
    ]
    for want in expected:
        assert any(f.startswith(want) for f in findings), (want, findings)
    assert len(findings) == len(expected)


@pytest.mark.parametrize(
    ("text", "finding"),
    [
        ("", "nothing is not a mapping"),
        ("[]", "a list is not a mapping"),
        ("{}", "gpus or devices is missing"),
        ("gpus: [", "not valid YAML"),
        ("gpus: []\ngpus: []", "'gpus' is given twice (line 2)"),
        ("? [a]\n: b", "not valid YAML"),
        ("gpus: !!python/object/apply:os.system [x]", "nothing"),
        ("[" * 50, "not valid YAML"),
        ("gpus: " + "[" * 50 + "]" * 50, "gpus[0]: a list is not a mapping"),
        ("gpus: " + "[" * 1000 + "]" * 1000, "nested too deeply"),
        ("gpus: [" + "{}," * 300 + "]", "300 items are too many: at most 256 are allowed"),
        ("x" * (1 << 20) + "xx", "too long"),
    ],
)
def test_hostile_documents_are_refused_in_one_sentence(tmp_path: Path, text: str, finding: str) -> None:
    if finding == "nothing":
        # Tags mean nothing to us: the list below the tag is just a list, of which the item is no mapping.
        finding = "gpus[0]: 'x' is not a mapping"
    with pytest.raises(ConfigurationError) as caught:
        backend(write(tmp_path / "p.yaml", text))
    assert finding in str(caught.value)
    assert len(str(caught.value)) < 5000


def test_aliases_do_not_make_a_small_file_a_large_message(tmp_path: Path) -> None:
    bomb = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "\n".join(
        f"{b}: &{b} [*{a},*{a},*{a},*{a},*{a},*{a},*{a},*{a},*{a}]"
        for a, b in zip("abcdefgh", "bcdefghi", strict=True)
    )
    with pytest.raises(ConfigurationError) as caught:
        backend(write(tmp_path / "bomb.yaml", f"{bomb}\ngpus: *i\n"))
    assert len(str(caught.value)) < 20_000


def test_files_that_cannot_be_read_say_why(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"none\.yaml: cannot be read: No such file"):
        backend(str(tmp_path / "none.yaml"))
    with pytest.raises(ConfigurationError, match="cannot be read: Is a directory"):
        backend(str(tmp_path) + "/")
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigurationError, match="not UTF-8"):
        backend(str(tmp_path / "binary.yaml"))


def test_an_unknown_profile_lists_the_known_ones() -> None:
    with pytest.raises(
        ConfigurationError, match=r"'dgx-b900' is unknown: allowed are .*dgx-a100-40, .*t4x2, or the path"
    ):
        open_backend("simulated=dgx-b900", sysfs_root=Path("/sys"), dev_root=Path("/dev"), node_name="n")
