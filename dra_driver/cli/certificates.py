"""``dra-driver certificates``: makes the authority by which the API server knows the webhooks.

No account of the driver may change webhook configurations: with that right every object of the cluster can be
sent anywhere. So where Helm does not bring the authority, this does, with the rights of the administrator who
runs it.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import time
from typing import TYPE_CHECKING, Any

from controller.admission.config import CAPACITY_CONFIGURATION, OBJECT_NAME
from dra_driver.api.core import SECRETS, Secret
from dra_driver.api.meta import Resource
from dra_driver.api.names import SYSTEM_NAMESPACE
from dra_driver.api.server.admission import MUTATING_WEBHOOKS, VALIDATING_WEBHOOKS, WebhookConfiguration
from dra_driver.cli import common
from dra_driver.errors import InvalidInput, NotFound
from dra_driver.kube import KubeApi
from dra_driver.ports import KubeClient

if TYPE_CHECKING:
    from controller.admission.pki import Material

__all__ = ["add_arguments", "provide", "run"]

_FIELD_MANAGER = "dra-driver-certificates"
_UNTIL = "dra-driver.dev/authority-until"
_NO_WEBHOOKS = "no webhook is configured: kubectl apply -f deploy/optional/webhooks.yaml, and run this again"
_EPILOG = """examples:
  dra-driver certificates                  after kubectl apply -f deploy/optional/webhooks.yaml
  dra-driver certificates --renew          after the authority's key has leaked

You can run the command again, and interrupt it, at any time. A new authority is added beside the present
one, so no review is missed. With --renew it replaces the present one: for up to half a minute, until the
controllers have read it, objects are stored without a review."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags."""
    parser.epilog = _EPILOG
    common.add_cluster_arguments(parser)
    parser.add_argument(
        "--system-namespace", default=SYSTEM_NAMESPACE, metavar="NS", help="namespace of the driver"
    )
    parser.add_argument(
        "--renew",
        action="store_true",
        help="create a new authority even if the present one is valid for more than a year, and trust no "
        "other",
    )


def run(args: argparse.Namespace) -> int:
    """Make the authority, and have the API server trust it."""

    async def main() -> None:
        async with await KubeApi.connect(
            args.kubeconfig, context=args.context, user_agent="dra-driver-certificates"
        ) as client:
            done = await provide(client, args.system_namespace, time.time(), renew=args.renew)
            print("\n".join(done))

    asyncio.run(main())
    return 0


async def provide(client: KubeClient, namespace: str, now: float, *, renew: bool = False) -> list[str]:
    """Make the authority if it is due, and write it into the webhook configurations and into the Secret.

    In this order: with an authority that the API server does not know the controller must sign nothing.

    Args:
        client: with the rights of an administrator.
        namespace: of the Secret.
        now: seconds since the epoch.
        renew: make another one all the same, and trust no other.

    Returns:
        What was done, in lines for people.

    Raises:
        InvalidInput: the certificates are made by somebody else.
        ApiError, ApiUnavailable: of the API server.
    """
    # The libraries of certificates take their time to load.
    from controller.admission.pki import Material, authority_is_due, with_new_authority

    try:
        secret: Secret | None = await client.get(SECRETS, OBJECT_NAME, namespace)
    except NotFound:
        secret = None
    material = Material.from_secret((secret.data if secret is not None else None) or {})
    if material is not None and not material.authority_key:
        raise InvalidInput(
            f"the Secret {namespace}/{OBJECT_NAME} has a serving certificate that is made elsewhere; "
            "its authority is to be written into the webhook configurations by whatever makes it"
        )
    kept = None if renew else material
    due = authority_is_due(kept, now)
    made = with_new_authority(kept, now) if due or kept is None else kept
    done = [
        await _trust(client, resource, name, base64.b64encode(made.bundle).decode("ascii"))
        for resource, name in (
            (VALIDATING_WEBHOOKS, OBJECT_NAME),
            (MUTATING_WEBHOOKS, OBJECT_NAME),
            (MUTATING_WEBHOOKS, CAPACITY_CONFIGURATION),
        )
    ]
    if due:
        await _store(client, namespace, secret, made)
    if not any(done):
        done.append(_NO_WEBHOOKS)
    until = time.strftime("%Y-%m-%d", time.gmtime(made.authority_ends))
    done.append(f"{'new' if due else 'present'} authority, good until {until}")
    return [text for text in done if text]


async def _trust(client: KubeClient, resource: Resource[WebhookConfiguration], name: str, bundle: str) -> str:
    """Have the API server trust the authorities; return what was done, empty where no webhook is."""
    try:
        found: WebhookConfiguration = await client.get(resource, name)
    except NotFound:
        return ""
    webhooks = [webhook.name for webhook in found.webhooks or ()]
    if not webhooks:
        return ""
    if set(found.bundles().values()) == {bundle}:
        return f"{resource.kind} {name}: unchanged"
    body: dict[str, Any] = {
        "apiVersion": resource.api_version,
        "kind": resource.kind,
        "metadata": {"name": name},
        "webhooks": [{"name": webhook, "clientConfig": {"caBundle": bundle}} for webhook in webhooks],
    }
    await client.apply(resource, body, field_manager=_FIELD_MANAGER, force=True)
    return f"{resource.kind} {name}: authorities written"


async def _store(client: KubeClient, namespace: str, secret: Secret | None, made: Material) -> None:
    """Write the authority, with which the controller makes a serving certificate then."""
    until = {_UNTIL: str(int(made.authority_ends))}
    data: dict[str, str | None] = dict(made.authorities_to_secret())
    if secret is None:
        body: dict[str, Any] = {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": OBJECT_NAME, "namespace": namespace, "annotations": until},
            "data": data,
        }
        await client.create(SECRETS, body, namespace)
        return
    version = secret.metadata.resource_version
    patch = {"metadata": {"resourceVersion": version, "annotations": until}, "data": data}
    await client.merge_patch(SECRETS, OBJECT_NAME, patch, namespace)
