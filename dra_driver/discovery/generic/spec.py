"""The description of devices for the backend ``generic``: schema and strict decoding.

::

    devices:
    - name: npu                        # prefix of the devices' names; required
      match:                           # required; one of the two
        pci: {vendor: "1e52", class: "1200", device: "0401"}   # hex; vendor, and class or device
        dev: accel/accel*              # a pattern below /dev; * and ? do not cross a /
      sysfs: class/accel/{name}/device # with dev: directory of the facts; {name} is the node's last component
      nodes:                           # with pci: its device nodes, found in the function's directory
      - {sysfs: "accel/accel*", dev: "accel/{name}"}
      attributes:                      # each with a value, or a file below the device's directory
        model: {value: NPU-1}
        uuid: {sysfs: serial_number}
        firmwareVersion: {sysfs: fw/version, type: version}    # string (default), int, bool or version
        fabrics: {values: [f0, f1]}    # a list of values; of a file: {sysfs: fabrics, list: true}, its words
      capacity:
        memory: {sysfs: mem_size_mib, factor: 1048576}
        cores: {value: "8"}
      cdi:                             # what containers get beside the nodes
        deviceNodes: [/dev/npu_ctl]
        env: {NPU_HOME: /opt/npu}
        mounts: [{hostPath: /opt/npu/lib, containerPath: /opt/npu/lib}]

Attributes that are in our schema have the type that they have there, and one value. PCI address, PCIe root
and NUMA node come by themselves. Of a list the first value is to be the one that describes the device best:
an API server that keeps no lists gets it alone.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, cast

from dra_driver.api.quantity import Quantity
from dra_driver.api.resource import DeviceAttribute
from dra_driver.cdi import Mount, read_only_mount
from dra_driver.discovery.core import schema, strict
from dra_driver.errors import InvalidQuantity

__all__ = ["Amount", "DeviceRule", "Fact", "NodeRule", "PciMatch", "decode", "typed", "typed_list"]

# One component of a path: no "..", nothing that a shell or a mount table would read otherwise.
_PART: Final = r"(?!\.{1,2}(?:/|$))[A-Za-z0-9_.:@+-]+"
_PATTERN_PART: Final = r"(?!\.{1,2}(?:/|$))[A-Za-z0-9_.:@+*?-]+"
_PATH: Final = re.compile(rf"{_PART}(?:/{_PART}){{0,15}}", re.ASCII)
_PATTERN: Final = re.compile(rf"{_PATTERN_PART}(?:/{_PATTERN_PART}){{0,7}}", re.ASCII)
_ABSOLUTE: Final = re.compile(rf"/{_PART}(?:/{_PART}){{0,15}}", re.ASCII)
_DEVICE: Final = re.compile(rf"/dev/{_PART}(?:/{_PART}){{0,7}}", re.ASCII)
_NAME: Final = re.compile(r"[a-z]([a-z0-9-]{0,18}[a-z0-9])?", re.ASCII)
_FACT_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,31}", re.ASCII)
_HEX: Final = {
    "vendor": re.compile(r"[0-9a-f]{4}", re.ASCII),
    "device": re.compile(r"[0-9a-f]{4}", re.ASCII),
    "class": re.compile(r"[0-9a-f]{2}|[0-9a-f]{4}|[0-9a-f]{6}", re.ASCII),
}
_ENV: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}", re.ASCII)
_KINDS: Final = ("string", "int", "bool", "version")
# With what comes by itself this keeps below the API's 32 facts of a device.
_MAX_ATTRIBUTES: Final = 20
_MAX_CAPACITIES: Final = 8
# Values of a list: as many as the API allows a device beside its other attributes.
_MAX_VALUES: Final = 24


@dataclass(frozen=True, slots=True)
class PciMatch:
    """PCI functions: hex digits as sysfs writes them, without ``0x``; a class may be a prefix."""

    vendor: str
    device: str | None
    class_prefix: str | None


@dataclass(frozen=True, slots=True)
class NodeRule:
    """Device nodes: a pattern in the device's directory, and the path below ``/dev`` (``{name}``)."""

    pattern: str
    path: str


