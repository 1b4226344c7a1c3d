"""What completion offers for an argument: names of a cluster, simulated machines, backends.

A shell waits for it: a cluster that does not answer at once offers nothing, and no error is shown.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from dra_driver.api.meta import Resource

__all__ = ["offer"]

_SECONDS: Final = 2.0
Completer = Callable[..., Iterable[str]]


def _namespaces(parsed_args: argparse.Namespace, **_: object) -> list[str]:
    """Return the namespaces of the cluster."""
    from dra_driver.api.core import NAMESPACES

    return _names(parsed_args, NAMESPACES)


def _targets(parsed_args: argparse.Namespace, **_: object) -> list[str]:
    """Return the pods and claims of the namespace, as ``explain`` takes them."""
    from dra_driver.api.core import PODS
    from dra_driver.api.resource import RESOURCE_CLAIMS

    found = []
    for kind, resource in (("pod", PODS), ("claim", RESOURCE_CLAIMS)):
        found += [f"{kind}/{name}" for name in _names(parsed_args, resource)]
    return found


def _profiles(**_: object) -> tuple[str, ...]:
    """Return the simulated machines that come with the driver."""
    from dra_driver.discovery.simulated.profile import built_in_profiles

    return tuple(built_in_profiles())


def _backends(**_: object) -> list[str]:
    """Return what ``--backend`` takes."""
    from dra_driver.discovery.built_in import ARGUMENTS
    from dra_driver.discovery.registry import backend_names

    with_arguments = [f"{name}={one}" for name, arguments in ARGUMENTS.items() for one in arguments]
    return [*backend_names(), *with_arguments, *(f"simulated={name}" for name in _profiles())]


def _names(args: argparse.Namespace, resource: Resource[Any]) -> list[str]:
    from dra_driver.errors import DraError

    try:
        return asyncio.run(_listed(args, resource))
    except (DraError, OSError):
        return []


async def _listed(args: argparse.Namespace, resource: Resource[Any]) -> list[str]:
    from dra_driver.kube import KubeApi

    connecting = KubeApi.connect(args.kubeconfig, context=args.context, user_agent="dra-driver-completion")
    async with asyncio.timeout(_SECONDS), await connecting as client:
        namespace = getattr(args, "namespace", "") or client.namespace
        found = await client.list(resource, namespace if resource.namespaced else "")
        return [one.metadata.name for one in found.items]


# By the name under which a flag's value is kept, of every command.
_COMPLETERS: Final[dict[str, Completer]] = {
    "backend": _backends,
    "namespace": _namespaces,
    "node_profile": _profiles,
    "profile": _profiles,
    "spec": _profiles,
    "target": _targets,
}


def offer(parser: argparse.ArgumentParser) -> None:
    """Have the completion of a parser, and of its subcommands, offer these names."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for command in action.choices.values():
                offer(command)
        elif action.dest in _COMPLETERS:
            action.completer = _COMPLETERS[action.dest]  # type: ignore[attr-defined]
