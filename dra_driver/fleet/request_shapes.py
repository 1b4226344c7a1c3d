"""Request shapes: what an installation wants to be able to allocate at any time, by name.

A shape is a claim without an owner. It is written as a ResourceClaimSpec, or in words::

    [COUNT] KIND [profile NAME] [model TEXT] [memory QUANTITY] [same ATTRIBUTE] …

``8 gpu model H100 same nvlinkGroup``, ``partition profile 7g.80gb``. A model is named whole or up to a
hyphen: H100 is H100-80GB-HBM3, L4 is no L40S. KIND is one of ``names.DEVICE_CLASSES`` or the name of a
DeviceClass.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from typing import Any, Final

import msgspec

from dra_driver import cel
from dra_driver.api import codec, names
from dra_driver.api.meta import ObjectMeta, Uid
from dra_driver.api.quantity import Quantity
from dra_driver.api.resource import (
    DeviceRequest,
    DeviceSubRequest,
    ExactDeviceRequest,
    ResourceClaim,
    ResourceClaimSpec,
)
from dra_driver.errors import ConfigurationError, DecodeError, InvalidInput

__all__ = ["FORM", "WORDS", "RequestShape", "parse_shapes"]

MAX_SHAPES: Final = 32
"""Each is a series of metrics, and work."""
_MAX_DEVICES: Final = 32
_LONGEST: Final = 16_384
_NAME: Final = re.compile(r"[a-zA-Z0-9]([-_.a-zA-Z0-9]{0,61}[a-zA-Z0-9])?")
_CLASS: Final = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)+")
_ATTRIBUTE: Final = re.compile(r"([-.a-z0-9]+/)?[A-Za-z_][A-Za-z0-9_]{0,31}")
_VALUE: Final = re.compile(r"[-+._a-zA-Z0-9]{1,64}")
_WHOLE: Final = "gpu"
_STANDARD: Final = {"numaNode": names.NUMA_NODE, "pcieRoot": names.PCIE_ROOT}
FORM: Final = "[COUNT] KIND [profile NAME] [model TEXT] [memory QUANTITY] [same ATTRIBUTE]"


_AMOUNT: Final = r"[+]?([0-9]*[1-9][0-9]*([.][0-9]*)?|[0-9]*[.][0-9]*[1-9][0-9]*)"
_SUFFIX: Final = r"([KMGTPE]i|[numkMGTPE]|[eE][-+]?[0-9]{1,2})?"
WORDS: Final = (
    rf"([0-9]*[1-9][0-9]*\s+)?({'|'.join(names.DEVICE_CLASSES)}|{_CLASS.pattern})"
    rf"(\s+((profile|model)\s+{_VALUE.pattern}|memory\s+{_AMOUNT}{_SUFFIX}|same\s+{_ATTRIBUTE.pattern}))*"
)
"""The words of a shape as a regular expression, for the chart, which has no parser."""


class RequestShape(msgspec.Struct, frozen=True):
    """A request that is counted.

    Attributes:
        name: for people and as a label of metrics.
        text: as it was written.
        spec: what a claim of this shape asks for.
    """

    name: str
    text: str
    spec: ResourceClaimSpec

    def claim(self, name: str = "", namespace: str = "shapes") -> ResourceClaim:
        """Return a claim of this shape.

        Args:
            name: of the claim; if empty, that of the shape.
            namespace: of the claim.
        """
        return ResourceClaim(
            metadata=ObjectMeta(name=name or self.name, namespace=namespace, uid=Uid(name or self.name)),
            spec=self.spec,
        )


def parse_shapes(texts: Iterable[str], driver: str, *, where: str = "--shape") -> tuple[RequestShape, ...]:
    """Return the shapes of ``NAME=WORDS``, ``NAME={…}`` (a ResourceClaimSpec in JSON) or ``WORDS`` alone.

    Args:
        texts: as they were given; what has no name is named by its words.
        driver: of the devices, for the words.
        where: the flag or field that they come from, for the findings.

    Raises:
        ConfigurationError: with every finding.
    """
    findings: list[str] = []
    shapes: list[RequestShape] = []
    for given in texts:
        name, _, text = given.partition("=") if re.match(r"[^\s{]+=", given) else ("", "", given)
        text = text.strip()
        if not name:
            name = "-".join(text.split())
        try:
            shapes.append(_shape(name, text, driver))
        except InvalidInput as e:
            shown = given if len(given) <= 80 else f"{given[:77]}…"
            found = e.findings if isinstance(e, ConfigurationError) else (str(e),)
            findings += [f"{where} {shown!r}: {finding}" for finding in found]
    seen = [s.name for s in shapes]
    findings += [f"{where}: {n} is given twice" for n in dict.fromkeys(seen) if seen.count(n) > 1]
    if len(seen) > MAX_SHAPES:
        findings.append(f"{where}: {len(seen)} shapes; at most {MAX_SHAPES} can be counted")
    if findings:
        raise ConfigurationError(findings)
    return tuple(shapes)


def _shape(name: str, text: str, driver: str) -> RequestShape:
    findings: list[str] = []
    if not _NAME.fullmatch(name):
        findings.append(
            f"name {name!r}: must be at most 63 letters, digits, '-', '_' and '.', with a letter or digit at "
            "both ends; give one as NAME=…"
        )
    if not text:
        findings.append(f"says nothing; write {FORM}, or a ResourceClaimSpec in JSON")
    elif len(text) > _LONGEST:
        findings.append(f"is longer than {_LONGEST} characters")
    else:
        try:
            spec = _spec_of_json(text) if text.startswith("{") else _spec_of_words(text, driver)
            findings += _problems(spec)
        except ConfigurationError as e:
            findings += e.findings
        except InvalidInput as e:
            findings.append(str(e))
    if findings:
        raise ConfigurationError(findings)
    return RequestShape(name, text, spec)


def _spec_of_json(text: str) -> ResourceClaimSpec:
    try:
        return codec.decode_strict(ResourceClaimSpec, text)
    except msgspec.DecodeError as e:
        raise DecodeError(f"ResourceClaimSpec: {e}") from e


def _spec_of_words(text: str, driver: str) -> ResourceClaimSpec:
    words = text.split()
    findings: list[str] = []
    count = 1
    if words[0].isdecimal():
        count = int(words.pop(0)[:6])
        if not count:
            findings.append("0 devices: the count must be at least 1")
    kind = words.pop(0) if words else ""
    if kind in names.DEVICE_CLASSES:
        class_name = driver if kind == _WHOLE else f"{kind}.{driver}"
    elif _CLASS.fullmatch(kind):
        class_name = kind
    else:
        known = ", ".join(names.DEVICE_CLASSES)
        findings.append(
            f"KIND {kind!r}: must be {known} or the name of a DeviceClass with a dot; the form is {FORM}"
        )
        class_name = ""
    request: dict[str, Any] = {"deviceClassName": class_name, "allocationMode": "ExactCount", "count": count}
    expressions: list[str] = []
    constraints: list[dict[str, Any]] = []
    given: list[str] = []
    while words:
        word, value = words.pop(0), words.pop(0) if words else ""
        if word in given and word != "same":
            findings.append(f"{word} is given twice")
        given.append(word)
        match word:
            case "profile" if _VALUE.fullmatch(value):
                expressions.append(f'device.attributes["{driver}"].?profile.orValue("") == "{value}"')
            case "model" if _VALUE.fullmatch(value):
                model = f'device.attributes["{driver}"].?model.orValue("")'
                expressions.append(f'({model} == "{value}" || {model}.startsWith("{value}-"))')
            case "memory" if _is_quantity(value):
                request["capacity"] = {"requests": {"memory": value}}
            case "same" if _ATTRIBUTE.fullmatch(value):
                full = value if "/" in value else _STANDARD.get(value, f"{driver}/{value}")
                constraints.append({"matchAttribute": full})
            case "profile" | "model" | "memory" | "same":
                findings.append(f"{word} {value!r}: is not a value of {word}")
            case _:
                findings.append(f"unknown word {word!r}; there are profile, model, memory and same")
                break
    if expressions:
        request["selectors"] = [{"cel": {"expression": " && ".join(expressions)}}]
    if findings:
        raise ConfigurationError(findings)
    devices = {"requests": [{"name": "devices", "exactly": request}], "constraints": constraints}
    return codec.decode(ResourceClaimSpec, json.dumps({"devices": devices}))


def _is_quantity(text: str) -> bool:
    try:
        return Quantity.parse(text).nano > 0
    except InvalidInput:
        return False


def _problems(spec: ResourceClaimSpec) -> list[str]:
    """Return why copies of a claim cannot be counted."""
    requests = spec.devices.requests or ()
    if not requests:
        return ["asks for nothing: devices.requests is empty"]
    found: list[str] = []
    least = 0
    for request in requests:
        parts = _parts(request)
        if not parts:
            found.append(f"request {request.name}: neither exactly nor firstAvailable")
            continue
        for part in parts:
            if part.allocation_mode not in ("", "ExactCount"):
                found.append(
                    f"request {request.name}: allocationMode {part.allocation_mode}; only numbers of devices "
                    "can be counted (ExactCount)"
                )
            if isinstance(part, ExactDeviceRequest) and part.admin_access:
                found.append(f"request {request.name}: admin access takes no devices")
            for selector in part.selectors:
                expression = selector.cel.expression if selector.cel is not None else ""
                wrong = cel.validate_selector(expression, environment=cel.NEW_WITH_LISTS)
                found += [f"request {request.name}: selector: {finding.message}" for finding in wrong]
            if part.count < 0:
                found.append(f"request {request.name}: count {part.count}: must be at least 1")
        # The API server makes 1 of a count that is not given.
        least += min(max(1, part.count) for part in parts)
    if least > _MAX_DEVICES:
        found.append(f"asks for {least} devices; a claim can have {_MAX_DEVICES}")
    return found


def _parts(request: DeviceRequest) -> Sequence[ExactDeviceRequest | DeviceSubRequest]:
    return (request.exactly,) if request.exactly is not None else request.first_available
