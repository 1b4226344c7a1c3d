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

# One process per daemon, with sockets and modes as NVIDIA's has them (release 550). It listens where clients
# connect, and ends when a signal asks it to, unless it hangs; a server of it runs until it is ended, too. One
# of another user goes to the daemon by path, and writes down whether it got there.
_MPS = """#!{python}
import json, os, signal, socket, subprocess, sys, time
pipe = os.environ["CUDA_MPS_PIPE_DIRECTORY"]


def record(*words):
    with open({log!r}, "a") as log:
        log.write(json.dumps(["mps", os.environ.get("CUDA_VISIBLE_DEVICES", ""), *words]) + "\\n")


def end(*_):
    if {hangs}:
        return
    record("ended")
    sys.exit(0)


if sys.argv[1:2] == ["server"]:
    time.sleep(300)
    sys.exit(0)
record(*sys.argv[1:])
if {broken}:
    sys.exit(0)
if sys.argv[1] == "-d" and os.fork():
    sys.exit(0)
os.setsid() if sys.argv[1] == "-d" else None
signal.signal(signal.SIGTERM, end)
with open(os.path.join(pipe, "nvidia-cuda-mps-control.pid"), "w") as file:
    file.write(str(os.getpid()))
listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
listener.bind(os.path.join(pipe, "control"))
os.chmod(os.path.join(pipe, "control"), 0o666)
os.mkfifo(os.path.join(pipe, "log"))
os.chmod(os.path.join(pipe, "log"), 0o777)
listener.listen()
if {user} and not os.fork():
    with open({log!r}, "a") as log:
        os.setgroups([])
        os.setgid({user})
        os.setuid({user})
        try:
            os.close(os.open(os.path.join(pipe, "log"), os.O_RDWR | os.O_NONBLOCK))
            socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET).connect(os.path.join(pipe, "control"))
            answer = "connected"
        except OSError as e:
            answer = str(e)
        log.write(json.dumps(["server", answer]) + "\\n")
    os._exit(0)
if {server}:
    subprocess.Popen([sys.argv[0], "server"], start_new_session=True)
deadline = time.monotonic() + 300
while time.monotonic() < deadline:
    time.sleep(0.05)
"""


def runs(pid: int) -> bool:
    """Return whether a process runs; one that was not waited for yet does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


class Tools:
    """Scripts in ``folder`` and what they were asked."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.log = folder / "asked.jsonl"
        self.nvidia_smi = self.write_smi("")
        self.mps_control = self.write_mps()

    def write_smi(self, body: str) -> Path:
        """A new nvidia-smi; ``body`` is Python."""
        return self._write("nvidia-smi", _SMI.format(python=sys.executable, log=str(self.log), body=body))

    def write_mps(
        self, *, broken: bool = False, hangs: bool = False, server: bool = False, user: int = 0
    ) -> Path:
        """A new control tool: a broken daemon never runs, one that hangs ends only if it is killed.

        ``user`` is the user ID of a server that connects once.
        """
        text = _MPS.format(
            python=sys.executable, log=str(self.log), broken=broken, hangs=hangs, server=server, user=user
        )
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
