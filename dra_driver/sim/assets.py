"""Files that the embedded cluster reads: manifests, and fault plans.

The manifests of ``deploy/`` are beside the package in a source tree, inside it in a wheel. ``deploy/`` is the
only source; ``pyproject.toml`` copies it into the wheel.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import yaml

from dra_driver.errors import ConfigurationError
from dra_driver.sim.faults import FaultPlan
from dra_driver.sim.faults import parse as parse_faults

__all__ = ["deploy_directory", "own_manifests", "read_plan"]

# There is no authorization.
_RIGHTS: Final = ("Role", "RoleBinding")
# libyaml's is ten times as fast, where this build of PyYAML has it.
_Loader: Final = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def deploy_directory(part: str) -> Path:
    """Return the folder ``deploy/<part>``, for example ``manifests/crds`` or ``examples``.

    Raises:
        ConfigurationError: this installation has no such folder.
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


def own_manifests(*, open_pools: bool = False) -> list[dict[str, Any]]:
    """Return our CRDs, DeviceClasses and the gate's policy, as an administrator would install them.

    Other policies are left out: they are about accounts that the components of the embedded cluster do not
    have, and a test that makes claims with tolerations must be able to.

    Args:
        open_pools: whether everything is there that open pools need: the gate in every namespace, the account
            of the controller, and the policy that keeps devices for it.
    """
    manifests, optional = deploy_directory("manifests"), deploy_directory("optional")
    paths = [*sorted((manifests / "crds").glob("*.yaml")), manifests / "20-deviceclasses.yaml"]
    paths.append(manifests / "gate-policy" / "gating.yaml")
    if open_pools:
        paths += [manifests / name for name in ("00-namespace.yaml", "10-rbac.yaml", "60-grants.yaml")]
    else:
        paths.append(optional / "labelled-namespaces.yaml")
    documents = [d for path in paths for d in _documents(path) if not d["kind"].endswith(_RIGHTS)]
    documents += [d for d in _documents(optional / "rdma.yaml") if d["kind"] == "DeviceClass"]
    # Of an object that two files have, the later one counts, as when an administrator applies them.
    return list({(d["kind"], d["metadata"]["name"]): d for d in documents}.values())


def _documents(path: Path) -> list[dict[str, Any]]:
    return [d for d in yaml.load_all(path.read_bytes(), Loader=_Loader) if d]


def read_plan(given: str, flag: str) -> FaultPlan:
    """Return the fault plan of a flag, which is the name of a file, or the statements themselves.

    Raises:
        ConfigurationError: it is neither; the message names the place of the mistake.
    """
    path = Path(given)
    try:
        is_file = path.is_file()
    except (OSError, ValueError):  # not a valid file name
        is_file = False
    if not is_file:
        return parse_faults(given, source=flag)
    try:
        return parse_faults(path.read_text(encoding="utf-8"), source=given)
    except (OSError, UnicodeDecodeError) as e:
        raise ConfigurationError(f"{flag} {given}: cannot be read: {e}") from e
