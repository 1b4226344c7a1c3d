"""What discovery says that a container needs, in the form of CDI."""

from __future__ import annotations

from dra_driver import cdi
from dra_driver.ports import CdiMaterial, DeviceNode

__all__ = ["container_edits"]


def container_edits(material: CdiMaterial) -> cdi.ContainerEdits:
    """Return the same as edits of a CDI document."""
    return cdi.ContainerEdits(
        env=tuple(f"{name}={value}" for name, value in (material.env or {}).items()),
        device_nodes=tuple(_node(n) for n in material.device_nodes),
        mounts=tuple(
            cdi.Mount(host_path=m.host_path, container_path=m.container_path, options=m.options)
            for m in material.mounts
        ),
        hooks=tuple(cdi.Hook(hook_name=h.name, path=h.path, args=h.args, env=h.env) for h in material.hooks),
    )


def _node(node: DeviceNode) -> cdi.DeviceNode:
    if node.major:
        # With type and major given, container runtimes (CDI library 0.3.0 to 1.1.0) do not need the node on
        # the host. The cgroup need not let the container create nodes, so the permissions are without "m".
        return cdi.DeviceNode(
            path=node.path,
            type="c",
            major=node.major,
            minor=node.minor,
            file_mode=node.mode,
            permissions="rw",
        )
    host_path = node.host_path if node.host_path and node.host_path != node.path else ""
    return cdi.DeviceNode(path=node.path, host_path=host_path)
