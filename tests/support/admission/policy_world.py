"""An API server with the driver's policies, its accounts, and what the table of cases is about."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from typing import Any

from manifest_files import documents
from policy_cases import (
    AGENT,
    CLAIMS,
    ENDING,
    LEADER,
    LEASES,
    MERGE,
    NODE,
    OURS,
    PODS,
    SLICES,
    STANDBY,
    STATUSES,
    SYSTEM,
    TENANT,
    Write,
    inventories,
    objects,
    pod,
    slice_,
)
from real_apiserver import bound_token

from dra_driver.api.meta import DriverName
from dra_driver.api.names import DEFAULT_DRIVER_NAME
from dra_driver.errors import ApiError, NotFound
from dra_driver.kube import KubeApi
from dra_driver.kube.features import drops_capacity
from dra_driver.sim.assets import deploy_directory

Connect = Callable[[str], Awaitable[KubeApi]]

CONTROLLER_ACCOUNT, AGENT_ACCOUNT = "dra-driver-controller", "dra-driver-kubelet-plugin"
COLLECTIONS = {
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
FENCE = "dra-driver-leader-only"
# The API server learns of policies and of the Lease after a moment; there is no sign of it but the verdict.
SECONDS = 60.0
_REFUSED = re.compile(r"ValidatingAdmissionPolicy '([^']+)' with binding '[^']+' denied request: (.*)", re.S)


def manifests(*, without: Iterable[str] = ()) -> list[dict[str, Any]]:
    """Return what an administrator installs and an API server without nodes knows, but for some kinds."""
    folder = deploy_directory("manifests")
    paths = [*sorted((folder / "crds").glob("*.yaml")), *sorted(folder.glob("*.yaml"))]
    return [d for d in documents(*paths) if d["kind"] in COLLECTIONS and d["kind"] not in without]


class Accounts:
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


async def describe_nodes(admin: KubeApi) -> None:
    """Create the inventories of the cases, as soon as the API server serves their kind."""
    async with asyncio.timeout(SECONDS):
        for path, body in inventories():
            while True:
                try:
                    await create(admin, path, body)
                    break
                except NotFound:
                    await asyncio.sleep(0.1)


@contextlib.asynccontextmanager
async def _closing(clients: Mapping[str, KubeApi]) -> AsyncIterator[None]:
    """Close in the end all clients that are there then, of tests as well; not the admin's."""
    try:
        yield
    finally:
        for who, client in clients.items():
            if who != "admin":
                await client.close()


@contextlib.asynccontextmanager
async def world(
    connect: Connect,
    admin: KubeApi,
    installed: Iterable[dict[str, Any]] | None = None,
    agents: Mapping[str, str] | None = None,
) -> AsyncIterator[Accounts]:
    """Install everything and connect as every account, with tokens that are bound to pods.

    Args:
        connect: makes a client of a token.
        admin: may do everything.
        installed: objects to install; those of ``deploy/manifests`` without it.
        agents: accounts of further node agents, by the name that ``Write.by`` has for them.

    Clients that are added to ``Accounts.clients`` are closed with the others.
    """
    for path, body in objects():
        await create(admin, path, body)
    for body in manifests() if installed is None else installed:
        if body["kind"] not in COLLECTIONS:
            continue
        namespace = body["metadata"].get("namespace", "")
        await create(admin, COLLECTIONS[body["kind"]].format(namespace=namespace), body)
    for name, status in STATUSES.items():
        path = f"/apis/resource.k8s.io/v1/namespaces/{TENANT}/resourceclaims/{name}/status"
        patch = {"status": status}
        await admin._call("PATCH", path, body=patch, content_type=MERGE)
    await admin._call("DELETE", f"{PODS}/{ENDING}", body={})
    clients: dict[str, KubeApi] = {"admin": admin}
    async with _closing(clients):
        for who, account, name, spec in (
            ("controller", CONTROLLER_ACCOUNT, LEADER, {}),
            ("standby", CONTROLLER_ACCOUNT, STANDBY, {}),
            ("agent", AGENT_ACCOUNT, AGENT, {"nodeName": NODE}),
            *((by, name, f"{name}-a", {"nodeName": NODE}) for by, name in (agents or {}).items()),
        ):
            await create(admin, f"/api/v1/namespaces/{SYSTEM}/pods", pod(name, SYSTEM, account, **spec))
            reference = {"kind": "Pod", "apiVersion": "v1", "name": name}
            clients[who] = await connect(await bound_token(admin, SYSTEM, account, reference))
        for who, account in (("podless", CONTROLLER_ACCOUNT), ("nodeless", AGENT_ACCOUNT)):
            clients[who] = await connect(await bound_token(admin, SYSTEM, account))
        made = Accounts(admin, clients)
        await made.hold(f"{LEADER}_1234")
        yield made


