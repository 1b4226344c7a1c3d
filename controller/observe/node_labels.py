"""Labels on nodes that say what GPUs they have, for node selectors and for people.

Made of the DeviceInventory, which is not trusted: keys are from a fixed list, values that are no label
values are left out. Which keys were set is noted in an annotation of the node, so that they go when the facts
go, and labels that others have set under the same names are never removed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import structlog

from controller.observe.tracing import traced
from dra_driver.api.core import NODES, Node
from dra_driver.api.meta import DriverName
from dra_driver.api.own.inventory import DeviceInventory, InventoryDevice, inventory_name
from dra_driver.errors import NotFound
from dra_driver.kube import Handler, Informer, WorkQueue
from dra_driver.ports import KubeClient

__all__ = ["KEYS", "LabelSet", "NodeLabeler", "annotation_of", "labels_of"]

log = structlog.get_logger(__name__)

LabelSet = str  # none, own, nvidia

_OWN: Final = "dra-driver.dev/gpu."
_NVIDIA: Final = "nvidia.com/gpu."
KEYS: Final = frozenset(
    [_OWN + k for k in ("count", "vendor", "model", "architecture", "memory", "driver-version", "clique")]
    + [_NVIDIA + k for k in ("count", "product", "family", "memory", "clique")]
)
_VALUE = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
_MIB: Final = 1 << 20


def annotation_of(driver: str) -> str:
    """Return the annotation that lists the labels which were set for a driver."""
    return f"{driver}/node-labels"


def labels_of(inventory: DeviceInventory, which: LabelSet) -> dict[str, str]:
    """Return the labels of a node. What differs between its GPUs is left out.

    Args:
        inventory: of one driver.
        which: ``own`` names under ``dra-driver.dev``; ``nvidia`` also those that GPU feature discovery set.
    """
    gpus = [d for d in inventory.spec.devices if _text(d, "type") == "gpu"]
    if which == "none" or not gpus:
        return {}
    memory = {d.capacity["memory"].value.value() // _MIB for d in gpus if "memory" in d.capacity}
    facts: dict[str, str | None] = {
        _OWN + "count": str(len(gpus)),
        _OWN + "vendor": _common(gpus, "vendor"),
        _OWN + "model": _common(gpus, "model"),
        _OWN + "architecture": _common(gpus, "architecture"),
        _OWN + "memory": str(memory.pop()) if len(memory) == 1 else None,
        _OWN + "driver-version": _common(gpus, "driverVersion"),
        # Of a fabric over several nodes, so that pods can be kept in one clique of it by a node label.
        _OWN + "clique": _common(gpus, "fabricClique"),
    }
    if which == "nvidia" and facts[_OWN + "vendor"] == "nvidia":
        product = _common(gpus, "productName")
        family = facts[_OWN + "architecture"]
        facts |= {
            _NVIDIA + "count": facts[_OWN + "count"],
            _NVIDIA + "product": product.replace(" ", "-") if product else None,
            _NVIDIA + "family": family.lower() if family else None,
            _NVIDIA + "memory": facts[_OWN + "memory"],
            _NVIDIA + "clique": facts[_OWN + "clique"],
        }
    return {k: v for k, v in facts.items() if v is not None and k in KEYS and _VALUE.fullmatch(v)}


def _text(device: InventoryDevice, name: str) -> str:
    attribute = device.attributes.get(name)
    if attribute is None:
        return ""
    return attribute.string_value or attribute.version_value or ""


def _common(devices: Iterable[InventoryDevice], name: str) -> str | None:
    values = {_text(d, name) for d in devices}
    value = values.pop()
    return value if value and not values else None


class NodeLabeler:
    """Keeps the labels of every node with an inventory of our drivers."""

    def __init__(
        self,
        client: KubeClient,
        drivers: tuple[DriverName, ...],
        which: LabelSet,
        believed: Callable[[DeviceInventory, Node], bool],
        *,
        inventories: Informer[DeviceInventory],
        nodes: Informer[Node],
    ) -> None:
        """Connect the parts.

        Args:
            client: patches nodes.
            drivers: ours.
            which: label set; ``none`` removes what was set before.
            believed: whether an inventory is by its own node.
            inventories: what there is.
            nodes: what labels they have.
        """
        self._client = client
        self._drivers = drivers
        self._which = which
        self._believed = believed
        self._inventories = inventories
        self._nodes = nodes
        self.queue: WorkQueue[str] = WorkQueue("node-labels", max_delay=300.0)
        inventories.add_handler(
            Handler(
                added=self._changed,
                updated=self._updated,
                deleted=self._changed,
            )
        )
        nodes.add_handler(
            Handler(
                added=lambda n: self.queue.add(n.metadata.name),
                updated=lambda old, n: (
                    self.queue.add(n.metadata.name)
                    if (old.metadata.labels, old.metadata.annotations)
                    != (n.metadata.labels, n.metadata.annotations)
                    else None
                ),
            )
        )

    def _changed(self, inventory: DeviceInventory) -> None:
        self.queue.add(inventory.spec.node_name)

    def _updated(self, old: DeviceInventory, new: DeviceInventory) -> None:
        # Whether an inventory is believed depends on its owner. Its status does not matter here.
        if (old.spec, old.metadata.owner_references) != (new.spec, new.metadata.owner_references):
            self._changed(new)

    async def run(self) -> None:
        """Label nodes until cancelled."""
        await self.queue.process(traced("label node", self.reconcile))

    async def reconcile(self, name: str) -> None:
        """Bring the labels of one node up to date."""
        node = self._nodes.get_by_name(name)
        if node is None or node.metadata.deletion_timestamp:
            return
        for driver in self._drivers:
            inventory = self._inventories.get_by_name(inventory_name(name, driver))
            wanted: dict[str, str] = {}
            if inventory is not None and self._believed(inventory, node):
                wanted = labels_of(inventory, self._which)
            patch = _patch(node, driver, wanted)
            if patch:
                try:
                    node = await self._client.merge_patch(NODES, name, {"metadata": patch})
                except NotFound:
                    return
                log.info("node labelled", node=name, driver=driver, labels=len(wanted))


def _patch(node: Node, driver: str, wanted: Mapping[str, str]) -> dict[str, Any]:
    """Return what to change in the node's metadata; empty where nothing is."""
    labels, annotations = node.metadata.labels or {}, node.metadata.annotations or {}
    key = annotation_of(driver)
    before = {k for k in annotations.get(key, "").split(",") if k in KEYS}
    changes: dict[str, str | None] = {k: v for k, v in wanted.items() if labels.get(k) != v}
    changes |= {k: None for k in before - wanted.keys() if k in labels}
    noted = ",".join(sorted(wanted))
    patch: dict[str, Any] = {"labels": changes} if changes else {}
    if annotations.get(key, "") != noted:
        patch["annotations"] = {key: noted or None}
    return patch
