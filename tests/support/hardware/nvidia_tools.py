"""Stand-ins for nvidia-smi and nvidia-cuda-mps-control that write down what they were asked."""

from __future__ import annotations

import json
import sys
from pathlib import Path

_SMI = """#!{python}
import json, os, sys, time
with open({log!r}, "a") as log:
    log.write(json.dumps(["nvidia-smi", *sys.argv[1:]]) + "\\n")
{body}
"""

# One process per daemon: it waits for "quit" in its pipe directory, and answers through a named pipe.
_MPS = """#!{python}
import json, os, sys, time
pipe = os.environ["CUDA_MPS_PIPE_DIRECTORY"]
ready = os.path.join(pipe, "control")
pid = os.path.join(pipe, "nvidia-cuda-mps-control.pid")


def record(*words):
    with open({log!r}, "a") as log:
        log.write(json.dumps(["mps", os.environ.get("CUDA_VISIBLE_DEVICES", ""), *words]) + "\\n")


def alive():
    try:
        stat = open("/proc/%d/stat" % int(open(pid).read())).read()
    except (OSError, ValueError):
        return False
    # One that was killed and that nobody has waited for yet is none.
    return stat.rpartition(")")[2].split()[0] not in "ZX"


if sys.argv[1:2] in (["-d"], ["-f"]):
    record(*sys.argv[1:])
    if {broken}:
        sys.exit(0)
    if sys.argv[1] == "-d" and os.fork():
        sys.exit(0)
    os.setsid() if sys.argv[1] == "-d" else None
    with open(pid, "w") as file:
        file.write(str(os.getpid()))
    open(ready, "w").close()
    end = time.monotonic() + 300
    while os.path.exists(ready) and time.monotonic() < end:
        time.sleep(0.02)
    sys.exit(0)
words = sys.stdin.read().split()
if not alive():
    print("Cannot find MPS control daemon process")
    sys.exit(1)
if words[:1] == ["quit"]:
    record(*words)
    os.unlink(ready)
else:
    print("100.0")
"""


class Tools:
    """Scripts in ``folder`` and what they were asked."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.log = folder / "asked.jsonl"
        self.nvidia_smi = self.write_smi("")
        self.mps_control = self.write_mps(broken=False)

    def write_smi(self, body: str) -> Path:
        """A new nvidia-smi; ``body`` is Python."""
        return self._write("nvidia-smi", _SMI.format(python=sys.executable, log=str(self.log), body=body))

    def write_mps(self, *, broken: bool) -> Path:
        """A new control tool; a broken daemon never answers."""
        text = _MPS.format(python=sys.executable, log=str(self.log), broken=broken)
        return self._write("nvidia-cuda-mps-control", text)

    def asked(self, tool: str) -> list[list[str]]:
        """Arguments of every call, in order; of the daemons, the GPU first."""
        if not self.log.exists():
            return []
        calls = [json.loads(line) for line in self.log.read_text().splitlines()]
        return [call[1:] for call in calls if call[0] == tool]

    def _write(self, name: str, text: str) -> Path:
        path = self.folder / name
        path.write_text(text)
        path.chmod(0o755)
        return path
