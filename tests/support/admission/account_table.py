"""The tables of accounts: what each account is let write, and by what a write is refused.

Every write of ``policy_cases`` is tried by every account of the installation, and by a tenant with the roles
``edit`` and ``view`` of Kubernetes in its own namespace. The page ``reference/accounts.md`` of the site has
what a real API server answers.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from paths import GOLDEN
from policy_cases import (
    CLAIMS,
    CORE,
    DRA,
    INVENTORIES,
    LEASES,
    MERGE,
    NODE,
    OURS,
    PODS,
    SYSTEM,
    TENANT,
    Write,
    cases,
    pod,
    result,
)
from policy_world import (
    AGENT_ACCOUNT,
    COLLECTIONS,
    CONTROLLER_ACCOUNT,
    Accounts,
    by_itself,
    create,
    manifests,
)
from real_apiserver import bound_token

from dra_driver.api.names import DEFAULT_DRIVER_NAME
from dra_driver.kube import KubeApi

__all__ = ["attempts", "committed", "joined", "labels", "page", "rights_of", "verdict", "write"]

PAGE = GOLDEN / "account_tables.md"
BEGIN, END = "<!-- accounts -->\n", "<!-- /accounts -->\n"
_READS = frozenset({"get", "list", "watch"})
_NAMES = {CONTROLLER_ACCOUNT: "controller", AGENT_ACCOUNT: "agent"}
# What every authenticated client may create: questions about itself.
_QUESTIONS = ("authentication.k8s.io", "authorization.k8s.io")

Rights = Mapping[str, frozenset[str]]
"""Verbs that write, by what they write."""


# --- what is attempted --------------------------------------------------------------------------------------


def attempts() -> list[Write]:
    """Return every write, whoever it is by."""
    found: dict[str, Write] = {}
    for write in (*cases(), *_more()):
        found.setdefault(json.dumps([write.method, write.path, write.body], sort_keys=True), write)
    return list(found.values())


def _more() -> Iterator[Write]:
    """Yield writes that no account of the driver makes, and that tenants may try."""

    def write(what: str, method: str, path: str, body: dict[str, Any]) -> Write:
        return Write(what, "", method, path, body, "", MERGE if method == "PATCH" else "application/json")

    def made(version: str, kind: str, name: str, namespace: str = "", **fields: Any) -> dict[str, Any]:
        meta = {"name": name, **({"namespace": namespace} if namespace else {})}
        return {"apiVersion": version, "kind": kind, "metadata": meta, **fields}

    def asking(**more: Any) -> dict[str, Any]:
        request = {"name": "gpu", "exactly": {"deviceClassName": "any", **more}}
        return {"devices": {"requests": [request]}}

    v1, every = "resource.k8s.io/v1", [{"operator": "Exists"}]
    templates = f"{DRA}/namespaces/{TENANT}/resourceclaimtemplates"
    yield write("creates a pod", "POST", PODS, pod("new", TENANT))
    yield write("creates a pod for a node", "POST", PODS, pod("new", TENANT, nodeName=NODE))
    target = {"target": {"apiVersion": "v1", "kind": "Node", "name": NODE}}
    yield write(
        "binds a pod", "POST", f"{PODS}/gated/binding", made("v1", "Binding", "gated", TENANT, **target)
    )
    yield write(
        "evicts a pod", "POST", f"{PODS}/gated/eviction", made("policy/v1", "Eviction", "gated", TENANT)
    )
    yield write("deletes a pod", "DELETE", f"{PODS}/gated", {})
    claim = made(v1, "ResourceClaim", "new", TENANT)
    yield write("creates a claim", "POST", CLAIMS, claim | {"spec": asking()})
    tolerant = asking(tolerations=every)
    yield write("creates a claim that tolerates every taint", "POST", CLAIMS, claim | {"spec": tolerant})
    template = made(v1, "ResourceClaimTemplate", "new", TENANT)
    yield write("creates a template", "POST", templates, template | {"spec": {"spec": asking()}})
    what = "creates a template that tolerates every taint"
    yield write(what, "POST", templates, template | {"spec": {"spec": tolerant}})
    yield write("deletes a claim", "DELETE", f"{CLAIMS}/free", {})
    yield write("changes labels of a claim", "PATCH", f"{CLAIMS}/free", {"metadata": {"labels": {"a": "c"}}})
    classes = f"{DRA}/deviceclasses"
    yield write("creates a DeviceClass", "POST", classes, made(v1, "DeviceClass", "new", spec={}))
    policies = "/apis/dra-driver.dev/v1alpha1/devicepolicies"
    policy = made("dra-driver.dev/v1alpha1", "DevicePolicy", "new", spec={})
    yield write("creates a DevicePolicy", "POST", policies, policy)
    mine = f"{INVENTORIES}/{NODE}.{DEFAULT_DRIVER_NAME}"
    yield write("deletes an inventory", "DELETE", mine, {})
    yield write("deletes a node", "DELETE", f"{CORE}/nodes/{NODE}", {})
    capacity = {"status": {"capacity": {"example.com/gpu": "8"}}}
    yield write("writes the capacity of a node", "PATCH", f"{CORE}/nodes/{NODE}/status", capacity)
    lease = f"{LEASES}/dra-driver-controller"
    yield write("takes the Lease", "PATCH", lease, {"spec": {"holderIdentity": "somebody_1"}})
    yield write("deletes the Lease", "DELETE", lease, {})
    maps = f"{CORE}/namespaces/{SYSTEM}/configmaps"
    yield write("creates a ConfigMap of the driver's", "POST", maps, made("v1", "ConfigMap", "new", SYSTEM))
    secrets = f"{CORE}/namespaces/{SYSTEM}/secrets"
    yield write("creates a Secret of the driver's", "POST", secrets, made("v1", "Secret", "new", SYSTEM))
    accounts = f"{CORE}/namespaces/{SYSTEM}/serviceaccounts/{CONTROLLER_ACCOUNT}/token"
    token = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
    yield write("asks for the controller's token", "POST", accounts, token)
    binding = f"{COLLECTIONS['ValidatingAdmissionPolicyBinding']}/dra-driver-controller-pods"
    yield write("deletes the binding of a policy", "DELETE", binding, {})
    role = f"{COLLECTIONS['ClusterRole']}/{CONTROLLER_ACCOUNT}"
    yield write("gives the controller all rights", "PATCH", role, {"rules": []})
    wanted = {
        "status": {"allocation": {"devices": {"results": [result(DEFAULT_DRIVER_NAME, NODE, "gpu-9")]}}}
    }
    assert wanted["status"]["allocation"] != OURS
    yield write("allocates without a node", "PATCH", f"{CLAIMS}/free/status", wanted)


def labels(writes: Sequence[Write]) -> list[tuple[str, str]]:
    """Return what is attempted and by which request, in words of the page; every row is another."""
    many = Counter((w.what, _request(w)) for w in writes)
    return [
        (w.what if many[w.what, _request(w)] == 1 else f"{w.what} ({_named(w)})", _request(w)) for w in writes
    ]


def _request(write: Write) -> str:
    """Return method, resource and subresource."""
    parts = write.path.split("/")[3 if write.path.startswith("/api/") else 4 :]
    if parts[0] == "namespaces":
        parts = parts[2:]
    return f"{write.method} {'/'.join([parts[0], *parts[2:]])}"


def _named(write: Write) -> str:
    parts = write.path.split("/")
    name = write.body.get("metadata", {}).get("name") if write.method == "POST" else None
    return str(name or (parts[-2] if parts[-1] == "status" else parts[-1]))


# --- who attempts it ----------------------------------------------------------------------------------------


async def joined(made: Accounts, connect: Callable[[str], Awaitable[KubeApi]]) -> dict[str, str]:
    """Add clients of the tenant, and of accounts of the installation that have none; return all by column."""
    columns = {"controller": "controller", "agent": "agent"}
    for body in manifests():
        name = body["metadata"]["name"]
        if body["kind"] == "ServiceAccount" and name not in _NAMES:
            made.clients[name] = await connect(await bound_token(made.admin, SYSTEM, name))
            columns[name.removeprefix("dra-driver-")] = name
    for role in ("edit", "view"):
        await create(made.admin, f"{CORE}/namespaces/{TENANT}/serviceaccounts", _account(role))
        made.clients[role] = await connect(await bound_token(made.admin, TENANT, role))
        columns[f"tenant with `{role}`"] = role
    await tenants(made.admin)
    return columns


def _account(name: str) -> dict[str, Any]:
    meta = {"name": name, "namespace": TENANT}
    return {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": meta}


async def tenants(admin: KubeApi) -> None:
    """Give the tenant's accounts the parts of ``edit`` and ``view``: no controller aggregates roles here."""
    listed = json.loads(await admin._call("GET", COLLECTIONS["ClusterRole"]))["items"]
    kind = "rbac.authorization.k8s.io"
    for role, parts in (("edit", ("edit", "view")), ("view", ("view",))):
        for found in listed:
            given = found["metadata"].get("labels") or {}
            if not any(given.get(f"{kind}/aggregate-to-{part}") == "true" for part in parts):
                continue
            name = found["metadata"]["name"]
            body = {
                "apiVersion": f"{kind}/v1",
                "kind": "RoleBinding",
                "metadata": {"name": f"{role}-{name}".replace(":", "-"), "namespace": TENANT},
                "roleRef": {"apiGroup": kind, "kind": "ClusterRole", "name": name},
                "subjects": [{"kind": "ServiceAccount", "name": role, "namespace": TENANT}],
            }
            await create(admin, COLLECTIONS["RoleBinding"].format(namespace=TENANT), body)


