"""Kubernetes' own functions: quantities, versions, addresses, URLs, named formats, ``includes``."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable
from datetime import date
from urllib.parse import quote, unquote_plus, urlsplit

from dra_driver.api.quantity import Quantity
from dra_driver.api.version import Version
from dra_driver.cel.errors import CelPanic, CelRuntimeError
from dra_driver.cel.values import time as _time
from dra_driver.cel.values.meter import Meter
from dra_driver.cel.values.values import (
    NONE,
    Cidr,
    Format,
    Ip,
    Optional,
    SumQuantity,
    Url,
    Value,
    equal,
)
from dra_driver.errors import InvalidQuantity, InvalidVersion

__all__ = ["FORMATS", "FUNCTIONS", "INCLUDES_LIMIT", "METERED"]

INCLUDES_LIMIT = 48
# No API object has longer ones, and expressions must not make any: ``urlsplit`` caches the most recent ones.
_LONGEST_VERSION = 256
_LONGEST_URL = 16 * 1024
# Memory of a quantity besides its number, in bytes.
_QUANTITY = 128


# --- Quantity -----------------------------------------------------------------------------------------------


def _quantity(text: str) -> Quantity:
    try:
        found = Quantity.parse(text)
    except InvalidQuantity as e:
        raise CelRuntimeError(str(e)) from None
    # Not cached: sums write into decimals (``values.aliasing``), so none may be shared.
    return Quantity(found.nano, found.format, scale=found.scale, big=True) if found.is_big else found


def _is_quantity(text: str) -> bool:
    try:
        Quantity.parse(text)
    except InvalidQuantity:
        return False
    return True


def _compare(a: Quantity, b: Quantity) -> int:
    x, y = a.nano, b.nano
    return (x > y) - (x < y)


def _sign(a: Quantity) -> int:
    return (a.nano > 0) - (a.nano < 0)


def _as_integer(a: Quantity) -> int:
    value = a.as_int64()
    if value is None:
        raise CelRuntimeError("cannot convert value to integer")
    return value


def _sum(add: Callable[[Quantity, Value], Quantity]) -> Callable[[Meter, Quantity, Value], SumQuantity]:
    def total(meter: Meter, a: Quantity, b: Value) -> SumQuantity:
        q = add(a, b)
        # Twice the number: it exists as a plain int for a moment.
        meter.make(_QUANTITY + q.nano.bit_length() // 4, "quantity")
        return SumQuantity(q.nano, q.format, scale=q.scale, big=q.is_big)

    return total


# --- Semver -------------------------------------------------------------------------------------------------


def _version(text: str, normalize: bool = False) -> Version:
    _check_version_length(text)
    try:
        return Version.parse(_normalized(text) if normalize else text)
    except InvalidVersion as e:
        raise CelRuntimeError(str(e)) from None


def _check_version_length(text: str) -> None:
    if len(text) > _LONGEST_VERSION:
        raise CelRuntimeError(
            f"a semantic version of {len(text)} characters is too long: {_LONGEST_VERSION} are allowed"
        )


def _is_version(text: str, normalize: bool = False) -> bool:
    _check_version_length(text)
    try:
        Version.parse(_normalized(text) if normalize else text)
    except InvalidVersion:
        return False
    return True


def _normalized(text: str) -> str:
    """Return the version without a leading v and leading zeros, with missing numbers added.

    Raises:
        InvalidVersion: numbers are missing in front of a prerelease or build metadata.
    """
    parts = text.removeprefix("v").split(".", 2)
    for i, part in enumerate(parts):
        if len(part) > 1:
            bare = part.lstrip("0")
            parts[i] = bare if bare[:1].isascii() and bare[:1].isdigit() else f"0{bare}"
    if len(parts) < 3 and ("-" in parts[-1] or "+" in parts[-1]):
        raise InvalidVersion("a short version cannot have a prerelease or build metadata")
    return ".".join([*parts, "0", "0"][: max(len(parts), 3)])


def _signed(number: int) -> int:
    # Kubernetes keeps 64 bits and reads them as a signed number.
    return number - 2**64 if number >= 2**63 else number


def _compare_versions(a: Version, b: Version) -> int:
    return (a > b) - (a < b)


# --- addresses ----------------------------------------------------------------------------------------------

_Address = ipaddress.IPv4Address | ipaddress.IPv6Address


def _ip(text: str) -> Ip:
    address = _address(text)
    if address is None:
        raise CelRuntimeError(f"IP Address {text[:64]!r} parse error during conversion from string")
    return Ip(address)


def _address(text: str) -> _Address | None:
    if "%" in text or len(text) > 64 or not text.isascii():
        return None
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return None
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        return None
    return address


def _is_canonical(text: str) -> bool:
    return str(_ip(text).address) == text


_CIDR = re.compile(r"([0-9a-fA-F:.]+)/(0|[1-9][0-9]{0,2})", re.ASCII)


def _interface(text: str) -> Cidr | None:
    match = _CIDR.fullmatch(text)
    if match is None or (address := _address(match[1])) is None:
        return None
    length = int(match[2])
    if length > address.max_prefixlen:
        return None
    if isinstance(address, ipaddress.IPv4Address):
        return Cidr(ipaddress.IPv4Interface((int(address), length)))
    return Cidr(ipaddress.IPv6Interface((int(address), length)))


def _cidr(text: str) -> Cidr:
    result = _interface(text)
    if result is None:
        raise CelRuntimeError(f"network address parse error during conversion from string: {text[:64]!r}")
    return result


def _contains_ip(cidr: Cidr, ip: Ip) -> bool:
    return cidr.interface.version == ip.address.version and ip.address in cidr.interface.network


def _contains_cidr(cidr: Cidr, other: Cidr) -> bool:
    if cidr.interface.version != other.interface.version:
        return False
    return (
        other.interface.network.prefixlen >= cidr.interface.network.prefixlen
        and other.interface.ip in cidr.interface.network
    )


def _masked(cidr: Cidr) -> Cidr:
    network = cidr.interface.network
    if isinstance(network, ipaddress.IPv4Network):
        return Cidr(ipaddress.IPv4Interface((int(network.network_address), network.prefixlen)))
    return Cidr(ipaddress.IPv6Interface((int(network.network_address), network.prefixlen)))


def _is_global_unicast(ip: Ip) -> bool:
    a = ip.address
    return not (a.is_unspecified or a.is_loopback or a.is_multicast or a.is_link_local) and a != _BROADCAST


_BROADCAST = ipaddress.IPv4Address("255.255.255.255")
_LINK_LOCAL_4 = ipaddress.IPv4Network("224.0.0.0/24")


def _is_link_local_multicast(ip: Ip) -> bool:
    if isinstance(ip.address, ipaddress.IPv4Address):
        return ip.address in _LINK_LOCAL_4
    return int(ip.address) >> 112 & 0xFF0F == 0xFF02


# --- URLs ---------------------------------------------------------------------------------------------------

_URL = re.compile(r"(?:([a-zA-Z][a-zA-Z0-9+.-]*):)?(.*)", re.ASCII | re.DOTALL)
_BAD_ESCAPE = re.compile(r"%(?![0-9a-fA-F]{2})")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_HOST = re.compile(r"(?:\[[0-9a-fA-F:.%]+\]|[^\[\]:<>\"{}|\\^`\s]*)(?::[0-9]*)?", re.ASCII)


def _parsed(text: str) -> Url | None:
    """Return a URL as Go's ``url.ParseRequestURI`` reads it: absolute, or a path from the root."""
    if len(text) > _LONGEST_URL:
        raise CelRuntimeError(f"a URL of {len(text)} characters is too long: {_LONGEST_URL} are allowed")
    if not text or _CONTROL.search(text):
        return None
    match = _URL.match(text)
    if match is None or not (match[1] or text.startswith("/")):
        return None
    if match[1] and not match[2].startswith("/"):
        # mailto:x and the like are opaque: valid, without host or path.
        rest = match[2]
        return None if not rest else Url(text, urlsplit(f"{match[1]}:"))
    if not match[1] and text.startswith("//"):
        # Without a scheme this is a path, not a host.
        return Url(text, urlsplit(text.replace("//", "/%2f", 1)))
    try:
        parts = urlsplit(text)
        parts.port  # noqa: B018 - raises for a port that is no number
    except ValueError:
        return None
    host = parts.netloc.rpartition("@")[2]
    if _BAD_ESCAPE.search(parts.path) or not _HOST.fullmatch(host):
        return None
    return Url(text, parts)


