"""Where the manifests of ``deploy/`` are: beside the package in a source tree, inside it in a wheel.

``deploy/`` is the only source; ``pyproject.toml`` copies it into the wheel.
"""

from __future__ import annotations

from pathlib import Path

from dra_driver.errors import ConfigurationError

__all__ = ["deploy_directory"]


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
