"""nvidia-smi: time slices, which NVIDIA's library has no call for, and commands for people to run."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from typing import Final

from dra_driver.errors import PrepareError

__all__ = ["TIMEOUT_SECONDS", "removal", "set_time_slice"]

TIMEOUT_SECONDS: Final = 10.0
_NUMBERS: Final = {"Default": 0, "Short": 1, "Medium": 2, "Long": 3}
_MAX_OUTPUT: Final = 300


def set_time_slice(nvidia_smi: str, gpu: str, interval: str, *, timeout: float = TIMEOUT_SECONDS) -> None:
    """Set the time slice of a whole GPU. Blocks for at most ``timeout`` seconds.

    Raises:
        PrepareError: the tool is missing, does not end, or refuses; ``retryable`` where it did not end.
    """
    what = f"time slice {interval} of GPU {gpu}"
    command = [nvidia_smi, "compute-policy", "-i", gpu, "--set-timeslice", str(_NUMBERS[interval])]
    try:
        done = subprocess.run(  # noqa: S603 - no shell, and nothing in it is a user's text
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=timeout,
            check=False,
        )
    except subprocess.TimeoutExpired as e:
        raise PrepareError(f"{what}: {nvidia_smi} did not end within {timeout:g} s", retryable=True) from e
    except OSError as e:
        raise PrepareError(
            f"{what}: it is set through nvidia-smi, and {nvidia_smi!r} cannot be run ({e.strerror or e}); "
            "--nvidia-smi says where it is"
        ) from e
    if done.returncode != 0:
        words = " ".join(done.stdout.decode("utf-8", "replace").split())[:_MAX_OUTPUT]
        raise PrepareError(f"{what}: nvidia-smi ended with {done.returncode}: {words or 'no output'}")


def removal(gpu: str, instances: Sequence[int]) -> str:
    """Return how an administrator destroys MIG instances: compute instances first, then those around them."""
    which = f"-i {gpu} -gi {','.join(map(str, instances))}"
    return f"nvidia-smi mig {which} -dci; nvidia-smi mig {which} -dgi"