@dataclass(frozen=True, slots=True)
class Fact:
    """An attribute: ``value``, ``values`` or ``file`` is set.

    Attributes:
        values: of a list.
        several: whether the words of the file are a list.
    """

    kind: schema.Kind
    value: str | None
    file: str | None
    values: tuple[str, ...] = ()
    several: bool = False


@dataclass(frozen=True, slots=True)
class Amount:
    """A capacity: either ``value`` or ``file`` (times ``factor``) is set."""

    value: Quantity | None
    file: str | None
    factor: int


@dataclass(frozen=True, slots=True)
class DeviceRule:
    """One kind of device; either ``pci`` or ``dev`` is set."""

    name: str
    pci: PciMatch | None
    dev: str | None
    sysfs: str | None
    nodes: tuple[NodeRule, ...]
    attributes: Mapping[str, Fact]
    capacity: Mapping[str, Amount]
    device_nodes: tuple[str, ...]
    env: Mapping[str, str]
    mounts: tuple[Mount, ...]


def decode(text: str, name: str) -> tuple[DeviceRule, ...]:
    """Decode the YAML ``text`` of the file ``name``.

    Raises:
        ConfigurationError: with every mistake, each naming path, value and what is allowed.
    """
    reader = strict.Reader(f"generic devices {name}")
    top = reader.mapping(
        strict.parse_yaml(text, f"generic devices {name}"), "", ("devices",), required=("devices",)
    )
    rules: list[DeviceRule] = []
    for path, item in reader.items(top.get("devices"), "devices", 64):
        rule = _rule(reader, item, path)
        if rule is None:
            continue
        if any(r.name == rule.name for r in rules):
            reader.finding(f"{path}.name", f"{rule.name!r} is given twice")
        rules.append(rule)
    reader.finish()
    return tuple(rules)


def _rule(reader: strict.Reader, value: object, path: str) -> DeviceRule | None:
    keys = ("name", "match", "sysfs", "nodes", "attributes", "capacity", "cdi")
    raw = reader.mapping(value, path, keys, required=("name", "match"))
    name = reader.text(
        raw.get("name"), f"{path}.name", _NAME, "up to 20 lower-case letters, digits and dashes"
    )
    match = reader.mapping(raw.get("match"), f"{path}.match", ("pci", "dev")) if "match" in raw else {}
    if "match" in raw and len(match) != 1:
        reader.finding(f"{path}.match", "exactly one of pci and dev is allowed")
    pci = _pci(reader, match["pci"], f"{path}.match.pci") if "pci" in match else None
    dev = reader.text(
        match.get("dev"), f"{path}.match.dev", _PATTERN, "a relative path without .., with * and ?", 255
    )
    sysfs = _template(reader, raw.get("sysfs"), f"{path}.sysfs")
    if sysfs is not None and "dev" not in match:
        reader.finding(f"{path}.sysfs", "only with match.dev; a PCI function has a directory of its own")
    if "nodes" in raw and "pci" not in match:
        reader.finding(f"{path}.nodes", "only with match.pci; match.dev is the node itself")
    nodes = [_node(reader, i, p) for p, i in reader.items(raw.get("nodes"), f"{path}.nodes", 16)]
    cdi = reader.mapping(raw.get("cdi", {}), f"{path}.cdi", ("deviceNodes", "env", "mounts"))
    device_nodes = [
        reader.text(i, p, _DEVICE, "a path below /dev without ..", 255)
        for p, i in reader.items(cdi.get("deviceNodes"), f"{path}.cdi.deviceNodes", 32)
    ]
    mounts = [_mount(reader, i, p) for p, i in reader.items(cdi.get("mounts"), f"{path}.cdi.mounts", 32)]
    rule = DeviceRule(
        name=name or "",
        pci=pci,
        dev=dev,
        sysfs=sysfs,
        nodes=tuple(n for n in nodes if n is not None),
        attributes=_attributes(reader, raw.get("attributes"), f"{path}.attributes"),
        capacity=_capacity(reader, raw.get("capacity"), f"{path}.capacity"),
        device_nodes=tuple(n for n in device_nodes if n is not None),
        env=_env(reader, cdi.get("env"), f"{path}.cdi.env"),
        mounts=tuple(m for m in mounts if m is not None),
    )
    return rule if name and (pci or dev) else None