def _url(text: str) -> Url:
    result = _parsed(text)
    if result is None:
        raise CelRuntimeError(f"URL parse error during conversion from string: {text[:80]!r}")
    return result


def _host(url: Url) -> str:
    return url.parts.netloc.rpartition("@")[2]


def _hostname(url: Url) -> str:
    host = _host(url)
    if host.startswith("["):
        return host[1 : host.find("]")]
    return host.partition(":")[0]


def _port(url: Url) -> str:
    host = _host(url)
    return host.rpartition(":")[2] if ":" in host.rpartition("]")[2] else ""


def _path(meter: Meter, url: Url) -> str:
    meter.spend(len(url.parts.path))
    return quote(url.parts.path, safe="$&+,/:;=@!'()*%[]")


def _query(meter: Meter, url: Url) -> dict[str, list[str]]:
    meter.spend(len(url.parts.query) * 4)
    found: dict[str, list[str]] = {}
    for pair in url.parts.query.split("&"):
        if pair and ";" not in pair:
            key, _, value = pair.partition("=")
            if not _BAD_ESCAPE.search(pair):
                found.setdefault(unquote_plus(key), []).append(unquote_plus(value))
    return found


# --- formats ------------------------------------------------------------------------------------------------

_LABEL_1123 = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?", re.ASCII)
_LABEL_1035 = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?", re.ASCII)
_SUBDOMAIN = re.compile(rf"{_LABEL_1123.pattern}(\.{_LABEL_1123.pattern})*", re.ASCII)
_LABEL_VALUE = re.compile(r"(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?", re.ASCII)
_NAME = re.compile(r"([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]", re.ASCII)
_UUID = re.compile(r"[0-9a-fA-F]{8}-?([0-9a-fA-F]{4}-?){3}[0-9a-fA-F]{12}", re.ASCII)
_BASE64 = re.compile(r"(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?", re.ASCII)


