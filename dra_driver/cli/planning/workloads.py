"""What a plan is asked: claims, pods, and the pods of other objects, as the allocator's questions."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import msgspec

from controller.allocate.plans import ClusterBuilder, claims_like
from dra_driver.api import codec
from dra_driver.api.core import Pod
from dra_driver.api.meta import ObjectKey, ObjectMeta
from dra_driver.api.names import GROUP_DOMAIN_ANNOTATION, GROUP_LABEL, GROUP_MIN_LABEL, GROUP_SIZE_LABEL
from dra_driver.api.resource import ResourceClaim
from dra_driver.cli.planning.inputs import Objects, RawWorkload
from dra_driver.errors import DecodeError
from dra_driver.nodefit import PodNeeds
from dra_driver.planning import Workload
from dra_driver.structured import GroupLabels, GroupMember, Level, group_name, levels_of

__all__ = ["Questions", "full_name"]

_MOST_PODS: Final = 4096
_POD_GROUP_LABELS: Final = ("scheduling.x-k8s.io/pod-group", "pod-group.scheduling.sigs.k8s.io")


class _Member(NamedTuple):
    """A pod that is asked about, with its claims, the nodes that can take it, and what it takes of one."""

    claims: tuple[ResourceClaim, ...]
    nodes: Collection[str] | None
    needs: PodNeeds


@dataclass(slots=True)
class _Group:
    """Pods that are asked about together.

    Attributes:
        size: number of pods that there must be; 0 for those that are given.
        least: number of pods below which none of them runs.
        where: file and document, for messages.
        claims: names and templates of claims that all pods of a PodGroup share.
    """

    name: str
    members: list[_Member] = field(default_factory=list)
    levels: tuple[Level, ...] = ()
    size: int = 0
    least: int = 0
    where: str = ""
    claims: frozenset[tuple[str, str]] = frozenset()


def full_name(name: str, namespace: str) -> str:
    """Return ``namespace/name`` of an object that is given by that, or by its name alone."""
    return name if "/" in name else f"{namespace or 'default'}/{name}"


class Questions:
    """Makes workloads of objects. Everything that is wrong is in ``findings`` afterwards.

    Args:
        asked: objects of the files.
        there: objects of the cluster.
        builder: of the cluster.
        findings: gets a sentence for each mistake.
        notes: gets a sentence for what is taken for granted.
    """

    def __init__(
        self,
        asked: Objects,
        there: Objects,
        builder: ClusterBuilder,
        findings: list[str],
        notes: list[str],
    ) -> None:
        self._asked, self._builder, self._findings, self._notes = asked, builder, findings, notes
        self._there_is = there
        self._claims = {c.key: c for c in (*there.claims, *asked.claims)}
        self._templates = {_key(t.metadata): t for t in (*there.templates, *asked.templates)}
        self._used: set[ObjectKey] = set()
        self._groups: dict[object, _Group] = {}
        self._pod_groups: dict[tuple[str, str], RawWorkload] = {}

    def workloads(self) -> list[Workload]:
        """Return the workloads of the files, in their order."""
        for raw in self._asked.workloads:
            if raw.kind == "PodGroup":
                self._pod_groups[raw.namespace, str(raw.metadata.get("name"))] = raw
        for raw in self._asked.workloads:
            for template, number, name in self._pods_of(raw):
                self._add_pods(raw, template, number, name)
        found = [self._workload(group) for group in self._groups.values()]
        found = [w for w in found if w.members]
        for claim in self._asked.claims:
            if claim.key not in self._used:
                found.append(self._of_claim(f"ResourceClaim {claim.key}", claim))
        for of_claims in self._asked.templates:
            key = _key(of_claims.metadata)
            if key not in self._used:
                meta = ObjectMeta(name=key.name, namespace=key.namespace)
                claim = ResourceClaim(metadata=meta, spec=of_claims.spec.spec)
                found.append(self._of_claim(f"ResourceClaimTemplate {key}", claim))
        return found

    def existing(self, name: str, kind: str, namespace: str) -> list[Workload]:
        """Return the workload of a claim or a pod that the cluster has, by name or ``namespace/name``."""
        full = full_name(name, namespace)
        if kind == "claim":
            claims = {str(c.key): c for c in self._there_is.claims}
            if full in claims:
                return [self._of_claim(f"ResourceClaim {full}", claims[full])]
            known = [n for n, c in claims.items() if c.status.allocation is None]
            self._findings.append(f"--claim {name}: no such claim; waiting are {_some(known)}")
            return []
        pods = {str(p.key): p for p in self._there_is.pods}
        if full not in pods:
            known = [n for n, p in pods.items() if p.spec.resource_claims and not p.spec.node_name]
            self._findings.append(f"--pod {name}: no such pod; waiting are {_some(known)}")
            return []
        pod = pods[full]
        group = _group_named(pod)
        together = [
            p
            for _, p in sorted(pods.items())
            if p is pod
            or (group and p.metadata.namespace == pod.metadata.namespace and _group_named(p) == group)
        ]
        for one in together:
            meta = {"name": one.metadata.name, "namespace": one.metadata.namespace}
            raw = RawWorkload("Pod", {"metadata": meta}, "the cluster")
            self._builder.ask_about(one)
            self._add_pods(raw, {"spec": {}}, 1, one.metadata.name, one)
        return [self._workload(g) for g in self._groups.values() if g.members]

    def _of_claim(self, name: str, claim: ResourceClaim) -> Workload:
        return Workload(name, (GroupMember((claim,), None, self._builder.vectors.nothing),))

    # --- pods of objects ------------------------------------------------------------------------------------

    def _pods_of(self, raw: RawWorkload) -> Iterator[tuple[dict[str, Any], int, str]]:
        """Yield templates of pods with their numbers, and the names of the pods."""
        spec, name = raw.raw["spec"], str(raw.metadata.get("name") or raw.metadata.get("generateName") or "")
        match raw.kind:
            case "Pod":
                yield raw.raw, 1, name
            case "Deployment" | "ReplicaSet" | "StatefulSet":
                yield self._object(raw, spec, "template"), self._number(raw, spec, "replicas", 1), name
            case "Job":
                yield from self._job(raw, spec, name, "spec")
            case "CronJob":
                job = self._object(raw, spec, "jobTemplate")
                yield from self._job(raw, self._object(raw, job, "spec"), name, "spec.jobTemplate.spec")
            case "JobSet":
                jobs = spec.get("replicatedJobs")
                if not isinstance(jobs, list) or not jobs:
                    self._findings.append(f"{raw.where}: {raw.name}: spec.replicatedJobs is missing")
                    return
                for i, job in enumerate(jobs):
                    if not isinstance(job, dict):
                        self._findings.append(
                            f"{raw.where}: {raw.name}: spec.replicatedJobs[{i}] is not an object"
                        )
                        continue
                    inner = self._object(raw, self._object(raw, job, "template"), "spec")
                    copies = self._number(raw, job, "replicas", 1)
                    where = f"spec.replicatedJobs[{i}].template.spec"
                    for template, number, of in self._job(raw, inner, f"{name}-{job.get('name', i)}", where):
                        yield template, number * copies, of
            case _:
                return

    def _job(
        self, raw: RawWorkload, spec: dict[str, Any], name: str, where: str
    ) -> Iterator[tuple[dict[str, Any], int, str]]:
        number = self._number(raw, spec, "parallelism", 1, where)
        if spec.get("completions") is not None:
            number = min(number, self._number(raw, spec, "completions", 1, where))
        yield self._object(raw, spec, "template", where), number, name

    def _object(self, raw: RawWorkload, of: dict[str, Any], key: str, where: str = "spec") -> dict[str, Any]:
        found = of.get(key)
        if not isinstance(found, dict):
            self._findings.append(f"{raw.where}: {raw.name}: {where}.{key} is missing, or is not an object")
            return {}
        return found

    def _number(
        self, raw: RawWorkload, of: dict[str, Any], key: str, default: int, where: str = "spec"
    ) -> int:
        found = of.get(key, default)
        if isinstance(found, bool) or not isinstance(found, int) or not 0 <= found <= _MOST_PODS:
            self._findings.append(
                f"{raw.where}: {raw.name}: {where}.{key} is {found!r}; expected 0 to {_MOST_PODS}"
            )
            return 0
        return found

    # --- members --------------------------------------------------------------------------------------------

    def _add_pods(
        self, raw: RawWorkload, template: dict[str, Any], number: int, name: str, made: Pod | None = None
    ) -> None:
        body = {"metadata": template.get("metadata") or {}, "spec": template.get("spec")}
        if not isinstance(body["spec"], dict):
            if template:
                self._findings.append(f"{raw.where}: {raw.name}: the pod's spec is missing")
            return
        try:
            pod = made or codec.convert(Pod, body)
        except DecodeError as e:
            self._findings.append(f"{raw.where}: {raw.name}: {e}")
            return
        group = self._group_of(raw, pod, body)
        needs, nodes = self._builder.needs_of(pod), self._nodes_for(raw, pod)
        if not number:
            self._notes.append(f"{raw.where}: {raw.name}: has no pods, so nothing is asked for")
            self._used.update(_named(raw.namespace, pod))
        for i in range(number):
            one = name if raw.kind == "Pod" else f"{name}-{i}"
            claims = self._claims_of(raw, pod, one, group)
            if claims is None:
                return
            if claims:
                group.members.append(_Member(claims, nodes, needs))
        if number and not pod.spec.resource_claims:
            self._notes.append(
                f"{raw.where}: {raw.name}: pods without claims (spec.resourceClaims) are left out"
            )

    def _nodes_for(self, raw: RawWorkload, pod: Pod) -> Collection[str] | None:
        """Return the nodes that can take a pod; the one that it names itself, whatever that is like."""
        name = pod.spec.node_name
        if not name:
            return self._builder.nodes_for(pod)
        known = [node.metadata.name for node in self._builder.nodes]
        if name not in known:
            self._findings.append(f"{raw.where}: {raw.name}: no node {name}; there are {_some(known)}")
        return frozenset((name,))

    def _group_of(self, raw: RawWorkload, pod: Pod, body: dict[str, Any]) -> _Group:
        """Return the group of a pod, with its size and levels; a group of its own where it has none."""
        labels = pod.metadata.labels or {}
        annotations = pod.metadata.annotations or {}
        scheduling = body["spec"].get("schedulingGroup")
        pod_group = scheduling.get("podGroupName") if isinstance(scheduling, dict) else None
        pod_group = pod_group or pod.spec.pod_group
        pod_group = pod_group or next((labels[k] for k in _POD_GROUP_LABELS if k in labels), None)
        if pod_group:
            return self._pod_group(raw, str(pod_group))
        name = labels.get(GROUP_LABEL)
        if raw.kind == "Pod":  # templates lack the labels that make one group of many
            name = _group_named(pod)
        if not name:
            return self._groups.setdefault(id(raw), _Group(raw.name, where=raw.where))
        group = self._groups.setdefault(
            ("label", raw.namespace, name), _Group(f"group {raw.namespace}/{name}", where=raw.where)
        )
        size = labels.get(GROUP_SIZE_LABEL, "")
        if size and not re.fullmatch(r"[1-9][0-9]{0,3}", size):
            self._findings.append(
                f"{raw.where}: {raw.name}: label {GROUP_SIZE_LABEL} is {size!r}; expected 1 to 1024"
            )
        elif size:
            group.size = int(size)
        least = labels.get(GROUP_MIN_LABEL, "")
        if least and not group.members:
            self._notes.append(f"{group.name}: {least} pods suffice; all are asked about")
        levels = levels_of(annotations.get(GROUP_DOMAIN_ANNOTATION, ""))
        if isinstance(levels, str):
            self._findings.append(f"{raw.where}: {raw.name}: {GROUP_DOMAIN_ANNOTATION}: {levels}")
        elif any(level.count for level in levels):
            self._findings.append(
                f"{raw.where}: {raw.name}: {GROUP_DOMAIN_ANNOTATION}: counts of members for each domain "
                "are not planned; expected levels without *COUNT"
            )
        else:
            group.levels = group.levels or levels
        return group

    def _pod_group(self, raw: RawWorkload, name: str) -> _Group:
        key = ("PodGroup", raw.namespace, name)
        if key in self._groups:
            return self._groups[key]
        group = self._groups[key] = _Group(f"PodGroup {raw.namespace}/{name}", where=raw.where)
        of = self._pod_groups.get((raw.namespace, name))
        if of is None:
            self._notes.append(
                f"{raw.name} names PodGroup {name}, which is not given: its pods are taken as they are"
            )
            return group
        spec = of.raw["spec"]
        group.least = self._least_pods(of, spec)
        shared = spec.get("resourceClaims")
        if isinstance(shared, list):
            entries = [e for e in shared if isinstance(e, dict) and e.get("resourceClaimTemplateName")]
            group.claims = frozenset(
                (str(e.get("name")), str(e["resourceClaimTemplateName"])) for e in entries
            )
        constraints = spec.get("schedulingConstraints")
        keys = constraints.get("topology") if isinstance(constraints, dict) else None
        if isinstance(keys, list):
            group.levels = tuple(
                Level(label=str(k["key"])) for k in keys if isinstance(k, dict) and "key" in k
            )
        return group

    def _least_pods(self, raw: RawWorkload, spec: dict[str, Any]) -> int:
        """Return the least pods of a PodGroup: of Kubernetes (KEP-4671), or of the scheduler plugins."""
        policy = spec.get("schedulingPolicy")
        gang = policy.get("gang") if isinstance(policy, dict) else None
        if isinstance(gang, dict):
            return self._number(raw, gang, "minCount", 0, "spec.schedulingPolicy.gang")
        return self._number(raw, spec, "minMember", 0)

    def _claims_of(
        self, raw: RawWorkload, pod: Pod, name: str, group: _Group
    ) -> tuple[ResourceClaim, ...] | None:
        """Return the claims of a pod, those from templates made for it; None where one is wrong.

        An entry that its PodGroup has as well means one claim for all pods of the group (KEP-5729).
        """
        found: list[ResourceClaim] = []
        known = {status.name: status.resource_claim_name for status in pod.status.resource_claim_statuses}
        for entry in pod.spec.resource_claims:
            where = f"{raw.where}: {raw.name}: claim {entry.name}"
            of = entry.resource_claim_name or known.get(entry.name)
            if of is not None:
                key = ObjectKey(raw.namespace, of)
                self._used.add(key)
                claim = self._claims.get(key)
                if claim is None:
                    self._findings.append(f"{where}: no ResourceClaim {key}; {self._there(self._claims)}")
                    return None
                found.append(claim)
            elif entry.resource_claim_template_name is not None:
                key = ObjectKey(raw.namespace, entry.resource_claim_template_name)
                self._used.add(key)
                template = self._templates.get(key)
                if template is None:
                    text = self._there(self._templates)
                    self._findings.append(f"{where}: no ResourceClaimTemplate {key}; {text}")
                    return None
                of_group = (entry.name, entry.resource_claim_template_name) in group.claims
                owner = group.name.rpartition("/")[2] if of_group else name
                meta = msgspec.structs.replace(
                    template.spec.metadata, name=f"{owner}-{entry.name}", namespace=raw.namespace
                )
                found.append(ResourceClaim(metadata=meta, spec=template.spec.spec))
            else:
                self._findings.append(f"{where}: resourceClaimName or resourceClaimTemplateName is needed")
                return None
        return tuple(found)

    def _there(self, known: dict[ObjectKey, Any]) -> str:
        return f"there are {_some([str(k) for k in known])}"

    def _workload(self, group: _Group) -> Workload:
        members = group.members
        size = group.size or max(group.least, len(members))
        missing = size - len(members)
        if missing < 0:
            self._findings.append(
                f"{group.where}: {group.name} has {len(members)} pods, its {GROUP_SIZE_LABEL} is {group.size}"
            )
        elif missing > 0 and members:
            self._notes.append(
                f"{group.name}: {len(members)} of {size} pods are given; the others are taken to be "
                "like the first"
            )
            one = members[0]
            members = [*members, *(one._replace(claims=claims_like(one.claims, i)) for i in range(missing))]
        vectors = self._builder.vectors
        made = (GroupMember(m.claims, m.nodes, vectors.of(m.needs)) for m in members)
        return Workload(group.name, tuple(made), group.levels)


def _group_named(pod: Pod) -> str:
    """Return what a pod has in common with the others of its group; empty where it has none."""
    if pod.spec.pod_group:
        return f"PodGroup/{pod.spec.pod_group}"
    return group_name(pod.metadata.labels or {}, pod.metadata.annotations or {}, tuple(GroupLabels))


def _named(namespace: str, pod: Pod) -> Iterator[ObjectKey]:
    """Yield the claims and templates that a pod names."""
    for entry in pod.spec.resource_claims:
        if name := entry.resource_claim_name or entry.resource_claim_template_name:
            yield ObjectKey(namespace, name)


def _key(meta: ObjectMeta) -> ObjectKey:
    return ObjectKey(meta.namespace or "default", meta.name)


def _some(names: Sequence[str]) -> str:
    shown = sorted(names)[:5]
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return (", ".join(shown) + more) or "none"