def _template(reader: strict.Reader, value: object, path: str) -> str | None:
    """Return a relative path in which ``{name}`` may stand for one component or a part of one."""
    text = reader.text(value, path, limit=255)
    if text is not None and _PATH.fullmatch(text.replace("{name}", "x")) is None:
        reader.finding(path, f"{text!r} is not a relative path without .., in which {{name}} may stand")
        return None
    return text


def _pci(reader: strict.Reader, value: object, path: str) -> PciMatch | None:
    raw = reader.mapping(value, path, tuple(_HEX), required=("vendor",))
    texts = {
        key: reader.text(raw.get(key), f"{path}.{key}", pattern, "hex digits in lower case, without 0x")
        for key, pattern in _HEX.items()
    }
    if "vendor" in raw and "device" not in raw and "class" not in raw:
        reader.finding(path, "device or class is missing: not every function of a vendor is such a device")
    vendor = texts["vendor"]
    return None if vendor is None else PciMatch(vendor, texts["device"], texts["class"])


def _node(reader: strict.Reader, value: object, path: str) -> NodeRule | None:
    raw = reader.mapping(value, path, ("sysfs", "dev"), required=("sysfs", "dev"))
    pattern = reader.text(
        raw.get("sysfs"), f"{path}.sysfs", _PATTERN, "a relative path without .., with * and ?", 255
    )
    dev = _template(reader, raw.get("dev"), f"{path}.dev")
    return NodeRule(pattern, dev) if pattern and dev else None


def _names(reader: strict.Reader, value: object, path: str, limit: int) -> dict[str, object]:
    """Return a mapping of facts by their names."""
    if value is None:
        return {}
    if not isinstance(value, Mapping) or len(value) > limit:
        reader.finding(path, f"not a mapping of at most {limit} names")
        return {}
    allowed = "a name of up to 32 letters, digits and _, without a domain"
    return {
        name: item
        for key, item in value.items()
        if (name := reader.text(key, path, _FACT_NAME, allowed)) is not None
    }


def _source(reader: strict.Reader, raw: Mapping[str, object], path: str) -> tuple[str | None, str | None]:
    """Return ``value`` and ``sysfs``, of which one has to be there."""
    if ("value" in raw) == ("sysfs" in raw):
        reader.finding(path, "exactly one of value and sysfs is allowed")
    return (
        reader.text(raw.get("value"), f"{path}.value"),
        reader.text(raw.get("sysfs"), f"{path}.sysfs", _PATH, "a relative path without ..", 255),
    )


def _attributes(reader: strict.Reader, value: object, path: str) -> dict[str, Fact]:
    kinds = {spec.name: spec.kind for spec in schema.ATTRIBUTES}
    found: dict[str, Fact] = {}
    for name, item in _names(reader, value, path, _MAX_ATTRIBUTES).items():
        where = f"{path}.{name}"
        raw = reader.mapping(item, where, ("value", "values", "sysfs", "list", "type"))
        values: tuple[str, ...] = ()
        text, file = None, None
        if "values" in raw:
            values = _values(reader, raw, where)
        else:
            text, file = _source(reader, raw, where)
        several = bool(reader.boolean(raw.get("list"), f"{where}.list"))
        if several and file is None:
            reader.finding(f"{where}.list", "is for the words of a file: it goes with sysfs")
        if name in kinds and (values or several):
            reader.finding(where, f"{name} has one value everywhere")
        chosen = reader.choice(raw.get("type"), f"{where}.type", _KINDS)
        kind = cast("schema.Kind", chosen or kinds.get(name, "string"))
        if name in kinds and kind != kinds[name]:
            reader.finding(f"{where}.type", f"{name} is of type {kinds[name]} everywhere")
        problem = typed(kind, text) if text is not None else typed_list(kind, values) if values else None
        if isinstance(problem, str):
            reader.finding(f"{where}.{'values' if values else 'value'}", problem)
        found[name] = Fact(kind, text, file, values, several)
    return found


