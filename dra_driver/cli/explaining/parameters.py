"""Whether the opaque parameters of claims and of their classes are right: by the webhook's function.

The node refuses wrong ones when a pod starts. The webhook says so when an object is written, where it runs.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from dra_driver.api.names import DEFAULT_DRIVER_NAME, NVIDIA_DRIVER_NAME, RDMA_DRIVER_NAME
from dra_driver.api.own.checking import Kinds, check_parameters
from dra_driver.api.own.opaque import identity_of, shown
from dra_driver.api.resource import (
    DeviceClaimConfiguration,
    DeviceClass,
    DeviceClassConfiguration,
    OpaqueDeviceConfiguration,
    ResourceClaim,
)
from dra_driver.errors import InvalidParameters

__all__ = ["NOTHING", "ParameterFindings", "parameter_findings"]

# Names under which no other project's driver runs, so that all their kinds are known.
_OURS: Final = frozenset({DEFAULT_DRIVER_NAME, RDMA_DRIVER_NAME})
_GROUP: Final = "dra-driver.dev/"
_UNKNOWN: Final = "not checked, because no package that is installed here brings this kind"


@dataclass(frozen=True, slots=True)
class ParameterFindings:
    """What is said of the parameters of a claim, and of the classes that it names.

    Attributes:
        wrong: each with the path of its field, as the webhook says it.
        unchecked: which parameters were not checked, and why.
    """

    wrong: tuple[str, ...] = ()
    unchecked: tuple[str, ...] = ()


NOTHING: Final = ParameterFindings()


def parameter_findings(
    claim: ResourceClaim, classes: Sequence[DeviceClass], kinds: Callable[[], Kinds]
) -> ParameterFindings:
    """Check the parameters of a claim.

    Args:
        claim: what is looked at, with the classes of its requests.
        classes: those of the cluster.
        kinds: looks for what installed packages bring; called only where there are parameters.
    """
    wrong: list[str] = []
    unchecked: list[str] = []
    for field, opaque in _entries(claim, classes):
        try:
            _check(opaque, kinds())
        except InvalidParameters as e:
            wrong += [f"{field}: {finding}" for finding in e.findings]
        except LookupError as e:
            unchecked.append(f"{field}: {e.args[0]}")
    return ParameterFindings(tuple(wrong), tuple(unchecked)) if wrong or unchecked else NOTHING


def _check(opaque: OpaqueDeviceConfiguration, kinds: Kinds) -> None:
    """Check parameters.

    Raises:
        InvalidParameters: they are wrong.
        LookupError: they cannot be checked here, in words.
    """
    identity = identity_of(opaque.parameters)
    what = f"parameters for driver {opaque.driver}"
    if identity is not None:
        what = f"{shown(' '.join(identity))[1:-1]} for driver {opaque.driver}"
    ours = opaque.driver in _OURS or (identity is not None and identity[0].startswith(_GROUP))
    if opaque.driver == NVIDIA_DRIVER_NAME and not ours and identity not in kinds:
        raise LookupError(f"{what}: not checked, NVIDIA's own driver may be the one that reads them")
    if not ours and identity not in kinds:
        raise LookupError(f"{what}: {_UNKNOWN}")
    if check_parameters(opaque.parameters, opaque.driver, kinds, may_lack_kinds=True) is None:
        raise LookupError(f"{what}: {_UNKNOWN}")


def _entries(
    claim: ResourceClaim, classes: Sequence[DeviceClass]
) -> Iterator[tuple[str, OpaqueDeviceConfiguration]]:
    """Yield parameters with the path of their field, as the webhook says it; of a class with its name."""
    named = _class_names(claim)
    for found in classes:
        if found.metadata.name in named:
            yield from _opaque(f"DeviceClass {found.metadata.name}: spec.config", found.spec.config)
    yield from _opaque("spec.devices.config", claim.spec.devices.config)


def _opaque(
    path: str, configs: Sequence[DeviceClaimConfiguration | DeviceClassConfiguration]
) -> Iterator[tuple[str, OpaqueDeviceConfiguration]]:
    for i, config in enumerate(configs):
        if config.opaque is not None:
            yield f"{path}[{i}].opaque.parameters", config.opaque


def _class_names(claim: ResourceClaim) -> Collection[str]:
    names: set[str] = set()
    for request in claim.spec.devices.requests or ():
        names |= {one.device_class_name for one in request.first_available}
        if request.exactly is not None:
            names.add(request.exactly.device_class_name)
    return names