async def rights_of(client: KubeApi) -> Rights:
    """Return what an account has rights to write, as the API server's authorizer says."""
    found: dict[str, set[str]] = {}
    for namespace in (TENANT, SYSTEM):
        body = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectRulesReview",
            "spec": {"namespace": namespace},
        }
        path = "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews"
        answer = json.loads(await client._call("POST", path, body=body))
        assert not answer["status"]["incomplete"], answer
        for rule in answer["status"]["resourceRules"]:
            for what in _written(rule, namespace):
                found.setdefault(what, set()).update(set(rule["verbs"]) - _READS)
    everywhere = {what for what in found if not what.endswith(f"in {SYSTEM}")}
    return {
        what: frozenset(verbs)
        for what, verbs in found.items()
        if verbs and not (what.endswith(f" in {SYSTEM}") and what.removesuffix(f" in {SYSTEM}") in everywhere)
    }


def _written(rule: Mapping[str, Any], namespace: str) -> Iterator[str]:
    where = f" in {namespace}" if namespace == SYSTEM else ""
    names = f" {', '.join(sorted(rule['resourceNames']))}" if rule.get("resourceNames") else ""
    for group in rule.get("apiGroups", ()):
        if group in _QUESTIONS:
            continue
        for resource in rule.get("resources", ()):
            yield f"{resource}{'.' if group else ''}{group}{names}{where}"