def _values(reader: strict.Reader, raw: Mapping[str, object], path: str) -> tuple[str, ...]:
    if "value" in raw or "sysfs" in raw:
        reader.finding(path, "exactly one of value, values and sysfs is allowed")
    items = reader.items(raw["values"], f"{path}.values", _MAX_VALUES)
    found = tuple(text for where, item in items if (text := reader.text(item, where)) is not None)
    if not found:
        reader.finding(f"{path}.values", "not a list of at least one value")
    return found


def typed(kind: schema.Kind, text: str) -> DeviceAttribute | str:
    """Return the attribute that a text stands for, or why it stands for none."""
    value, problem = _value(kind, text)
    return problem or schema.typed_attribute(kind, value)


def typed_list(kind: schema.Kind, texts: Sequence[str]) -> DeviceAttribute | str:
    """Return the attribute with a list that texts stand for, or why they stand for none."""
    values: list[schema.Value] = []
    for text in texts:
        value, problem = _value(kind, text)
        if problem:
            return problem
        values.append(value)
    return schema.typed_list(kind, values)


def _value(kind: schema.Kind, text: str) -> tuple[schema.Value, str]:
    """Return what a text stands for, and why it stands for nothing."""
    if kind == "bool":
        truth = {"1": True, "true": True, "0": False, "false": False}.get(text.lower())
        return bool(truth), "" if truth is not None else f"{text[:80]!r} is not true or false"
    if kind == "int":
        if not re.fullmatch(r"-?(0x[0-9a-f]{1,16}|[0-9]{1,19})", text, re.ASCII | re.IGNORECASE):
            return 0, f"{text[:80]!r} is no whole number"
        return int(text, 16 if "x" in text.lower() else 10), ""
    return text, ""


def _capacity(reader: strict.Reader, value: object, path: str) -> dict[str, Amount]:
    found: dict[str, Amount] = {}
    for name, item in _names(reader, value, path, _MAX_CAPACITIES).items():
        where = f"{path}.{name}"
        raw = reader.mapping(item, where, ("value", "sysfs", "factor"))
        text, file = _source(reader, raw, where)
        factor = reader.integer(raw.get("factor"), f"{where}.factor", 1, 2**40)
        quantity: Quantity | None = None
        if text is not None:
            try:
                quantity = Quantity.parse(text)
            except InvalidQuantity as e:
                reader.finding(f"{where}.value", str(e))
        found[name] = Amount(quantity, file, factor or 1)
    return found


def _env(reader: strict.Reader, value: object, path: str) -> dict[str, str]:
    if value is None:
        return {}
    if not isinstance(value, Mapping) or len(value) > 32:
        reader.finding(path, "not a mapping of at most 32 names to values")
        return {}
    found: dict[str, str] = {}
    for key, item in value.items():
        name = reader.text(key, path, _ENV, "the name of an environment variable")
        text = reader.text(item, f"{path}.{name}", limit=4096)
        if name is not None and text is not None:
            found[name] = text
    return found


def _mount(reader: strict.Reader, value: object, path: str) -> Mount | None:
    raw = reader.mapping(value, path, ("hostPath", "containerPath"), required=("hostPath", "containerPath"))
    allowed = "an absolute path without .."
    host = reader.text(raw.get("hostPath"), f"{path}.hostPath", _ABSOLUTE, allowed, 255)
    container = reader.text(raw.get("containerPath"), f"{path}.containerPath", _ABSOLUTE, allowed, 255)
    return read_only_mount(host, container) if host and container else None
