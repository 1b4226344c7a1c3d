"""Formats of names and values; each check returns its findings in the words of the real server."""

from __future__ import annotations

import ipaddress
import re

__all__ = [
    "c_identifier_errors",
    "cidr_errors",
    "dns_label_errors",
    "dns_subdomain_errors",
    "label_value_errors",
    "qualified_name_errors",
    "uuid_errors",
]

_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?", re.ASCII)
_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*", re.ASCII)
_QUALIFIED = re.compile(r"([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]", re.ASCII)
_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", re.ASCII)

_LABEL_TEXT = "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-'"
_SUBDOMAIN_TEXT = (
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.'"
)
_NAME_TEXT = "name part must consist of alphanumeric characters, '-', '_' or '.', and end alphanumerically"


def dns_label_errors(text: str) -> list[str]:
    """Check an RFC 1123 label of at most 63 characters."""
    errors = []
    if len(text) > 63:
        errors.append("must be no more than 63 bytes")
    if not _LABEL.fullmatch(text):
        errors.append("must not contain dots" if _SUBDOMAIN.fullmatch(text) else _LABEL_TEXT)
    return errors


def dns_subdomain_errors(text: str) -> list[str]:
    """Check an RFC 1123 subdomain of at most 253 characters."""
    errors = []
    if len(text) > 253:
        errors.append("must be no more than 253 bytes")
    if not _SUBDOMAIN.fullmatch(text):
        errors.append(_SUBDOMAIN_TEXT)
    return errors


def qualified_name_errors(text: str) -> list[str]:
    """Check the key of a label or annotation: an optional domain and a slash, then a name."""
    errors = []
    prefix, slash, name = text.rpartition("/")
    if slash:
        if not prefix:
            errors.append("prefix part must be non-empty")
        elif "/" in prefix:
            return ["a qualified name must consist of a name and an optional DNS subdomain prefix"]
        else:
            errors += ["prefix part " + e for e in dns_subdomain_errors(prefix)]
    if not name:
        errors.append("name part must be non-empty")
    elif len(name) > 63:
        errors.append("name part must be no more than 63 bytes")
    if not _QUALIFIED.fullmatch(name):
        errors.append(_NAME_TEXT)
    return errors


def label_value_errors(text: str) -> list[str]:
    """Check the value of a label: empty, or a name of at most 63 characters."""
    errors = []
    if len(text) > 63:
        errors.append("must be no more than 63 bytes")
    if text and not _QUALIFIED.fullmatch(text):
        errors.append(
            "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.'"
        )
    return errors


def c_identifier_errors(text: str) -> list[str]:
    """Check an identifier of C: letters, digits and underscores, the first one no digit."""
    if _IDENTIFIER.fullmatch(text):
        return []
    return ["a valid C identifier must start with alphabetic character or '_'"]


def uuid_errors(text: str) -> list[str]:
    """Check a UUID in its canonical form."""
    if _UUID.fullmatch(text):
        return []
    if len(text) not in (32, 36, 38, 41) or not _UUID.fullmatch(text.lower()):
        return [f"error validating uid: invalid UUID length: {len(text)}"]
    return ["uid must be in RFC 4122 normalized form"]


def cidr_errors(text: str) -> list[str]:
    """Check an address with a prefix length, in canonical form."""
    try:
        if "/" not in text:
            raise ValueError
        parsed = ipaddress.ip_interface(text)
    except ValueError:
        return ["must be a valid address in CIDR form, (e.g. 10.9.8.7/24 or 2001:db8::1/64)"]
    if str(parsed) != text:
        return [f'must be in canonical form ("{parsed}")']
    return []
