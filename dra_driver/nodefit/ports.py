"""Ports of the host that pods take (``containers[].ports[].hostPort``)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from dra_driver.api.core import PodSpec

__all__ = ["MOST_PORTS", "HostPort", "conflict", "host_ports"]

MOST_PORTS: Final = 1_024
"""Host ports of one pod that are counted; a pod can name tens of thousands."""


class HostPort(NamedTuple):
    """A port on an address of the host.

    Attributes:
        protocol: TCP, UDP or SCTP.
        number: of the port.
        address: empty for all of them (``0.0.0.0``); any other text, ``::`` too, is an address of its own.
    """

    protocol: str
    number: int
    address: str = ""


def host_ports(spec: PodSpec) -> Iterator[HostPort]:
    """Yield the host ports of the containers that run for as long as the pod does."""
    sidecars = (c for c in spec.init_containers if c.restart_policy == "Always")
    for container in (*sidecars, *spec.containers):
        for port in container.ports:
            if port.host_port > 0:
                address = "" if port.host_ip == "0.0.0.0" else port.host_ip  # noqa: S104
                yield HostPort(port.protocol or "TCP", port.host_port, address)


def conflict(port: HostPort, addresses: Iterable[str]) -> bool:
    """Return whether a port cannot be had beside the same port of the same protocol on these addresses."""
    return any(not port.address or not other or other == port.address for other in addresses)