def _bounded(pattern: re.Pattern[str], most: int) -> Callable[[str], bool]:
    return lambda text: len(text) <= most and pattern.fullmatch(text) is not None


def _prefixed(valid: Callable[[str], bool]) -> Callable[[str], bool]:
    # A prefix (generateName) may end with a dash: the generated name goes on after it.
    return lambda text: valid(text[:-1] + "a" if len(text) > 1 and text.endswith("-") else text)


def _qualified(text: str) -> bool:
    parts = text.split("/")
    if len(parts) > 2:
        return False
    if len(parts) == 2 and not _bounded(_SUBDOMAIN, 253)(parts[0]):
        return False
    return _bounded(_NAME, 63)(parts[-1])


def _is_date(text: str) -> bool:
    try:
        return len(text) == 10 and date.fromisoformat(text) is not None
    except ValueError:
        return False


def _is_datetime(text: str) -> bool:
    try:
        _time.parse_timestamp(text.replace("t", "T").replace("z", "Z"))
    except CelRuntimeError:
        return False
    return True


FORMATS: dict[str, Callable[[str], bool]] = {
    "dns1123Label": _bounded(_LABEL_1123, 63),
    "dns1123Subdomain": _bounded(_SUBDOMAIN, 253),
    "dns1035Label": _bounded(_LABEL_1035, 63),
    "qualifiedName": _qualified,
    "dns1123LabelPrefix": _prefixed(_bounded(_LABEL_1123, 63)),
    "dns1123SubdomainPrefix": _prefixed(_bounded(_SUBDOMAIN, 253)),
    "dns1035LabelPrefix": _prefixed(_bounded(_LABEL_1035, 63)),
    "labelValue": _bounded(_LABEL_VALUE, 63),
    "uri": lambda text: _parsed(text) is not None,
    "uuid": lambda text: _UUID.fullmatch(text) is not None,
    "byte": lambda text: _BASE64.fullmatch(text) is not None,
    "date": _is_date,
    "datetime": _is_datetime,
}


