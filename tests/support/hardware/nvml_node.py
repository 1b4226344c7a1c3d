"""Lives of node agents on the NVML stub; see ``nvml_lives``.

The answers to the steps are a line of stdout each, but ``["restart"]`` has none. The API server is in memory,
so that it knows the same claims after a restart of the agent.

``["prepare" | "unprepare", CLAIM, DEVICE[,DEVICE…]]`` repeats the call until it succeeds, as the kubelet
does; ``["refused", CLAIM, DEVICE]`` is a single call of prepare, ``["kept", CLAIM]`` one of unprepare;
``["machine", LINE…]`` puts lines for the whole machine into the stub's configuration, ``["gpu", UUID,
LINE…]`` lines for one GPU until the next such step; ``["devices"]`` looks at the hardware and lists the
inventory, its conditions and the records of claims; ``["samples"]``; ``["administrator", METHOD,
ARGUMENT…]`` changes GPUs behind the agent's back.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

from fake_client import FakeClient
from node_agent import DRIVER, IMPATIENT, add_claim, claim, nvidia_nodes, running

# Imported before the first fork; nothing here starts a thread.
import dra_driver.discovery.nvidia.backend  # noqa: F401
from dra_driver.cli import common
from dra_driver.discovery import open_backend
from dra_driver.discovery.core.control import ToolPaths, control_of
from dra_driver.ports import DeviceBackend, TelemetrySource
from dra_driver.wire import dra_v1_pb2, dra_v1_pb2_grpc

# It reads its kinds once, here before the first fork.
FakeClient()

_SLICING = {
    "apiVersion": "dra-driver.dev/v1alpha1",
    "kind": "GpuConfig",
    "sharing": {"strategy": "TimeSlicing", "timeSlicing": {"interval": "Long"}},
}
_MPS = {"apiVersion": "dra-driver.dev/v1alpha1", "kind": "GpuConfig", "sharing": {"strategy": "MPS"}}


async def _until_done(node: Any, verb: str, body: dict[str, Any]) -> dict[str, Any]:
    """Return the first answer without an error, or the last one after a minute.

    The agent has little patience, so that a call that is to be refused takes no time; a look at the hardware
    may take longer than that on a busy machine.
    """
    end = asyncio.get_running_loop().time() + 60
    while (answer := await _call(node, verb, body))["error"] and asyncio.get_running_loop().time() < end:
        await asyncio.sleep(0.1)
    return answer


async def _call(node: Any, verb: str, body: dict[str, Any]) -> dict[str, Any]:
    reference = dra_v1_pb2.Claim(**{k: body["metadata"][k] for k in ("namespace", "name", "uid")})
    async with node.channel() as channel:
        stub = dra_v1_pb2_grpc.DRAPluginStub(channel)
        if verb not in ("kept", "unprepare"):
            answer = await stub.NodePrepareResources(
                dra_v1_pb2.NodePrepareResourcesRequest(claims=[reference])
            )
        else:
            answer = await stub.NodeUnprepareResources(
                dra_v1_pb2.NodeUnprepareResourcesRequest(claims=[reference])
            )
    uid = body["metadata"]["uid"]
    file = node.config.cdi_dir / f"k8s.{DRIVER}-claim_{uid}.json"
    return {
        "error": answer.claims[uid].error,
        "spec": json.loads(file.read_bytes()) if file.exists() else None,
    }


async def _look(node: Any, verb: str, backend: DeviceBackend, proc: Path, *arguments: Any) -> Any:
    if verb == "administrator":
        method, *rest = arguments
        getattr(control_of(backend, ToolPaths(proc_root=proc)), method)(*rest)
        return {}
    if verb == "machine":
        file = Path(os.environ["NVML_STUB_CONFIG"])
        lines = file.read_text().splitlines()
        lines[: lines.index("gpu")] = [*lines[:2], *arguments]
        file.write_text("\n".join(lines) + "\n")
        return {}
    if verb == "gpu":
        file = Path(os.environ["NVML_STUB_CONFIG"])
        uuid, *more = arguments
        lines = [line for line in file.read_text().splitlines() if not line.startswith("fail ")]
        at = lines.index(f"uuid {uuid}")
        fresh = file.with_suffix(".new")
        fresh.write_text("\n".join([*lines[: at + 1], *more, *lines[at + 1 :]]) + "\n")
        fresh.rename(file)
        return {}
    if verb == "samples":
        assert isinstance(backend, TelemetrySource)
        return {"metrics": node.plugin.observation.metrics.render(backend.sample()).decode()}
    await node.plugin._table.scan()
    devices = node.plugin._table.devices
    return {
        "devices": {d.device.name: d.uuid for d in devices},
        "health": {d.device.name: [h.reason for h in d.device.health] for d in devices},
        "claims": sorted(c.name for c in node.plugin._reservations.records),
    }


async def main(root: Path, steps: list[list[Any]], spec: str) -> None:
    """Lives."""
    common.configure_logging("error", "json")
    kube = FakeClient()
    claims: dict[str, dict[str, Any]] = {}
    settings = {
        "nvidia_smi": str(root / "bin/nvidia-smi"),
        "mps_control": str(root / "bin/nvidia-cuda-mps-control"),
        "mps_launcher": "session",
        "procfs_root": root / "proc",
        "sysfs_root": root / "sys",
        "host_root": root,
        "dev_root": root / "dev",
    }
    nvidia_nodes(root)
    while steps:
        roots = {"sysfs_root": root / "sys", "dev_root": root / "dev", "procfs_root": root / "proc"}
        backend = open_backend(spec, **roots, node_name="node-a")
        async with running(root, kube, backend=backend, settings=settings, timing=IMPATIENT) as node:
            while steps and (step := steps.pop(0)) != ["restart"]:
                if step[0] not in ("kept", "prepare", "refused", "unprepare"):
                    answer = await _look(node, step[0], backend, root / "proc", *step[1:])
                    sys.stdout.write(json.dumps(answer) + "\n")
                    continue
                verb, name, *device = step
                if name not in claims:
                    body = claim(name, *device[0].split(","))
                    if len(device) > 1:
                        opaque = {"driver": DRIVER, "parameters": _MPS if device[1] == "mps" else _SLICING}
                        config = [{"source": "FromClaim", "opaque": opaque}]
                        body["status"]["allocation"]["devices"]["config"] = config
                    claims[name] = add_claim(kube, body)
                call = _call if verb in ("kept", "refused") else _until_done
                sys.stdout.write(json.dumps(await call(node, verb, claims[name])) + "\n")
