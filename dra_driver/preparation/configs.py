"""Which opaque parameters hold for which allocated device: class before claim, later wins, per request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final

from dra_driver.api.own.kinds import OtherParameters
from dra_driver.api.own.opaque import identity_of
from dra_driver.api.own.parameters import DeviceType, Parameters, decode_parameters
from dra_driver.api.resource import DeviceAllocationConfiguration
from dra_driver.errors import InvalidParameters

__all__ = ["FROM_CLASS", "resolve"]

FROM_CLASS: Final = "FromClass"


def resolve(
    configs: Sequence[DeviceAllocationConfiguration],
    driver: str,
    results: Sequence[tuple[str, DeviceType]],
    *,
    kinds: Mapping[tuple[str, str], str] = MappingProxyType({}),
    backends: Sequence[str] = (),
) -> list[Parameters | OtherParameters | None]:
    """Return the parameters of each result; None where none are given.

    Parameters for all requests are skipped where a device is of another type, or of another backend than the
    one that brings the kind; those that name the request of such a device are an error.

    Args:
        configs: as allocated; those of other drivers are skipped.
        driver: the name under which we run.
        results: request (``name`` or ``name/subrequest``) and type of each device of ours.
        kinds: names of the backends that bring further kinds, by ``apiVersion`` and ``kind``. What is of
            such a kind is not looked into here.
        backends: of each result, the backend that prepares the device; empty where none does.

    Raises:
        InvalidParameters: every finding, with the position of its entry.
    """
    chosen: list[Parameters | OtherParameters | None] = [None] * len(results)
    findings: list[str] = []
    numbered = [(i, c) for i, c in enumerate(configs) if c.opaque is not None and c.opaque.driver == driver]
    for number, config in sorted(numbered, key=lambda entry: entry[1].source != FROM_CLASS):
        assert config.opaque is not None
        where = f"requests {', '.join(config.requests)}" if config.requests else "all requests"
        place = f"parameters {number} ({config.source}, {where})"
        try:
            parameters = _read(bytes(config.opaque.parameters), driver, kinds)
        except InvalidParameters as e:
            findings += [f"{place}: {finding}" for finding in e.findings]
            continue
        for i, (request, kind) in enumerate(results):
            if config.requests and not _names(config.requests, request):
                continue
            backend = backends[i] if backends else ""
            if _fits(parameters, kind, backend):
                chosen[i] = parameters
            elif config.requests:
                given = (
                    f"{backend} device" if isinstance(parameters, OtherParameters) and backend else kind.value
                )
                findings.append(
                    f"{place}: {parameters.kind} is for a {_wanted(parameters)}, but request {request} "
                    f"was given a {given}"
                )
    if findings:
        raise InvalidParameters(list(dict.fromkeys(findings)))
    return chosen


def _read(data: bytes, driver: str, kinds: Mapping[tuple[str, str], str]) -> Parameters | OtherParameters:
    identity = identity_of(data) if kinds else None
    if identity is not None and identity in kinds:
        return OtherParameters(identity[1], kinds[identity], data)
    return decode_parameters(data, driver, kinds)


def _fits(parameters: Parameters | OtherParameters, kind: DeviceType, backend: str) -> bool:
    if isinstance(parameters, OtherParameters):
        return parameters.backend == backend
    return kind in parameters.types


def _wanted(parameters: Parameters | OtherParameters) -> str:
    if isinstance(parameters, OtherParameters):
        return f"device of backend {parameters.backend}"
    return " or ".join(sorted(t.value for t in parameters.types))


def _names(requests: Sequence[str], request: str) -> bool:
    return request in requests or request.partition("/")[0] in requests
