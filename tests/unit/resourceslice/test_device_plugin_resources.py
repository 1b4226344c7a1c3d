"""Which devices of a node a device plugin hands out: names of resources, amounts, policies. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from dra_driver.api import codec
from dra_driver.api.own.inventory import DeviceInventory, Publication
from dra_driver.api.own.policy import DevicePolicy
from dra_driver.api.quantity import Quantity
from dra_driver.api.resource import DeviceClass
from dra_driver.publishing import LEAVING_SECONDS, conditions, count_resources
from dra_driver.resourceslice import DesiredPool, ServerFeatures, build_slices, counted, handed_out

DRIVER = "gpu.example.com"

NVIDIA, AMD, INTEL, INTEL_VF = "nvidia-0", "amd-0", "intel-0", "intel-vf"
NIC, NIC_VF, EFA, UNKNOWN = "mlx-0", "ice-vf", "efa-0", "described"

KINDS: dict[str, dict[str, str]] = {
    NVIDIA: {"type": "gpu", "vendor": "nvidia"},
    AMD: {"type": "partition", "vendor": "amd"},
    INTEL: {"type": "gpu", "vendor": "intel"},
    INTEL_VF: {"type": "vf", "vendor": "intel"},
    NIC: {"type": "nic", "vendor": "mellanox", "rdmaDevice": "mlx5_0"},
    # A NIC's virtual function has the same type and vendor as a GPU's.
    NIC_VF: {"type": "vf", "vendor": "intel", "rdmaDevice": "irdma1"},
    EFA: {"type": "nic", "vendor": "amazon", "rdmaDevice": "efa_0"},
    UNKNOWN: {"type": "accelerator", "vendor": "intel"},
}
NICS = (NIC, NIC_VF, EFA)


def inventory(*devices: dict[str, Any], withheld_for: tuple[str, ...] = ()) -> DeviceInventory:
    found = devices or tuple(
        {"name": name, "attributes": {k: {"string": v} for k, v in facts.items()}}
        for name, facts in KINDS.items()
    )
    body = {
        "metadata": {"name": f"n1.{DRIVER}"},
        "spec": {"nodeName": "n1", "driver": DRIVER, "devices": found},
        "status": {"publication": {"withheldFor": list(withheld_for)}},
    }
    return codec.convert(DeviceInventory, body)


def capacity(**amounts: str) -> dict[str, Quantity]:
    return {name: Quantity.parse(amount) for name, amount in amounts.items()}


def device_class(name: str, resource: str, expression: str) -> DeviceClass:
    spec = {"extendedResourceName": resource, "selectors": [{"cel": {"expression": expression}}]}
    return codec.convert(DeviceClass, {"metadata": {"name": name}, "spec": spec})


def policy(name: str, priority: int = 0, **spec: Any) -> DevicePolicy:
    return codec.convert(DevicePolicy, {"metadata": {"name": name}, "spec": {"priority": priority, **spec}})


def pool(
    counts: dict[str, Quantity],
    *policies: DevicePolicy,
    classes: tuple[DeviceClass, ...] = (),
    of: DeviceInventory | None = None,
) -> DesiredPool:
    served = {c.spec.extended_resource_name or "" for c in classes}
    plugins = handed_out(counted(counts, served), classes)
    return build_slices(of or inventory(), policies, plugins=plugins)


def published(desired: DesiredPool) -> set[str]:
    return {d.name for s in desired.slices for d in s.devices}


@pytest.mark.parametrize(
    ("resource", "withheld"),
    [
        ("nvidia.com/gpu", {NVIDIA}),
        ("nvidia.com/gpu.shared", {NVIDIA}),
        ("nvidia.com/mig-1g.5gb", {NVIDIA}),
        ("nvidia.com/mig-3g.40gb.shared", {NVIDIA}),
        ("amd.com/gpu", {AMD}),
        ("amd.com/cpx_nps4", {AMD}),
        ("amd.com/spx_nps1", {AMD}),
        ("amd.com/gpu_vf", {AMD}),
        ("gpu.intel.com/i915", {INTEL, INTEL_VF}),
        ("gpu.intel.com/xe", {INTEL, INTEL_VF}),
        ("rdma/hca_shared_devices_a", set(NICS)),
        ("vpc.amazonaws.com/efa", {EFA}),
    ],
)
def test_a_well_known_resource_withholds_the_devices_of_its_vendor(resource: str, withheld: set[str]) -> None:
    desired = pool({resource: Quantity.of(8)})
    assert published(desired) == KINDS.keys() - withheld
    assert [w.devices for w in desired.withheld] == [len(withheld)]
    assert desired.withheld_for == (resource,)


@pytest.mark.parametrize(
    "resource",
    [
        "cpu",
        "memory",
        "hugepages-2Mi",
        "gpu",
        "rdma",
        "example.com/gpu",
        "evil-nvidia.com/gpu",
        "nvidia.com/gpu.memory",
        "nvidia.com/gpu/more",
        "nvidia.com/gpumem",
        "nvidia.com/hostdev",
        "nvidia.com/mig-",
        "amd.com/nic",
        "amd.com/xilinx_u280",
        "amd.com/cpx",
        "gpu.intel.com/i915_monitoring",
        "gpu.intel.com/xe_monitoring",
        "gpu.intel.com/monitoring",
        "gpu.intel.com/millicores",
        "gpu.intel.com/memory.max",
        "gpu.intel.com/tiles",
        "habana.ai/gaudi",
    ],
)
def test_other_resources_withhold_nothing(resource: str) -> None:
    desired = pool({resource: Quantity.of(8)})
    assert published(desired) == KINDS.keys()
    assert desired.withheld == ()


@pytest.mark.parametrize(
    ("amount", "counts"),
    [("0", False), ("0.0", False), ("0Gi", False), ("-1", False), ("1n", True), ("8", True), ("1e300", True)],
)
def test_what_is_gone_counts_nothing(amount: str, counts: bool) -> None:
    desired = pool({"nvidia.com/gpu": Quantity.parse(amount)})
    assert (NVIDIA in published(desired)) is not counts


def test_a_device_is_withheld_in_parts_as_well() -> None:
    profile = {
        "name": "1g.10gb",
        "placements": [{"start": s, "size": 1} for s in range(2)],
        "attributes": {"type": {"string": "mig"}},
        "capacity": {"memory": {"value": "10Gi"}},
    }
    facts = {"type": {"string": "gpu"}, "vendor": {"string": "nvidia"}}
    cut = inventory({"name": "gpu-0", "attributes": facts, "partitions": [profile]})
    parts = policy("cut", partitions={"profiles": ["*"]})
    assert len(published(pool({}, parts, of=cut))) == 3
    for counts in (capacity(**{"nvidia.com/mig-1g.10gb": "2"}), capacity(**{"nvidia.com/gpu": "1"})):
        desired = pool(counts, parts, of=cut)
        assert published(desired) == set()
        assert all(not s.shared_counters for s in desired.slices)
        assert not desired.partitioned
    # A class that serves a name of its own with partitions alone concerns their GPU too.
    mig = device_class("mig", "example.com/mig", f'device.attributes["{DRIVER}"].type == "mig"')
    desired = pool(capacity(**{"example.com/mig": "2"}), parts, classes=(mig,), of=cut)
    assert published(desired) == set()
    assert [w.devices for w in desired.withheld] == [1]


def test_without_feature_gates_the_same_is_withheld() -> None:
    plugins = handed_out(counted(capacity(**{"nvidia.com/gpu": "1"})))
    off = ServerFeatures(taints=False, counters=False, multi_allocation=False)
    assert NVIDIA not in published(build_slices(inventory(), features=off, plugins=plugins))


def test_a_class_says_whose_devices_a_name_of_its_own_stands_for() -> None:
    nvidia = f'device.attributes["{DRIVER}"].vendor == "nvidia"'
    own = device_class("own", "example.com/gpu", nvidia)
    desired = pool(capacity(**{"example.com/gpu": "1"}), classes=(own,))
    assert published(desired) == KINDS.keys() - {NVIDIA}
    assert "DeviceClass own" in conditions.published(desired, ServerFeatures()).message
    broken = device_class("own", "example.com/gpu", "device.nonsense ==")
    assert published(pool(capacity(**{"example.com/gpu": "1"}), classes=(broken,))) == KINDS.keys()
    # A well-known name stands for its vendor's devices, whatever a class selects.
    every = device_class("every", "nvidia.com/gpu", "true")
    desired = pool(capacity(**{"nvidia.com/gpu": "1"}), classes=(every,))
    assert published(desired) == KINDS.keys() - {NVIDIA}


def test_policies_decide_where_the_device_plugin_leaves_devices_alone() -> None:
    facts = {"type": {"string": "gpu"}, "vendor": {"string": "nvidia"}}
    two = inventory(
        {"name": "gpu-0", "attributes": {**facts, "model": {"string": "A100"}}},
        {"name": "gpu-1", "attributes": {**facts, "model": {"string": "T4"}}},
    )
    counts = capacity(**{"nvidia.com/gpu": "1"})
    t4 = [{"cel": {"expression": f'device.attributes["{DRIVER}"].model == "T4"'}}]
    free = policy("free", deviceSelectors=t4, besideDevicePlugin="publish")
    desired = pool(counts, free, of=two)
    assert published(desired) == {"gpu-1"}
    assert [w.devices for w in desired.withheld] == [1]
    assert desired.outcomes["free"].devices == 1
    strict = policy("strict", 10, besideDevicePlugin="withhold")
    assert published(pool(counts, free, strict, of=two)) == set()
    assert published(pool(counts, policy("odd", besideDevicePlugin="perhaps"), of=two)) == set()
    desired = pool(counts, policy("all", besideDevicePlugin="publish"), of=two)
    assert (published(desired), desired.withheld, desired.withheld_for) == ({"gpu-0", "gpu-1"}, (), ())


def test_hidden_devices_are_not_said_to_be_withheld() -> None:
    desired = pool(capacity(**{"nvidia.com/gpu": "1"}), policy("hide", hide=True))
    assert (published(desired), desired.withheld) == (set(), ())


def test_a_node_that_counts_very_many_resources_is_told_of_briefly() -> None:
    many = {f"nvidia.com/mig-{'x' * 200}{i}": Quantity.of(1) for i in range(3000)}
    desired = pool(many)
    assert published(desired) == KINDS.keys() - {NVIDIA}
    assert len(desired.withheld_for) == 16
    text = conditions.published(desired, ServerFeatures()).message
    assert "2996 more" in text
    assert len(text) <= 2000


def test_the_condition_names_node_resource_and_the_ways_out() -> None:
    facts = {"type": {"string": "gpu"}, "vendor": {"string": "nvidia"}}
    desired = pool(capacity(**{"nvidia.com/gpu": "8"}), of=inventory({"name": "gpu-0", "attributes": facts}))
    said = conditions.published(desired, ServerFeatures())
    assert (said.status, said.reason) == ("False", "DevicePluginPresent")
    for words in (
        "8 nvidia.com/gpu",
        "node n1",
        "the 1 NVIDIA GPUs",
        "Remove the device plugin from the node",
    ):
        assert words in said.message
    assert "besideDevicePlugin: publish" in said.message
    part = conditions.published(pool(capacity(**{"nvidia.com/gpu": "8"})), ServerFeatures())
    assert (part.status, part.reason) == ("True", "DevicePluginPresent")
    assert f"{len(KINDS) - 1} devices in 1 ResourceSlice" in part.message


# --- device plugins that leave ------------------------------------------------------------------------------


GPU = capacity(**{"nvidia.com/gpu": "8"})
NONE = capacity(**{"nvidia.com/gpu": "0"})


class Looks:
    """A publisher that looks at a Node now and then."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.gone: Mapping[str, float] = {}

    def look(
        self, noted: DeviceInventory, capacity: Mapping[str, Quantity]
    ) -> tuple[Mapping[str, Quantity], float]:
        names = noted.status.publication.withheld_for
        found = count_resources(names, capacity, gone=self.gone, now=self.now)
        self.gone = found.gone
        return found.amounts, found.again


