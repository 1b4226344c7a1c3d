"""Addresses to listen on, as flags name them."""

from __future__ import annotations

__all__ = ["parse_address"]


def parse_address(text: str) -> tuple[str, int]:
    """Return host and port of ``HOST:PORT``; ``:PORT`` is every address, IPv6 goes in brackets.

    Raises:
        ValueError: it is none.
    """
    host, colon, port = text.rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    if not colon or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise ValueError("expected HOST:PORT with a port from 0 to 65535")
    if ":" in host and not bracketed:
        raise ValueError("an IPv6 address goes in brackets, as in [::1]:9400")
    return host.strip("[]"), int(port)
