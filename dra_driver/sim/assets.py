"""Files that the embedded cluster is given: manifests, and plans of faults.

The manifests of ``deploy/`` are beside the package in a source tree, inside it in a wheel. ``deploy/`` is the
only source; ``pyproject.toml`` copies it into the wheel.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from dra_driver.errors import ConfigurationError
from dra_driver.sim.apiserver.writing.admission import STAND_INS
from dra_driver.sim.faults import FaultPlan
from dra_driver.sim.faults import parse as parse_faults

__all__ = ["deploy_directory", "own_manifests", "read_plan"]


def deploy_directory(part: str) -> Path:
    """The folder ``deploy/<part>``, for example ``manifests/crds`` or ``examples``.

    Raises:
        ConfigurationError: this installation carries no such folder.
    """
    here = Path(__file__).resolve()
    candidates = (here.parent / "deploy" / part, here.parents[2] / "deploy" / part)
    for candidate in candidates:
        if candidate.is_dir():
            return candidate
    looked = " and ".join(str(c) for c in candidates)
    raise ConfigurationError(
        f"the manifests deploy/{part} are not part of this installation: looked in {looked}"
    )


def own_manifests() -> list[dict[str, Any]]:
    """Our CRDs, DeviceClasses and the gate's policy, as an administrator would install them.

    Policies that the API server does not act on are left out: they would promise what nobody keeps.
    """
    manifests = deploy_directory("manifests")
    paths = [*sorted((manifests / "crds").glob("*.yaml")), manifests / "20-deviceclasses.yaml"]
    paths.append(manifests / "gating.yaml")
    documents = [d for path in paths for d in yaml.safe_load_all(path.read_text(encoding="utf-8")) if d]
    nics = (deploy_directory("optional") / "rdma.yaml").read_text(encoding="utf-8")
    documents += [d for d in yaml.safe_load_all(nics) if d and d["kind"] == "DeviceClass"]
    return [d for d in documents if "AdmissionPolicy" not in d["kind"] or d["metadata"]["name"] in STAND_INS]


def read_plan(given: str, flag: str) -> FaultPlan:
    """The faults of a flag: a file if there is one of that name, else the statements themselves.

    Raises:
        ConfigurationError: neither; says where it is not understood.
    """
    path = Path(given)
    try:
        is_file = path.is_file()
    except (OSError, ValueError):  # no name that a file could have
        is_file = False
    if not is_file:
        return parse_faults(given, source=flag)
    try:
        return parse_faults(path.read_text(encoding="utf-8"), source=given)
    except (OSError, UnicodeDecodeError) as e:
        raise ConfigurationError(f"{flag} {given}: cannot be read: {e}") from e