# --- scenarios ----------------------------------------------------------------------------------------------


def by_itself(verdict: str) -> bool:
    """Whether the API server refuses for want of a right to a part of the status, before any policy."""
    return re.search(r'cannot \S+ resource "resourceclaims/(binding|driver)"', verdict) is not None


async def settled(made: Accounts, write: Write) -> str:
    """Send a write until the verdict is the expected one, or for long enough; return the last verdict."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + SECONDS
    while True:
        verdict = await made.send(write)
        if verdict == write.refused or by_itself(verdict) or loop.time() > deadline:
            return verdict
        await asyncio.sleep(0.1)


def fenced(by: str, refused: str) -> list[Write]:
    """One write of each kind that the holder of the Lease alone may make."""
    slice_body = slice_("new", DEFAULT_DRIVER_NAME)
    claim, allocation = f"{CLAIMS}/free", {"status": {"allocation": OURS}}
    return [
        Write("publishes", by, "POST", SLICES, slice_body, refused),
        Write("deletes a slice", by, "DELETE", f"{SLICES}/ours", {}, refused),
        Write("allocates", by, "PATCH", f"{claim}/status", allocation, refused, MERGE),
        Write("touches a claim", by, "PATCH", claim, {"metadata": {"resourceVersion": ""}}, refused, MERGE),
    ]


async def check(made: Accounts, by: str, refused: str) -> None:
    """Assert that all fenced writes of an account get this verdict, as soon as the server knows the Lease."""
    writes = fenced(by, refused)
    await settled(made, writes[0])
    assert {w.what: await made.send(w) for w in writes} == {w.what: refused for w in writes}


async def _a_standby_may_probe_only(made: Accounts) -> None:
    """Let a standby, which reviews, too, ask what the API server keeps; a slice it may not store."""
    driver = DriverName(DEFAULT_DRIVER_NAME)
    assert await drops_capacity(made.clients["standby"], driver) is await drops_capacity(made.admin, driver)
    for generate_name, dry_run in (("dra-driver-probe-", False), ("dra-driver-probe-x-", True)):
        slice_of_probe = slice_("", DEFAULT_DRIVER_NAME)
        slice_of_probe["metadata"] = {"generateName": generate_name}
        write = Write("probes", "standby", "POST", SLICES, slice_of_probe)
        assert await made.send(write, dry_run=dry_run) == FENCE


async def only_the_holder_writes(made: Accounts) -> None:
    """Let the Lease change hands, and compare the verdicts on the writes of both controllers."""
    await check(made, "controller", "")
    await check(made, "standby", FENCE)
    await _a_standby_may_probe_only(made)
    await made.hold(f"{STANDBY}_5678")
    await check(made, "controller", FENCE)
    await check(made, "standby", "")
    # Neither the one who has given it up nor anybody else.
    await made.hold("")
    await check(made, "standby", FENCE)
    # The name of a pod may begin with that of another.
    await made.hold(f"{LEADER}-longer_1234")
    await check(made, "controller", FENCE)
    await made.hold(LEADER)
    await check(made, "controller", FENCE)
