"""Types of the API as data: which fields a kind has, how they decode, how lists merge.

``data/fields.txt`` is the table for built-in kinds, to which the file of a later release adds its fields;
CustomResourceDefinitions bring their own (``crds``).
Decoding does what the real server's does: unknown fields are dropped and reported, wrong types are errors,
quantities become canonical, fields come in the order of the table.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import lru_cache
from importlib import resources
from typing import Any

from dra_driver.api.quantity import Quantity
from dra_driver.errors import InvalidQuantity
from dra_driver.sim.apiserver.objects.defaults import CONSTANTS, RULES
from dra_driver.sim.apiserver.objects.releases import DEFAULT, RELEASES
from dra_driver.sim.apiserver.objects.status import Raw

__all__ = [
    "ANY",
    "Context",
    "Field",
    "ListType",
    "MapType",
    "Scalar",
    "Struct",
    "Type",
    "WrongType",
    "struct_type",
]


class WrongType(Exception):
    """A value that its field cannot hold; the text is the real server's."""


class Context:
    """What decoding collects beside the value.

    Attributes:
        unknown: paths of unknown fields.
        empties: empty lists and maps that are dropped when the object is stored (Go's omitempty), after
        validation. now: time for fields that default to it.
        defaults: whether absent values are filled in.
    """

    __slots__ = ("defaults", "empties", "now", "unknown")

    def __init__(self, now: str = "", *, defaults: bool = True) -> None:
        self.now = now
        self.defaults = defaults
        self.unknown: list[str] = []
        self.empties: list[tuple[Raw, str]] = []

    def drop_empties(self) -> None:
        """Remove what Go's encoder would not write."""
        for holder, key in reversed(self.empties):
            if key in holder and not holder[key]:
                del holder[key]


class Type:
    """A type: decodes JSON values of it."""

    __slots__ = ()
    zero: object = None

    def decode(self, value: Any, path: str, context: Context) -> Any:
        """Return the value as it is stored.

        Raises:
            WrongType: the value has another JSON type.
        """
        raise NotImplementedError

    def fresh(self, context: Context) -> Any:
        """Return a zero value."""
        return self.zero


class Scalar(Type):
    """A string, number, time …."""

    __slots__ = ("check", "name", "zero")

    def __init__(self, name: str, zero: object, check: Callable[[Any, str], Any]) -> None:
        self.name = name
        self.zero = zero
        self.check = check

    def decode(self, value: Any, path: str, context: Context) -> Any:
        """See ``Type``."""
        return self.check(value, path)


class Field:
    """One field of a struct.

    Attributes:
        name: name in JSON.
        type: type of its value.
        pointer: whether zero values are kept (Go pointer).
        always: whether it is written even if it is zero.
        patch: strategies of strategic merge patch, for example ``merge``.
        merge_key: key of the items of a list of objects.
        atomic: whether server-side apply treats the value as a whole.
        gate: feature gate without which it is dropped; empty if it needs none.
        number: number in protobuf; several if it is in embedded messages; (0,) if it has none.
    """

    __slots__ = (
        "always",
        "atomic",
        "embedded",
        "gate",
        "merge_key",
        "name",
        "number",
        "patch",
        "pointer",
        "type",
    )

    def __init__(self, name: str, type_: Type, words: tuple[str, ...] = ()) -> None:
        self.name = name
        self.type = type_
        self.pointer = "pointer" in words
        self.always = "always" in words
        self.atomic = "atomic" in words
        self.patch: tuple[str, ...] = ()
        self.gate = ""
        self.merge_key = ""
        self.number: tuple[int, ...] = (0,)
        for word in words:
            if word.startswith("#"):
                self.number = tuple(map(int, word[1:].split(".")))
            if word.startswith("gate="):
                self.gate = word[5:]
            if word.startswith("patch="):
                strategies, _, self.merge_key = word[6:].partition(":")
                self.patch = tuple(strategies.split(","))
        # Go writes a struct field that is no pointer even if it is empty.
        self.embedded = isinstance(type_, Struct) and not self.pointer and "omitzero" not in words


