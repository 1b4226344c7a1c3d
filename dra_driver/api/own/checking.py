"""Whether opaque parameters are right: what the webhook refuses, and what ``dra-driver explain`` says."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from dra_driver.api.own.kinds import BackendParameters, decode_kind, is_of_others
from dra_driver.api.own.opaque import identity_of
from dra_driver.api.own.parameters import Parameters, decode_parameters

__all__ = ["Kinds", "check_parameters"]

Kinds = Mapping[tuple[str, str], type[BackendParameters]]
"""What installed packages bring, by ``apiVersion`` and ``kind``."""


def check_parameters(
    data: bytes | msgspec.Raw, driver: str, kinds: Kinds, *, may_lack_kinds: bool
) -> Parameters | BackendParameters | None:
    """Return what opaque parameters say; None where their kind is not known here.

    Args:
        data: of ``opaque.parameters``.
        driver: for which they are.
        kinds: what installed packages bring.
        may_lack_kinds: the driver's backends need not be installed here, so that a kind of a group that is
            not ours may be right all the same.

    Raises:
        InvalidParameters: every finding, with the path of its field.
    """
    identity = identity_of(data)
    if identity is not None and identity in kinds:
        return decode_kind(kinds[identity], data)
    if may_lack_kinds and is_of_others(identity):
        return None
    return decode_parameters(data, driver, kinds)
