"""CDI documents: what a container runtime does to a container that gets a device.

Pure: structs, names, the oldest version that a content allows, validity. Files are the business of the node
agent.
"""

from __future__ import annotations

from dra_driver.cdi.own_nodes import own_nodes
from dra_driver.cdi.parts import Parts
from dra_driver.cdi.rules import (
    minimum_version,
    qualified_name,
    validate,
    with_minimum_version,
)
from dra_driver.cdi.spec import (
    ContainerEdits,
    Device,
    DeviceNode,
    Hook,
    IntelRdt,
    Mount,
    NetDevice,
    Spec,
    character_device,
    decode,
    encode,
    merge,
    read_only_mount,
)
from dra_driver.cdi.yaml_form import json_of_yaml

__all__ = [
    "ContainerEdits",
    "Device",
    "DeviceNode",
    "Hook",
    "IntelRdt",
    "Mount",
    "NetDevice",
    "Parts",
    "Spec",
    "character_device",
    "decode",
    "encode",
    "json_of_yaml",
    "merge",
    "minimum_version",
    "own_nodes",
    "qualified_name",
    "read_only_mount",
    "validate",
    "with_minimum_version",
]
