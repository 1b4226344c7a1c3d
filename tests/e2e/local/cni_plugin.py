"""A CNI plugin: a pair of virtual interfaces between pod and node. Also stands in for ``loopback``.

Copied into containerd's plugin folder and run by it, so standard library only. The pod gets one address of
the range and reaches everything through the node; the node gets a route to that address.
Specification: https://www.cni.dev/docs/spec/ (0.3.1 and 0.4.0).
"""

from __future__ import annotations

import hashlib
import ipaddress
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

VERSIONS = ["0.3.0", "0.3.1", "0.4.0"]


def run(*command: str, check: bool = True) -> None:
    """Runs a command; its failure is the plugin's."""
    done = subprocess.run(command, capture_output=True, text=True)
    if check and done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()}")


def in_pod(*command: str) -> None:
    """Runs a command in the pod's network."""
    run("nsenter", f"--net={os.environ['CNI_NETNS']}", *command)


def reserve(folder: Path, network: str, gateway: str, owner: str) -> str:
    """A free address of the range; exclusive creation of its file makes it ours."""
    folder.mkdir(parents=True, exist_ok=True)
    for address in ipaddress.ip_network(network).hosts():
        if str(address) == gateway:
            continue
        try:
            with (folder / str(address)).open("x") as file:
                file.write(owner)
        except FileExistsError:
            continue
        return str(address)
    raise RuntimeError(f"all addresses of {network} are taken")


def release(folder: Path, owner: str) -> None:
    """Gives back what the owner has."""
    for file in folder.glob("*"):
        if file.read_text() == owner:
            file.unlink()


def interface_name(owner: str) -> str:
    """The node's end; 15 characters is the kernel's limit."""
    return "e2e" + hashlib.sha256(owner.encode()).hexdigest()[:11]


def add(conf: dict[str, Any], owner: str, inner: str) -> dict[str, Any]:
    """Connects a pod."""
    outer, gateway = interface_name(owner), conf["gateway"]
    address = reserve(Path(conf["reservations"]), conf["range"], gateway, owner)
    netns = os.environ["CNI_NETNS"]
    peer = f"p{outer[3:]}"
    run("ip", "link", "add", outer, "type", "veth", "peer", "name", peer)
    run("ip", "link", "set", peer, "netns", netns)
    in_pod("ip", "link", "set", peer, "name", inner)
    in_pod("ip", "address", "add", f"{address}/32", "dev", inner)
    in_pod("ip", "link", "set", inner, "up")
    in_pod("ip", "route", "add", gateway, "dev", inner, "scope", "link")
    in_pod("ip", "route", "add", "default", "via", gateway, "dev", inner)
    run("ip", "link", "set", outer, "up")
    run("ip", "route", "add", f"{address}/32", "dev", outer, "src", gateway)
    return {
        "cniVersion": conf["cniVersion"],
        "interfaces": [{"name": outer}, {"name": inner, "sandbox": netns}],
        "ips": [{"version": "4", "interface": 1, "address": f"{address}/32", "gateway": gateway}],
        "dns": {},
    }


def delete(conf: dict[str, Any], owner: str) -> None:
    """Disconnects a pod; nothing to do is fine."""
    run("ip", "link", "delete", interface_name(owner), check=False)
    release(Path(conf["reservations"]), owner)


def loopback(conf: dict[str, Any]) -> dict[str, Any]:
    """Brings the pod's ``lo`` up."""
    in_pod("ip", "link", "set", "lo", "up")
    return {
        "cniVersion": conf["cniVersion"],
        "interfaces": [{"name": "lo", "sandbox": os.environ["CNI_NETNS"]}],
        "ips": [{"version": "4", "interface": 0, "address": "127.0.0.1/8"}],
        "dns": {},
    }


def main() -> int:
    """One call of the runtime."""
    command = os.environ["CNI_COMMAND"]
    conf = json.load(sys.stdin)
    if command == "VERSION":
        print(json.dumps({"cniVersion": VERSIONS[-1], "supportedVersions": VERSIONS}))
        return 0
    inner = os.environ["CNI_IFNAME"]
    owner = f"{os.environ['CNI_CONTAINERID']}/{inner}"
    try:
        if conf["type"] == "loopback":
            result = loopback(conf) if command == "ADD" else None
        elif command == "ADD":
            result = add(conf, owner, inner)
        else:
            result = None
            if command == "DEL":
                delete(conf, owner)
    except (RuntimeError, OSError) as e:
        print(json.dumps({"cniVersion": conf["cniVersion"], "code": 100, "msg": str(e)}))
        return 1
    if result is not None:
        print(json.dumps(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