class Struct(Type):
    """An object with known fields.

    Attributes:
        name: name in the table.
        atomic: whether server-side apply treats every value as a whole.
    """

    __slots__ = ("_fields", "atomic", "constants", "loader", "name", "rule")

    def __init__(self, name: str, loader: Callable[[], Mapping[str, Field]], *, atomic: bool = False) -> None:
        self.name = name
        self.atomic = atomic
        self.constants = tuple(CONSTANTS.get(name, {}).items())
        self.rule = RULES.get(name)
        self.loader = loader
        self._fields: Mapping[str, Field] | None = None

    @property
    def fields(self) -> Mapping[str, Field]:
        """Fields by JSON name, in the order of the table; read at first use, as types refer to each other."""
        if self._fields is None:
            self._fields = self.loader()
        return self._fields

    def fresh(self, context: Context) -> Any:
        """See ``Type``."""
        return self.decode({}, "", context)

    def decode(self, value: Any, path: str, context: Context) -> Any:
        """See ``Type``."""
        if value is None:
            value = {}
        elif not isinstance(value, dict):
            raise WrongType(_cannot(value, path, self.name))
        fields = self._fields
        if fields is None:
            fields = self.fields
        out: Raw = {}
        seen = 0
        prefix = f"{path}." if path else ""
        for name, field in fields.items():
            if name in value:
                seen += 1
                item = value[name]
                if item is None:
                    if field.pointer:
                        continue
                elif isinstance(item, str) and field.type is STRING:
                    if item or field.pointer or field.always:
                        out[name] = item
                    continue
                else:
                    item = field.type.decode(item, prefix + name, context)
                    if item or field.pointer or field.always or field.embedded:
                        out[name] = item
                    elif isinstance(item, list | dict):
                        out[name] = item
                        context.empties.append((out, name))
                    continue
            if field.embedded or (field.always and not field.pointer):
                out[name] = field.type.fresh(context)
        if seen != len(value):
            self._report(value, fields, prefix, context)
        if context.defaults:
            for name, default in self.constants:
                if name not in out or out[name] == "":
                    out[name] = dict(default) if isinstance(default, dict) else default
            if self.rule is not None:
                self.rule(out, context.now)
        return out

    def _report(self, value: Raw, fields: Mapping[str, Field], prefix: str, context: Context) -> None:
        for name in value:
            if name not in fields and not (not prefix and name in ("apiVersion", "kind")):
                context.unknown.append(prefix + name)


class ListType(Type):
    """A list.

    Attributes:
        keys: fields that identify an item, for lists that merge by key.
        is_set: whether items are values that appear only once.
    """

    __slots__ = ("is_set", "item", "keys")

    def __init__(self, item: Type, keys: tuple[str, ...] = (), *, is_set: bool = False) -> None:
        self.item = item
        self.keys = keys
        self.is_set = is_set

    def decode(self, value: Any, path: str, context: Context) -> Any:
        """See ``Type``."""
        if not isinstance(value, list):
            raise WrongType(_cannot(value, path, "[]" + getattr(self.item, "name", "")))
        item = self.item
        if item is STRING:
            return [v if isinstance(v, str) else STRING.decode(v, path, context) for v in value]
        return [
            item.fresh(context) if v is None else item.decode(v, f"{path}[{i}]", context)
            for i, v in enumerate(value)
        ]


class MapType(Type):
    """A map from strings."""

    __slots__ = ("item",)

    def __init__(self, item: Type) -> None:
        self.item = item

    def decode(self, value: Any, path: str, context: Context) -> Any:
        """See ``Type``. Keys are sorted, as Go writes them."""
        if not isinstance(value, dict):
            raise WrongType(_cannot(value, path, "map[string]" + getattr(self.item, "name", "")))
        item = self.item
        return {
            k: item.fresh(context) if v is None else item.decode(v, f"{path}.{k}", context)
            for k, v in sorted(value.items())
        }


class AnyType(Type):
    """Any JSON value."""

    __slots__ = ()

    def decode(self, value: Any, path: str, context: Context) -> Any:
        """See ``Type``."""
        return value


ANY = AnyType()


def _cannot(value: object, path: str, go: str) -> str:
    word = {str: "string", bool: "bool", list: "array", dict: "object", type(None): "null"}.get(type(value))
    shown = word or f"number {value}" if isinstance(value, float) else word or "number"
    return f"json: cannot unmarshal {shown} into Go struct field {path} of type {go}"


def _string(value: Any, path: str) -> str:
    if isinstance(value, str):
        return value
    if value is None:
        return ""
    raise WrongType(_cannot(value, path, "string"))


def _integer(low: int, high: int, name: str) -> Callable[[Any, str], Any]:
    def check(value: Any, path: str) -> int:
        if isinstance(value, int) and not isinstance(value, bool) and low <= value <= high:
            return value
        raise WrongType(_cannot(value, path, name))

    return check


def _bool(value: Any, path: str) -> bool:
    if isinstance(value, bool):
        return value
    raise WrongType(_cannot(value, path, "bool"))


def _number(value: Any, path: str) -> float:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return value
    raise WrongType(_cannot(value, path, "float64"))


_QUANTITY = re.compile(r"([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)", re.ASCII)


@lru_cache(maxsize=8192)
def _canonical(text: str) -> str:
    if text.startswith("+") and text[1:].isdigit():
        return text  # the real server keeps the sign of whole numbers
    try:
        canonical = str(Quantity.parse(text))
        if "e" in canonical and "e" not in text.lower().removesuffix("e"):
            # Larger than any suffix: the real server leaves the suffix out.
            return canonical.partition("e")[0]
        return canonical
    except InvalidQuantity:
        if _QUANTITY.fullmatch(text) or text[:2] in ("--", "+-", "-+", "++"):
            raise WrongType("unable to parse quantity's suffix") from None
        raise WrongType(
            "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"
        ) from None