def test_a_kubelet_that_restarts_counts_nothing_for_a_while_and_nothing_is_published() -> None:
    looks = Looks()
    noted = inventory(withheld_for=("nvidia.com/gpu",))
    assert looks.look(noted, GPU) == (GPU, 0.0)
    assert looks.look(noted, NONE) == (NONE, LEAVING_SECONDS)
    looks.now += LEAVING_SECONDS - 1
    assert looks.look(noted, {}) == (NONE, 1.0)
    desired = build_slices(noted, plugins=handed_out(NONE))
    assert NVIDIA not in published(desired)
    assert "until a moment ago" in conditions.published(desired, ServerFeatures()).message
    # It is back, and later the kubelet restarts once more: the time begins anew.
    assert looks.look(noted, GPU) == (GPU, 0.0)
    assert looks.look(noted, NONE) == (NONE, LEAVING_SECONDS)


def test_a_device_plugin_that_stays_away_is_forgotten() -> None:
    looks = Looks()
    noted = inventory(withheld_for=("nvidia.com/gpu",))
    looks.look(noted, NONE)
    looks.now += LEAVING_SECONDS
    assert looks.look(noted, NONE) == ({}, 0.0)
    # What was noted may still be seen for a moment after it was changed.
    assert looks.look(noted, NONE) == ({}, 0.0)
    assert looks.look(inventory(), NONE) == ({}, 0.0)


def test_a_publisher_that_restarts_waits_once_more() -> None:
    noted = inventory(withheld_for=("nvidia.com/gpu",))
    assert Looks().look(noted, {}) == (NONE, LEAVING_SECONDS)
    fresh = inventory()
    assert fresh.status.publication == Publication()
    assert Looks().look(fresh, NONE) == ({}, 0.0)