def verdict(answer: str) -> str:
    """Return the word of the page for what ``Accounts.send`` has returned."""
    if not answer:
        return "yes"
    code = answer.partition(" ")[0]
    if not code.isdigit():
        return "policy"
    return "no right" if code == "403" or by_itself(answer) else "invalid"


# --- the page -----------------------------------------------------------------------------------------------


def page(rights: Mapping[str, Rights], verdicts: Mapping[str, Sequence[str]], driver: Iterable[str]) -> str:
    """Return both tables.

    Args:
        rights: of each column.
        verdicts: of each column, one for each attempt.
        driver: columns of the driver's accounts; what only the tenant may write is Kubernetes' own.
    """
    rows = sorted({what for column in driver for what in rights[column]})
    head = list(rights)
    lines = [f"| may write, by rights | {' | '.join(head)} |", "| --- |" + " --- |" * len(head)]
    for what in rows:
        cells = (", ".join(sorted(rights[column].get(what, ()))) or "no" for column in head)
        lines.append(f"| `{what}` | {' | '.join(cells)} |")
    lines += ["", f"| attempt | request | {' | '.join(head)} |", "| --- | --- |" + " --- |" * len(head)]
    for i, (what, request) in enumerate(labels(attempts())):
        lines.append(f"| {what} | `{request}` | {' | '.join(verdicts[column][i] for column in head)} |")
    return "\n".join(lines) + "\n"


def committed(path: Path = PAGE) -> str:
    """Return what the page has between the marks."""
    text = path.read_text(encoding="utf-8")
    return text[text.index(BEGIN) + len(BEGIN) : text.index(END)]


def write(made: str, path: Path = PAGE) -> None:
    """Put the tables into the page."""
    text = path.read_text(encoding="utf-8")
    path.write_text(text[: text.index(BEGIN) + len(BEGIN)] + made + text[text.index(END) :], encoding="utf-8")
