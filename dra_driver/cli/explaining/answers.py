"""Why claims can be allocated or not: the answers, as a report and as data. Pure."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from dra_driver.api import codec
from dra_driver.api.core import Pod
from dra_driver.api.names import TOPOLOGY_ANNOTATION
from dra_driver.api.own.checking import Kinds
from dra_driver.api.resource import Device, DeviceRequestAllocationResult, ResourceClaim
from dra_driver.cli.allocator.manifests import Manifests, plain_outcome
from dra_driver.cli.display.report import Block, Cell, Line, Report, Table
from dra_driver.cli.explaining.parameters import NOTHING, ParameterFindings, parameter_findings
from dra_driver.cli.explaining.pod_nodes import ANYWHERE, PodNodesFinder
from dra_driver.cli.explaining.usable_pools import UsablePools
from dra_driver.ownership import PoolAllocator, PoolID, allocating_pools, is_controller_taint
from dra_driver.resourceclaim import for_scheduler, held_by, is_gated
from dra_driver.structured import (
    Allocated,
    DeviceID,
    DoesNotFit,
    ExclusionReason,
    Failed,
    Folded,
    FoldedReason,
    NodePolicy,
    Outcome,
    Snapshot,
    allocate,
    fold,
)
from dra_driver.structured.explain.summaries import largest
from dra_driver.structured.matching.constraints import attribute_of
from dra_driver.trimming import claim_problem, unservable

__all__ = ["Answer", "answer_data", "answer_report", "answers", "unserved"]

# Reasons of which it matters how many devices of each node they are about: a few more might be enough there.
_COUNTED_BY_NODE: Final = frozenset({ExclusionReason.IN_USE, ExclusionReason.CONSTRAINT})
# Nodes and claims that a line names before it says how many more there are.
_NAMED: Final = 3


@dataclass(frozen=True, slots=True)
class Answer:
    """What is found about one claim by itself.

    Attributes:
        pods: those that use it.
        folded: why it does not fit; None if it does, or if that cannot be said.
        parameters: what is wrong with its opaque parameters.
        nodes: which nodes its pods leave out, and why; empty if they leave out none.
        silent: that the controller, which would allocate it, does not answer; empty if it does.
        devices: the content of devices that it may have.
    """

    claim: ResourceClaim
    outcome: Outcome
    pods: Sequence[Pod] = ()
    folded: Folded | None = None
    parameters: ParameterFindings = NOTHING
    nodes: str = ""
    silent: str = ""
    devices: Mapping[DeviceID, Device] = field(default_factory=dict)

    @property
    def fits(self) -> bool:
        """Whether it is allocated or can be."""
        return isinstance(self.outcome, Allocated) and not self.silent

    @property
    def is_allocated(self) -> bool:
        """Whether it has been allocated already."""
        return self.claim.status.allocation is not None


def answers(
    manifests: Manifests,
    claims: Sequence[ResourceClaim],
    *,
    policy: NodePolicy = NodePolicy.PACK,
    all_drivers: bool = False,
    kinds: Callable[[], Kinds] = dict,
) -> list[Answer]:
    """Ask the allocator about each claim by itself, and check its parameters.

    Args:
        manifests: the cluster.
        claims: some of its claims.
        policy: which of several nodes that are equally good.
        all_drivers: whether devices of drivers that a claim is not about are counted.
        kinds: looks for the kinds of opaque parameters that installed packages bring.
    """
    snapshot, users = manifests.snapshot(), manifests.users()
    devices = _devices(manifests)
    usable = functools.cache(lambda: UsablePools.of(manifests.slices, manifests.inventories, policy))
    found = []
    # Of a Deployment's hundred claims one is asked about, because a refusal takes seconds in a large fleet.
    refused: dict[object, tuple[DoesNotFit, Folded]] = {}
    finder = PodNodesFinder(manifests.nodes, snapshot.nodes)
    for claim in claims:
        pods = users.get(claim.key, ())
        parameters = parameter_findings(claim, manifests.classes, kinds)
        if refusal := _refusal(claim, pods):
            found.append(Answer(claim, Failed(refusal), pods, parameters=parameters))
            continue
        # The gate says that the controller allocates for the pod, and so from its own pools alone.
        pools = usable() if claim.status.allocation is None and any(map(is_gated, pods)) else None
        nodes = finder.of(pods) if claim.status.allocation is None else ANYWHERE
        if nodes.nodes is not None and not nodes.nodes:
            found.append(Answer(claim, Failed(nodes.summary), pods, parameters=parameters))
            continue
        asked = _asked(claim), pools is None, nodes.nodes
        same = claim.status.allocation is None and refused.get(asked)
        if same:
            found.append(Answer(claim, same[0], pods, same[1], parameters, nodes.summary))
            continue
        outcome = _ask(snapshot, claim, policy, pools, nodes.nodes)
        folded = None
        if isinstance(outcome, DoesNotFit):
            folded = fold(outcome.reasons, devices, all_drivers=all_drivers)
            if claim.status.allocation is None:
                refused[asked] = outcome, folded
        found.append(Answer(claim, outcome, pods, folded, parameters, nodes.summary, devices=devices))
    return found


def unserved(found: Sequence[Answer], manifests: Manifests, silent: str) -> list[Answer]:
    """Return the answers, those marked that only a controller which does not answer could put into effect.

    Args:
        found: the answers.
        manifests: the cluster.
        silent: for how long it has not answered; empty if it does.
    """
    if not silent:
        return list(found)
    owners = allocating_pools(manifests.slices, manifests.inventories)

    def is_controllers(answer: Answer) -> bool:
        if answer.is_allocated or not isinstance(answer.outcome, Allocated):
            return False
        pools = {PoolID(r.driver, r.pool) for r in answer.outcome.results[0].devices.results}
        ours = any(owners.get(pool) is PoolAllocator.CONTROLLER for pool in pools)
        return ours or any(map(is_gated, answer.pods))

    return [replace(a, silent=silent) if is_controllers(a) else a for a in found]


def _ask(
    snapshot: Snapshot,
    claim: ResourceClaim,
    policy: NodePolicy,
    pools: UsablePools | None,
    nodes: frozenset[str] | None,
) -> Outcome:
    """Ask the allocator about a claim: among all pools, or among those that the controller would use."""
    everywhere = functools.partial(
        allocate, snapshot, [claim], nodes=nodes, ignore_taint=is_controller_taint, policy=policy
    )
    if pools is None or not pools.withheld:
        return everywhere()
    outcome = everywhere(pools=pools.policies, withheld=pools.withheld)
    if isinstance(outcome, DoesNotFit) and len(claim.spec.devices.requests or ()) > 1:
        # Where only pools of both fit together, that is the answer: devices would have to be granted.
        both = everywhere()
        if isinstance(both, Allocated) and pools.mixes(
            PoolID(r.driver, r.pool) for r in both.results[0].devices.results
        ):
            return both
    return outcome


def _refusal(claim: ResourceClaim, pods: Iterable[Pod]) -> str:
    """Return why the controller refuses all pods behind its gate that use a claim; empty: it does not."""
    gated = [pod for pod in pods if is_gated(pod)]
    if not gated or claim.status.allocation is not None:
        return ""
    refused = [why for pod in gated if (why := unservable(pod))]
    return claim_problem(claim) or (refused[0] if len(refused) == len(gated) else "")


def _asked(claim: ResourceClaim) -> object:
    """Return a key that is equal for claims that ask for the same."""
    return codec.encode(claim.spec), (claim.metadata.annotations or {}).get(TOPOLOGY_ANNOTATION)


def _devices(manifests: Manifests) -> Mapping[DeviceID, Device]:
    return {
        DeviceID(s.spec.driver, s.spec.pool.name, d.name): d for s in manifests.slices for d in s.spec.devices
    }


# --- data ---------------------------------------------------------------------------------------------------


def answer_data(answer: Answer) -> dict[str, Any]:
    """Return an answer as plain data, with every device."""
    plain = plain_outcome(answer.claim, answer.outcome) | {"fits": answer.fits}
    if answer.silent:
        plain["controller"] = answer.silent
    if held := held_by(answer.pods):
        plain["held"] = held
    if other := for_scheduler(answer.pods):
        plain["scheduler"] = other
    if answer.parameters.wrong:
        plain["wrongParameters"] = list(answer.parameters.wrong)
    if answer.parameters.unchecked:
        plain["uncheckedParameters"] = list(answer.parameters.unchecked)
    if answer.nodes:
        plain["podNodes"] = answer.nodes
    if answer.folded is not None:
        plain["reasons"] = [_reason_data(row) for row in answer.folded.reasons]
        plain["hiddenDevices"] = dict(answer.folded.hidden)
        plain["unservableRequests"] = list(answer.folded.unservable)
    if isinstance(answer.outcome, DoesNotFit):
        plain["nodes"] = [
            {
                "node": node.node,
                "exclusions": [
                    {
                        "request": e.request,
                        "device": str(e.device) if e.device is not None else None,
                        "rule": e.reason.value,
                        "wanted": e.wanted,
                        "found": e.found,
                    }
                    for e in node.exclusions
                ],
            }
            for node in answer.outcome.reasons
        ]
    return plain


def _reason_data(row: FoldedReason) -> dict[str, Any]:
    return {
        "request": row.request,
        "rule": row.reason.value,
        "reason": row.text,
        "devices": row.devices,
        "of": row.of,
        "nodes": list(row.nodes),
    }


# --- report -------------------------------------------------------------------------------------------------


def answer_report(found: Sequence[Answer], *, wide: bool = False, condense: bool = False) -> Report:
    """Return the answers as a report; those that say the same of different claims are one paragraph.

    Args:
        found: the answers.
        wide: whether every device has a row.
        condense: whether claims that are allocated get one row each.
    """
    paragraphs: list[list[Block]] = []
    allocated = [a for a in found if a.is_allocated]
    rest = found
    if condense and len(allocated) > 1:
        rows = [(str(a.claim.key), *_places(a)) for a in allocated]
        paragraphs.append([Table(("ALLOCATED CLAIM", "NODE", "DEVICES", "MODELS"), rows)])
        rest = [a for a in found if not a.is_allocated]
    same: dict[object, list[Answer]] = {}
    for answer in rest:
        same.setdefault(_key(answer), []).append(answer)
    paragraphs += [list(_paragraph(alike, wide)) for alike in same.values()]
    paragraphs += _parameters_report(found)
    return paragraphs


def _parameters_report(found: Sequence[Answer]) -> Iterator[list[Block]]:
    """Yield what is said of parameters; claims that have the same are one paragraph."""
    same: dict[ParameterFindings, list[Answer]] = {}
    for answer in found:
        if answer.parameters != NOTHING:
            same.setdefault(answer.parameters, []).append(answer)
    for parameters, alike in same.items():
        who = _who(alike)
        block: list[Block] = []
        if parameters.wrong:
            block.append(Line(f"{who}: the parameters are wrong, so the node refuses to prepare:", "bad"))
            block += [Line(f"  {finding}", "bad") for finding in parameters.wrong]
        block += [Line(f"{who}: {note}", "quiet") for note in parameters.unchecked]
        yield block


def _key(answer: Answer) -> object:
    """Return what is equal for answers of which one paragraph is printed; an answer that fits is alone."""
    if answer.folded is None:
        return str(answer.claim.key)
    asked = answer.outcome.headline if isinstance(answer.outcome, DoesNotFit) else ""
    said = asked, held_by(answer.pods), for_scheduler(answer.pods), answer.nodes
    return said, tuple(
        (r.request, r.text, r.devices, r.of, tuple(r.nodes.items())) for r in answer.folded.reasons
    )


def _places(answer: Answer) -> tuple[str, str, str]:
    """Return node, devices and models of a claim that is allocated."""
    if not isinstance(answer.outcome, Allocated):
        return "-", "-", "-"
    results = answer.outcome.results[0].devices.results
    models = Counter(_content(r, answer.devices) for r in results)
    named = [
        f"{f'{number} × ' if number > 1 else ''}{model}{'' if memory == '-' else f' {memory}'}"
        for (model, memory), number in models.items()
    ]
    return answer.outcome.node or "-", ", ".join(r.device for r in results), ", ".join(named)


def _content(result: DeviceRequestAllocationResult, devices: Mapping[DeviceID, Device]) -> tuple[str, str]:
    """Return the model of a device, and the memory that a claim has of it."""
    device = devices.get(DeviceID(result.driver, result.pool, result.device))
    if device is None:
        return "-", "-"
    attribute = attribute_of(device, result.driver, f"{result.driver}/model")
    share, whole = result.consumed_capacity.get("memory"), device.capacity.get("memory")
    memory = share if share is not None else whole.value if whole is not None else None
    model = attribute.string_value if attribute is not None else None
    return model or "-", "-" if memory is None else largest([str(memory)])


def _who(alike: Sequence[Answer]) -> str:
    names = [str(a.claim.key) for a in alike]
    return ", ".join(names[:_NAMED]) + (f" and {len(names) - _NAMED} more" if len(names) > _NAMED else "")


def _paragraph(alike: Sequence[Answer], wide: bool) -> Iterator[Block]:
    answer = alike[0]
    who = _who(alike)
    if held := held_by(answer.pods):
        yield Line(f"{who}: its pods are {held}; the controller ignores them until then", "warning")
    if other := for_scheduler(answer.pods):
        ignored = "ignored unless --scheduler-name of the controller names it"
        yield Line(f"{who}: its pods are {other}; {ignored}", "warning")
    match answer.outcome:
        case Allocated(node):
            before = "is allocated" if answer.is_allocated else "fits"
            if answer.silent:
                yield Line(f"{who} would fit on node {node}, but {answer.silent}:", "bad")
            else:
                yield Line(f"{who} {before} on node {node}:", "good")
            rows = [
                (r.request, f"{r.driver}/{r.pool}/{r.device}", *_content(r, answer.devices))
                for r in answer.outcome.results[0].devices.results
            ]
            yield Table(("REQUEST", "DEVICE", "MODEL", "MEMORY"), rows)
        case Failed(message):
            yield Line(f"{who} cannot be allocated: {message}", "bad")
        case DoesNotFit():
            verb = "does not fit" if len(alike) == 1 else f"do not fit ({len(alike)} claims)"
            nodes = f"; {answer.nodes}" if answer.nodes else ""
            # What nodes have instead is said once, by the rows.
            yield Line(f"{who} {verb}: {answer.outcome.headline}{nodes}", "bad")
            if answer.folded is not None:
                yield _each(answer.outcome) if wide else _folded(answer.folded)
                if names := ", ".join(answer.folded.unservable):
                    device = "device of these nodes" if answer.nodes else "device"
                    yield Line(f"Devices that become free do not help: no {device} can serve request {names}")
                if answer.folded.hidden:
                    yield Line(_hidden(answer.folded.hidden), "quiet")


def _folded(folded: Folded) -> Table:
    rows = [
        (
            row.request or "-",
            f"{row.devices} of {row.of}" if row.devices else "-",
            row.text,
            _nodes(row),
        )
        for row in folded.reasons
    ]
    return Table(("REQUEST", "DEVICES", "WHY", "NODES"), rows)


def _nodes(row: FoldedReason) -> str:
    names: Sequence[str] = tuple(row.nodes)
    if row.reason in _COUNTED_BY_NODE and len(names) > 1:
        most = sorted(row.nodes.items(), key=lambda item: -item[1])
        names = [f"{name} ({number})" for name, number in most]
    if len(names) <= _NAMED:
        return ", ".join(names)
    return f"{', '.join(names[:_NAMED])} and {len(names) - _NAMED:,} more"


def _hidden(hidden: Mapping[str, int]) -> str:
    total = sum(hidden.values())
    plural = "s" * (total != 1)
    verb = "are" if total != 1 else "is"
    return (
        f"{total} device{plural} of {', '.join(sorted(hidden))} {verb} not of the class; "
        "--all-drivers counts them"
    )


def _each(outcome: DoesNotFit) -> Table:
    rows = [
        (
            node.node,
            e.request or "-",
            str(e.device) if e.device is not None else "-",
            Cell(e.reason.value, "warning"),
            e.wanted or "-",
            e.found or "-",
        )
        for node in outcome.reasons
        for e in node.exclusions
    ]
    return Table(("NODE", "REQUEST", "DEVICE", "EXCLUDED BY", "WANTED", "FOUND"), rows)