def _quantity(value: Any, path: str) -> str:
    if value is None:
        return "0"
    if isinstance(value, str):
        return _canonical(value.strip())
    if isinstance(value, int | float) and not isinstance(value, bool):
        return _canonical(str(value))
    return _canonical(str(value).lower() if isinstance(value, bool) else "{}")


_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)", re.ASCII)
_MICRO_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}(Z|[+-]\d\d:\d\d)", re.ASCII)


def _utc(value: str, path: str, *, micro: bool) -> str:
    if micro and not _MICRO_TIME.fullmatch(value):
        raise WrongType(f'parsing time "{value}" as "2006-01-02T15:04:05.000000Z07:00": cannot parse')
    if not _TIME.fullmatch(value):
        raise WrongType(f'parsing time "{value}" as "2006-01-02T15:04:05Z07:00": cannot parse')
    try:
        moment = datetime.fromisoformat(value).astimezone(UTC)
    except (ValueError, OverflowError) as e:
        raise WrongType(f'parsing time "{value}": {e}') from None
    return moment.strftime("%Y-%m-%dT%H:%M:%S.%fZ" if micro else "%Y-%m-%dT%H:%M:%SZ")


def _time(value: Any, path: str) -> str | None:
    if value is None:
        return None
    if isinstance(value, str):
        return value if len(value) == 20 and _TIME.fullmatch(value) else _utc(value, path, micro=False)
    raise WrongType(_cannot(value, path, "string"))


def _micro_time(value: Any, path: str) -> str | None:
    if value is None:
        return None
    if isinstance(value, str):
        return _utc(value, path, micro=True)
    raise WrongType(_cannot(value, path, "string"))


def _int_or_string(value: Any, path: str) -> int | str:
    if isinstance(value, str) or (isinstance(value, int) and not isinstance(value, bool)):
        return value
    raise WrongType(_cannot(value, path, "int32"))


def _bytes(value: Any, path: str) -> str:
    try:
        base64.b64decode(_string(value, path), validate=True)
    except (binascii.Error, ValueError):
        raise WrongType("illegal base64 data at input byte 0") from None
    return str(value)


STRING = Scalar("string", "", _string)
SCALARS: Mapping[str, Type] = {
    "string": STRING,
    "bool": Scalar("bool", False, _bool),
    "int32": Scalar("int32", 0, _integer(-(2**31), 2**31 - 1, "int32")),
    "int64": Scalar("int64", 0, _integer(-(2**63), 2**63 - 1, "int64")),
    "number": Scalar("float64", 0, _number),
    "quantity": Scalar("quantity", "0", _quantity),
    "time": Scalar("Time", None, _time),
    "microtime": Scalar("MicroTime", None, _micro_time),
    "intorstring": Scalar("IntOrString", 0, _int_or_string),
    "bytes": Scalar("[]uint8", "", _bytes),
    "any": ANY,
}

_ATOMIC = "(atomic)"


@lru_cache(maxsize=len(RELEASES))
def _table(release: str) -> Mapping[str, Mapping[str, str]]:
    """Return type → field → its line; where a field has several, the last one counts."""
    folder = resources.files("dra_driver.sim.apiserver").joinpath("data")
    later = [f"fields-{r}.txt" for r in RELEASES if DEFAULT < r <= release]
    text = "\n".join(folder.joinpath(name).read_text() for name in ("fields.txt", "extra.txt", *later))
    table: dict[str, dict[str, str]] = {}
    current: dict[str, str] = {}
    for line in text.splitlines():
        if not line or line.startswith("#"):
            continue
        if line.startswith(" -"):
            del current[line[2:]]
        elif line.startswith(" "):
            current[line[1:].partition(" ")[0]] = line.strip()
        else:
            name, _, flag = line.partition(" ")
            current = table.setdefault(name, {})
            if flag:
                current[_ATOMIC] = flag
    return table


@lru_cache(maxsize=4096)
def struct_type(name: str, release: str = DEFAULT) -> Struct:
    """Return the struct of a name in the table of a release, for example ``resource.ResourceSlice``."""
    lines = _table(release)[name]

    def load() -> Mapping[str, Field]:
        fields = {}
        for json_name, line in lines.items():
            if json_name != _ATOMIC:
                _, spelled, *words = line.split(" ")
                fields[json_name] = Field(json_name, _parse(spelled, release, tuple(words)), tuple(words))
        return fields

    return Struct(name, load, atomic=_ATOMIC in lines)


def _parse(spelled: str, release: str, words: tuple[str, ...] = ()) -> Type:
    if spelled.startswith("["):
        keys = next((tuple(w[5:].split(",")) for w in words if w.startswith("keys=")), ())
        return ListType(_parse(spelled[1:-1], release), keys, is_set="set" in words)
    if spelled.startswith("map("):
        return MapType(_parse(spelled[4:-1], release))
    if spelled in SCALARS:
        return SCALARS[spelled]
    return struct_type(spelled, release)
