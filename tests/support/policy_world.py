"""An API server with the driver's policies, its accounts, and what the table of cases is about."""

from __future__ import annotations

import contextlib
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from typing import Any

import yaml
from policy_cases import (
    AGENT,
    LEADER,
    LEASES,
    MERGE,
    NODE,
    STANDBY,
    STATUSES,
    SYSTEM,
    TENANT,
    Write,
    objects,
    pod,
)
from real_apiserver import bound_token

from dra_driver.errors import ApiError
from dra_driver.kube import KubeApi
from dra_driver.sim.assets import deploy_directory

Connect = Callable[[str], Awaitable[KubeApi]]

CONTROLLER_ACCOUNT, AGENT_ACCOUNT = "dra-driver-controller", "dra-driver-kubelet-plugin"
_COLLECTIONS = {
    "ServiceAccount": "/api/v1/namespaces/{namespace}/serviceaccounts",
    "ClusterRole": "/apis/rbac.authorization.k8s.io/v1/clusterroles",
    "ClusterRoleBinding": "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
    "Role": "/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}/roles",
    "RoleBinding": "/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}/rolebindings",
    "CustomResourceDefinition": "/apis/apiextensions.k8s.io/v1/customresourcedefinitions",
    "DeviceClass": "/apis/resource.k8s.io/v1/deviceclasses",
    "ValidatingAdmissionPolicy": "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies",
    "ValidatingAdmissionPolicyBinding": (
        "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings"
    ),
}
_REFUSED = re.compile(r"ValidatingAdmissionPolicy '([^']+)' with binding '[^']+' denied request: (.*)", re.S)


def manifests(*, without: Iterable[str] = ()) -> list[dict[str, Any]]:
    """Return what an administrator installs and an API server without nodes knows, but for some kinds."""
    folder = deploy_directory("manifests")
    paths = [*sorted((folder / "crds").glob("*.yaml")), *sorted(folder.glob("*.yaml"))]
    found = [d for path in paths for d in yaml.safe_load_all(path.read_text(encoding="utf-8")) if d]
    return [d for d in found if d["kind"] in _COLLECTIONS and d["kind"] not in without]


class World:
    """The accounts' clients.

    Attributes:
        admin: may do everything.
        clients: by the names of ``Write.by``.
    """

    def __init__(self, admin: KubeApi, clients: dict[str, KubeApi]) -> None:
        self.admin = admin
        self.clients = clients

    async def send(self, write: Write, *, dry_run: bool = True) -> str:
        """Send a write; return the policy that refuses it, "" if it is let through, or another refusal."""
        query, body = dict(write.query), dict(write.body)
        if dry_run and write.method == "DELETE":  # options in the body, which hide those of the query
            body["dryRun"] = ["All"]
        elif dry_run:
            query["dryRun"] = "All"
        client = self.clients[write.by]
        try:
            await client._call(
                write.method, write.path, query=query, body=body, content_type=write.content_type
            )
        except ApiError as e:
            return refusing_policy(e) or f"{e.code} {e}"
        return ""

    async def hold(self, identity: str) -> None:
        """Write the holder of the Lease."""
        spec = {"holderIdentity": identity, "leaseDurationSeconds": 15}
        body = {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"name": "dra-driver-controller", "namespace": SYSTEM},
            "spec": spec,
        }
        await create(self.admin, LEASES, body)
        path = f"{LEASES}/dra-driver-controller"
        await self.admin._call("PATCH", path, body={"spec": spec}, content_type=MERGE)


def refusing_policy(error: ApiError) -> str:
    """Return the name of the policy that has refused a write, if one has."""
    found = _REFUSED.search(str(error))
    return found[1] if found else ""


async def create(admin: KubeApi, collection: str, body: dict[str, Any]) -> None:
    """Create an object, unless it is there."""
    try:
        await admin._call("POST", collection, body=body)
    except ApiError as e:
        if e.code != 409:
            raise


@contextlib.asynccontextmanager
async def world(connect: Connect, admin: KubeApi) -> AsyncIterator[World]:
    """Install everything and connect as every account, with tokens that are bound to pods."""
    installed = manifests()
    for path, body in objects():
        await create(admin, path, body)
    for body in installed:
        namespace = body["metadata"].get("namespace", "")
        await create(admin, _COLLECTIONS[body["kind"]].format(namespace=namespace), body)
    for name, status in STATUSES.items():
        path = f"/apis/resource.k8s.io/v1/namespaces/{TENANT}/resourceclaims/{name}/status"
        patch = {"status": status}
        await admin._call("PATCH", path, body=patch, content_type=MERGE)
    clients: dict[str, KubeApi] = {"admin": admin}
    async with contextlib.AsyncExitStack() as stack:
        for who, account, name, spec in (
            ("controller", CONTROLLER_ACCOUNT, LEADER, {}),
            ("standby", CONTROLLER_ACCOUNT, STANDBY, {}),
            ("agent", AGENT_ACCOUNT, AGENT, {"nodeName": NODE}),
        ):
            await create(admin, f"/api/v1/namespaces/{SYSTEM}/pods", pod(name, SYSTEM, account, **spec))
            reference = {"kind": "Pod", "apiVersion": "v1", "name": name}
            clients[who] = await connect(await bound_token(admin, SYSTEM, account, reference))
            stack.push_async_callback(clients[who].close)
        for who, account in (("podless", CONTROLLER_ACCOUNT), ("nodeless", AGENT_ACCOUNT)):
            clients[who] = await connect(await bound_token(admin, SYSTEM, account))
            stack.push_async_callback(clients[who].close)
        made = World(admin, clients)
        await made.hold(f"{LEADER}_1234")
        yield made
