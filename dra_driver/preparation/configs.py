"""Which opaque parameters hold for which allocated device: class before claim, later wins, per request."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from dra_driver.api.own.parameters import DeviceType, Parameters, decode_parameters
from dra_driver.api.resource import DeviceAllocationConfiguration
from dra_driver.errors import InvalidParameters

__all__ = ["FROM_CLASS", "resolve"]

FROM_CLASS: Final = "FromClass"


def resolve(
    configs: Sequence[DeviceAllocationConfiguration],
    driver: str,
    results: Sequence[tuple[str, DeviceType]],
) -> list[Parameters | None]:
    """Return the parameters of each result; None where none are given.

    Parameters for all requests are skipped where a device is of another type; those that name the request of
    such a device are an error.

    Args:
        configs: as allocated; those of other drivers are skipped.
        driver: the name under which we run.
        results: request (``name`` or ``name/subrequest``) and type of each device of ours.

    Raises:
        InvalidParameters: every finding, with the position of its entry.
    """
    chosen: list[Parameters | None] = [None] * len(results)
    findings: list[str] = []
    numbered = [(i, c) for i, c in enumerate(configs) if c.opaque is not None and c.opaque.driver == driver]
    for number, config in sorted(numbered, key=lambda entry: entry[1].source != FROM_CLASS):
        assert config.opaque is not None
        where = f"requests {', '.join(config.requests)}" if config.requests else "all requests"
        place = f"parameters {number} ({config.source}, {where})"
        try:
            parameters = decode_parameters(config.opaque.parameters, driver)
        except InvalidParameters as e:
            findings += [f"{place}: {finding}" for finding in e.findings]
            continue
        for i, (request, kind) in enumerate(results):
            if config.requests and not _names(config.requests, request):
                continue
            if kind in parameters.types:
                chosen[i] = parameters
            elif config.requests:
                findings.append(
                    f"{place}: {parameters.kind} is for a "
                    f"{' or '.join(sorted(t.value for t in parameters.types))}, but request {request} "
                    f"was given a {kind.value}"
                )
    if findings:
        raise InvalidParameters(list(dict.fromkeys(findings)))
    return chosen


def _names(requests: Sequence[str], request: str) -> bool:
    return request in requests or request.partition("/")[0] in requests