def _validate(form: Format, text: str) -> Optional:
    if FORMATS[form.name](text):
        return NONE
    return Optional(True, [f"not a valid {form.name}"])


# --- includes -----------------------------------------------------------------------------------------------


def _includes(meter: Meter | None, target: Value, value: Value) -> bool:
    items = target if type(target) in (list, tuple) else (target,)
    for item in items[:INCLUDES_LIMIT]:
        try:
            if equal(item, value, meter):
                return True
        except CelPanic:
            raise
        except CelRuntimeError:
            continue
    if len(items) > INCLUDES_LIMIT:
        raise CelRuntimeError(
            f"'includes' function cannot be applied to lists longer than {INCLUDES_LIMIT} values"
        )
    return False


FUNCTIONS: dict[str, Callable[..., Value]] = {
    "string_to_quantity": _quantity,
    "is_quantity_string": _is_quantity,
    "quantity_compare_to": _compare,
    "quantity_is_greater_than": lambda a, b: a.nano > b.nano,
    "quantity_is_less_than": lambda a, b: a.nano < b.nano,
    "quantity_sign": _sign,
    "quantity_is_integer": lambda a: a.as_int64() is not None,
    "quantity_get_int": _as_integer,
    "quantity_get_float": Quantity.approximate_float,
    "string_to_semver": _version,
    "string_bool_to_semver": _version,
    "is_semver_string": _is_version,
    "is_semver_string_bool": _is_version,
    "semver_compare_to": _compare_versions,
    "semver_is_greater_than": lambda a, b: a > b,
    "semver_is_less_than": lambda a, b: a < b,
    "semver_major": lambda a: _signed(a.major),
    "semver_minor": lambda a: _signed(a.minor),
    "semver_patch": lambda a: _signed(a.patch),
    "string_to_ip": _ip,
    "is_ip": lambda a: _address(a) is not None,
    "ip_is_canonical": _is_canonical,
    "ip_family": lambda a: a.address.version,
    "ip_is_unspecified": lambda a: a.address.is_unspecified,
    "ip_is_loopback": lambda a: a.address.is_loopback,
    "ip_is_link_local_unicast": lambda a: a.address.is_link_local,
    "ip_is_link_local_multicast": _is_link_local_multicast,
    "ip_is_global_unicast": _is_global_unicast,
    "string_to_cidr": _cidr,
    "is_cidr": lambda a: _interface(a) is not None,
    "cidr_contains_ip_ip": _contains_ip,
    "cidr_contains_ip_string": lambda a, b: _contains_ip(a, _ip(b)),
    "cidr_contains_cidr": _contains_cidr,
    "cidr_contains_cidr_string": lambda a, b: _contains_cidr(a, _cidr(b)),
    "cidr_ip": lambda a: Ip(a.interface.ip),
    "cidr_masked": _masked,
    "cidr_prefix_length": lambda a: a.interface.network.prefixlen,
    "string_to_url": _url,
    "is_url_string": lambda a: _parsed(a) is not None,
    "url_get_scheme": lambda a: a.parts.scheme,
    "url_get_host": _host,
    "url_get_hostname": _hostname,
    "url_get_port": _port,
    "format-named": lambda name: Optional(True, Format(name)) if name in FORMATS else NONE,
    **{f"format.{name}": lambda name=name: Format(name) for name in FORMATS},
    "format-validate": _validate,
    "dra_includes_dyn_dyn": lambda a, b: _includes(None, a, b),
}
METERED: dict[str, Callable[..., Value]] = {
    "dra_includes_dyn_dyn": _includes,
    "quantity_add": _sum(lambda a, b: a + b),
    "quantity_sub": _sum(lambda a, b: a - b),
    "quantity_add_int": _sum(lambda a, b: a + Quantity.of(b)),
    "quantity_sub_int": _sum(lambda a, b: a - Quantity.of(b)),
    "url_get_escaped_path": _path,
    "url_get_query": _query,
}
