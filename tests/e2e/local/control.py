"""What the suite may ask of the harness while it runs: one JSON object a line, one answer each."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Mapping
from pathlib import Path

from local.cluster import LocalCluster


class Control:
    """Serves a Unix socket in a thread, one request after the other."""

    def __init__(self, cluster: LocalCluster, path: Path) -> None:
        self._deeds: Mapping[str, Callable[..., object]] = {
            "restart": cluster.restart,
            "move": cluster.move,
            "replace_server": cluster.replace_server,
            "shut_down": cluster.shut_down,
            "boot": cluster.boot,
            "previous": cluster.install_previous,
            "current": cluster.install,
            "uninstall": cluster.uninstall,
            "agent_flag": cluster.add_agent_flag,
            "controllers": cluster.scale_controller,
            "preempt": cluster.turn_preemption_on,
        }
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.bind(str(path))
        self._socket.listen()
        self._thread = threading.Thread(target=self._serve, name="control", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Ends it, once the present request is answered and its asker gone."""
        self._socket.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._socket.close()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            with connection, connection.makefile("rwb") as stream:
                for line in stream:
                    stream.write(json.dumps(self._answer(line)).encode() + b"\n")
                    stream.flush()

    def _answer(self, line: bytes) -> dict[str, object]:
        request = json.loads(line)
        try:
            return {"done": self._deeds[request.pop("do")](**request)}
        except Exception as e:  # the suite is told, and goes on or fails
            return {"error": f"{type(e).__name__}: {e}"}
