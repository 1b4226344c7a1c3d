"""Everything that the controller watches."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import structlog

from controller.allocate.decide import (
    CLAIM_INDEX,
    GROUP_INDEX,
    NODE_INDEX,
    claims_of,
    group_of_claim,
    groups_by,
    nodes_of,
)
from controller.allocate.releasing.doubles import HELD_INDEX, pools_held
from controller.allocate.state.pod_groups import PodGroupInformer, served_pod_groups
from controller.allocate.state.served import informer_when_served
from controller.allocate.state.storage import PODS_OF_CLAIM, StorageInformers, claims_to_be_mounted
from controller.allocate.state.taint_rules import VERSIONS, served_rules, until_rules_are_known
from controller.publish.publisher import POOL_INDEX, pool_of
from dra_driver.api.core import NAMESPACES, NODES, PODS, Namespace, Node, Pod
from dra_driver.api.names import PREEMPTIBLE_LABEL
from dra_driver.api.own.inventory import DEVICE_INVENTORIES, DeviceInventory
from dra_driver.api.own.policy import DEVICE_POLICIES, DevicePolicy
from dra_driver.api.policy import POD_DISRUPTION_BUDGETS, PodDisruptionBudget
from dra_driver.api.resource import (
    DEVICE_CLASSES,
    RESOURCE_CLAIM_TEMPLATES,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    DeviceClass,
    DeviceTaintRule,
    ResourceClaim,
    ResourceClaimTemplate,
    ResourceSlice,
    device_taint_rules,
)
from dra_driver.api.scheduling import POD_GROUP_VERSIONS, pod_groups
from dra_driver.errors import DraError, NotFound
from dra_driver.kube import Informer
from dra_driver.ports import KubeClient
from dra_driver.trimming import NamespaceAllowance

__all__ = ["Informers"]

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Informers:
    """Local copies of what is watched; of PodGroups and taint rules where, and once, the API server has them.

    ``kept_namespaces`` are those whose pods are never preempted; ``namespaces`` are all, for open pools.
    """

    inventories: Informer[DeviceInventory]
    policies: Informer[DevicePolicy]
    slices: Informer[ResourceSlice]
    nodes: Informer[Node]
    classes: Informer[DeviceClass]
    claims: Informer[ResourceClaim]
    templates: Informer[ResourceClaimTemplate]
    pods: Informer[Pod]
    storage: StorageInformers
    pod_groups: PodGroupInformer
    budgets: Informer[PodDisruptionBudget]
    kept_namespaces: Informer[Namespace]
    namespaces: Informer[Namespace]
    taint_rules: Informer[DeviceTaintRule]

    @classmethod
    async def of(cls, client: KubeClient, group_labels: Collection[str]) -> Informers:
        """Return informers that are not started, after the API server has said which kinds it serves.

        Args:
            client: lists and watches.
            group_labels: labels of others that make pods a group.
        """
        allowance = NamespaceAllowance()
        return cls(
            inventories=Informer(client, DEVICE_INVENTORIES),
            policies=Informer(client, DEVICE_POLICIES),
            slices=Informer(client, RESOURCE_SLICES, indices={POOL_INDEX: pool_of}),
            nodes=Informer(client, NODES),
            classes=Informer(client, DEVICE_CLASSES),
            claims=Informer(
                client,
                RESOURCE_CLAIMS,
                indices={HELD_INDEX: pools_held, GROUP_INDEX: group_of_claim},
                keeper=allowance.of_claims(),
            ),
            templates=Informer(client, RESOURCE_CLAIM_TEMPLATES, keeper=allowance.of_templates()),
            pods=Informer(
                client,
                PODS,
                indices={
                    CLAIM_INDEX: claims_of,
                    GROUP_INDEX: groups_by(group_labels),
                    NODE_INDEX: nodes_of,
                    PODS_OF_CLAIM: claims_to_be_mounted,
                },
                keeper=allowance.of_pods(),
            ),
            storage=StorageInformers(client),
            pod_groups=PodGroupInformer(
                await informer_when_served(client, served_pod_groups, pod_groups(POD_GROUP_VERSIONS[0]))
            ),
            budgets=Informer(client, POD_DISRUPTION_BUDGETS, keeper=allowance.of_budgets()),
            kept_namespaces=Informer(client, NAMESPACES, label_selector=f"{PREEMPTIBLE_LABEL}=false"),
            namespaces=Informer(client, NAMESPACES),
            taint_rules=await informer_when_served(client, served_rules, device_taint_rules(VERSIONS[0])),
        )

    def all(self) -> tuple[Informer[Any], ...]:
        """Return all of them."""
        rest = (*self.storage.all(), *self.pod_groups.all())
        return (*self._needed(), *rest, self.policies, self.taint_rules)

    def _needed(self) -> tuple[Informer[Any], ...]:
        return (
            self.inventories,
            self.slices,
            self.nodes,
            self.classes,
            self.claims,
            self.templates,
            self.pods,
        )

    def of_preemption(self) -> tuple[Informer[Any], ...]:
        """Return those that only preemption needs; the right to read budgets may be missing."""
        return (self.budgets, self.kept_namespaces)

    async def wait(self, client: KubeClient) -> None:
        """Wait until they are filled: nothing may be decided before.

        Policies and taint rules may be missing altogether: a cluster where their kind is not installed (yet)
        has none. Storage objects and PodGroups are waited for until it is known whether they may be read.

        Args:
            client: asked whether a kind is there.
        """
        for informer in self._needed():
            await informer.synced.wait()
        await _until_policies(client, self.policies)
        if self.taint_rules.served:
            await until_rules_are_known(client, self.taint_rules)
        await self.storage.settled.wait()
        await self.pod_groups.settled.wait()
        log.info("caches are filled", **{i.resource.plural: len(i) for i in self.all()})


async def _until_policies(client: KubeClient, policies: Informer[DevicePolicy]) -> None:
    """Wait until the policies are known, or until the server says that there is no such kind."""
    while not policies.synced.is_set():
        try:
            await client.list(DEVICE_POLICIES)
        except NotFound:
            log.warning("the kind DevicePolicy is not installed: there are no policies")
            return
        except DraError:
            pass  # the informer logs the same and tries again
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(1.0):
                await policies.synced.wait()
